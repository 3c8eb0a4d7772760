"""Lives of a node for tests of its files: random ones with tasks that can be told apart, and where each step ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import Entry, HardState, Index, NodeId, SnapshotPoint, Term
from penstock.queues.state import State
from penstock.server.rebuild import Replay, SnapshotWalk
from penstock.storage.directory import NodeDirectory
from penstock.storage.records import Stretch
from penstock.testing.disk import Image, MemoryFiles
from support.memory_pages import MemoryShelf
from support.node_rig import LIMITS, ROOT, shelf_of


@dataclass
class Entries:
    """A log taken out of its files."""

    generation: Generation
    entries: list[Entry] = field(default_factory=list)

    @classmethod
    def of(cls, directory: NodeDirectory) -> Entries:
        log = directory.log
        found: list[Entry] = []
        index = log.first
        while index < log.end:
            found += log.read(Index(index), log.end, size_max=2**20)
            index = Index(found[-1].index + 1)
        return cls(directory.layout.generation, found)

    def replayed(self, end: int, start: int = 0, state: State | None = None) -> State:
        """Return the state after the entries before ``end``, as a rebuild comes to it."""
        if state is None:
            state = State(MemoryShelf() if self.generation is Generation.THREE else None)
        replay = Replay(state, is_by_id=self.generation is Generation.THREE)
        payloads = [entry.payload for entry in self.entries[start:end]]
        bounds = [0]
        for payload in payloads:
            bounds.append(bounds[-1] + len(payload))
        replay.apply(Stretch(start, b"".join(payloads), bounds[:-1], bounds[1:]))
        return state

    def directory(self, files: MemoryFiles, end: int, snapshot_at: int | None = None) -> None:
        """Write a directory with the entries before ``end``, those up to ``snapshot_at`` in a snapshot too."""
        directory = NodeDirectory(files, ROOT, generation=self.generation, limits=LIMITS)
        term = max((entry.term for entry in self.entries), default=Term(1))
        directory.metadata.replace(HardState(term=term, vote=NodeId(1)))
        cut = end if snapshot_at is None else snapshot_at + 1
        self._append(directory, 0, cut)
        if snapshot_at is not None:
            point = SnapshotPoint(index=Index(snapshot_at), term=self.entries[snapshot_at].term)
            shelf = shelf_of(files, directory)
            state = self.replayed(cut, state=State(shelf))
            sync_pages = None if shelf is None else shelf.begin_checkpoint(point)
            if sync_pages is not None:
                sync_pages()
            walk = SnapshotWalk(state, point, WRITTEN[self.generation].snapshot)
            directory.save_snapshot(point, walk.pieces)
            walk.end()
            if shelf is not None:
                shelf.finish_checkpoint()
                shelf.close()
            self._append(directory, cut, end)
        directory.close()

    def _append(self, directory: NodeDirectory, start: int, end: int) -> None:
        log = directory.log
        for entry in self.entries[start:end]:
            log.append(entry.term, [entry.payload])
        log.sync()
        if log.end:
            log.set_committed(Index(log.end - 1))


def write_image(image: Image, root: Path) -> Path:
    """Write the files of a disk in memory below a real directory, without the lock."""
    for name, data in image.items():
        path = root / Path(name).relative_to(ROOT)
        if path.name != "penstock.lock":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return root
