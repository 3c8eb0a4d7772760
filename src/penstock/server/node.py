"""A node without its sockets: directory, state, replica, broker, and the snapshots it takes of itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.formats.taskflux.generation import Generation
from penstock.model import Index, NodeId
from penstock.raft.sole import SoleMember
from penstock.server.broker import Broker
from penstock.server.disk import Disk
from penstock.server.metrics import Meter
from penstock.server.rebuild import rebuild
from penstock.server.replica import Replica
from penstock.server.settings import Settings
from penstock.server.upgrade import upgrade
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import Files, OsFiles
from penstock.storage.recovery import Cut
from penstock.storage.task_pages import TaskShelf


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a start found, to be said to people."""

    seconds: float
    entries: int
    tasks: int
    queues: int
    cuts: list[Cut]
    upgraded: str | None  # where the files of generation 1 are kept


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Node:
    """Everything that a server or a program in process needs to serve a directory."""

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        *,
        on_failure: Callable[[PenstockError], None],
        clock: Callable[[], int] = wall_clock_ms,
        files: Files | None = None,
    ) -> None:
        """Open, recover and lead. Raises ``StorageError``, ``BadData`` or ``ReplayConflict``."""
        started = time.perf_counter()
        self.settings = settings
        files = OsFiles() if files is None else files
        upgraded = upgrade(files, settings.data)
        directory = NodeDirectory(files, settings.data, generation=Generation(settings.generation))
        self.shelf: TaskShelf | None = None
        try:
            if directory.layout.generation is Generation.THREE:
                self.shelf = TaskShelf(files, directory.layout.home, directory.snapshot.point)
            state = rebuild(directory, self.shelf)
        except BaseException:
            self._let_go(directory)
            raise
        log = directory.log
        self.disk = disk
        self.directory = directory
        self.meter = Meter()
        group = SoleMember(
            NodeId(settings.node), directory.metadata.state, log.end, Index(log.end - 1)
        )
        self.replica = Replica(directory, group, state, disk, self.meter, on_failure=on_failure)
        self.replica.lead()
        self.broker = Broker(self.replica, clock, settings.limits)
        self.recovered = Recovered(
            seconds=time.perf_counter() - started,
            entries=log.end - log.first,
            tasks=sum(len(queue) for queue in state.queues()),
            queues=len(state.by_name),
            cuts=directory.cuts,
            upgraded=upgraded,
        )

    def close(self) -> None:
        """Let the directory go; the disk has finished."""
        self._let_go(self.directory)

    def _let_go(self, directory: NodeDirectory) -> None:
        if self.shelf is not None:
            self.shelf.close()
        directory.close()
