"""Directories of every variant as plain bytes, written without the code that stores them.

A ``Node`` says what a directory holds; ``files`` makes its files, exactly as large as they have to be, so
that every byte of them can be damaged in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.formats.taskflux.commands import encode_command
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import (
    END_MARKER,
    LogLayout,
    encode_header,
    encode_record,
    segment_name,
)
from penstock.formats.taskflux.metadata import encode_metadata
from penstock.formats.taskflux.snapshot import ARRAY_HEAPS, SnapshotLayout
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import (
    AddTask,
    CreateQueue,
    DeleteQueue,
    HardState,
    Index,
    NodeId,
    RemoveEqualTask,
    RemoveTask,
    SnapshotPoint,
    Term,
)
from support.log_stores import point, sync_point_file
from support.naive_queues import Change, Listed, NaiveQueues
from support.snapshot_files import encoded

Files = dict[str, bytes]
"""Path in the directory -> content."""

STATE: Final = HardState(term=Term(9), vote=NodeId(2))

DELTAS: Final = (CreateQueue, DeleteQueue, AddTask, RemoveTask, RemoveEqualTask)

SNAPSHOTS: Final = {
    LogLayout.ONE_A: SnapshotLayout.ONE_A,
    LogLayout.ONE_B: SnapshotLayout.ONE_B,
    LogLayout.ONE_C: SnapshotLayout.ONE_C,
    LogLayout.ONE_D: SnapshotLayout.ONE_D,
    LogLayout.TWO: SnapshotLayout.TWO_SEED,
    LogLayout.THREE: SnapshotLayout.THREE,
}


@dataclass(frozen=True, kw_only=True)
class Node:
    """A history and how much of it is where."""

    layout: LogLayout
    history: Sequence[tuple[int, Change]]  # terms and changes, from entry 0 on
    snapshot_at: int = -1  # the last entry that the snapshot covers; -1: there is none
    starts: tuple[int, ...] = (0,)  # generation 3: the first index of each segment
    commit: int | None = None  # generation 2: the last committed index; None: the last one
    snapshot_layout: SnapshotLayout | None = None
    synced: int | None = None  # what the companion vouches for; None: there is no companion
    state: HardState | None = STATE
    states: list[NaiveQueues] = field(init=False, repr=False)  # after no entry, after entry 0, …

    def __post_init__(self) -> None:
        layout = self.snapshot_layout or SNAPSHOTS[self.layout]
        is_old = self.layout in (LogLayout.ONE_A, LogLayout.ONE_B)
        by_heap = is_old and (self.snapshot_at < 0 or layout in ARRAY_HEAPS)
        states = [NaiveQueues(by_heap=by_heap)]
        for _, change in self.history:
            states.append(states[-1].after(change))
        object.__setattr__(self, "states", states)

    @property
    def generation(self) -> Generation:
        return self.layout.generation

    @property
    def last(self) -> int:
        return len(self.history) - 1

    @property
    def committed(self) -> int:
        return self.last if self.commit is None else self.commit

    @property
    def log_first(self) -> int:
        """The index of the log's first record: variant 1a and generation 3 keep what a snapshot covers."""
        if self.layout is LogLayout.THREE:
            return self.starts[0]
        return 0 if self.layout is LogLayout.ONE_A else self.snapshot_at + 1

    @property
    def is_ambiguous(self) -> bool:
        """Whether the log could be one that was not shortened yet: its first entries give the snapshot's state."""
        if self.snapshot_at < 0 or self.log_first == 0 or self.layout is LogLayout.THREE:
            return False
        state = NaiveQueues(by_heap=self.states[0].by_heap)
        for _, change in self.history[self.log_first :][: self.snapshot_at + 1]:
            with suppress(KeyError):
                state.apply(change)
        return state.unordered() == self.states[self.snapshot_at + 1].unordered()

    def at(self, index: int) -> Listed:
        """Return what the queues hold after an entry."""
        return self.states[index + 1].listed()

    @property
    def tasks(self) -> Listed:
        """Return what ``penstock tasks`` lists."""
        return self.at(self.committed)

    @property
    def ever(self) -> Listed:
        """Return every task that was ever added, however often."""
        return [
            task
            for before, after in zip(self.states, self.states[1:], strict=False)
            for task in _gained(before, after)
        ]

    def records(self, first: int, end: int) -> list[bytes]:
        """Return the records of some entries."""
        return [
            encode_record(self.layout, term=term, payload=payload_of(change))
            for term, change in self.history[first:end]
        ]

    def log(self, first: int, end: int) -> bytes:
        """Return a log file with the entries ``first`` to ``end``."""
        header = encode_header(self.layout, commit=self.committed - first)
        tail = END_MARKER if self.layout.is_marked else b""
        return header + b"".join(self.records(first, end)) + tail

    def snapshot(self) -> bytes:
        """Return the snapshot file."""
        index = self.snapshot_at
        point = SnapshotPoint(index=Index(index), term=Term(self.history[index][0]))
        layout = self.snapshot_layout or SNAPSHOTS[self.layout]
        return encoded(point, self.states[index + 1].stored(), layout)

    def files(self) -> Files:
        """Return the files in the places where the node that wrote them put them."""
        end = len(self.history)
        if self.layout is LogLayout.THREE:
            home, names = "data", ("tflux.metadata", "tflux.snapshot")
            ends = [*self.starts[1:], end]
            files = {
                f"data/log/{segment_name(first)}": self.log(first, stop)
                for first, stop in zip(self.starts, ends, strict=True)
            }
        else:
            home, names = "consensus", ("raft.metadata", "raft.snapshot")
            name = "log.raft" if self.layout is LogLayout.TWO else "raft.log"
            files = {f"consensus/{name}": self.log(self.log_first, end)}
        if self.state is not None:
            files[f"{home}/{names[0]}"] = encode_metadata(
                self.state, WRITTEN[self.generation].metadata
            )
        if self.snapshot_at >= 0:
            files[f"{home}/{names[1]}"] = self.snapshot()
        if self.synced is not None:
            companions = "data/log" if self.layout is LogLayout.THREE else "consensus"
            files[f"{companions}/penstock.synced"] = sync_point_file(
                self.synced, self.synced, self._point()
            )
        return files

    def _point(self) -> SnapshotPoint | None:
        if self.snapshot_at < 0:
            return None
        return point(self.snapshot_at, self.history[self.snapshot_at][0])

    def write(self, root: Path) -> Path:
        """Write the directory and return it."""
        return write_files(root, self.files())


def payload_of(change: Change) -> bytes:
    """Return what a log record holds for a change."""
    return encode_delta(change) if isinstance(change, DELTAS) else encode_command(change)


def write_files(root: Path, files: Files) -> Path:
    """Write ``files`` below ``root`` and return it."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def _gained(before: NaiveQueues, after: NaiveQueues) -> Listed:
    rest = before.listed()
    gained = []
    for task in after.listed():
        if task in rest:
            rest.remove(task)
        else:
            gained.append(task)
    return gained
