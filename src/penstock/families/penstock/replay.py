"""The state after an entry: the newest snapshot up to it, and the log behind that applied in order.

Strict: damage before the entry that is wanted stops it, for a state that skips an entry never was. ``repair`` is for what remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.errors import BadData, BadRecord, Compacted, CorruptData, OutOfRange, PathRefused
from penstock.families.damage import Damage
from penstock.families.family import Progress, no_progress
from penstock.families.options import At, LogTime
from penstock.families.penstock.read import History, SnapshotHead, load
from penstock.families.penstock.scan import Entry, scan
from penstock.formats.records.read import read_snapshot
from penstock.queues.columnar.restore import restore as restore_state
from penstock.queues.columnar.state import State


@dataclass(slots=True)
class Replayed:
    """The state after an entry, and what people must know of the way there."""

    state: State
    words: list[str] = field(default_factory=list)
    is_damaged: bool = False  # something may be missing at the end
    entries: int = 0  # that were applied


def replay(history: History, *, at: At | None = None) -> Replayed:
    """Return the state after entry ``at``, at that time, or after the last whole entry.

    Raises ``BadData`` for damage in the way, and ``OutOfRange`` for a moment that the files do not reach or no longer
    reach.
    """
    stop = None if at is None else index_at(history, at)
    found = Replayed(State())
    base = _restored(history, stop, found)
    refused: Damage | None = None  # entries that cannot be read, so far
    for each in scan(history, behind=found.state.index):
        if isinstance(each, Damage):
            if each.is_lost:
                refused = each
            elif each.is_harmless:
                found.words.append(f"not applied: {each.words}")
        elif isinstance(each, Entry):
            if stop is not None and each.header.index > stop:
                break
            _apply(found, each, base, refused)
    _check_end(history, found, stop, refused)
    return found


def _apply(
    found: Replayed, entry: Entry, base: SnapshotHead | None, refused: Damage | None
) -> None:
    header, state = entry.header, found.state
    is_last = base is not None and header.index == base.start.last_index
    if base is not None and is_last and header.checksum != base.start.last_checksum:
        raise _corrupt(entry, f"the snapshot {base.file.path.name} is of another entry here")
    if header.index <= state.index:
        return
    if header.index != state.index + 1:
        raise _refusal(refused, state.index) if refused is not None else _corrupt(
            entry, f"entries {state.index + 1} to {header.index - 1} are missing"
        )  # fmt: skip
    try:
        change = entry.change()
    except BadRecord as error:
        raise error.located(str(entry.file.path)) from None
    state.apply(change, entry.stamp)
    found.entries += 1


def _check_end(history: History, found: Replayed, stop: int | None, refused: Damage | None) -> None:
    last = found.state.index
    if stop is not None and last >= stop:
        return
    if refused is not None and (refused.index is None or refused.index > last):
        if refused.status != "torn" or (refused.index or 0) <= history.promised:
            raise _refusal(refused, last)
        found.words.append(f"not applied: {refused.words}")
        found.is_damaged = True
    if stop is not None:
        raise _beyond(stop, last)
    if history.promised > last:
        raise CorruptData(
            f"entries up to {history.promised} were committed or synced, but the log ends at {last};"
            " salvage with 'penstock repair'",
            path=str(history.target.path),
        )
    floor = history.commit_floor
    if floor is not None and history.synced is not None and last > floor:
        found.words.append(f"{last - floor} entries behind entry {floor} are not known to be committed")  # fmt: skip


def _corrupt(entry: Entry, reason: str) -> CorruptData:
    return CorruptData(
        f"{reason}; salvage with 'penstock repair'", path=str(entry.file.path), offset=entry.offset
    )


def _refusal(damage: Damage, last: int) -> CorruptData:
    return CorruptData(
        f"{damage.reason} ({damage.status}); list what came before with --at {last}, or salvage with 'penstock repair'",
        path=str(damage.path),
        offset=damage.offset,
        expected=damage.details.get("expected"),
        found=damage.details.get("found"),
    )


# --- snapshots -----------------------------------------------------------------------------------


def _restored(history: History, stop: int | None, found: Replayed) -> SnapshotHead | None:
    """Restore the newest snapshot up to an entry that is whole and that the log continues."""
    error: BadData | None = None
    for head in reversed(usable(history, stop)):
        try:
            found.state = restore(head, history.progress)
        except BadData as bad:
            error = error or bad
            found.words.append(f"not used: {bad}")
        except (OSError, PathRefused) as refused:
            raise PathRefused(f"{head.file.path}: {refused}") from None
        else:
            return head
    if begins_at_first(history):
        return None
    if error is not None:
        raise error
    for damage in history.damage:
        if damage.kind == "snapshot":
            raise _refusal(damage, 0)
    if history.target.kind in ("log", "segment"):
        return None  # a part of a log alone: what it adds is known, what was before it is not
    raise CorruptData(
        "the log does not begin with entry 1, and no snapshot covers what was before it",
        path=str(history.target.path),
    )


def usable(history: History, stop: int | None = None) -> Sequence[SnapshotHead]:
    """Return the snapshots from which the log leads to an entry, oldest first."""
    segments = history.target.segments
    first = segments[0].number if segments else None
    return [
        head
        for head in history.snapshots
        if (stop is None or head.start.last_index <= stop)
        and (first is None or first <= head.start.last_index + 1)
    ]


def begins_at_first(history: History) -> bool:
    """Return whether the log has every entry from the first on, or nothing was ever written."""
    segments = history.target.segments
    return segments[0].number == 1 if segments else not history.target.snapshots


def restore(head: SnapshotHead, progress: Progress = no_progress) -> State:
    """Return the state that a snapshot holds. Raises ``BadData``, ``OSError``, ``PathRefused``."""
    return restore_data(load(head.file, progress), str(head.file.path))


def restore_data(data: bytes, path: str) -> State:
    """Return the state that the bytes of a snapshot hold. Raises ``BadData``."""
    try:
        return restore_state(data, read_snapshot(data))
    except BadData as error:
        raise error.located(path) from None


# --- moments -------------------------------------------------------------------------------------


def index_at(history: History, at: At) -> int:
    """Return the entry after which the state is wanted. Raises ``Compacted`` if the files begin behind it."""
    oldest = oldest_index(history)
    if isinstance(at, int):
        wanted = max(at, 0)  # -1 and 0: before the first entry
        if oldest is not None and wanted < oldest:
            raise Compacted(
                f"entry {at} is covered by a snapshot; the oldest state is that after entry {oldest}: ask for"
                f" --at {oldest} or later"
            )
        return wanted
    return _index_at_time(history, at, oldest or 0)


def oldest_index(history: History) -> int | None:
    """Return the entry after which the oldest state is known; None if the files are only a part of a log."""
    if begins_at_first(history):
        return 0
    known = usable(history)
    return known[0].start.last_index if known else None


def check_reached(history: History, index: int) -> None:
    """Raise ``OutOfRange`` if the log ends before an entry. Of a log that goes on behind damage the end counts."""
    segments = history.target.segments
    if index <= max(history.covered, (segments[-1].number or 0) - 1 if segments else 0):
        return
    entries = [each for each in scan(history, behind=index - 1) if isinstance(each, Entry)]
    last = max(history.covered, *(entry.header.index for entry in entries[-1:]), 0)
    if index > last:
        raise _beyond(index, last)


def _beyond(index: int, last: int) -> OutOfRange:
    return OutOfRange(
        f"entry {index} is beyond the log, which ends at entry {last}; ask for --at {last}"
    )


def _index_at_time(history: History, at: LogTime, oldest: int) -> int:
    """Return the last entry up to a time. Raises ``Compacted`` if the first moment is later."""
    first_ms: int | None = None
    found: int | None = None
    for head in usable(history):
        if first_ms is None and head.start.last_index == oldest:
            first_ms = head.start.time_ms
        if head.start.time_ms <= at.time_ms:
            found = head.start.last_index
    for each in scan(history, behind=found or 0):
        if not isinstance(each, Entry):
            continue
        first_ms = each.header.time_ms if first_ms is None else first_ms
        if each.header.time_ms > at.time_ms:
            break
        found = max(found or 0, each.header.index)
    if found is None:
        words = (
            "there is no entry" if first_ms is None else f"the oldest moment is {LogTime(first_ms)}"
        )
        raise Compacted(f"{history.target.path}: nothing is known of {at}; {words}")
    return found
