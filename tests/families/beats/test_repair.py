"""Salvage of a spool: all whole frames are in the new one, which is whole, and the position is before the same event."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PathRefused
from penstock.families.beats.location import resolve
from penstock.families.beats.repair import Repaired, repair
from penstock.families.beats.rows import dump, tasks
from penstock.families.beats.verify import verify
from penstock.formats.beats.frame import Frame, encode_frames, read_frames
from penstock.formats.beats.segment import Header, Options, decode_header, encode_header
from penstock.formats.beats.state import Position, State, decode_state, encode_state
from support.beats_golden import shown, unpacked
from support.beats_spools import (
    BAD_END,
    BAD_PAYLOAD,
    FUTURE_VERSION,
    HUGE_LENGTH,
    KEY,
    PLAIN,
    TORN,
    VECTORS,
    payloads_of,
    sealed,
    some_events,
    spool,
    stored,
)
from support.damage import overwritten, random_damage

Row = dict[str, Any]

KINDS = [(0, Options(0)), (1, Options(0)), *((2, Options(bits)) for bits in range(8))]


def repaired(path: Path, out: Path, *, key: bytes | None = KEY) -> tuple[list[Row], Repaired]:
    result = Repaired()
    return list(repair(resolve(path), out, result, key=key)), result


def waiting(path: Path) -> list[Row]:
    return list(tasks(resolve(path), key=KEY, report=lambda _: None))


def frames(path: Path) -> list[Row]:
    rows = dump(resolve(path), key=KEY)
    return [row for row in rows if row["kind"] == "frame" and row["status"] != "bad-event"]


def contents(rows: list[Row]) -> list[tuple[int, str]]:
    return [(row["segment"], row["payload"]) for row in rows]


def check(path: Path, out: Path) -> tuple[list[Row], Repaired]:
    """Repair a spool, and hold the result to what can be read of the source."""
    rows, result = repaired(path, out)
    assert contents(frames(out)) == contents(frames(path))
    is_event = [row for row in waiting(path) if row["event"] is not None]
    assert contents(waiting(out)) == contents(is_event)
    found = [(row["status"], row["severity"]) for row in verify(resolve(out), key=KEY)]
    assert set(found) <= {("past-end", "harmless")}
    return rows, result


@pytest.mark.parametrize(("version", "options"), KINDS)
def test_a_segment_keeps_its_number_version_and_options(
    tmp_path: Path, version: int, options: Options
) -> None:
    payloads = payloads_of(some_events(50), Header(version, 0, options))
    data = sealed(payloads, version=version, options=options, count=0, key=KEY)
    path = spool(tmp_path / "queue", {31: data}, stored(31, 0, 0))
    rows, result = check(path, tmp_path / "out")
    assert (rows, result.frames, result.left) == ([], 50, 0)
    header = decode_header((tmp_path / "out" / "31.seg").read_bytes())
    assert header == Header(version, 50 if version else 0, options)


def test_the_vector_of_an_encrypted_segment_is_never_used_again(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: VECTORS["v2_cbor_aes"]})
    check(path, tmp_path / "one")
    check(path, tmp_path / "two")
    vectors = {
        (place / "0.seg").read_bytes()[12:28]
        for place in (path, tmp_path / "one", tmp_path / "two")
    }
    assert len(vectors) == 3


@pytest.mark.parametrize(
    ("state", "position"),
    [
        (stored(0, 12, 0), Position(0)),
        (stored(0, 91, 1), Position(0)),  # the frame before it is not taken along
        (stored(0, 220, 2), Position(0, 141, 1)),
        (stored(0, 4000, 20), Position(0, 141, 1)),
        (stored(0, 90, 1), Position(0)),
        (stored(1, 91, 1), Position(1, 91, 1)),
        (stored(7, 91, 1), Position(7)),
        (None, Position(0)),
        (b"", Position(0)),
    ],
)
def test_the_position_is_carried_over(
    tmp_path: Path, state: bytes | None, position: Position
) -> None:
    path = spool(tmp_path / "queue", {0: BAD_PAYLOAD, 1: PLAIN}, state)
    rows, _ = check(path, tmp_path / "out")
    assert [row["status"] for row in rows] == ["bad-checksum"]
    written = decode_state((tmp_path / "out" / "state.dat").read_bytes())
    assert written == State(position)


def test_what_was_on_its_way_is_carried_over_only_where_it_was(tmp_path: Path) -> None:
    state = State(Position(0, 91, 1), sending=Position(0, 220, 2))
    for name, data, expected in (
        ("same", PLAIN, state),
        ("mended", BAD_END, state),
        ("moved", BAD_PAYLOAD, State(Position(0))),
    ):
        path = spool(tmp_path / name, {0: data}, encode_state(state))
        (path / "penstock.producer").write_text("ab" * 16)
        out = tmp_path / f"{name}-repaired"
        _, result = check(path, out)
        assert decode_state((out / "state.dat").read_bytes()) == expected
        assert (out / "penstock.producer").exists() == (expected == state)
        assert result.is_round_lost == (expected != state)


def position_of_7_13(state: bytes) -> tuple[int, int] | None:
    """Return segment and offset as Beats 7.13 reads them; ``None``: it starts at the oldest segment again."""
    if len(state) < 20 or state[:4] != bytes(4):
        return None
    segment, offset = struct.unpack_from("<QQ", state, 4)
    return segment, 4 + offset


@pytest.mark.parametrize("name", ["v0-json", "v0-json-unacked", "v0-kill"])
def test_beats_7_13_does_not_send_everything_again_after_a_repair(
    tmp_path: Path, name: str
) -> None:
    case, out = unpacked(name, tmp_path / "case"), tmp_path / "out"
    before = (case.queue / "state.dat").read_bytes()
    check(case.queue, out)
    after = (out / "state.dat").read_bytes()
    assert len(after) == 20
    assert position_of_7_13(after) == (position_of_7_13(before) or (0, 4))
    assert [shown(row["event"]) for row in waiting(out)] == case.truth


def test_a_position_of_version_0_follows_its_event_when_damage_is_left_behind(
    tmp_path: Path,
) -> None:
    data = VECTORS["v0_json"]
    whole = [frame.payload for frame in read_frames(data[4:], 4) if isinstance(frame, Frame)]
    damaged = encode_header(Header(0, 0)) + overwritten(encode_frames([whole[0]]), 20, b"!")
    state = encode_state(State(Position(0, len(damaged) + len(data) - 4 - 201), version=0))
    path = spool(tmp_path / "queue", {0: damaged + data[4:]}, state)
    rows, _ = repaired(path, tmp_path / "out")
    assert [row["status"] for row in rows] == ["bad-checksum"]
    assert (tmp_path / "out" / "state.dat").read_bytes() == VECTORS["state_v0"]


@pytest.mark.parametrize(
    "segments",
    [
        {0: VECTORS["v0_json"], 1: VECTORS["v1_cbor"]},
        {0: VECTORS["v0_json"], 1: VECTORS["v2_cbor"]},
    ],
    ids=["7.14", "8.4"],
)
def test_a_directory_that_a_later_beats_went_on_with_gets_a_position_of_version_1(
    tmp_path: Path, segments: dict[int | str, bytes]
) -> None:
    path = spool(tmp_path / "queue", segments, VECTORS["state_v0"])
    check(path, tmp_path / "out")
    assert (tmp_path / "out" / "state.dat").read_bytes() == stored(0, 116, 1)


def test_a_position_of_version_1_stays_one_where_all_segments_are_of_version_0(
    tmp_path: Path,
) -> None:
    path = spool(tmp_path / "queue", {0: VECTORS["v0_json"]}, stored(0, 116, 1))
    check(path, tmp_path / "out")
    assert (tmp_path / "out" / "state.dat").read_bytes() == stored(0, 116, 1)


def test_what_cannot_be_taken_along_is_a_row_with_its_bytes(tmp_path: Path) -> None:
    no_event = sealed([b"no event", PLAIN[16:83]])
    segments: dict[int | str, bytes] = {
        0: HUGE_LENGTH,
        1: FUTURE_VERSION,
        2: no_event,
        3: BAD_END,
        4: TORN,
    }
    path = spool(tmp_path / "queue", segments)
    rows, result = check(path, tmp_path / "out")
    assert [(row["segment"], row["status"]) for row in rows] == [
        (0, "gap"),
        (1, "unsupported"),
        (2, "bad-event"),
    ]
    assert rows[2]["payload"] == "bm8gZXZlbnQ="
    assert (result.frames, result.segments, result.left, result.mended) == (5, 4, 3, 1)
    assert any("109 bytes" in note for note in result.notes)
    assert not (tmp_path / "out" / "1.seg").exists()


def test_a_single_segment_is_repaired_alone(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {5: BAD_PAYLOAD, 6: PLAIN}, stored(5, 0, 0))
    rows, result = repaired(path / "5.seg", tmp_path / "out")
    assert ([row["status"] for row in rows], result.frames) == (["bad-checksum"], 1)
    assert [found.name for found in (tmp_path / "out").iterdir()] == ["5.seg"]


def test_without_its_key_a_segment_is_left_behind(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: VECTORS["v2_cbor_aes"], 1: PLAIN})
    for number, key in enumerate((None, bytes(16))):
        rows, result = repaired(path, tmp_path / f"out-{number}", key=key)
        assert (rows[0]["status"], result.frames) == (["no-key", "wrong-key"][number], 2)


def test_nothing_is_written_where_something_is_read(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: PLAIN}, stored(0, 0, 0))
    for source, out in ((path, path / "new"), (path / "0.seg", path / "new"), (path, tmp_path)):
        with pytest.raises(PathRefused):
            repaired(source, out)
    with pytest.raises(PathRefused, match="no events"):
        repaired(path / "state.dat", tmp_path / "out")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["queue"]
    assert sorted(found.name for found in path.iterdir()) == ["0.seg", "state.dat"]


@given(seed=st.integers(0, 2**32), kind=st.sampled_from(KINDS))
def test_whatever_is_damaged_the_repaired_spool_is_whole(
    seed: int, kind: tuple[int, Options]
) -> None:
    random = Random(seed)
    version, options = kind
    segments: dict[int | str, bytes] = {}
    for number in range(random.randint(1, 3)):
        events = some_events(random.randrange(12), first=100 * number)
        payloads = payloads_of(events, Header(version, 0, options))
        data = sealed(payloads, version=version, options=options, key=KEY)
        start = Header(version, 0, options).body_start
        segments[number] = random_damage(random, data, start=start)
    state = stored(random.randrange(4), random.choice((0, 12, 60, 150, 5000)), random.randrange(4))
    with TemporaryDirectory() as place:
        path = spool(Path(place) / "queue", segments, random.choice((state, None)))
        check(path, Path(place) / "out")
