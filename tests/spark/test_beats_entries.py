"""The tables of a spool say what ``penstock dump`` and ``penstock tasks`` say, whatever the split."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.errors import CorruptData, InvalidOption, InvalidValue, PathRefused
from penstock.families.beats.tables import read as reading
from penstock.families.beats.tables.plan import SegmentPlan
from penstock.families.sources import find_sources
from penstock.families.tables import Table, parse_options
from penstock.formats.beats.event import Event, encode_event
from penstock.formats.beats.frame import encode_frames
from penstock.formats.beats.frame_scan import FrameScanner
from penstock.formats.beats.segment import Options, PayloadFormat
from penstock.formats.beats.task_event import encode_tasks
from penstock.storage.files import OsFiles
from support import beats_spools as samples
from support.beats_spools import KEY, VECTORS, sealed, some_events, spool, stored
from support.beats_tables import (
    ALL_OPTIONS,
    PLAIN,
    WAITING,
    Row,
    as_said,
    dumped,
    random_spool,
    waiting,
)
from support.spark_tables import check_schema, pieces_of, read_rows, reader_of


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SPOOL_KEY", KEY.hex())


def entries(path: Path, **how: Any) -> list[Row]:
    return [as_said(row) for row in read_rows(path, **how)]


def tasks(path: Path, **how: Any) -> list[Row]:
    return read_rows(path, table="tasks", columns=WAITING, **how)


def payloads(count: int, first: int = 0) -> list[bytes]:
    return [encode_event(event, PayloadFormat.CBOR) for event in some_events(count, first=first)]


# --- against the tools ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("v")])
def test_every_vector_reads_as_it_is_dumped(tmp_path: Path, name: str) -> None:
    root = spool(tmp_path / "spool", {0: VECTORS[name]}, VECTORS["state_v1"])
    expected = dumped(root)
    assert [row["status"] for row in expected] == ["ok"] * len(expected) != []
    assert entries(root) == entries(root / "0.seg") == expected
    assert tasks(root) == waiting(root)


NEGATIVE = ("TORN", "BAD_PAYLOAD", "BAD_END", "HUGE_LENGTH", "SHORT_LENGTH", "EMPTY", "HALF_HEADER", "FUTURE_VERSION", "UNKNOWN_OPTION")  # fmt: skip


@pytest.mark.parametrize("name", NEGATIVE)
@pytest.mark.parametrize("is_newest", [False, True])
def test_every_negative_case_reads_as_it_is_dumped(
    tmp_path: Path, name: str, is_newest: bool
) -> None:
    segments: dict[int | str, bytes] = {0: getattr(samples, name)}
    segments |= {} if is_newest else {1: VECTORS["v1_cbor"]}
    root = spool(tmp_path / "spool", segments)
    assert sorted(entries(root), key=str) == sorted(dumped(root), key=str)


@pytest.mark.parametrize("damage", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_random_spools_read_as_the_tools_read_them(tmp_path: Path, seed: int, damage: bool) -> None:
    check_random(tmp_path / "spool", Random(seed), damage=damage)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(100, 600))
def test_more_random_spools_read_as_the_tools_read_them(tmp_path: Path, seed: int) -> None:
    check_random(tmp_path / "spool", Random(seed), damage=seed % 4 > 0)


def check_random(place: Path, random: Random, *, damage: bool) -> None:
    root = random_spool(random, place, damage=damage)
    # What was met on the way comes first, for none of it needs a task of its own.
    expected = sorted(dumped(root), key=str)
    assert sorted(entries(root), key=str) == expected
    split = random.randrange(30, 300)
    assert sorted(entries(root, split=split), key=str) == expected
    expected = waiting(root)
    if any(row["status"] == "wrong-key" for row in entries(root)):
        return  # which is refused, see below
    assert tasks(root) == expected
    assert tasks(root, split=split) == expected
    changes = read_rows(root, table="changes", columns=("op", "task_id"), split=split)
    added = [row["task_id"] for row in changes if row["op"] == "add"]
    removed = [row["task_id"] for row in changes if row["op"] == "remove"]
    assert sorted(set(added) - set(removed)) == [row["task_id"] for row in expected]
    assert len(added) == len(set(added))
    assert len(removed) == len(set(removed))


def test_holes_that_no_frame_reaches_over_are_not_read(tmp_path: Path) -> None:
    frames = encode_frames(payloads(3))
    for number, (before, behind) in enumerate(
        ((b"", b""), (b"\xff" * 5000, frames), (frames[:-40], frames))
    ):
        root = spool(tmp_path / str(number), {0: sealed(payloads(2)) + before})
        with (root / "0.seg").open("r+b") as file:
            file.seek(2**40 + 4096 * 7)
            file.write(behind)
            file.truncate(2**40 + 2**31)
        assert entries(root) == dumped(root)
        assert tasks(root) == waiting(root)
        assert len(pieces_of(reader_of(root))) == (2 if behind else 1)


# --- columns -------------------------------------------------------------------------------------


def test_an_event_is_in_the_columns_and_a_task_in_its_queue(tmp_path: Path) -> None:
    ours = encode_tasks("orders", [b"body"], [-7], timestamp=1_704_164_645_678_901_234)
    root = spool(tmp_path / "name", {3: sealed([*ours, b"\xa1no event"])})
    task, other = read_rows(root)
    assert (task["queue"], task["key"], task["kind"], task["op"]) == ("orders", -7, "frame", "add")
    assert task["log_index"] == task["task_id"] == 3 << 32
    assert task["payload"] == ours[0]
    assert str(task["event_time"]) == "2024-01-02 03:04:05.678901+00:00"
    assert dict(task["properties"]) == {
        "timestamp_ns": "1704164645678901234",
        "flags": "1",
        "meta": '{"queue":"orders","key":-7}',
        "fields": '{"payload":{"base64":"' + b64encode(b"body").decode() + '"}}',
    }
    assert (other["queue"], other["key"], other["status"]) == ("name", 0, "bad-event")
    assert other["reason"].startswith("the checksum is right, but the payload is no event")
    check_schema(Table.ENTRIES)


def test_events_are_decoded_only_for_columns_that_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = spool(tmp_path / "spool", {0: sealed(payloads(5))}, stored(0, 12, 0))

    def fail(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("penstock.families.beats.tables.events.decode_event", fail)
    names = ("source", "family", "kind", "path", "offset", "size", "log_index", "op", "task_id", "payload")  # fmt: skip
    assert len(read_rows(root, columns=names)) == 5
    assert len(read_rows(root, columns=("payload", "offset"), table="tasks")) == 5
    with pytest.raises(AssertionError):
        read_rows(root, columns=("queue",))


def test_filters_leave_out_what_is_not_wanted(tmp_path: Path) -> None:
    ours = encode_tasks("orders", [b"1", b"2"], [0, 1], timestamp=5)
    root = spool(tmp_path / "spool", {0: sealed(payloads(4)), 1: sealed(ours)}, stored(1, 96, 1))
    assert {row["queue"] for row in read_rows(root, queues="orders")} == {"orders"}
    found = read_rows(root, startingIndex="2", endingIndex=str(1 << 32))
    assert [row["log_index"] for row in found] == [2, 3, 1 << 32]
    (plan,) = [piece.plan for piece in pieces_of(reader_of(root, startingIndex=str(1 << 32)))]
    assert plan.number == 1
    assert {row["path"] for row in read_rows(root, files="0.seg")} == {"0.seg"}
    removed = read_rows(root, table="changes", ops="remove")
    assert {row["op"] for row in removed} == {"remove"}
    assert len(removed) == len(read_rows(root)) - len(read_rows(root, table="tasks"))


# --- modes ---------------------------------------------------------------------------------------


def test_modes_decide_what_becomes_of_damage(tmp_path: Path) -> None:
    root = spool(tmp_path / "spool", {0: samples.BAD_PAYLOAD, 1: samples.BAD_END, 2: samples.TORN})
    dropped = read_rows(root, mode="DROPMALFORMED")
    assert [(row["path"], row["offset"]) for row in dropped] == [("0.seg", 91), ("1.seg", 12), ("1.seg", 91), ("2.seg", 12)]  # fmt: skip
    with pytest.raises(CorruptData, match=r"0\.seg, offset 12: bad-checksum: .* PERMISSIVE"):
        read_rows(root, mode="FAILFAST")
    for table in ("entries", "tasks"):
        # A torn tail of the newest segment is no damage, nor is a whole frame with another length at its end.
        whole = spool(tmp_path / table, {1: samples.BAD_END, 2: samples.TORN})
        assert len(read_rows(whole, mode="FAILFAST", table=table)) == 3


def test_an_event_that_cannot_be_decoded_is_damage_to_every_mode(tmp_path: Path) -> None:
    root = spool(tmp_path / "spool", {0: sealed([*payloads(1), b"none"])})
    assert len(read_rows(root, mode="DROPMALFORMED", columns=("offset",))) == 1
    assert len(read_rows(root, table="tasks", mode="DROPMALFORMED", columns=("offset",))) == 1
    assert len(read_rows(root, table="tasks", columns=("offset",))) == 2
    with pytest.raises(CorruptData, match="bad-event"):
        read_rows(root, mode="FAILFAST", columns=("offset",))


# --- keys ----------------------------------------------------------------------------------------


def test_an_event_that_is_nested_too_deep_has_a_status_of_its_own(tmp_path: Path) -> None:
    value: Any = 1
    for _ in range(510):
        value = [value]
    payload = encode_event(Event(0, 0, {}, {"a": value}), PayloadFormat.CBOR)
    deeper = payload.replace(b"\x61a", b"\x61a\x81")
    root = spool(tmp_path / "spool", {0: sealed([payload, deeper])})
    good, bad = entries(root)
    assert (good["status"], good["event"]["fields"]) == ("ok", {"a": value})
    assert (bad["status"], bad["payload"]) == ("too-deep", deeper)


def test_a_key_comes_from_a_file_or_the_environment_and_is_in_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = spool(tmp_path / "spool", {0: VECTORS["v2_cbor_aes"], 1: VECTORS["v2_cbor_aes_lz4"]})
    file = tmp_path / "key"
    monkeypatch.delenv("PENSTOCK_SPOOL_KEY")
    with pytest.raises(InvalidValue, match=r"0\.seg: is encrypted; name a file with its key"):
        read_rows(root)
    for text in (KEY, KEY.hex().encode(), b64encode(KEY)):
        file.write_bytes(text)
        assert [row["status"] for row in read_rows(root, keyFile=str(file))] == ["ok", "ok"]
    reader = reader_of(root, keyFile=str(file))
    said = f"{pieces_of(reader)}{reader._options}"
    assert KEY.hex() not in said
    assert str(KEY) not in said


def test_a_wrong_key_is_told_and_never_gives_an_empty_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SPOOL_KEY", bytes(16).hex())
    root = spool(tmp_path / "spool", {0: VECTORS["v2_cbor_aes"], 1: VECTORS["v2_cbor"]})
    found = read_rows(root)
    assert [row["status"] for row in found] == ["wrong-key", "ok", "ok"]
    assert "wrong key or damaged" in found[0]["reason"]
    for state in (None, stored(0, 91, 1)):
        for name in ("v2_cbor_aes", "v2_cbor_aes_lz4"):
            root = spool(tmp_path / f"{name}-{state is None}", {0: VECTORS[name]}, state)
            for table in ("tasks", "changes"):
                with pytest.raises(InvalidValue, match=r"0\.seg: .* or damaged; check the key"):
                    read_rows(root, table=table)


# --- plans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 3])
def test_a_segment_torn_in_its_first_frame_does_not_lock_the_table(
    tmp_path: Path, bits: int
) -> None:
    options = Options(bits)
    whole = sealed(payloads(2), options=options, key=KEY)
    torn = whole[:4] + bytes(4) + whole[8:60]
    root = spool(tmp_path / "spool", {0: whole, 1: torn})
    assert [row["status"] for row in entries(root)] == ["ok", "ok", "torn"]
    assert len(tasks(root)) == 2
    alone = spool(tmp_path / "alone", {0: torn})
    assert [row["status"] for row in entries(alone)] == ["wrong-key"]
    with pytest.raises(InvalidValue):
        tasks(alone)


def plans(path: Path, **how: Any) -> list[SegmentPlan]:
    return [piece.plan for piece in pieces_of(reader_of(path, **how))]


def test_plain_segments_are_cut_and_others_are_not(tmp_path: Path) -> None:
    events = payloads(100)
    segments: dict[int | str, bytes] = {
        n: sealed(events, options=options, key=KEY) for n, options in enumerate(ALL_OPTIONS)
    }
    segments |= {8: sealed(events, version=1), 9: sealed(events, version=0)}
    root = spool(tmp_path / "spool", segments)
    found = plans(root, splitSize="1k")
    parts = {n: [plan for plan in found if plan.number == n] for n in segments}
    for number, own in parts.items():
        is_plain = number in (0, 4, 8, 9)
        assert (len(own) > 3) is is_plain
        assert (own[0].first, own[-1].stop) == (own[0].header.size, None)
        assert [plan.stop for plan in own[:-1]] == [plan.first for plan in own[1:]]


def test_planning_reads_headers_and_the_position_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = spool(tmp_path / "spool", {n: sealed(payloads(50)) for n in range(3)}, stored(1, 12, 0))
    asked: list[tuple[str, int]] = []
    open_file = OsFiles.open

    def spy(self: OsFiles, path: Path, **how: Any) -> Any:
        file = open_file(self, path, **how)
        read = file.read

        def watched(offset: int, size: int) -> bytes:
            data = read(offset, size)
            asked.append((path.name, len(data)))
            return data

        monkeypatch.setattr(type(file), "read", lambda _, offset, size: watched(offset, size))
        return file

    monkeypatch.setattr(OsFiles, "open", spy)
    for table in ("entries", "changes", "tasks"):
        assert pieces_of(reader_of(root, table=table))
    find_sources([str(root)])
    assert asked
    assert all(size <= 28 for _, size in asked)


def test_acknowledged_segments_are_not_planned_for_tasks(tmp_path: Path) -> None:
    root = spool(tmp_path / "spool", {n: sealed(payloads(2)) for n in range(4)}, stored(2, 12, 0))
    assert [plan.number for plan in plans(root, table="tasks")] == [2, 3]
    assert [plan.number for plan in plans(root)] == [0, 1, 2, 3]


def test_a_part_goes_on_where_the_one_before_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = spool(tmp_path / "spool", {0: sealed(payloads(400))})
    begun: list[int] = []

    def spy(offset: int, **how: Any) -> Any:
        begun.append(offset)
        return FrameScanner(offset, **how)

    monkeypatch.setattr(reading, "FrameScanner", spy)
    monkeypatch.setattr(reading, "_known", type(reading._known)())
    assert len(read_rows(root, split=3000, columns=("offset",))) == 400
    assert begun[0] == 12
    assert len(begun) > 5
    assert begun == sorted(set(begun))


def test_what_a_file_gains_behind_the_plan_is_left_alone(tmp_path: Path) -> None:
    root = spool(tmp_path / "spool", {0: sealed(payloads(5), count=0)})
    reader = reader_of(root)
    pieces = reader.partitions()
    with (root / "0.seg").open("ab") as file:
        file.write(encode_frames(payloads(5)))
    rows = [row for task in pieces for batch in reader.read(task) for row in batch.to_pylist()]
    assert len(rows) == 5


def test_a_segment_that_goes_away_is_told_and_no_damage(tmp_path: Path) -> None:
    root = spool(tmp_path / "spool", {0: sealed(payloads(5)), 1: sealed(payloads(2))})
    for mode, expected in (
        ("PERMISSIVE", ["gone", "ok", "ok"]),
        ("FAILFAST", ["gone", "ok", "ok"]),
    ):
        reader = reader_of(root, mode=mode)
        tasks_ = reader.partitions()
        data = (root / "0.seg").read_bytes()
        (root / "0.seg").unlink()
        rows = [row for task in tasks_ for batch in reader.read(task) for row in batch.to_pylist()]
        assert [row["status"] for row in rows] == expected
        (root / "0.seg").write_bytes(data)


# --- what is refused -----------------------------------------------------------------------------


def test_what_a_spool_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    root = spool(tmp_path / "spool", {0: sealed(payloads(2))}, stored(0, 12, 0))
    with pytest.raises(InvalidValue, match="no state before; omit option at"):
        read_rows(root, table="tasks", at="3")
    with pytest.raises(InvalidOption, match="vhost"):
        read_rows(root, vhost="/")
    with pytest.raises(PathRefused, match="holds a position and no events"):
        read_rows(root / "state.dat")
    with pytest.raises(InvalidOption, match="key_file"):
        read_rows(root, keyFile="a", passwordFile="b")
    with pytest.raises(InvalidOption, match="keyFile"):
        parse_options({"node": "localhost:1", "keyFile": "a"})


def test_a_spool_beside_other_families_and_as_a_pattern(tmp_path: Path) -> None:
    root = spool(tmp_path / "one", {0: sealed(payloads(2)), 10: sealed(payloads(3))})
    spool(tmp_path / "two", {0: sealed(payloads(4), options=Options.COMPRESSED)})
    assert len(read_rows(tmp_path / "*")) == 9
    assert [row["path"] for row in read_rows(root / "*.seg")] == ["0.seg"] * 2 + ["10.seg"] * 3
    assert len({row["source"] for row in read_rows(tmp_path / "*")}) == 2
    assert PLAIN == 0
