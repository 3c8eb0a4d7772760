"""The state of all queues at an index: the snapshot, and the log behind it applied in order.

Strict: damage before the index asked for stops it, for a state that skips an entry is not one that
ever was. ``repair`` is for what remains.
"""

from __future__ import annotations

from penstock.errors import BadData, Compacted, CorruptData, OutOfRange, ReplayConflict
from penstock.families.taskflux.location import LogFile
from penstock.families.taskflux.read import History, Misfit, restore_snapshot
from penstock.formats.taskflux.commands import decode_command
from penstock.formats.taskflux.deltas import DELETE, decode_change
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import Status
from penstock.queues.replay import decode
from penstock.storage.files import File, opened
from penstock.storage.log_end import Behind, find_record_in_file
from penstock.storage.reading import Window, walk_windows


def replay(history: History, *, at: int | None = None, uncommitted: bool = False) -> Replay:
    """Return the state after entry ``at``, or after the last committed one.

    Where the files store no commit index every whole entry counts. Raises ``BadData`` for damage in
    the way, ``OutOfRange`` for an index that the log does not reach or no longer reaches.
    """
    is_whole_log = history.is_whole_log()
    covered = -1 if is_whole_log else history.covered
    if at is not None and at < covered:
        raise Compacted(
            f"entry {at} is covered by the snapshot, which holds the state after entry"
            f" {covered}; ask for --at {covered} or later"
        )
    stop = at
    if at is None and history.commit is not None and not uncommitted:
        stop = history.commit
    run = Replay(history, covered, stop)
    if not is_whole_log:
        run.restore()
    for log in history.target.logs:
        if not run.is_done:
            run.read(log)
    if at is not None and run.index < at:
        raise OutOfRange(
            f"entry {at} is beyond the log, which ends at entry {run.index}; ask for --at {run.index}"
        )
    if at is None:
        run.refuse_short_log()
    return run


class Replay:
    """The queues after an entry, and what stands behind it: one pass over the log files."""

    def __init__(self, history: History, covered: int, stop: int | None) -> None:
        """Begin behind the entries that are ``covered``, and end with entry ``stop``."""
        self.history = history
        self.queues = history.new_queues()
        self.notes = 0  # what the snapshot holds of ours beside its queues
        self.stop = stop
        self.index = covered  # the last entry applied, or covered by the snapshot; -1 if none
        self.term = 0 if history.point is None else history.point.term
        self.tail: str | None = None  # words about bytes at the end that were not applied
        # Words about entries behind an end marker, hidden by a marker that was zeroed, and about records there that may
        # be such entries, or stale.
        self.damage: str | None = None
        self.undecided: str | None = None
        # The next index that the log must bring; what it brings before is in the snapshot already.
        self.next_index = min(history.first, covered + 1)

    @property
    def is_done(self) -> bool:
        return self.stop is not None and self.index >= self.stop

    def restore(self) -> None:
        """Begin with the snapshot. Raises ``BadData``."""
        found = restore_snapshot(self.history, self.queues)
        self.queues.number(found, is_strict=False)
        self.notes = len(found)

    def read(self, log: LogFile) -> None:
        """Apply the entries of the next log file. Raises ``BadData``."""
        first = self.history.first if log.first is None else log.first
        if first != self.next_index:
            misfit = Misfit(log, self.next_index, first)
            raise CorruptData(misfit.reason, path=str(log.path), offset=0)
        number = first
        window: Window | None = None
        with opened(log.path) as file:
            for window in walk_windows(file, log.path, log.layout):
                self._apply(log, window, number)
                number += len(window.found.offsets)
                self.history.progress(window.found.position)
                if self.is_done:
                    return
                if window.found.stop is not None:
                    self._meet_damage(file, log, window, number)
            if window is not None and window.found.stop is None and log.layout.is_marked:
                self._judge_end(file, log, window.base + window.found.position, number - first)
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
        queues = self.queues
        current, start = skip, 0
        try:
            for current in range(skip, count):
                start, end = found.offsets[current] + header, ends[current]
                if start == end:
                    continue  # an empty payload is stored but changes nothing
                if commands:
                    queues.obey(decode_command(data[start:end]))
                else:
                    change = decode_change(data, start, end, by_id=by_id)
                    if change[0] == DELETE:
                        queues.apply(decode(data, start, end, by_id=by_id), by_id=by_id)
                    else:
                        queues.apply_change(change, by_id=by_id)
        except BadData as error:
            # A command is cut out of the window before it is decoded, a delta is decoded in it.
            base = window.base + (start if commands else 0)
            raise error.located(str(log.path), base=base) from None
        except ReplayConflict as error:
            raise CorruptData(
                f"entry {number + current} cannot be applied: {error}; if the file stands alone, name its"
                " directory, else salvage with 'penstock repair'",
                path=str(log.path),
                offset=window.base + found.offsets[current],
            ) from None
        self.index = number + count - 1
        self.term = found.terms[count - 1]

    def _judge_end(self, file: File, log: LogFile, position: int, count: int) -> None:
        """Judge what stands behind an end marker: entries that are hidden there are missing from the state."""
        rule = self.history.end_rule(log)
        found = rule.judge(
            file, log.layout, position=position, size=file.size(), count=count, term=self.term
        )
        place = f"{log.path}, offset {position}"
        if found.behind is Behind.DAMAGE:
            self.damage = (
                f"{place}: zeros, but whole records follow at {found.resumed}: entries are missing here; salvage"
                " with 'penstock repair'"
            )
        elif found.behind is Behind.UNDECIDED:
            self.undecided = (
                f"{place}: records behind the end marker are not listed: they are stale, or hidden by a marker that"
                " was zeroed; 'penstock repair --uncommitted' takes them along"
            )

    def _meet_damage(self, file: File, log: LogFile, window: Window, number: int) -> None:
        """Stop at damage unless nothing was promised behind it: then say so and leave it."""
        stop = window.found.stop
        assert stop is not None
        offset = window.base + window.found.position
        is_promised = number <= max(self.history.synced, -1 if self.stop is None else self.stop)
        if (
            log is not self.history.target.logs[-1]
            or is_promised
            or _goes_on(file, log, offset, stop)
        ):
            raise CorruptData(
                f"entry {number} is not whole ({stop.word}); list what came before with"
                f" --at {number - 1}, or salvage with 'penstock repair'",
                path=str(log.path),
                offset=offset,
            )
        self.tail = f"{log.path}, offset {offset}: not applied: {stop.word}"

    def refuse_short_log(self) -> None:
        """Raise ``CorruptData`` if entries are gone that the files say were there."""
        promised = self.history.sure if self.stop is None else self.stop
        logs = self.history.target.logs
        if promised > self.index:
            raise CorruptData(
                f"entries up to {promised} were committed or synced, but the log ends at {self.index};"
                " salvage with 'penstock repair'",
                path=str(logs[-1].path if logs else self.history.target.path),
            )


def _goes_on(file: File, log: LogFile, offset: int, stop: Status) -> bool:
    """Return whether more than a torn tail begins here: entries of the log follow, or a whole one stands here."""
    if not log.layout.is_marked or stop in (Status.BAD_TERM, Status.FALLING_TERM):
        return stop is not Status.TORN
    return find_record_in_file(file, log.layout, offset + 1, file.size()) is not None
