"""A node without its sockets: directory, state, replica, broker, and the snapshots it takes of itself."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.errors import PenstockError
from penstock.families.taskflux.location import choose
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import Index, NodeId, SnapshotPoint, Term
from penstock.raft.sole import SoleMember
from penstock.server.broker import Broker
from penstock.server.disk import Disk
from penstock.server.group import Group
from penstock.server.membership import refuse_member
from penstock.server.metrics import Meter
from penstock.server.rebuild import SnapshotWalk, rebuild
from penstock.server.replica import Replica
from penstock.server.settings import Settings
from penstock.server.upgrade import upgrade
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import Files, OsFiles, opening_directory
from penstock.storage.log import DEFAULT_LIMITS, LogLimits
from penstock.storage.paged.flush_rules import steady_clock_ms
from penstock.storage.paged.task_pages import TaskShelf
from penstock.storage.recovery import Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a start found, to be said to people."""

    seconds: float
    entries: int
    tasks: int
    queues: int
    cuts: list[Cut]
    upgraded: str | None  # where the files of generation 1 are kept
    notice: str | None  # names both sets of files, where the directory holds two


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


_SYSTEM: Final = random.SystemRandom()  # incarnations must not repeat where processes are copied


class Node:
    """Everything that a server or a program in process needs to serve a directory."""

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        *,
        on_failure: Callable[[PenstockError], None],
        clock: Callable[[], int] = wall_clock_ms,
        steady: Callable[[], int] = steady_clock_ms,
        patience: Callable[[], int] | None = None,
        files: Files | None = None,
        draw: Callable[[int], int] = _SYSTEM.randrange,
        log_limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        """Open and recover; alone, lead. ``draw(n)`` returns chance, 0 to n - 1, for elections.

        The clocks are those of ``Broker``.
        Raises ``StorageError``, ``BadData`` or ``ReplayConflict``.
        """
        started = time.perf_counter()
        self.settings = settings
        files = OsFiles() if files is None else files
        with opening_directory(settings.data):
            wanted = None if settings.generation is None else Generation(settings.generation)
            choice = choose(files, settings.data, wanted)
            upgraded = upgrade(files, settings.data, choice.layout)
            directory = NodeDirectory(
                files,
                settings.data,
                layout=choice.layout if upgraded is None else None,
                generation=wanted or Generation.THREE,
                limits=log_limits,
            )
        self.disk = disk
        self.directory = directory
        self.meter = Meter()
        self.shelf: TaskShelf | None = None
        self.group: Group | None = None
        try:
            if settings.group is None:
                self.replica = self._open_alone(files, on_failure, steady)
            else:
                self.group = Group(
                    directory, settings.group, disk, self.meter, files, draw, on_failure
                )
                self.replica = self.group.replica
        except BaseException:
            self._let_go(directory)
            raise
        if self.group is None:
            self.replica.lead()
        self.broker = Broker(self.replica, clock, settings.limits, steady, patience)
        if self.group is not None:
            self.group.serve(self.broker)
        state, log = self.replica.state, directory.log
        self.recovered = Recovered(
            seconds=time.perf_counter() - started,
            entries=log.end - log.first,
            tasks=sum(len(queue) for queue in state.queues()),
            queues=len(state.by_name),
            cuts=directory.cuts,
            upgraded=upgraded,
            notice=choice.notice,
        )

    def _open_alone(
        self,
        files: Files,
        on_failure: Callable[[PenstockError], None],
        steady: Callable[[], int],
    ) -> Replica:
        directory = self.directory
        refuse_member(files, directory.layout.home)
        if directory.layout.generation is Generation.THREE:
            self.shelf = TaskShelf(
                files,
                directory.layout.home,
                directory.snapshot.point,
                limits=self.settings.paged,
                clock_ms=steady,
            )
        state = rebuild(directory, self.shelf)
        log = directory.log
        group = SoleMember(
            NodeId(self.settings.node), directory.metadata.state, log.end, Index(log.end - 1)
        )
        return Replica(directory, group, state, self.disk, self.meter, on_failure=on_failure)

    def state_digest(self) -> bytes:
        """Return a hash of the state: the same on every replica that has applied the same entries."""
        return state_digest(self.replica)

    def close(self) -> None:
        """Let the directory go; the disk has finished."""
        self._let_go(self.directory)

    def _let_go(self, directory: NodeDirectory) -> None:
        if self.shelf is not None:
            self.shelf.close()
        directory.close()


def state_digest(replica: Replica) -> bytes:
    layout = WRITTEN[replica.generation].snapshot
    walk = SnapshotWalk(replica.state, SnapshotPoint(index=Index(0), term=Term(1)), layout)
    digest = hashlib.sha256()
    try:
        for piece in walk.pieces:
            digest.update(piece)
    finally:
        walk.end()
    return digest.digest()
