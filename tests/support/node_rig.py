"""A node without sockets on a disk in memory, driven step by step: its broker, its clock, its callers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import Index, NodeId, QueueName, SnapshotPoint
from penstock.protocol import version2 as v2
from penstock.protocol.version2.requests import Singles
from penstock.queues.queue import Queue
from penstock.queues.state import State
from penstock.raft.sole import SoleMember
from penstock.server.broker import Broker
from penstock.server.caller import SinglesCaller
from penstock.server.disk import InlineDisk, LaterDisk
from penstock.server.metrics import Meter
from penstock.server.rebuild import SnapshotWalk, rebuild
from penstock.server.replica import Replica
from penstock.server.settings import Limits
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import Files
from penstock.storage.log import LogLimits
from penstock.storage.paged.task_pages import TaskShelf
from penstock.testing.disk import Image, MemoryFiles

ROOT: Final = Path("/node")
LIMITS: Final = LogLimits(soft=4096, hard=8192, growth=1024)
"""Files so small that a short life fills several."""

START_MS: Final = 1_700_000_000_000
TURNS_MAX: Final = 50
"""How often a clock that stands still may ask to be looked at again."""

Dump = dict[str, Any]


class ManualClock:
    """Milliseconds since 1970, moved by hand."""

    def __init__(self) -> None:
        self.now = START_MS

    def __call__(self) -> int:
        return self.now


@dataclass(frozen=True)
class Told:
    """One answer, in the order in which they came."""

    caller: RecordingCaller
    number: int
    answer: v2.Answer


class RecordingCaller(SinglesCaller):
    """Somebody who asks, and remembers what was answered."""

    __slots__ = ("_next", "answers", "full", "told")

    def __init__(self, told: list[Told]) -> None:
        super().__init__()
        self.told = told
        self.answers: dict[int, list[v2.Answer]] = {}
        self.full = False
        self._next = 1

    def number(self) -> int:
        self._next += 1
        return self._next - 1

    @property
    def is_full(self) -> bool:
        return self.full

    def answer(self, number: int, answer: v2.Answer) -> None:
        if not self.is_gone:
            self.answers.setdefault(number, []).append(answer)
            self.told.append(Told(self, number, answer))

    def answer_singles(self, numbers: Sequence[int], first: int) -> None:
        for task_id, number in enumerate(numbers, first):
            self.answer(number, v2.Enqueued((v2.Run(v2.Outcome.ACCEPTED, 1, task_id),)))

    def flush(self) -> None:
        pass


@dataclass
class Rig:
    """A node over ``files``; ``restart`` opens the same directory anew."""

    generation: Generation
    files: MemoryFiles = field(default_factory=MemoryFiles)
    clock: ManualClock = field(default_factory=ManualClock)
    later: LaterDisk | None = None  # None: the disk is done at once
    limits: Limits = field(default_factory=Limits)
    told: list[Told] = field(default_factory=list)
    walk: tuple[SnapshotPoint, SnapshotWalk, list[bytes]] | None = None
    is_installing: bool = False  # whether a finished snapshot waits for its place
    failures: list[PenstockError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.directory = NodeDirectory(self.files, ROOT, generation=self.generation, limits=LIMITS)
        log = self.directory.log
        self.shelf = shelf_of(self.files, self.directory)
        state = rebuild(self.directory, self.shelf)
        group = SoleMember(NodeId(1), self.directory.metadata.state, log.end, Index(log.end - 1))
        disk = InlineDisk() if self.later is None else self.later
        self.replica = Replica(
            self.directory, group, state, disk, Meter(), on_failure=self.failures.append
        )
        self.replica.lead()
        self.broker = Broker(self.replica, self.clock, self.limits)

    @property
    def state(self) -> State:
        return self.replica.state

    def queue(self, name: str = "") -> Queue:
        return self.state.by_name[QueueName(name)]

    def caller(self) -> RecordingCaller:
        return RecordingCaller(self.told)

    # Asking.

    def send(self, caller: RecordingCaller, request: v2.Request) -> int:
        """Hand a request to the broker, and nothing else; return its number."""
        number, broker = caller.number(), self.broker
        match request:
            case v2.Enqueue(queue, (key,), (payload,), None, None, None) if number % 2:
                # As a session takes what was sent task by task.
                broker.enqueue_singles(caller, Singles(queue, [number], [key], [payload]))
            case v2.Enqueue():
                broker.enqueue(caller, number, request)
            case v2.Dequeue():
                broker.dequeue(caller, number, request)
            case v2.Ack():
                broker.ack(caller, number, request)
            case v2.Nack():
                broker.nack(caller, number, request)
            case v2.Release():
                broker.release(caller, number, request)
            case v2.Start():
                broker.start(caller, request)
            case v2.Extend():
                broker.extend(caller, number, request)
            case v2.Subscribe():
                broker.subscribe(caller, number, request)
            case v2.Unsubscribe():
                (consumer,) = [c for c in caller.consumers if c.number == request.subscription]
                broker.unsubscribe(consumer)
            case v2.Peek():
                broker.peek(caller, number, request)
            case v2.Purge():
                broker.purge(caller, number, request)
            case v2.Create():
                broker.create(caller, number, request)
            case v2.Delete():
                broker.delete(caller, number, request)
            case v2.Stat():
                broker.stat(caller, number, request)
            case _:
                raise AssertionError(request)
        return number

    def ask(self, caller: RecordingCaller, request: v2.Request) -> v2.Answer:
        """Ask, do all that follows, and return the one answer."""
        number = self.send(caller, request)
        self.go_on()
        (answer,) = caller.answers[number]
        return answer

    def go_on(self) -> None:
        """Do what a loop does between two events, as often as the clock asks for it."""
        for _ in range(TURNS_MAX):
            self.broker.tick()
            self.broker.serve()
            self.replica.advance()
            self.broker.flush()
            wait = self.broker.wakeup_in_ms()
            if wait is None or wait > 0 or self.later is not None:
                return
        raise AssertionError("the broker asks for the same moment again and again")

    def sync(self) -> None:
        """Let a disk that was told to wait do all it has to."""
        assert self.later is not None
        self.replica.advance()
        while self.later.waiting:
            self.later.run_one()
            self.replica.advance()
        self.broker.flush()

    # Ending and beginning.

    def restart(self) -> None:
        """Close the directory as a killed process leaves it, and open it again."""
        self.end_walk()
        self.is_installing = False
        if self.later is not None:
            self.later.waiting.clear()
        self.told.clear()
        if self.shelf is not None:
            self.shelf.close()
        self.directory.close()
        self.open()

    def end_walk(self) -> None:
        if self.walk is not None:
            self.walk[1].end()
            self.walk = None
            if self.shelf is not None and not self.is_installing:
                self.shelf.abandon_checkpoint()

    # Snapshots.

    def begin_snapshot(self) -> None:
        point = self.replica.snapshot_point()
        self.sync_pages = None if self.shelf is None else self.shelf.begin_checkpoint(point)
        self.walk = (point, SnapshotWalk(self.state, point, WRITTEN[self.generation].snapshot), [])

    def snapshot_slice(self) -> bool:
        """Take one piece of the snapshot under way; return whether it is in place now."""
        assert self.walk is not None
        point, walk, pieces = self.walk
        try:
            pieces.append(next(walk.pieces))
        except StopIteration as done:
            self.is_installing = True
            self.end_walk()
            if self.sync_pages is not None:
                self.sync_pages()
            writer = self.directory.snapshot.writer()
            for piece in pieces:
                writer.write(piece)
            writer.finish(done.value)
            self.replica.run_chore(
                lambda: self.directory.install_snapshot(point, writer), self._installed
            )
            return True
        return False

    def _installed(self) -> None:
        self.is_installing = False
        if self.shelf is not None:
            self.shelf.finish_checkpoint()

    def snapshot(self) -> None:
        self.end_walk()
        self.begin_snapshot()
        while not self.snapshot_slice():
            pass

    # Looking.

    def dump(self) -> Dump:
        return dump(self.state, self.clock.now)

    def rebuilt(self) -> Dump:
        """Return what the files alone say, the rest of this node forgotten."""
        return dump(rebuilt(self.files.image(), self.generation), self.clock.now)


def rebuilt(image: Image, generation: Generation) -> State:
    """Return the state that a disk holds."""
    files = MemoryFiles(image)
    directory = NodeDirectory(files, ROOT, generation=generation, limits=LIMITS)
    try:
        return rebuild(directory, shelf_of(files, directory))
    finally:
        directory.close()


def shelf_of(files: Files, directory: NodeDirectory) -> TaskShelf | None:
    """Return the pages that a directory has, where there can be any."""
    if directory.layout.generation is not Generation.THREE:
        return None
    return TaskShelf(files, directory.layout.home, directory.snapshot.point)


def dump(state: State, now_ms: int) -> Dump:
    """Return everything that a state holds, in a form that can be compared.

    A delay that is over counts as none: the leader lets go of it when its clock says so, and no entry tells.
    """
    return {
        "next_number": state.next_number,
        "queues": {queue.number: _dump_queue(queue, now_ms) for queue in state.queues()},
        "names": {str(name): queue.number for name, queue in sorted(state.by_name.items())},
        "producers": [
            (
                producer,
                forgotten,
                [(sequence, t.queue, t.total, t.runs) for sequence, t in requests.items()],
            )
            for producer, forgotten, requests in state.producers
        ],
        "results": state.producers.count,
    }


def _dump_queue(queue: Queue, now_ms: int) -> Dump:
    return {
        "name": str(queue.name),
        "policy": queue.policy,
        "options": queue.options,
        "last_id": queue.tasks.last_id,
        "count": len(queue),
        "size": queue.tasks.size,
        "tasks": list(queue.tasks),
        "attempts": dict(sorted(queue.attempts.items())),
        "delayed": {n: time for n, time in sorted(queue.delays().items()) if time > now_ms},
        "expiring": dict(queue.expiring),
    }


def delivered_order(state: State, now_ms: int) -> dict[str, list[int]]:
    """Take everything out of a state, as far as it is ready, and return the ids in their order."""
    found: dict[str, list[int]] = {}
    for queue in state.queues():
        queue.release(now_ms)
        ids: list[int] = []
        while (task := queue.take()) is not None:
            ids.append(task[0])
        found[str(queue.name)] = ids
    return found


def expected_order(state: State, now_ms: int) -> dict[str, list[int]]:
    """Return the same, the slow and obvious way."""
    found: dict[str, list[int]] = {}
    for queue in state.queues():
        waiting = dict(queue.delayed)
        ready = [(key, i) for i, key, _ in queue.tasks if waiting.get(i, 0) <= now_ms]
        found[str(queue.name)] = [i for _, i in sorted(ready)]
    return found
