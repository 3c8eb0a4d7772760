"""A disk that fails once: the store stops for good, tries no sync again, and loses nothing synced.

For n = 1, 2, 3, …: a life of a node fails at its n-th operation. Then everything is asked of what has
failed, and the disk is opened anew as it is and as a power cut at that moment may leave it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from penstock.errors import NoRoom, StorageFailed
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.snapshot import encode_snapshot
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import DEFAULT_QUEUE, NO_LIMITS, HardState, Index, QueueHead, TaskId, Term
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import TEMPORARY_SUFFIX, OsFiles
from penstock.testing.disk import SECTOR, CrashState, MemoryFiles, Operation, crash_states_now
from storage.test_crash import LIMITS, ROOT, Workload, check
from support.log_stores import append, point
from support.report import report

GENERATIONS = [Generation.TWO, Generation.THREE]
FAULTS = {
    "EIO": OSError(errno.EIO, "Input/output error"),
    "ENOSPC": OSError(errno.ENOSPC, "No space left on device"),
}


def live(work: Workload) -> None:
    """Do everything once that changes the disk: grow, seal, truncate across files, compact, vote."""
    work.append([b"a", b"b" * 700, b""])
    work.sync()
    work.commit(1)
    work.vote(2, 3)
    for letter in (b"c", b"d", b"e", b"f"):
        work.append([letter * 1500, letter * 1500])
        work.sync()
    work.truncate(4)
    work.append([b"g" * 900])
    work.sync()
    work.commit(3)
    work.snapshot(2)
    work.append([b"h" * 2500])
    work.sync()
    work.commit(5)
    work.append([b"i" * 100])
    work.sync()
    work.vote(3, 1)
    work.snapshot(5)
    work.append([b"j"])
    work.sync()


class Breaker:
    """Fails the n-th operation, and remembers what was attempted after that."""

    def __init__(self, files: MemoryFiles, n: int, error: OSError, *, writes_half: bool) -> None:
        self._files = files
        self._left = n
        self._error = error
        self._writes_half = writes_half
        self.failed: Operation | None = None
        self.attempts: list[Operation] = []

    def __call__(self, operation: Operation) -> None:
        if self.failed is not None:
            self.attempts.append(operation)
            return
        self._left -= 1
        if self._left == 0:
            self.failed = operation
            if operation.kind == "write" and self._writes_half:
                self._write_half(operation)
            raise self._error

    def _write_half(self, operation: Operation) -> None:
        """Let the first sectors of a write through, as a disk does that fills up."""
        middle = operation.offset + len(operation.data) // 2
        size = max(0, middle - middle % SECTOR - operation.offset)
        half = replace(operation, data=operation.data[:size])
        self._files.operations.append(half)
        self._files._state.apply(half)


@dataclass
class Broken:
    """A life that met its fault."""

    work: Workload
    breaker: Breaker
    files: MemoryFiles

    @property
    def owner(self) -> str:
        """The store whose operation failed; a directory is synced for what was last done in it."""
        assert self.breaker.failed is not None
        is_directory = self.breaker.failed.kind == "sync_directory"
        operation = self.files.operations[-1] if is_directory else self.breaker.failed
        name = Path(operation.target or operation.path).name
        return next((kind for kind in ("metadata", "snapshot") if kind in name), "log")


def broken_lives(generation: Generation, error: OSError, *, writes_half: bool) -> Iterator[Broken]:
    """Yield a life for every operation of it that can fail; the first operations are the opening.

    A snapshot, or the log's next file, that finds no room fails nothing (``test_snapshot_room``), and is passed over.
    """
    n = count_of_opening(generation)
    while True:
        n += 1
        files = MemoryFiles()
        breaker = Breaker(files, n, error, writes_half=writes_half)
        files.fault = breaker
        work = Workload(generation, files)
        try:
            live(work)
        except StorageFailed:
            assert breaker.failed is not None
            yield Broken(work, breaker, files)
        except NoRoom:
            failed = breaker.failed
            assert failed is not None
            assert failed.kind in ("create", "write")
            assert failed.path.endswith((f"snapshot{TEMPORARY_SUFFIX}", f"spare{TEMPORARY_SUFFIX}"))
        else:
            assert breaker.failed is None, "a failure was swallowed"
            return


def count_of_opening(generation: Generation) -> int:
    files = MemoryFiles()
    NodeDirectory(files, ROOT, generation=generation, limits=LIMITS)
    return len(files.operations)


def log_calls(node: NodeDirectory) -> dict[str, Callable[[], object]]:
    log, first = node.log, node.log.first
    return {
        "append": lambda: append(log, 99, b"x"),
        "sync": log.sync,
        "truncate": lambda: log.truncate(Index(log.committed + 1)),
        "set_committed": lambda: log.set_committed(Index(log.end - 1)),
        "term": lambda: log.term(first),
        "read": lambda: log.read(first, log.end),
        "stretches": lambda: list(log.stretches(first)),
        "begin_compaction": lambda: log.begin_compaction(point(log.committed + 1)),
        "drop_prefix": lambda: log.drop_prefix(point(log.committed + 1)),
    }


def calls_of(
    node: NodeDirectory, owner: str, generation: Generation
) -> dict[str, Callable[[], object]]:
    """Return everything that the failed store could still be asked."""
    if owner == "metadata":
        return {"replace": lambda: node.metadata.replace(HardState(term=Term(9)))}
    if owner == "log":
        return log_calls(node)

    def write() -> object:
        head = QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(0), count=0)
        return node.snapshot.write(
            encode_snapshot(point(1), 1, [(head, [])], WRITTEN[generation].snapshot)
        )

    return {"write": write, "writer": node.snapshot.writer}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_after_a_failure_at_any_operation_the_store_answers_nothing_and_syncs_nothing(
    generation: Generation, fault: str
) -> None:
    kinds: dict[str, int] = {}
    for life in broken_lives(generation, FAULTS[fault], writes_half=fault == "ENOSPC"):
        failed = life.breaker.failed
        assert failed is not None
        kinds[failed.kind] = kinds.get(failed.kind, 0) + 1
        node, owner, before = life.work.node, life.owner, len(life.files.operations)
        for name, call in calls_of(node, owner, generation).items():
            with pytest.raises(StorageFailed, match=str(FAULTS[fault].strerror)):
                call()
            assert life.breaker.attempts == [], f"{name} after {failed.kind} of {failed.path}"
        assert len(life.files.operations) == before
        node.close()
        syncs = [o.path for o in life.breaker.attempts if o.kind == "sync"]
        assert failed.path not in syncs
        assert syncs == [] or owner != "log"
    words = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    report(f"generation {generation}, {fault} once in each of: {words}")
    assert set(kinds) == {
        "create",
        "write",
        "truncate",
        "sync",
        "rename",
        "remove",
        "sync_directory",
    }


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_after_a_failure_at_any_operation_the_disk_holds_all_that_was_synced(
    generation: Generation, fault: str
) -> None:
    count = 0
    for life in broken_lives(generation, FAULTS[fault], writes_half=fault == "ENOSPC"):
        done = len(life.files.operations)
        check(life.work, CrashState(done, "as it is", life.files.image()))
        for crash in crash_states_now(life.files, seed=done, random_states=2):
            check(life.work, crash)
            count += 1
    report(f"generation {generation}, {fault} at every operation: {count} crash states recovered")
    assert count > 100


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_failure_while_opening_is_told_and_the_next_start_succeeds(
    generation: Generation, fault: str
) -> None:
    for n in range(1, count_of_opening(generation) + 1):
        files = MemoryFiles()
        files.fault = Breaker(files, n, FAULTS[fault], writes_half=True)
        with pytest.raises(StorageFailed, match=str(FAULTS[fault].strerror)):
            NodeDirectory(files, ROOT, generation=generation, limits=LIMITS)
        files.fault = None
        images = [files.image(), *(crash.image for crash in crash_states_now(files))]
        for image in images:
            node = NodeDirectory(MemoryFiles(image), ROOT, generation=generation, limits=LIMITS)
            assert (node.log.end, node.metadata.state) == (0, HardState())


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_failure_while_recovering_is_told_and_the_next_start_loses_nothing(
    generation: Generation,
) -> None:
    work = Workload(generation, MemoryFiles())
    live(work)
    # After the rename of the last snapshot: recovery has a compaction to finish.
    renamed = max(n for n, o in enumerate(work.files.operations) if o.target.endswith(".snapshot"))
    count = renamed + 1
    n = 0
    while True:
        n += 1
        files = MemoryFiles(work.files.after(count).image())
        breaker = Breaker(files, n, FAULTS["EIO"], writes_half=False)
        files.fault = breaker
        try:
            NodeDirectory(files, ROOT, generation=generation, limits=LIMITS)
        except StorageFailed:
            files.fault = None
        if breaker.failed is None:
            break
        check(work, CrashState(count, "as it is", files.image()))
        for crash in crash_states_now(files, seed=n, random_states=1):
            check(work, CrashState(count, crash.survived, crash.image))
    assert n > 5


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("call", ["read", "stretches"])
def test_a_log_that_cannot_be_read_answers_nothing_any_more(
    generation: Generation, call: str
) -> None:
    work = Workload(generation, MemoryFiles())
    live(work)
    log = work.node.log
    reads: dict[str, Callable[[], object]] = {
        "read": lambda: log.read(log.first, log.end),
        "stretches": lambda: list(log.stretches(log.first)),
    }
    work.files.read_fault = FAULTS["EIO"]
    with pytest.raises(StorageFailed, match="Input/output error"):
        reads[call]()
    work.files.read_fault = None
    for each in log_calls(work.node).values():
        with pytest.raises(StorageFailed, match="Input/output error"):
            each()


def test_the_failure_and_what_to_do_about_it_are_said() -> None:
    for life in broken_lives(Generation.THREE, FAULTS["EIO"], writes_half=False):
        with pytest.raises(StorageFailed) as caught:
            next(iter(calls_of(life.work.node, life.owner, Generation.THREE).values()))()
        words = str(caught.value)
        assert "Input/output error" in words
        assert "start again" in words
        assert str(ROOT) in words


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_real_sync_that_fails_is_not_tried_again(
    tmp_path: Path, generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second fdatasync would succeed: Linux marks the page clean, and the data is lost.
    node = NodeDirectory(OsFiles(), tmp_path, generation=generation, limits=LIMITS)
    append(node.log, 1, b"promised")
    node.log.sync()
    append(node.log, 1, b"never promised")
    calls: list[int] = []

    def fail(descriptor: int) -> None:
        calls.append(descriptor)
        raise FAULTS["EIO"]

    monkeypatch.setattr(os, "fdatasync", fail)
    for _ in range(3):
        with pytest.raises(StorageFailed, match="Input/output error"):
            node.log.sync()
    node.close()
    assert len(calls) == 1
    monkeypatch.undo()
    again = NodeDirectory(OsFiles(), tmp_path, limits=LIMITS)
    assert again.log.read(Index(0), Index(1))[0].payload == b"promised"
    again.close()
