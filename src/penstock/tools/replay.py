"""The state of all queues at an index: the snapshot, and the log behind it applied in order.

Strict: damage before the index asked for stops it, for a state that skips an entry is not one that
ever was. ``repair`` is for what remains.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import BadData, Compacted, CorruptData, OutOfRange, ReplayConflict
from penstock.formats.taskflux.commands import decode_command
from penstock.formats.taskflux.deltas import ADD, CREATE, DELETE, Change, decode_change
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import LogLayout
from penstock.model import QueueName
from penstock.queues.replay import Queues
from penstock.storage.reading import Window, walk_windows
from penstock.tools.history import History, restore_snapshot
from penstock.tools.target import LogFile, opened


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The queues after an entry, and what stands behind it."""

    queues: Queues
    index: int  # the last entry applied, or covered by the snapshot; -1 if none
    term: int
    tail: str | None  # words about bytes at the end that were not applied


def replay(history: History, *, at: int | None = None, uncommitted: bool = False) -> Replayed:
    """Return the state after entry ``at``, or after the last committed one.

    Where the files store no commit index every whole entry counts. Raises ``BadData`` for damage in
    the way, ``OutOfRange`` for an index that the log does not reach or no longer reaches.
    """
    if at is not None and at < history.covered:
        raise Compacted(
            f"entry {at} is covered by the snapshot, which holds the state after entry"
            f" {history.covered}; ask for --at {history.covered} or later"
        )
    stop = at
    if at is None and history.commit is not None and not uncommitted:
        stop = history.commit
    queues = Queues()
    run = _Run(history, queues, stop)
    if not run.ignores_snapshot():
        restore_snapshot(history, queues)
    for log in history.target.logs:
        if not run.is_done:
            run.read(log)
    if at is not None and run.index < at:
        raise OutOfRange(
            f"entry {at} is beyond the log, which ends at entry {run.index}; ask for --at {run.index}"
        )
    return Replayed(queues=queues, index=run.index, term=run.term, tail=run.tail)


class _Run:
    """One pass over the log files."""

    def __init__(self, history: History, queues: Queues, stop: int | None) -> None:
        self.history = history
        self.queues = queues
        self.stop = stop
        self.index = history.covered
        self.term = 0 if history.point is None else history.point.term
        self.tail: str | None = None
        # The next index that the log must bring; what it brings before is in the snapshot already.
        self.next_index = min(history.first, history.covered + 1)

    @property
    def is_done(self) -> bool:
        return self.stop is not None and self.index >= self.stop

    def ignores_snapshot(self) -> bool:
        """Variant 1a keeps the whole log beside the snapshot and rebuilds from it alone."""
        logs = self.history.target.logs
        if not logs or logs[0].layout is not LogLayout.ONE_A or self.history.snapshot is None:
            return False
        with opened(logs[0].path) as file:
            windows = walk_windows(file, logs[0].path, logs[0].layout)
            count = sum(len(window.found.offsets) for window in windows)
        if count <= self.history.covered:
            return False
        self.index = -1
        return True

    def read(self, log: LogFile) -> None:
        first = self.history.first if log.first is None else log.first
        if first > self.next_index:
            raise CorruptData(
                f"entries {self.next_index} to {first - 1} are missing before this file",
                path=str(log.path),
                offset=0,
                expected=f"entry {self.next_index}",
                found=f"entry {first}",
            )
        number = first
        with opened(log.path) as file:
            for window in walk_windows(file, log.path, log.layout):
                self._apply(log, window, number)
                number += len(window.found.offsets)
                self.history.progress(window.found.position)
                if self.is_done:
                    return
                if window.found.stop is not None:
                    self._meet_damage(log, window, number)
        self.next_index = number

    def _apply(self, log: LogFile, window: Window, number: int) -> None:
        """Apply the records of one window; a local name for everything that the loop touches."""
        found, data, header = window.found, window.data, log.layout.record_header.size
        skip = max(0, self.index + 1 - number)
        count = len(found.offsets)
        if self.stop is not None:
            count = min(count, self.stop + 1 - number)
        if skip >= count:
            return
        by_id = log.layout.contents is Contents.DELTAS_BY_ID
        commands = log.layout.contents is Contents.COMMANDS
        ends = [*found.offsets[1:], found.position]
        current = skip
        try:
            for current in range(skip, count):
                start, end = found.offsets[current] + header, ends[current]
                if start == end:
                    continue  # an empty payload is stored but changes nothing
                if commands:
                    self.queues.obey(decode_command(data[start:end]))
                else:
                    apply_change(self.queues, decode_change(data, start, end, by_id=by_id), by_id)
        except BadData as error:
            raise error.located(str(log.path), base=window.base) from None
        except ReplayConflict as error:
            raise CorruptData(
                f"entry {number + current} cannot be applied: {error}; if the file stands alone, name its"
                " directory, else salvage with 'penstock repair'",
                path=str(log.path),
                offset=window.base + found.offsets[current],
            ) from None
        self.index = number + count - 1
        self.term = found.terms[count - 1]

    def _meet_damage(self, log: LogFile, window: Window, number: int) -> None:
        """Stop at damage unless nothing was promised behind it: then say so and leave it."""
        stop = window.found.stop
        assert stop is not None
        offset = window.base + window.found.position
        is_last = log is self.history.target.logs[-1]
        if not is_last or number <= max(
            self.history.synced, self.stop if self.stop is not None else -1
        ):
            raise CorruptData(
                f"entry {number} is not whole ({stop.word}); list what came before with"
                f" --at {number - 1}, or salvage with 'penstock repair'",
                path=str(log.path),
                offset=offset,
            )
        self.tail = f"{log.path}, offset {offset}: not applied: {stop.word}"


def apply_change(queues: Queues, change: Change, by_id: bool) -> None:
    """Apply a decoded delta. Raises ``ReplayConflict``."""
    kind, queue, middle, payload = change
    if kind == ADD:
        contents = queues.by_name.get(queue)
        if contents is None:
            queues.add(queue, middle, payload)  # raises with the right words
        else:
            contents.add(middle, payload)
    elif kind == CREATE:
        queues.create(queue, middle)
    elif kind == DELETE:
        queues.delete(queue)
    elif by_id:
        queues.remove(queue, middle)
    else:
        queues.remove_equal(queue, middle, payload)


def tasks_in_order(queues: Queues) -> list[QueueName]:
    """Return the names of all queues, sorted: the order in which they are listed."""
    return sorted(queues.by_name)
