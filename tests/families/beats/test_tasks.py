"""What waits in a spool: every event that is not acknowledged, in order, whatever became of the position or the frames."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PathRefused
from penstock.families.beats.location import resolve
from penstock.families.beats.rows import tasks
from penstock.families.damage import Damage
from penstock.formats.beats.event import encode_event
from penstock.formats.beats.frame import encode_frames
from penstock.formats.beats.segment import Options, PayloadFormat
from penstock.formats.beats.task_event import encode_tasks
from penstock.storage.spool import Spool
from support.beats_spools import (
    BAD_END,
    BAD_PAYLOAD,
    EMPTY,
    FUTURE_VERSION,
    HALF_HEADER,
    HUGE_LENGTH,
    KEY,
    PLAIN,
    SHORT_LENGTH,
    TORN,
    UNKNOWN_OPTION,
    VECTORS,
    A,
    B,
    sealed,
    some_events,
    spool,
    stored,
)
from support.damage import overwritten

Row = dict[str, Any]


def listed(
    path: Path, *, key: bytes | None = None, queue: str | None = None
) -> tuple[list[Row], list[Damage]]:
    found_damage: list[Damage] = []
    rows = list(tasks(resolve(path), key=key, report=found_damage.append, queue=queue))
    return rows, found_damage


def events(path: Path, *, key: bytes | None = None) -> list[Any]:
    return [row["event"] for row in listed(path, key=key)[0]]


# --- every form of a segment ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v0_json", [A, B]),
        ("v1_cbor", [A, B]),
        ("v2_cbor", [A, B]),
        ("v2_cbor_lz4", [A, B]),
        ("v2_cbor_lz4_unclean", [A, B]),
        ("v2_cbor_aes", [A]),
        ("v2_cbor_aes_lz4", [A]),
    ],
)
def test_every_kind_of_segment_gives_its_events(
    tmp_path: Path, name: str, expected: list[Any]
) -> None:
    path = spool(tmp_path / "queue", {0: VECTORS[name]})
    assert events(path, key=KEY) == expected
    assert events(path / "0.seg", key=KEY) == expected


@pytest.mark.parametrize("name", ["v2_proto_gen2", "v2_proto_gen3"])
def test_protobuf_gives_its_events_without_flags(tmp_path: Path, name: str) -> None:
    (event,) = events(spool(tmp_path / "queue", {0: VECTORS[name]}))
    assert (event["timestamp"], event["flags"]) == (A["timestamp"], 0)
    assert event["fields"] == A["fields"]
    assert event["meta"]["_id"] == "a-1"


def test_segments_come_by_number_whatever_they_are_written_in(tmp_path: Path) -> None:
    names = ["v0_json", "v1_cbor", "v2_cbor_lz4", "v2_cbor"]
    path = spool(
        tmp_path / "queue",
        {number: VECTORS[name] for number, name in zip((2, 9, 10, 100), names, strict=True)},
    )
    rows, found_damage = listed(path)
    assert [row["segment"] for row in rows] == [2, 2, 9, 9, 10, 10, 100, 100]
    assert [row["offset"] for row in rows] == [4, 116, 8, 87, 12, 91, 12, 91]
    assert found_damage == []


def test_a_row_holds_the_bytes_of_the_frame_and_the_event(tmp_path: Path) -> None:
    rows, _ = listed(spool(tmp_path / "diskqueue", {3: PLAIN}))
    assert [list(row) for row in rows] == [
        ["queue", "key", "segment", "offset", "seq", "event", "payload"]
    ] * 2
    assert [(row["queue"], row["key"], row["segment"], row["seq"]) for row in rows] == [
        ("diskqueue", 0, 3, 0),
        ("diskqueue", 0, 3, 1),
    ]
    assert [b64decode(row["payload"]) for row in rows] == [PLAIN[16:83], PLAIN[95:212]]


def test_tasks_of_ours_say_their_queue_and_key(tmp_path: Path) -> None:
    payloads = encode_tasks("orders", [b"one", b"two"], [7, -7], timestamp=0)
    payloads += encode_tasks("bills", [b"three"], [0], timestamp=0, ttl_ms=5)
    path = spool(tmp_path / "queue", {0: sealed(payloads), 1: PLAIN})
    rows, _ = listed(path)
    expected = [("orders", 7), ("orders", -7), ("bills", 0), ("queue", 0), ("queue", 0)]
    assert [(row["queue"], row["key"]) for row in rows] == expected
    assert [b64decode(row["payload"]) for row in rows[:3]] == payloads
    for queue in ("orders", "bills", "queue", "other"):
        chosen, _ = listed(path, queue=queue)
        assert chosen == [row for row in rows if row["queue"] == queue]


# --- the position: section 5, recommendation 2 and the cases of 9.11 -----------------------------

POSITIONS = {
    "no state": (None, [A, B, A], []),
    "an empty state": (b"", [A, B, A], []),
    "a torn state": (stored(0, 91, 1)[:27], [A, B, A], ["bad-state"]),
    "a torn state of version 0": (VECTORS["state_v0"][:19], [A, B, A], ["bad-state"]),
    "a state of the future": (
        overwritten(stored(0, 91, 1), 0, b"\2"),
        [A, B, A],
        ["bad-state"],
    ),
    "behind the first": (stored(0, 91, 1), [B, A], []),
    "with bytes behind it": (stored(0, 91, 1) + b"more", [B, A], []),
    "at the end": (stored(0, 220, 2), [A], []),
    "past the end": (stored(0, 400, 3), [A], ["past-end"]),
    "off a boundary": (stored(0, 90, 1), [A, B, A], ["off-boundary"]),
    "with too many frames before it": (stored(0, 91, 2), [A, B, A], ["off-boundary"]),
    "with no frames before it": (stored(0, 91, 0), [A, B, A], []),
    "in the next segment": (stored(1, 0, 0), [A], []),
    "in a segment that is gone": (stored(5, 91, 1), [], ["past-end"]),
    "of version 0 on a segment of version 2": (VECTORS["state_v0"], [A, B, A], ["off-boundary"]),
}


@pytest.mark.parametrize(("state", "expected", "statuses"), POSITIONS.values(), ids=POSITIONS)
def test_what_waits_is_behind_the_position_if_that_can_be_believed(
    tmp_path: Path, state: bytes | None, expected: list[Any], statuses: list[str]
) -> None:
    only_a = sealed([PLAIN[16:83]])
    path = spool(tmp_path / "queue", {0: PLAIN, 1: only_a}, state)
    rows, found_damage = listed(path)
    assert [row["event"] for row in rows] == expected
    assert [damage.status for damage in found_damage] == statuses


@pytest.mark.parametrize("name", ["v0_json", "v1_cbor", "v2_cbor_lz4"])
def test_a_position_is_logical_in_every_version(tmp_path: Path, name: str) -> None:
    offset = {"v0_json": 116, "v1_cbor": 87, "v2_cbor_lz4": 91}[name]
    path = spool(tmp_path / "queue", {0: VECTORS[name]}, stored(0, offset, 1))
    rows, found_damage = listed(path)
    assert [(row["event"], row["seq"]) for row in rows] == [(B, 1)]
    assert found_damage == []


def test_a_position_of_version_0_counts_from_behind_the_header(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: VECTORS["v0_json"]}, VECTORS["state_v0"])
    rows, found_damage = listed(path)
    assert [(row["event"], row["seq"]) for row in rows] == [(B, 1)]
    assert found_damage == []


def test_a_position_before_the_oldest_segment_means_its_start(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {7: PLAIN}, stored(3, 91, 1))
    assert events(path) == [A, B]


def test_a_position_behind_a_damaged_frame_is_believed(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: BAD_PAYLOAD}, stored(0, 91, 1))
    rows, found_damage = listed(path)
    assert ([row["event"] for row in rows], found_damage) == ([B], [])


# --- damage --------------------------------------------------------------------------------------

DAMAGE = {
    "torn tail": (TORN, [A], [("torn", 91, 109)]),
    "payload": (BAD_PAYLOAD, [B], [("bad-checksum", 12, 79)]),
    "length at the end": (BAD_END, [A, B], [("bad-end", 12, 79)]),
    "huge length": (HUGE_LENGTH, [B], [("gap", 12, 79)]),
    "short length": (SHORT_LENGTH, [B], [("gap", 12, 79)]),
    "empty": (EMPTY, [], []),
    "half a header": (HALF_HEADER, [], [("torn", 0, 7)]),
    "future version": (FUTURE_VERSION, [], [("unsupported", 0, None)]),
    "unknown option": (UNKNOWN_OPTION, [], [("unsupported", 8, None)]),
    "nothing at all": (b"", [], [("torn", 0, 0)]),
}


@pytest.mark.parametrize("is_newest", [False, True])
@pytest.mark.parametrize(("data", "expected", "found"), DAMAGE.values(), ids=DAMAGE)
def test_one_bad_frame_costs_one_event(
    tmp_path: Path, data: bytes, expected: list[Any], found: list[Any], is_newest: bool
) -> None:
    segments: dict[int | str, bytes] = {4: data} if is_newest else {4: data, 5: PLAIN}
    rows, found_damage = listed(spool(tmp_path / "queue", segments))
    assert [row["event"] for row in rows if row["segment"] == 4] == expected
    assert [(t.status, t.offset, t.size) for t in found_damage] == found
    assert is_newest or [row["event"] for row in rows if row["segment"] == 5] == [A, B]


def test_a_torn_tail_is_expected_where_a_writer_was_at_work(tmp_path: Path) -> None:
    closed = PLAIN[:200]  # the header counts two frames
    for name, data, is_newest, is_expected in [
        ("open", TORN, False, True),
        ("newest", closed, True, True),
        ("closed", closed, False, False),
    ]:
        segments: dict[int | str, bytes] = {0: data} if is_newest else {0: data, 1: PLAIN}
        _, (damage,) = listed(spool(tmp_path / name, segments))
        assert (damage.status, damage.is_harmless) == ("torn", is_expected)
        assert damage.is_lost is not is_expected


def test_a_segment_of_nothing_but_rubbish_is_no_torn_tail(tmp_path: Path) -> None:
    rubbish = EMPTY + b"\xee" * 1000
    _, (damage,) = listed(spool(tmp_path / "queue", {0: rubbish}))
    assert (damage.status, damage.is_harmless) == ("torn", False)


def test_a_payload_that_is_no_event_is_listed_all_the_same(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: sealed([b"no event", PLAIN[16:83]])})
    rows, (damage,) = listed(path)
    assert [row["event"] for row in rows] == [None, A]
    assert b64decode(rows[0]["payload"]) == b"no event"
    assert (damage.status, damage.offset, damage.is_lost) == ("bad-event", 12, True)


def test_what_is_compressed_is_read_up_to_its_damage(tmp_path: Path) -> None:
    payloads = [encode_event(event, PayloadFormat.CBOR) for event in some_events(100)]
    whole = sealed(payloads, options=Options.COMPRESSED)
    damaged = VECTORS["v2_cbor_lz4_unclean"] + b"\xff" * 100  # a third block that is none
    path = spool(tmp_path / "queue", {0: damaged, 1: whole})
    rows, found_damage = listed(path)
    assert [row["event"] for row in rows if row["segment"] == 0] == [A, B]
    assert [row["seq"] for row in rows if row["segment"] == 1] == list(range(100))
    assert [t.status for t in found_damage if not t.is_harmless] == ["bad-body"]


def test_a_block_that_was_not_written_to_its_end_is_torn(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: VECTORS["v2_cbor_lz4_unclean"][:-10]})
    rows, (damage,) = listed(path)
    assert [row["event"] for row in rows] == [A]
    assert (damage.status, damage.offset, damage.is_harmless) == ("torn", 91, True)


# --- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["v2_cbor_aes", "v2_cbor_aes_lz4"])
def test_without_the_right_key_nothing_is_delivered(tmp_path: Path, name: str) -> None:
    path = spool(tmp_path / "queue", {0: VECTORS[name], 1: PLAIN})
    for key, status, words in [
        (None, "no-key", "the segment is encrypted"),
        (bytes(16), "wrong-key", "wrong key or damaged"),
    ]:
        rows, (damage,) = listed(path, key=key)
        assert [row["segment"] for row in rows] == [1, 1]
        assert (damage.status, damage.is_lost) == (status, True)
        assert words in damage.reason
    assert (path / "0.seg").read_bytes() == VECTORS[name]


def test_a_damaged_frame_under_the_right_key_is_no_wrong_key(tmp_path: Path) -> None:
    data = sealed([PLAIN[16:83], PLAIN[95:212]], options=Options.ENCRYPTED, key=KEY)
    path = spool(tmp_path / "queue", {0: overwritten(data, 40, bytes([data[40] ^ 1]))})
    rows, (damage,) = listed(path, key=KEY)
    assert ([row["event"] for row in rows], damage.status) == ([B], "bad-checksum")


def test_a_torn_tail_behind_the_position_is_no_wrong_key(tmp_path: Path) -> None:
    data = sealed([PLAIN[16:83], PLAIN[95:212]], options=Options.ENCRYPTED, key=KEY)
    path = spool(tmp_path / "queue", {0: data[:-9]}, stored(0, 91, 1))
    rows, (damage,) = listed(path, key=KEY)
    assert (rows, damage.status, damage.is_harmless) == ([], "torn", True)


def test_an_encrypted_segment_that_ends_in_its_vector_is_torn(tmp_path: Path) -> None:
    for size, statuses in [(12, []), (20, ["torn"]), (28, [])]:
        path = spool(tmp_path / str(size), {0: VECTORS["v2_cbor_aes"][:size]})
        rows, found_damage = listed(path, key=KEY)
        assert (rows, [damage.status for damage in found_damage]) == ([], statuses)


# --- odd directories -----------------------------------------------------------------------------


def test_a_second_file_of_the_same_number_is_told_and_not_read(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {"007.seg": VECTORS["v1_cbor"], "7.seg": PLAIN})
    rows, (damage,) = listed(path)
    assert [row["offset"] for row in rows] == [12, 91]
    assert (damage.status, damage.path.name) == ("duplicate", "007.seg")
    assert events(path / "007.seg") == [A, B]


def test_names_that_are_no_segments_are_passed_over(tmp_path: Path) -> None:
    others = [
        "x.seg",
        "1.seg.bak",
        "-1.seg",
        "1.2.seg",
        "penstock.lock",
        "18446744073709551616.seg",
    ]
    path = spool(tmp_path / "queue", {0: PLAIN, "3.SEG": PLAIN, **dict.fromkeys(others, b"x")})
    rows, found_damage = listed(path)
    assert ([row["segment"] for row in rows], found_damage) == ([0, 0, 3, 3], [])


def test_a_directory_in_place_of_a_segment_is_told(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: PLAIN, 6: PLAIN})
    (path / "5.seg").mkdir()
    rows, (damage,) = listed(path)
    assert ([row["segment"] for row in rows], damage.status) == ([0, 0, 6, 6], "unreadable")


def test_a_segment_that_its_owner_removes_meanwhile_is_passed_over(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: PLAIN, 1: PLAIN})
    location = resolve(path)
    (path / "0.seg").unlink()
    found_damage: list[Damage] = []
    rows = list(tasks(location, key=None, report=found_damage.append))
    assert [row["segment"] for row in rows] == [1, 1]
    assert [(damage.status, damage.is_harmless) for damage in found_damage] == [("gone", True)]


def test_a_segment_that_grows_meanwhile_is_read_as_far_as_it_is_there(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: EMPTY + encode_frames([PLAIN[16:83]])})
    location = resolve(path)
    with (path / "0.seg").open("ab") as file:
        file.write(encode_frames([PLAIN[95:212]])[:-1])
    found_damage: list[Damage] = []
    rows = list(tasks(location, key=None, report=found_damage.append))
    assert [row["event"] for row in rows] == [A]
    assert [(damage.status, damage.is_harmless) for damage in found_damage] == [("torn", True)]


def test_a_spool_of_ours_is_read_while_it_is_open(tmp_path: Path) -> None:
    payloads = encode_tasks("orders", [b"%d" % n for n in range(50)], [0] * 50, timestamp=0)
    with Spool(tmp_path / "spool") as spooling:
        spooling.publish(payloads)
        assert len(listed(tmp_path / "spool")[0]) == 50
        batch = spooling.read(20)
        assert batch is not None
        spooling.acknowledge(batch)
        spooling.save()
        rows, found_damage = listed(tmp_path / "spool")
    assert [b64decode(row["payload"]) for row in rows] == payloads[20:]
    assert found_damage == []


def test_a_position_alone_holds_no_events(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {}, stored(0, 0, 0))
    assert listed(path) == ([], [])
    with pytest.raises(PathRefused, match="no events"):
        listed(path / "state.dat")
