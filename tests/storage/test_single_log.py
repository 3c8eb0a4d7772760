"""What only a log in one file does: the commit index in its header, and rewriting to compact."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import CannotConvert
from penstock.formats.taskflux.log import COMMIT, LogLayout, decode_header, encode_header
from penstock.model import INT32_MAX, Index, SnapshotPoint
from penstock.storage import single_log
from penstock.storage.single_log import SingleLog
from penstock.testing.disk import MemoryFiles
from support.log_stores import EXAMPLE_2, SMALL, append, content, point

LOG = Path("/node/log.raft")


def open_log(files: MemoryFiles, snapshot: SnapshotPoint | None = None) -> SingleLog:
    return SingleLog(files, LOG, snapshot, SMALL)


def stored(files: MemoryFiles) -> bytes:
    return files.image()[str(LOG)]


def filled(count: int = 6) -> tuple[MemoryFiles, SingleLog]:
    files = MemoryFiles()
    log = open_log(files)
    append(log, 1, *(b"entry %d" % n for n in range(count)))
    log.sync()
    return files, log


def test_the_bytes_are_those_of_the_format_page() -> None:
    files = MemoryFiles()
    log = open_log(files)
    append(log, 1, EXAMPLE_2[28:65], EXAMPLE_2[81:103])
    append(log, 2, EXAMPLE_2[119:141])
    log.sync()
    log.set_committed(Index(1))
    data = stored(files)
    assert data[: len(EXAMPLE_2)] == EXAMPLE_2
    assert not data[len(EXAMPLE_2) :].strip(b"\x00")


def test_the_commit_index_is_written_in_place_and_local_to_the_file() -> None:
    files = MemoryFiles()
    log = open_log(files, point(99))
    assert decode_header(stored(files), LogLayout.TWO).commit == -1
    append(log, 1, b"a", b"b", b"c")
    log.sync()
    del files.operations[:]
    log.set_committed(Index(101))
    (operation,) = files.operations
    assert (operation.kind, operation.offset, operation.data) == ("write", 8, COMMIT.pack(1))
    assert log.committed == 101
    log.close()
    assert open_log(files, point(99)).committed == 101


def test_a_commit_index_becomes_durable_with_the_next_sync() -> None:
    files, log = filled()
    log.set_committed(Index(3))
    log.sync()
    log.close()
    assert open_log(files).committed == 3


@pytest.mark.parametrize("index", range(6))
def test_a_compaction_keeps_what_follows_the_snapshot(index: int) -> None:
    files, log = filled()
    log.set_committed(Index(5))
    log.begin_compaction(point(index))
    log.drop_prefix(point(index))
    expected = {n: (1, b"entry %d" % n) for n in range(index + 1, 6)}
    assert (log.first, log.end, log.committed) == (index + 1, 6, 5)
    assert content(log) == expected
    append(log, 2, b"next")
    log.sync()
    log.close()
    again = open_log(files, point(index))
    assert content(again) == expected | {6: (2, b"next")}
    assert again.committed == 5
    assert again.cuts == []
    assert stored(files).startswith(encode_header(LogLayout.TWO, commit=4 - index))


def test_a_compaction_copies_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_log, "COPY_WINDOW", 64)
    files = MemoryFiles()
    log = open_log(files)
    payloads = [bytes([n]) * 37 * n for n in range(30)]
    append(log, 1, *payloads)
    log.sync()
    log.set_committed(Index(20))
    del files.operations[:]
    log.drop_prefix(point(10))
    copied = [o for o in files.operations if o.kind == "write" and "log.raft" in o.path]
    assert max(len(o.data) for o in copied) <= max(64, SMALL.growth)
    assert content(log) == {n: (1, payloads[n]) for n in range(11, 30)}


def test_a_compacted_log_has_room_to_append_without_growing() -> None:
    files, log = filled()
    log.set_committed(Index(5))
    log.drop_prefix(point(2))
    del files.operations[:]
    append(log, 1, b"x")
    assert [o.kind for o in files.operations] == ["write"]


def test_a_snapshot_of_nothing_new_rewrites_nothing() -> None:
    files, log = filled()
    log.set_committed(Index(5))
    log.begin_compaction(point(3))
    log.drop_prefix(point(3))
    before = stored(files)
    del files.operations[:]
    log.begin_compaction(point(3))
    log.drop_prefix(point(3))
    assert stored(files) == before
    assert not [o for o in files.operations if o.kind == "rename" and o.target == str(LOG)]


def test_terms_survive_a_compaction() -> None:
    files = MemoryFiles()
    log = open_log(files)
    for term in (1, 1, 2, 5, 5, 9):
        append(log, term, b"x")
    log.sync()
    log.drop_prefix(point(2, term=2))
    assert [log.term(Index(n)) for n in range(3, 6)] == [5, 5, 9]
    with pytest.raises(AssertionError, match="terms never fall"):
        append(log, 8, b"x")


def test_an_index_beyond_32_bits_is_never_written() -> None:
    log = open_log(MemoryFiles(), point(INT32_MAX - 3))
    append(log, 1, b"a", b"b")
    with pytest.raises(AssertionError, match="no larger indexes"):
        append(log, 1, b"c")
    assert log.end == INT32_MAX


def test_a_term_beyond_32_bits_is_never_written() -> None:
    files, log = filled()
    before = stored(files)
    with pytest.raises(CannotConvert):
        append(log, 2**31, b"x")
    assert stored(files) == before
    append(log, INT32_MAX, b"x")
    assert log.term(Index(6)) == INT32_MAX
