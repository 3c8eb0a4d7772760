"""A node's directory that a test lets grow, rotate, tear and shrink, beside whatever reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.snapshot import encode_snapshot
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    AddTask,
    HardState,
    Index,
    QueueHead,
    QueueName,
    SnapshotPoint,
    TaskId,
    Term,
)
from penstock.storage.directory import NodeDirectory
from penstock.storage.log import LogLimits
from support.at_rest import QuickFiles

QUEUE: Final = QueueName("orders")
LIMITS: Final = LogLimits(soft=512, hard=1024, growth=256)
"""Segments of about ten entries."""


class GrowingDirectory:
    """The files of a node, written as a node writes them, entry by entry."""

    def __init__(self, root: Path, generation: Generation = Generation.THREE) -> None:
        self.root = root
        self.directory = NodeDirectory(QuickFiles(), root, generation=generation, limits=LIMITS)
        self.directory.metadata.replace(HardState(term=Term(9), vote=None))

    @property
    def end(self) -> int:
        return self.directory.log.end

    def add(self, count: int, *, term: int = 1) -> None:
        """Append tasks whose payloads tell their index, synced and committed."""
        log = self.directory.log
        for _ in range(count):
            self.write(term=term)
            log.sync()
            log.set_committed(Index(log.end - 1))

    def write(self, *, term: int = 1) -> None:
        """Append one entry that nobody has synced yet."""
        log = self.directory.log
        task = AddTask(queue=QUEUE, key=log.end % 5, payload=b"task %d" % log.end)
        log.append(Term(term), [encode_delta(task)])

    def compact(self, at: int) -> None:
        """Put a snapshot in place of the entries up to ``at``."""
        log = self.directory.log
        point = SnapshotPoint(index=Index(at), term=log.term(Index(at)))
        layout = WRITTEN[self.directory.layout.generation].snapshot
        heads = [
            QueueHead(name=name, policy=NO_LIMITS, last_id=TaskId(at + 1), count=0)
            for name in (DEFAULT_QUEUE, QUEUE)
        ]
        pieces = encode_snapshot(point, 2, [(head, []) for head in heads], layout)
        self.directory.save_snapshot(point, pieces)

    @property
    def newest(self) -> Path:
        """The file that grows."""
        log = self.directory.layout.log
        return max(log.glob("*.log")) if log.is_dir() else log

    def tear(self, data: bytes = bytes.fromhex("AAF534C4 00000000")) -> None:
        """Put the beginning of a record behind the last one, as a write under way does."""
        with self.newest.open("r+b") as file:
            file.seek(_end_of_records(self.newest))
            file.write(data)

    def close(self) -> None:
        self.directory.close()


def _end_of_records(path: Path) -> int:
    """Return where the zeros begin. Payloads of ours do not end in zeros."""
    return len(path.read_bytes().rstrip(b"\0"))
