"""A stream of a growing spool, driven as Spark drives it, without a Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from penstock.errors import Compacted, InvalidValue, PathRefused
from penstock.families.follow import Offset
from penstock.formats.beats.body import BodyEncoder
from penstock.formats.beats.frame import encode_frame, encode_frames
from penstock.formats.beats.segment import Header, Options, encode_header
from penstock.spark.stream import StreamReader
from spark.test_stream_reader import batches, over, rows_between, stream_of
from support.beats_spools import KEY, payloads_of, sealed, some_events, spool, stored
from support.beats_tables import PLAIN, Row
from support.damage import flipped
from support.spark_tables import read_rows

ALL = ReadAllAvailable()
COLUMNS = ("path", "offset", "log_index", "payload", "status")
each_option = pytest.mark.parametrize("options", [PLAIN, Options.COMPRESSED, Options(3)])


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SPOOL_KEY", KEY.hex())


@pytest.fixture
def stream() -> Iterator[Any]:
    """Make readers, and stop them as Spark does at the end of a query."""
    made: list[StreamReader] = []

    def make(path: Path, **options: str) -> StreamReader:
        made.append(stream_of(path, **options))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def payloads(count: int, first: int = 0) -> list[bytes]:
    return payloads_of(some_events(count, first=first), Header(2, 0))


class Growing:
    """A spool that is written as its owner writes it, a batch at a time."""

    def __init__(self, place: Path, options: Options = PLAIN, first: int = 0) -> None:
        self.root = spool(place, {})
        self._options = options
        self._number = first - 1
        self._count = 0
        self.open()

    def open(self) -> None:
        """Begin a segment."""
        self._number += 1
        self._encoder = BodyEncoder(self._options, key=KEY, iv=bytes([self._number] * 16))
        self.path = self.root / f"{self._number}.seg"
        self.path.write_bytes(encode_header(Header(2, 0, self._options)) + self._encoder.begin())

    def add(self, count: int) -> None:
        self.append(self._encoder.encode(encode_frames(payloads(count, self._count))))
        self._count += count

    def append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)


def shown(rows: list[Row]) -> list[Row]:
    return [{name: row[name] for name in COLUMNS} for row in rows]


def streamed(reader: StreamReader, offset: Offset, limit: ReadLimit = ALL) -> list[Row]:
    return [row for _, rows in batches(reader, offset, limit) for row in rows]


# --- all of it, and as it grows ------------------------------------------------------------------


@each_option
def test_a_stream_over_all_gives_the_rows_of_a_batch_over_all(
    tmp_path: Path, stream: Any, options: Options
) -> None:
    log = Growing(tmp_path / "spool", options, first=3)
    for count in (4, 0, 9, 1, 6):
        log.add(count)
        log.open()
    log.add(5)
    expected = read_rows(log.root)
    assert len(expected) == 25
    for limit in (ALL, ReadMaxRows(1), ReadMaxRows(4), ReadMaxRows(7), ReadMaxRows(1000)):
        reader = stream(log.root)
        assert streamed(reader, reader.initialOffset(), limit) == expected


@each_option
def test_what_came_in_between_is_the_next_batch(
    tmp_path: Path, stream: Any, options: Options
) -> None:
    log = Growing(tmp_path / "spool", options)
    reader = stream(log.root)
    offset = reader.initialOffset()
    assert offset == {"segment": 0, "position": 0, "frame": 0}
    assert reader.latestOffset(offset, ALL) == offset
    seen: list[Row] = []
    for count in (1, 2, 30, 0, 5):
        log.add(count)
        end = reader.latestOffset(offset, ALL)
        seen += rows_between(reader, offset, end)
        assert seen == read_rows(log.root)
        offset = end
        if count == 30:
            log.open()


def test_a_limit_is_kept_over_segments(tmp_path: Path, stream: Any) -> None:
    log = Growing(tmp_path / "spool")
    for _ in range(3):
        log.add(4)
        log.open()
    reader = stream(log.root, maxEntriesPerTrigger="5")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(5)
    found = [len(rows) for _, rows in batches(reader, reader.initialOffset(), limit)]
    assert [count for count in found if count] == [5, 5, 2]


def test_a_run_over_what_is_available_now_ends_there(tmp_path: Path, stream: Any) -> None:
    log = Growing(tmp_path / "spool")
    log.add(7)
    reader = stream(log.root)
    reader.prepareForTriggerAvailableNow()
    log.add(4)
    log.open()
    log.add(4)
    begin = reader.initialOffset()
    assert len(streamed(reader, begin)) == len(streamed(reader, begin, ReadMaxRows(2))) == 7
    assert reader.reportLatestOffset()["segment"] == 1


def test_a_directory_without_segments_is_waited_for(tmp_path: Path, stream: Any) -> None:
    root = spool(tmp_path / "spool", {}, stored(4, 0, 0))
    reader = stream(root)
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, ALL) == begin
    (root / "4.seg").write_bytes(sealed(payloads(3)))
    assert len(streamed(reader, begin)) == 3


# --- torn and damaged ----------------------------------------------------------------------------


def test_a_torn_tail_is_waited_for_until_a_newer_segment_is_there(
    tmp_path: Path, stream: Any
) -> None:
    log = Growing(tmp_path / "spool")
    log.add(3)
    frame = encode_frame(b"x" * 50)
    reader = stream(log.root)
    offset = reader.initialOffset()
    for size in range(1, len(frame)):
        log.append(frame[size - 1 : size])
        end = reader.latestOffset(offset, ALL)
        assert [row["status"] for row in rows_between(reader, offset, end)] == ["ok"] * 3
    torn = log.path.read_bytes()
    log.append(frame[-1:])
    assert len(streamed(reader, offset)) == 4
    log.path.write_bytes(torn)
    log.open()
    log.add(1)
    found = streamed(stream(log.root), offset)
    assert [row["status"] for row in found] == ["ok"] * 3 + ["torn", "ok"]
    assert found == read_rows(log.root)


def test_a_header_that_is_not_whole_yet_is_no_damage(tmp_path: Path, stream: Any) -> None:
    log = Growing(tmp_path / "spool")
    log.add(2)
    head = encode_header(Header(2, 0))
    path = log.root / "1.seg"
    path.write_bytes(head[:7])
    reader = stream(log.root)
    begin = reader.initialOffset()
    ((end, rows),) = batches(reader, begin)
    assert (end["segment"], len(rows)) == (1, 2)
    path.write_bytes(head + encode_frames(payloads(3)))
    assert len(streamed(reader, end)) == 3


def test_damage_is_rows_and_a_gap_at_the_end_is_waited_for(tmp_path: Path, stream: Any) -> None:
    log = Growing(tmp_path / "spool")
    log.add(2)
    log.append(flipped(encode_frame(b"bad"), 40) + b"\xff" * 30)
    reader = stream(log.root)
    begin = reader.initialOffset()
    found = streamed(reader, begin)
    assert [row["status"] for row in found] == ["ok", "ok", "bad-checksum"]
    # With the first bytes of a frame, the last ones of a gap look like the length of a large one.
    log.add(1)
    assert len(streamed(reader, begin)) == 3
    log.open()
    found = streamed(reader, begin)
    assert [row["status"] for row in found] == ["ok", "ok", "bad-checksum", "gap", "ok"]
    assert found == read_rows(log.root)


# --- again, and gone -----------------------------------------------------------------------------


@each_option
def test_the_same_offsets_give_the_same_rows_whatever_came_later(
    tmp_path: Path, stream: Any, options: Options
) -> None:
    random = Random(7)
    log = Growing(tmp_path / "spool", options)
    reader = stream(log.root)
    offset = reader.initialOffset()
    known: list[tuple[Offset, Offset, list[Row]]] = []
    for _ in range(12):
        log.add(random.randrange(4))
        if random.random() < 0.3:
            log.open()
        end = reader.latestOffset(offset, random.choice((ALL, ReadMaxRows(2))))
        known.append((offset, end, shown(rows_between(reader, offset, end))))
        offset = end
    log.open()
    other = stream(log.root)  # as after a restart
    for first, last, rows in known:
        assert shown(rows_between(other, over(first), over(last))) == rows
    together = [row for _, _, rows in known for row in rows] + shown(streamed(other, offset))
    assert together == shown(read_rows(log.root))


def test_a_segment_that_was_read_to_its_end_may_go(tmp_path: Path, stream: Any) -> None:
    log = Growing(tmp_path / "spool")
    log.add(3)
    reader = stream(log.root)
    begin = reader.initialOffset()
    ((offset, _),) = batches(reader, begin)
    log.open()
    log.add(2)
    (log.root / "0.seg").unlink()
    # The reader held the file: it knows that nothing came behind what it has read.
    assert len(streamed(reader, offset)) == 2
    # After a restart nobody knows.
    with pytest.raises(Compacted, match="segment 0 went away before all behind its byte"):
        stream(log.root).latestOffset(offset, ALL)
    loose = stream(log.root, failOnDataLoss="false")
    assert len(streamed(loose, offset)) == 2


def test_segments_that_go_away_unread_fail_the_stream(tmp_path: Path, stream: Any) -> None:
    log = Growing(tmp_path / "spool")
    for _ in range(4):
        log.add(3)
        log.open()
    reader = stream(log.root)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadMaxRows(7))
    assert end["segment"] == 2
    for number in (0, 1, 2):
        (log.root / f"{number}.seg").unlink()
    with pytest.raises(Compacted, match="failOnDataLoss=false"):
        reader.partitions(begin, end)
    with pytest.raises(Compacted, match="failOnDataLoss=false"):
        reader.latestOffset(end, ALL)
    loose = stream(log.root, failOnDataLoss="false")
    assert rows_between(loose, begin, end) == []
    assert [row["log_index"] for row in streamed(loose, end)] == [(3 << 32) + n for n in range(3)]


def test_a_file_that_goes_away_before_its_task_reads_it(tmp_path: Path, stream: Any) -> None:
    log = Growing(tmp_path / "spool")
    log.add(3)
    for options in ({}, {"failOnDataLoss": "false"}):
        reader = stream(log.root, **options)
        begin = reader.initialOffset()
        tasks = reader.partitions(begin, reader.latestOffset(begin, ALL))
        data = log.path.read_bytes()
        log.path.unlink()
        if options:
            assert [list(reader.read(task)) for task in tasks] == [[]]
        else:
            with pytest.raises(Compacted, match=r"0\.seg: the file went away"):
                list(reader.read(tasks[0]))
        log.path.write_bytes(data)


# --- what is refused -----------------------------------------------------------------------------


def test_what_no_stream_of_a_spool_has_is_refused(tmp_path: Path, stream: Any) -> None:
    log = Growing(tmp_path / "spool")
    for options, words in (
        ({"table": "changes"}, "only state.dat tells"),
        ({"table": "tasks"}, "is a state, not a stream"),
        ({"startingIndex": "3"}, "omit startingIndex"),
        ({"vhost": "/"}, "does not apply to these files"),
    ):
        with pytest.raises(InvalidValue, match=words):
            stream(log.root, **options).initialOffset()
    with pytest.raises(PathRefused, match="name its directory"):
        stream(log.path).initialOffset()
