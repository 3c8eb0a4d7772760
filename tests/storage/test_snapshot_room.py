"""A snapshot that finds no room costs its own file and nothing else; all other failures stop the store."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import NoRoom, StorageFailed
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.snapshot import Patch, encode_snapshot
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import DEFAULT_QUEUE, NO_LIMITS, QueueHead, TaskId
from penstock.storage.files import TEMPORARY_SUFFIX
from penstock.storage.snapshot import WRITE_SIZE, SnapshotStore
from penstock.testing.disk import MemoryFiles, Operation, crash_states_now
from support.log_stores import point

PATH = Path("/node/snapshot")
SIBLING = f"{PATH}{TEMPORARY_SUFFIX}"
ENOSPC = OSError(errno.ENOSPC, "No space left on device")
EDQUOT = OSError(errno.EDQUOT, "Disk quota exceeded")
EIO = OSError(errno.EIO, "Input/output error")
OLD, NEW = 3, 5


def pieces(index: int, generation: Generation) -> Generator[bytes, None, Patch | None]:
    """Return a snapshot that takes several writes."""
    tasks = [(n + 1, n, bytes([n]) * (WRITE_SIZE // 2)) for n in range(5)]
    head = QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(5), count=5)
    return encode_snapshot(point(index), 1, [(head, tasks)], WRITTEN[generation].snapshot)


def operations_of_a_snapshot(generation: Generation) -> list[Operation]:
    files = MemoryFiles()
    store = SnapshotStore(files, PATH)
    store.write(pieces(OLD, generation)).install()
    before = len(files.operations)
    store.write(pieces(NEW, generation)).install()
    return files.operations[before:]


def failing(files: MemoryFiles, place: int, error: OSError) -> Callable[[Operation], None]:
    """Fail the operation at a place, once; of a write the first sector gets through, as on a disk that fills up."""
    count = 0

    def fault(operation: Operation) -> None:
        nonlocal count
        count += 1
        if count == place + 1:
            if operation.kind == "write":
                half = replace(operation, data=operation.data[:512])
                files.operations.append(half)
                files._state.apply(half)
            raise error

    return fault


@pytest.mark.parametrize("error", [ENOSPC, EDQUOT], ids=["ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("generation", [Generation.TWO, Generation.THREE])
def test_without_room_at_any_write_the_file_is_gone_and_the_next_snapshot_succeeds(
    generation: Generation, error: OSError
) -> None:
    tried = 0
    for place, operation in enumerate(operations_of_a_snapshot(generation)):
        if operation.kind not in ("create", "write"):
            continue
        tried += 1
        files = MemoryFiles()
        store = SnapshotStore(files, PATH)
        store.write(pieces(OLD, generation)).install()
        files.fault = failing(files, place, error)
        with pytest.raises(NoRoom, match=f"{SIBLING}: {error.strerror}"):
            store.write(pieces(NEW, generation))
        files.fault = None
        assert list(files.image()) == [str(PATH)]
        for crash in crash_states_now(files, random_states=2):
            assert SnapshotStore(MemoryFiles(crash.image), PATH).point == point(OLD)
        store.write(pieces(NEW, generation)).install()
        assert SnapshotStore(MemoryFiles(files.image()), PATH).point == point(NEW)
    assert tried >= 3


@pytest.mark.parametrize("generation", [Generation.TWO, Generation.THREE])
def test_every_other_failure_stops_the_store_for_good(generation: Generation) -> None:
    kinds = set()
    for place, operation in enumerate(operations_of_a_snapshot(generation)):
        is_room = operation.kind in ("create", "write")
        for error in (EIO,) if is_room else (EIO, ENOSPC, EDQUOT):
            kinds.add((operation.kind, error.errno))
            files = MemoryFiles()
            store = SnapshotStore(files, PATH)
            store.write(pieces(OLD, generation)).install()
            files.fault = failing(files, place, error)
            with pytest.raises(StorageFailed, match=str(error.strerror)):
                store.write(pieces(NEW, generation)).install()
            files.fault = None
            with pytest.raises(StorageFailed, match=str(error.strerror)):
                store.writer()
    assert {("sync", errno.ENOSPC), ("rename", errno.ENOSPC), ("write", errno.EIO)} <= kinds


def test_a_file_that_cannot_be_removed_stops_the_store() -> None:
    files = MemoryFiles()
    store = SnapshotStore(files, PATH)

    def fault(operation: Operation) -> None:
        if operation.kind == "write":
            raise ENOSPC
        if operation.kind == "remove":
            raise EIO

    files.fault = fault
    with pytest.raises(StorageFailed, match="Input/output error"):
        store.write(pieces(OLD, Generation.THREE))
    files.fault = None
    with pytest.raises(StorageFailed, match="Input/output error"):
        store.writer()


def test_giving_up_what_is_gone_already_is_nothing() -> None:
    files = MemoryFiles()
    writer = SnapshotStore(files, PATH).writer()
    files.fault = failing(files, 0, ENOSPC)
    with pytest.raises(NoRoom):
        writer.write(bytes(WRITE_SIZE))
    files.fault = None
    before = len(files.operations)
    writer.abandon()
    assert len(files.operations) == before
    assert files.image() == {}
