"""Where the pieces meet: the group decides, the log stores, the state applies, the caller is told.

Read this module first. Everything is a batch: operations that arrive while the disk is busy become one append
and one sync. The order *write, sync, tell* is in ``_persist`` and ``_finish``, and nowhere else.

No loop, no clock of its own: the same object runs in the server, in process, and in simulations.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from penstock.errors import PenstockError, StorageFailed
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.generation import Generation
from penstock.model import NOTHING, Index, SnapshotPoint
from penstock.protocol.version2 import Failed
from penstock.queues.state import State
from penstock.raft.messages import Snapshot
from penstock.raft.ready import Ready
from penstock.raft.sole import SoleMember
from penstock.server.disk import Disk
from penstock.server.member import GroupMember
from penstock.server.metrics import Meter
from penstock.storage.directory import NodeDirectory

INLINE_MAX: Final = 128
"""Entries in a batch for which the loop itself may wait for the disk: those who sent them wait anyway."""


class Operation(Protocol):
    """Something that entries of the log do to the state, and whom to tell."""

    def apply(self, state: State) -> None:
        """Change the state; the entries are committed."""
        ...

    def tell(self) -> None:
        """Answer whoever asked; called after ``apply``."""
        ...

    def lose(self, failed: Failed) -> None:
        """Answer whoever asked that another leads now: nobody knows whether the entries will be committed."""
        ...


Call = Callable[[], None]
Lose = Callable[[Failed], None]


class Replica:
    """One node's copy of the state, and its part in keeping all copies alike. Here: the only copy."""

    def __init__(
        self,
        directory: NodeDirectory,
        group: SoleMember | GroupMember,
        state: State,
        disk: Disk,
        meter: Meter,
        *,
        on_failure: Callable[[PenstockError], None],
    ) -> None:
        """Take over a directory that was recovered, and its state up to the end of the log."""
        self.directory = directory
        self.group = group
        self.state = state
        self.meter = meter
        self.failure: PenstockError | None = None  # once set, nothing is answered any more
        self.applied = group.committed
        self._disk = disk
        self._on_failure = on_failure
        self._operations: deque[Operation] = deque()  # those that are not applied yet
        self._ends: deque[Index] = deque()  # the last entry of each
        self._starts: deque[Index] = deque()  # the first entry of each
        # The newest one, which may still grow: nothing of it was handed out. None if there is no such.
        self.open: Operation | None = None
        self._is_busy = False  # whether the disk works for us
        self._is_advancing = False
        self._is_chore_due = False  # whether an append has gone by since the last chore
        self._chores: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        # Asked before the disk is: whether to wait for more. Whoever says so calls ``advance`` again.
        self.hold: Callable[[], bool] | None = None
        # Stays true when a bug of ours got in between: the state is not what the log says any more.
        self.is_applying = False
        self.after_apply: list[Callable[[], None]] = []  # called when a batch was applied
        self.after_confirm: list[
            Callable[[], None]
        ] = []  # called when ``confirm`` has called others
        # Whether what was just applied proves that nobody else leads.
        self.is_fresh = True
        self.is_leading = True  # decides what is asked of it
        self.is_alone = True  # needs nobody's word for that
        self.is_short_of_room = False  # the disk is nearly full: nothing more is taken in

    @property
    def generation(self) -> Generation:
        return self.directory.layout.generation

    @property
    def committed(self) -> Index:
        return self.group.committed

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way into the log."""
        return not self._operations and not self._is_busy and not self._chores

    def lead(self) -> None:
        """Begin a new term; its first entry says nothing and commits what was there before."""
        assert isinstance(self.group, SoleMember), "in a group of several others have to agree"
        self.group.campaign()
        self.group.propose([encode_delta(NOTHING)])
        self.advance()

    def propose(self, payloads: Sequence[bytes], operation: Operation) -> None:
        """Take entries for the log, and what to do when they are committed; ``advance`` goes on from there.

        For the operation that is ``open`` these are more entries.
        """
        if payloads:
            self.meter.note_proposed()
        end = self.group.propose(payloads)
        if operation is self.open:
            self._ends[-1] = end
            return
        self._operations.append(operation)
        self._ends.append(end)
        self._starts.append(Index(end - len(payloads) + 1))
        self.open = operation

    def confirm(self, call: Call, lose: Lose) -> None:  # noqa: ARG002
        """Call as soon as it is sure that nobody else led at a moment from now on; ``lose`` if another does."""
        call()

    def refusal(self) -> Failed | None:
        """Return why nothing can be asked of this node now, ``None`` if it can."""
        return None

    def note_snapshot(self, point: SnapshotPoint) -> None:
        """Note that a snapshot of the state at ``snapshot_point`` is in place, or a newer one."""

    @property
    def wants_snapshot(self) -> bool:
        """Whether somebody waits for a newer snapshot, however short the log is."""
        return False

    @property
    def can_snapshot(self) -> bool:
        """Whether the state as it is says all there is to say: no entry waits for another."""
        return True

    def advance(self) -> None:
        """Do all that can be done now. Call it whenever something was proposed."""
        if self._is_advancing:
            return  # the call under way goes on; one inside another would nest without bound
        self._is_advancing = True
        try:
            self._advance()
        finally:
            self._is_advancing = False

    def _advance(self) -> None:
        while self.failure is None and not self._is_busy:
            if self._chores and self._is_chore_due:
                # In turns: callers who never pause must not keep a snapshot from its place for ever.
                self._is_chore_due = False
                self._apply(self.group.committed)
                self._run_chore()
                continue
            if self.hold is not None and self._operations:
                self._apply(self.group.committed)
                if self._operations and self.hold():
                    return
            ready = self.group.ready()
            if ready is None:
                if not self._chores:
                    return
                self._run_chore()
                continue
            self._hand_out(ready)
            self._apply(ready.committed)

    def _hand_out(self, ready: Ready) -> None:
        """Give the disk what it has to do for a Ready, if that is anything."""
        self._is_busy = ready.must_sync
        if ready.must_sync:
            self.open = None
            self.meter.note_handed_out()
            self._disk.run(
                partial(self._persist, ready),
                partial(self._finish, ready),
                is_small=ready.snapshot is None and ready.entry_count <= INLINE_MAX,
            )

    def _persist(self, ready: Ready) -> None:
        """Write and sync what a Ready holds. Runs where the disk wants, one at a time."""
        if ready.hard_state is not None:
            self.directory.metadata.replace(ready.hard_state)
        if ready.snapshot is not None:
            self._install(ready.snapshot)
        if ready.appends:
            started = time.perf_counter()
            self._write(ready)
            self.meter.note_synced(ready.entry_count, time.perf_counter() - started)

    def _install(self, snapshot: Snapshot) -> None:
        raise AssertionError(f"nobody sends snapshot {snapshot.index} to a node that is alone")

    def _write(self, ready: Ready) -> None:
        log = self.directory.log
        for append in ready.appends:
            log.append(append.term, append.payloads)
        log.sync()  # An answer that outruns the disk can promise a task that a crash then loses.
        log.set_committed(Index(ready.appends[-1].end - 1))  # alone, what is synced is committed

    def _finish(self, ready: Ready, error: BaseException | None) -> None:
        self._is_busy = False
        if error is not None:
            self.fail(error)
            return
        self.group.persisted(ready.token)
        self._is_chore_due = True
        self.advance()

    def _apply(self, committed: Index) -> None:
        """Apply what is committed, then tell whoever waits for it."""
        if committed <= self.applied:
            return
        operations, ends = self._operations, self._ends
        done: list[Operation] = []
        self.is_applying = True
        while ends and ends[0] <= committed:
            ends.popleft()
            self._starts.popleft()
            operation = operations.popleft()
            operation.apply(self.state)
            done.append(operation)
        self.applied = committed
        self.group.applied(committed)
        self._tell(done)
        self.is_applying = False

    def _tell(self, done: Sequence[Operation]) -> None:
        if done:
            for operation in done:
                operation.tell()
            self._tell_applied()
            self.meter.note_told()

    def _tell_applied(self) -> None:
        for call in self.after_apply:
            call()

    def fail(self, error: BaseException) -> None:
        """Stop for good: nothing is written or answered any more."""
        if self.failure is not None:
            return
        if isinstance(error, OSError):
            error = StorageFailed(
                f"{self.directory.layout.home}: {error.strerror or error}. Repair the disk, then start the node again"
            )
        if not isinstance(error, PenstockError):
            raise error
        self.failure = error
        self._on_failure(error)

    # Chores: what else the disk does for us, between two appends.

    def run_chore(self, job: Callable[[], None], then: Callable[[], None]) -> None:
        """Run a job on the log between two syncs, then call ``then``."""
        self._chores.append((job, then))
        self.advance()

    def _run_chore(self) -> None:
        job, then = self._chores.popleft()
        self._is_busy = True

        def finish(error: BaseException | None) -> None:
            self._is_busy = False
            if error is not None:
                self.fail(error)
                return
            then()
            self.advance()

        self._disk.run(job, finish, is_small=False)

    def snapshot_point(self) -> SnapshotPoint:
        """Return the point of a snapshot of the state as it is now: always between two operations."""
        point = self.directory.snapshot.point
        if point is not None and point.index == self.applied:
            return (
                point  # nothing has happened since, and the log does not hold that entry any more
            )
        return SnapshotPoint(index=self.applied, term=self.directory.log.term(self.applied))
