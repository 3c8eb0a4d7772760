"""How far a leader knows each of the others to be, and how much it sends ahead.

*Probe*: one append, then silence until something is heard. *Replicate*: a window of appends under way. *Snapshot*:
nothing until the snapshot has arrived or failed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum


class Pace(Enum):
    """How a leader sends to a member."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class Window:
    """Appends that are under way to a member: bounded in number and in bytes."""

    count_max: int
    size_max: int
    _sent: deque[tuple[int, int]] = field(default_factory=deque)  # (last index, bytes)
    _size: int = 0

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def is_full(self) -> bool:
        return len(self._sent) >= self.count_max or self._size >= self.size_max

    def add(self, last: int, size: int) -> None:
        self._sent.append((last, size))
        self._size += size

    def free_up_to(self, index: int) -> None:
        while self._sent and self._sent[0][0] <= index:
            self._size -= self._sent.popleft()[1]

    def clear(self) -> None:
        self._sent.clear()
        self._size = 0


@dataclass(slots=True)
class Progress:
    """What a leader knows of one member. Always ``match < next``."""

    window: Window
    next: int
    match: int = 0
    pace: Pace = Pace.PROBE
    is_paused: bool = False
    is_active: bool = False  # heard from since the quorum was last checked
    pending_snapshot: int = 0
    sent_commit: int = 0
    doubts: int = 0  # rejections, one after the other, of what it had acknowledged

    def become_probe(self) -> None:
        pending = self.pending_snapshot if self.pace is Pace.SNAPSHOT else 0
        self._reset(Pace.PROBE)
        self.next = max(self.match, pending) + 1
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def become_replicate(self) -> None:
        self._reset(Pace.REPLICATE)
        self.next = self.match + 1

    def become_snapshot(self, index: int) -> None:
        self._reset(Pace.SNAPSHOT)
        self.pending_snapshot = index
        self.next = index + 1
        self.sent_commit = index

    def _reset(self, pace: Pace) -> None:
        self.pace = pace
        self.is_paused = False
        self.pending_snapshot = 0
        self.window.clear()

    @property
    def may_send(self) -> bool:
        return self.pace is not Pace.SNAPSHOT and not self.is_paused

    def sent(self, count: int, size: int, *, commit: int) -> None:
        """Note an append with so many entries."""
        if self.pace is Pace.REPLICATE:
            if count:
                self.next += count
                self.window.add(self.next - 1, size)
            # A full window lets one empty append through for each answer to a heartbeat.
            self.is_paused = self.window.is_full
        elif count:
            self.is_paused = True
        self.sent_commit = commit

    def acknowledged(self, index: int) -> bool:
        """Note that everything up to ``index`` is there. Return whether that was news."""
        if index >= self.match:
            self.doubts = 0
        if index <= self.match:
            return False
        self.match = index
        self.next = max(self.next, index + 1)
        self.is_paused = False
        return True

    def rejected(self, index: int, hint: int) -> bool:
        """Note that the entry at ``index`` does not fit. Return whether that was news, and not an old answer."""
        if self.pace is Pace.REPLICATE:
            if index <= self.match:
                return False
            self.next = self.match + 1
        else:
            if self.next - 1 != index:
                return False
            if 0 < index <= self.match:
                self.doubts += 1  # an old answer; or one that lost what it had, and must not be asked at once again
                return False
            self.next = max(min(index, hint + 1), self.match + 1)
            self.is_paused = False
        self.sent_commit = min(self.sent_commit, self.next - 1)
        return True

    def forget(self, hint: int) -> None:
        """Know nothing of the member any more, and ask anew where the logs may agree.

        To know less than there is only costs time: what is committed stays so.
        """
        self._reset(Pace.PROBE)
        self.match = self.doubts = 0
        self.next = hint + 1
        self.sent_commit = min(self.sent_commit, hint)

    def lacks_commit(self, commit: int) -> bool:
        """Return whether telling a new commit index helps this member."""
        return commit > self.sent_commit and self.sent_commit < self.next - 1
