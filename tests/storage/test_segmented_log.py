"""What only a log of segments does: sealing, removing, and indexes beyond 32 bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import CorruptData
from penstock.formats.taskflux.log import (
    LogLayout,
    encode_header,
    encode_record,
    parse_segment_name,
    segment_name,
)
from penstock.formats.taskflux.sync_point import FILE_NAME
from penstock.model import INT32_MAX, INT64_MAX, Index, SnapshotPoint
from penstock.storage.log import LogLimits
from penstock.storage.segmented_log import SegmentedLog
from penstock.testing.disk import Image, MemoryFiles
from support.log_stores import append, content, point, sync_point_file

HOME = Path("/node/data/log")
LIMITS = LogLimits(soft=512, hard=1024, growth=256)
RECORD = 20 + 100


def open_log(
    files: MemoryFiles | Image, snapshot: SnapshotPoint | None = None, limits: LogLimits = LIMITS
) -> SegmentedLog:
    disk = files if isinstance(files, MemoryFiles) else MemoryFiles(files)
    return SegmentedLog(disk, HOME, snapshot, limits)


def segments(files: MemoryFiles | Image) -> list[int]:
    image = files if isinstance(files, dict) else files.image()
    found = (parse_segment_name(Path(path).name) for path in image)
    return sorted(first for first in found if first is not None)


def segment_image(*counts: int, first: int = 0) -> Image:
    """Return a chain of segments with so many entries each, of term 1, payload = the index."""
    image: Image = {}
    for count in counts:
        records = [
            encode_record(LogLayout.THREE, term=1, payload=b"%d" % n)
            for n in range(first, first + count)
        ]
        data = encode_header(LogLayout.THREE) + b"".join(records)
        image[str(HOME / segment_name(first))] = data.ljust(512, b"\x00")
        first += count
    return image


def test_terms_that_fall_from_one_segment_to_the_next_are_damage() -> None:
    # No checksum covers a term, and each file by itself is in order.
    image = segment_image(3, 2)
    first, second = (str(HOME / segment_name(n)) for n in (0, 3))
    assert len(content(open_log(dict(image)))) == 5
    last = image[first].rindex(b"\xaa\xf5\x34\xc4")
    damaged = bytearray(image[first])
    damaged[last + 4 + 3] ^= 1  # of the term of entry 2, which becomes 2³² + 1
    with pytest.raises(CorruptData, match="term of entry 3 falls") as caught:
        open_log({**image, first: bytes(damaged)})
    assert (caught.value.path, caught.value.offset) == (second, 8)
    assert (caught.value.expected, caught.value.found) == (f"{2**32 + 1} or more", "1")


# Sealing.


def test_a_segment_is_sealed_at_the_soft_limit_once_all_of_it_is_committed() -> None:
    files = MemoryFiles()
    log = open_log(files)
    for n in range(5):
        append(log, 1, b"x" * 100)
        log.sync()
        log.set_committed(Index(n))
    assert LIMITS.soft < 8 + 5 * RECORD
    assert segments(files) == [0]  # sealed by the next append, which then has somewhere to go
    append(log, 1, b"x" * 100)
    assert segments(files) == [0, 5]


def test_a_segment_with_uncommitted_entries_grows_to_the_hard_limit() -> None:
    files = MemoryFiles()
    log = open_log(files)
    while 8 + log.end * RECORD <= LIMITS.hard:
        append(log, 1, b"x" * 100)
        assert segments(files) == [0]
    sealed = log.end
    append(log, 1, b"x" * 100)
    assert segments(files) == [0, sealed]
    assert sealed == 9


def test_one_uncommitted_entry_keeps_a_segment_open_behind_the_soft_limit() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append(log, 1, *[b"x" * 100] * 6)
    log.sync()
    log.set_committed(Index(4))
    append(log, 1, b"y")
    log.sync()
    assert segments(files) == [0]
    log.set_committed(Index(6))
    append(log, 1, b"z")
    assert segments(files) == [0, 7]


def test_a_batch_is_never_split_between_segments() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append(log, 1, *[b"x" * 100] * 40)
    assert segments(files) == [0]
    append(log, 1, b"y")
    assert segments(files) == [0, 40]
    assert len(content(log)) == 41


def test_a_sealed_segment_is_synced_before_the_next_one_is_there() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append(log, 1, *[b"x" * 100] * 10)
    del files.operations[:]
    append(log, 1, b"y")
    found = [(o.kind, Path(o.target or o.path).name) for o in files.operations]
    assert found[0] == ("sync", segment_name(0))
    rename = found.index(("rename", segment_name(10)))
    assert found[rename - 1] == ("sync", segment_name(10) + ".penstock-temporary")
    assert found[rename + 1] == ("sync_directory", "log")
    assert found[-1] == ("write", segment_name(10))


def test_a_new_segment_is_reserved_up_to_the_soft_limit() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append(log, 1, *[b"x" * 100] * 10)
    append(log, 1, b"y")
    data = files.image()[str(HOME / segment_name(10))]
    assert len(data) == LIMITS.soft
    assert data.startswith(encode_header(LogLayout.THREE))


def test_sealed_segments_never_change() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append(log, 1, *[b"x" * 100] * 10)
    log.sync()
    append(log, 1, b"y")
    sealed = files.image()[str(HOME / segment_name(0))]
    del files.operations[:]
    for n in range(20):
        append(log, 1, b"z" * 100)
        log.sync()
        log.set_committed(Index(n))
    assert files.image()[str(HOME / segment_name(0))] == sealed
    assert not [o for o in files.operations if o.path.endswith(segment_name(0))]


def test_a_read_ends_with_its_segment() -> None:
    log = open_log(segment_image(3, 4, 2))
    assert [e.index for e in log.read(Index(1), Index(9))] == [1, 2]
    assert [e.index for e in log.read(Index(3), Index(9))] == [3, 4, 5, 6]
    assert [e.index for e in log.read(Index(7), Index(9))] == [7, 8]


# Compaction removes whole segments.


def test_compaction_removes_segments_that_are_covered_as_a_whole() -> None:
    for index, left in [(0, [0, 3, 7]), (1, [0, 3, 7]), (2, [3, 7]), (6, [7]), (8, [7])]:
        files = MemoryFiles(segment_image(3, 4, 2))
        log = open_log(files)
        log.begin_compaction(point(index))
        log.drop_prefix(point(index))
        assert segments(files) == left
        assert log.first == left[0]
        assert log.committed == index
        assert content(log) == {n: (1, b"%d" % n) for n in range(left[0], 9)}


def test_the_oldest_segment_goes_first_and_each_removal_is_synced() -> None:
    files = MemoryFiles(segment_image(3, 4, 2))
    log = open_log(files)
    del files.operations[:]
    log.drop_prefix(point(8))
    changes = [o for o in files.operations if o.kind in ("remove", "sync_directory")]
    assert [(o.kind, Path(o.path).name) for o in changes] == [
        ("remove", segment_name(0)),
        ("sync_directory", "log"),
        ("remove", segment_name(3)),
        ("sync_directory", "log"),
    ]


def test_a_start_removes_what_an_interrupted_compaction_left() -> None:
    files = MemoryFiles(segment_image(3, 4, 2))
    log = open_log(files, point(7))
    assert segments(files) == [7]
    assert (log.first, log.end, log.committed) == (7, 9, 7)


def test_a_snapshot_ahead_of_the_log_starts_a_fresh_segment() -> None:
    # As TaskFlux does; such a directory has no sync point that vouches for the old entries.
    files = MemoryFiles(segment_image(3, 4, 2))
    log = open_log(files, point(20, term=2))
    assert segments(files) == [21]
    assert (log.first, log.end, log.committed) == (21, 21, 20)
    append(log, 2, b"x")
    log.sync()
    log.close()
    assert content(open_log(files, point(20, term=2))) == {21: (2, b"x")}


def test_a_snapshot_of_the_last_entry_keeps_the_log() -> None:
    files = MemoryFiles(segment_image(3, 4, 2))
    log = open_log(files, point(8))
    assert (log.first, log.end) == (7, 9)


# Truncation across segments.


@pytest.mark.parametrize("index", range(10))
def test_a_truncation_removes_segments_from_the_newest_back(index: int) -> None:
    files = MemoryFiles(segment_image(3, 4, 2))
    log = open_log(files)
    del files.operations[:]
    log.truncate(Index(index))
    assert content(log) == {n: (1, b"%d" % n) for n in range(min(index, 9))}
    removed = [
        parse_segment_name(Path(o.path).name) for o in files.operations if o.kind == "remove"
    ]
    assert removed == [first for first in (7, 3) if first >= index]
    append(log, 2, b"new")
    log.sync()
    log.close()
    again = open_log(files)
    assert again.cuts == []
    expected = {n: (1, b"%d" % n) for n in range(min(index, 9))}
    assert content(again) == expected | {min(index, 9): (2, b"new")}


def test_a_truncated_segment_takes_entries_again() -> None:
    files = MemoryFiles(segment_image(3, 4, 2))
    log = open_log(files)
    log.truncate(Index(5))
    assert segments(files) == [0, 3]
    append(log, 2, b"a", b"b")
    assert segments(files) == [0, 3]
    assert content(log)[5] == (2, b"a")


# Gaps.


def refuse(image: Image, snapshot: SnapshotPoint | None, words: str) -> CorruptData:
    """The start is refused, and nothing that was there is changed or removed."""
    files = MemoryFiles(image)
    with pytest.raises(CorruptData, match=words) as caught:
        open_log(files, snapshot)
    after = files.image()
    assert {path: after.get(path) for path in image} == image
    assert caught.value.offset is not None
    assert caught.value.path is not None
    return caught.value


def test_a_gap_between_segments_is_refused_and_nothing_is_removed() -> None:
    # TaskFlux removes the segment behind a gap and all later ones.
    image = segment_image(3, 4, 2)
    del image[str(HOME / segment_name(3))]
    for snapshot in (None, point(0), point(1)):
        error = refuse(image, snapshot, "sealed segment is not whole")
        assert error.path == str(HOME / segment_name(0))
        assert (error.expected, error.found) == ("entries 0 to 6", "entries up to 2")


def test_a_gap_behind_covered_segments_is_refused_and_they_are_kept() -> None:
    image = segment_image(3, 4, 2, 5)
    del image[str(HOME / segment_name(7))]
    error = refuse(image, point(4), "sealed segment is not whole")
    assert error.path == str(HOME / segment_name(3))


def test_overlapping_segments_are_refused() -> None:
    image = segment_image(3, 4) | segment_image(2, first=6)
    refuse(image, None, "sealed segment is not whole")


def test_a_gap_between_snapshot_and_log_is_refused_and_nothing_is_removed() -> None:
    image = segment_image(3, 4, first=10)
    for snapshot in (None, point(3), point(8)):
        error = refuse(image, snapshot, "missing between the snapshot and the log")
        assert error.found == "10"
    open_log(dict(image), point(9))


def test_a_torn_tail_is_kept_while_a_gap_is_refused() -> None:
    image = segment_image(3, first=10)
    path = str(HOME / segment_name(10))
    image[path] = image[path][:80] + b"torn"
    refuse(image, point(5), "missing between the snapshot and the log")


def test_snapshot_and_log_that_disagree_on_a_term_are_refused() -> None:
    image = segment_image(3, 4)
    for index in (0, 4, 6):
        error = refuse(image, point(index, term=2), "disagree on the term of entry")
        assert (error.expected, error.found) == ("2", "1")
    open_log(dict(image), point(6, term=1))


def test_a_damaged_sealed_segment_is_refused() -> None:
    image = segment_image(3, 4)
    path = str(HOME / segment_name(0))
    image[path] = image[path][:29] + b"x" + image[path][30:]
    error = refuse(image, None, "sealed segment is not whole")
    assert (error.path, error.offset) == (path, 29)


def test_the_last_segment_missing_is_refused_if_its_entries_were_synced() -> None:
    image = segment_image(3, 4)
    synced = {str(HOME / FILE_NAME): sync_point_file(8)}
    error = refuse(image | synced, None, "the log ends before entries that were synced")
    assert error.path == str(HOME / segment_name(3))


# Large indexes.


@pytest.mark.parametrize("index", [INT32_MAX, 2**32, 2**53 + 1, INT64_MAX - 1000])
def test_indexes_beyond_32_bits_are_kept(index: int) -> None:
    files = MemoryFiles()
    log = open_log(files, point(index, term=2**40))
    for n in range(8):
        append(log, 2**40, b"x" * 200)
        log.sync()
        log.set_committed(Index(index + 1 + min(n, 1)))
    log.close()
    again = open_log(files, point(index, term=2**40))
    assert (again.first, again.end) == (index + 1, index + 9)
    assert content(again) == {index + 1 + n: (2**40, b"x" * 200) for n in range(8)}
    assert len(segments(files)) > 1
    again.truncate(Index(index + 3))
    again.begin_compaction(point(index + 2))
    again.drop_prefix(point(index + 2, term=2**40))
    assert again.end == index + 3


def test_terms_beyond_32_bits_are_kept() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append(log, 2**31, b"a")
    append(log, INT64_MAX, b"b")
    log.close()
    assert content(open_log(files)) == {0: (2**31, b"a"), 1: (INT64_MAX, b"b")}
