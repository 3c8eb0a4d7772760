"""What both log stores promise, on a real and on a simulated disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import Compacted, OutOfRange
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import segment_name
from penstock.formats.taskflux.sync_point import FILE_NAME
from penstock.model import Index
from penstock.storage.files import OsFiles
from penstock.testing.disk import MemoryFiles, Operation
from support.log_stores import SMALL, WIDE, LogStore, append, content, point

HOME = Path("/node")


@pytest.fixture(params=["2-memory", "2-disk", "3-memory", "3-disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogStore:
    generation, disk = request.param.split("-")
    return LogStore(
        generation=Generation(int(generation)),
        files=OsFiles() if disk == "disk" else MemoryFiles(),
        directory=tmp_path if disk == "disk" else HOME,
    )


@pytest.fixture(params=[Generation.TWO, Generation.THREE], ids=["2", "3"])
def recorded(request: pytest.FixtureRequest) -> tuple[MemoryFiles, LogStore]:
    """A store whose files need not grow, and the disk that counts what is done to them."""
    files = MemoryFiles()
    return files, LogStore(generation=request.param, files=files, directory=HOME, limits=WIDE)


def file_of(store: LogStore) -> str:
    name = "log.raft" if store.generation is Generation.TWO else segment_name(0)
    return str(store.directory / name)


def done(files: MemoryFiles) -> list[Operation]:
    """Return what was done since the last call."""
    operations = list(files.operations)
    del files.operations[:]
    return operations


# Appending and reading.


def test_a_new_log_is_empty(store: LogStore) -> None:
    log = store.open()
    assert (log.first, log.end, log.committed, log.cuts) == (0, 0, -1, [])
    assert list(log.stretches(Index(0))) == []


def test_entries_come_back_as_they_were_appended(store: LogStore) -> None:
    log = store.open()
    append(log, 1, b"a", b"", b"c" * 300)
    append(log, 4, b"\x00" * 20)
    expected = {0: (1, b"a"), 1: (1, b""), 2: (1, b"c" * 300), 3: (4, b"\x00" * 20)}
    assert content(log) == expected
    assert [log.term(Index(n)) for n in range(4)] == [1, 1, 1, 4]
    log.sync()
    log.close()
    assert content(store.open()) == expected


def test_payloads_may_look_like_records_headers_and_ends(store: LogStore) -> None:
    log = store.open()
    inner = bytes.fromhex("AAF534C4 00000001 FFFFFFFF 00000000 00000000") * 3
    payloads = [inner, bytes(64), bytes.fromhex("1276AD55 00000001 00000007"), inner]
    append(log, 1, *payloads)
    log.sync()
    log.close()
    again = store.open()
    assert [payload for _, payload in content(again).values()] == payloads
    assert again.cuts == []


def test_an_empty_batch_is_no_entry(store: LogStore) -> None:
    log = store.open()
    append(log, 1)
    assert log.end == 0
    append(log, 1, b"x")
    append(log, 2)
    assert content(log) == {0: (1, b"x")}


def test_a_term_never_falls(store: LogStore) -> None:
    log = store.open()
    append(log, 3, b"x" * 600)
    with pytest.raises(AssertionError, match="terms never fall"):
        append(log, 2, b"y")
    log.close()
    with pytest.raises(AssertionError, match="terms never fall"):
        append(store.open(), 2, b"y")


def test_one_read_gives_all_that_fits_and_precedes_the_end(store: LogStore) -> None:
    log = store.open()
    append(log, 1, *(b"%d" % n for n in range(9)))
    assert [e.index for e in log.read(Index(0), Index(9))] == list(range(9))
    assert [e.index for e in log.read(Index(2), Index(5))] == [2, 3, 4]
    assert [e.index for e in log.read(Index(8), Index(100))] == [8]


def test_one_read_gives_at_least_one_entry_however_large(store: LogStore) -> None:
    log = store.open()
    append(log, 1, b"a" * 90, b"b" * 90, b"c" * 90)
    for size_max in (0, 1, 89, 90):
        assert [e.index for e in log.read(Index(1), Index(3), size_max=size_max)] == [1]
    assert len(log.read(Index(0), Index(3), size_max=250)) == 2
    assert len(log.read(Index(0), Index(3), size_max=3 * 120)) == 3


def test_compacted_and_not_yet_there_are_different_answers(store: LogStore) -> None:
    log = store.open()
    for n in range(6):
        append(log, 1, b"x" * 600)
        log.sync()
        log.set_committed(Index(n))
    log.begin_compaction(point(3))
    log.drop_prefix(point(3))
    assert (log.first, log.end) == (4, 6)
    for index in (0, 3):
        with pytest.raises(Compacted, match=f"entry {index} is covered by a snapshot"):
            log.read(Index(index), Index(6))
        with pytest.raises(Compacted):
            log.term(Index(index))
    for index in (6, 100):
        with pytest.raises(OutOfRange, match="not there yet") as caught:
            log.read(Index(index), Index(index + 1))
        assert not isinstance(caught.value, Compacted)
        with pytest.raises(OutOfRange):
            log.term(Index(index))


# What an append and a sync do to the disk.


def test_an_append_is_one_write_and_no_sync(recorded: tuple[MemoryFiles, LogStore]) -> None:
    files, store = recorded
    log = store.open()
    done(files)
    for payloads in ([b"x"], [b"x" * 100] * 50, [b""] * 1000):
        append(log, 1, *payloads)
        (operation,) = done(files)
        assert (operation.kind, operation.path) == ("write", file_of(store))


def test_a_sync_is_one_data_sync_and_a_note_of_it(recorded: tuple[MemoryFiles, LogStore]) -> None:
    files, store = recorded
    log = store.open()
    append(log, 1, b"x")
    done(files)
    log.sync()
    found = [(operation.kind, operation.path) for operation in done(files)]
    assert found == [("sync", file_of(store)), ("write", str(HOME / FILE_NAME))]


def test_an_append_within_the_reserved_space_leaves_the_size_alone(store: LogStore) -> None:
    # A file whose size does not change is synced without its metadata, many times as fast.
    log = store.open()
    append(log, 1, b"x")
    sizes = []
    for _ in range(8):
        append(log, 1, b"y" * 30)
        file = store.files.open(Path(file_of(store)), write=False)
        sizes.append(file.size())
        file.close()
    assert len(set(sizes)) <= 2


def test_a_file_grows_in_steps_and_each_step_is_synced(
    recorded: tuple[MemoryFiles, LogStore],
) -> None:
    files, wide = recorded
    store = LogStore(generation=wide.generation, files=files, directory=HOME, limits=SMALL)
    log = store.open()
    done(files)
    sizes = []
    for _ in range(30):
        append(log, 1, b"z" * 10)
        operations = done(files)
        if len(operations) > 1:
            assert [o.kind for o in operations] == ["write", "sync", "write"]
            assert not operations[0].data.strip(b"\x00")
        sizes.append(len(files.image()[file_of(store)]))
    steps = sorted(set(sizes))
    assert len(steps) > 2
    assert all(size % SMALL.growth == 0 for size in steps[1:])


def test_one_append_larger_than_a_step_grows_the_file_once(
    recorded: tuple[MemoryFiles, LogStore],
) -> None:
    files, wide = recorded
    log = LogStore(generation=wide.generation, files=files, directory=HOME, limits=SMALL).open()
    done(files)
    append(log, 1, b"w" * 10_000)
    assert [operation.kind for operation in done(files)] == ["write", "sync", "write"]
    assert content(log) == {0: (1, b"w" * 10_000)}


def test_reading_does_nothing_to_the_disk(recorded: tuple[MemoryFiles, LogStore]) -> None:
    files, store = recorded
    log = store.open()
    append(log, 1, b"a", b"b")
    done(files)
    content(log)
    log.term(Index(1))
    list(log.stretches(Index(0)))
    assert done(files) == []


# Truncating and committing.


def test_a_truncation_is_durable_when_it_returns(recorded: tuple[MemoryFiles, LogStore]) -> None:
    files, store = recorded
    log = store.open()
    append(log, 1, b"a", b"b" * 50, b"c")
    log.sync()
    done(files)
    log.truncate(Index(1))
    operations = done(files)
    assert [(o.kind, Path(o.path).name) for o in operations] == [
        ("write", FILE_NAME),
        ("write", FILE_NAME),
        ("sync", FILE_NAME),
        ("write", Path(file_of(store)).name),
        ("sync", Path(file_of(store)).name),
    ]
    assert content(log) == {0: (1, b"a")}
    assert files.image()[file_of(store)].rstrip(b"\x00").endswith(b"a")


def test_a_truncation_behind_the_end_does_nothing(recorded: tuple[MemoryFiles, LogStore]) -> None:
    files, store = recorded
    log = store.open()
    append(log, 1, b"a")
    done(files)
    log.truncate(Index(1))
    log.truncate(Index(7))
    assert done(files) == []
    assert log.end == 1


def test_a_committed_entry_is_never_truncated(store: LogStore) -> None:
    log = store.open()
    append(log, 1, b"a", b"b", b"c")
    log.sync()
    log.set_committed(Index(1))
    with pytest.raises(AssertionError, match="committed"):
        log.truncate(Index(1))
    log.truncate(Index(2))
    assert log.end == 2


def test_a_truncated_term_may_be_followed_by_any_higher_one(store: LogStore) -> None:
    log = store.open()
    append(log, 1, b"a")
    append(log, 5, b"b" * 700, b"c" * 700)
    log.truncate(Index(1))
    append(log, 3, b"d")
    log.sync()
    log.close()
    assert content(store.open()) == {0: (1, b"a"), 1: (3, b"d")}


def test_the_commit_index_grows_within_the_log(store: LogStore) -> None:
    log = store.open()
    append(log, 1, b"a", b"b", b"c")
    log.sync()
    log.set_committed(Index(1))
    log.set_committed(Index(1))
    assert log.committed == 1
    for index in (0, 3):
        with pytest.raises(AssertionError, match="commit index"):
            log.set_committed(Index(index))


# Stopping and starting.


def test_a_start_forgets_the_commit_index_only_where_the_files_have_no_room(
    store: LogStore,
) -> None:
    log = store.open()
    append(log, 1, b"a", b"b")
    log.sync()
    log.set_committed(Index(1))
    log.sync()
    log.close()
    expected = 1 if store.generation is Generation.TWO else -1
    assert store.open().committed == expected


def test_behind_a_snapshot_everything_before_it_is_committed(store: LogStore) -> None:
    log = store.open(point(41, term=3))
    assert (log.first, log.end, log.committed) == (42, 42, 41)
    append(log, 3, b"x")
    assert content(log) == {42: (3, b"x")}


def test_a_clean_start_writes_no_log(recorded: tuple[MemoryFiles, LogStore]) -> None:
    files, store = recorded
    log = store.open()
    append(log, 1, b"a")
    log.sync()
    log.close()
    done(files)
    store.open()
    found = [(o.kind, Path(o.path).name) for o in done(files)]
    # The sync makes durable what a killed process may have left in the system's cache.
    assert found == [("sync", Path(file_of(store)).name), ("write", FILE_NAME)]
