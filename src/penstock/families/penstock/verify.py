"""Everything that can be checked of a target, as rows of damage.

The log is scanned and applied. Where it reaches a snapshot, the state of the replay must give the bytes of that snapshot, which proves
both. A snapshot that the log does not reach is restored, and must be in canonical form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from penstock.errors import BadData, BadRecord, PathRefused
from penstock.families.damage import Damage, DamageCount, Severity, is_damage
from penstock.families.family import Progress, Row, no_progress
from penstock.families.penstock.dump import BAD_CHANGE
from penstock.families.penstock.family import GENERATION, NAME
from penstock.families.penstock.location import HARD_STATE, SYNC_POINT, Target
from penstock.families.penstock.read import (
    History,
    SnapshotHead,
    bad_file,
    load,
    survey,
    unreadable,
)
from penstock.families.penstock.replay import begins_at_first, restore_data
from penstock.families.penstock.rows import iso, row_of
from penstock.families.penstock.scan import Entry, Sealed, scan
from penstock.formats.records.changes import Change
from penstock.formats.records.footer import Footer, FooterBuilder
from penstock.formats.records.header import Kind
from penstock.formats.records.read import read_snapshot
from penstock.formats.records.settings import HASH_SIZE
from penstock.queues.columnar.snapshot import encode_snapshot, freeze
from penstock.queues.columnar.state import State

ROWS_MAX: Final = 1000
"""Harmless rows of one status: more tell nothing new. The summary counts all."""


@dataclass
class Summary:
    """What was counted on the way."""

    entries: int = 0
    sealed: int = 0  # segments with a footer
    first: int | None = None
    last: int | None = None
    first_ms: int = 0
    last_ms: int = 0
    term: int = 0
    without_effect: int = 0
    state: State | None = None  # after the last entry, if everything before it is known
    damage: DamageCount = field(default_factory=DamageCount)

    @property
    def queues(self) -> int | None:
        return None if self.state is None else len(self.state.queues)

    @property
    def tasks(self) -> int | None:
        return (
            None if self.state is None else sum(each.count for each in self.state.queues.values())
        )


def verify(
    target: Target, *, progress: Progress = no_progress, summary: Summary | None = None
) -> Iterator[Row]:
    """Yield a row for each damage; ``summary`` is filled on the way."""
    summary = summary or Summary()
    for damage in _Verification(survey(target, progress=progress), summary).run():
        row = row_of(damage)
        summary.damage.add(row)
        yield row


class _Verification:
    """One pass over the log and the snapshots."""

    def __init__(self, history: History, summary: Summary) -> None:
        self.history = history
        self.summary = summary
        self.state: State | None = State() if begins_at_first(history) else None
        self.waiting = {head.start.last_index: head for head in history.snapshots}
        self.footer = FooterBuilder()
        self.is_noted = True  # whether the footer knows every record of the segment so far
        self.is_end_lost = (
            False  # whether damage behind the last entry tells that others are missing
        )

    def run(self) -> Iterator[Damage]:
        yield from self.history.damage
        yield from self._beginning()
        for found in scan(self.history):
            if isinstance(found, Entry):
                yield from self._entry(found)
            elif isinstance(found, Sealed):
                yield from self._sealed(found)
            else:
                if found.is_lost:
                    self.state, self.is_noted, self.is_end_lost = None, False, True
                yield found
        for head in list(self.waiting.values()):  # the log does not have their last entry
            yield from self._alone(head)
        self.summary.state = self.state
        yield from self._end()

    def _beginning(self) -> Iterator[Damage]:
        """Take the state of a snapshot in front of the log, and report what is missing between the two."""
        segments = self.history.target.segments
        first = segments[0].number if segments else None
        if first is None or first == 1:
            return
        head = self.waiting.get(first - 1)
        if head is not None:
            yield from self._alone(head)
        known = any(index >= first - 1 for index in self.waiting) or head is not None
        if not known and self.history.target.kind == "directory":
            last = self.history.covered
            reason = f"entries {last + 1} to {first - 1} are in no segment and no snapshot"
            yield Damage(
                path=segments[0].path,
                offset=0,
                status="missing",
                reason=reason,
                severity=Severity.LOST,
                index=last + 1,
            )

    # Entries.

    def _entry(self, entry: Entry) -> Iterator[Damage]:
        self._count(entry)
        self.is_end_lost = False
        try:
            change = entry.change()
        except BadRecord as error:
            self.state, self.is_noted = None, False
            yield entry.damage(BAD_CHANGE, error.reason, Severity.LOST)
            return
        if entry.header.kind > Kind.ENVELOPE:
            reason = f"a record of kind {entry.header.kind}, which this version does not know and may skip"
            yield entry.damage("unknown-kind", reason, Severity.HARMLESS)
        if self.is_noted:
            self.footer.note(entry.offset, entry.header, change)
        yield from self._apply(entry, change)
        if entry.header.index in self.waiting:
            yield from self._compare(self.waiting.pop(entry.header.index), entry)

    def _count(self, entry: Entry) -> None:
        summary, header = self.summary, entry.header
        if summary.first is None:
            summary.first, summary.first_ms = header.index, header.time_ms
        summary.entries += 1
        summary.last, summary.last_ms = header.index, header.time_ms
        summary.term = max(summary.term, header.term)

    def _apply(self, entry: Entry, change: Change) -> Iterator[Damage]:
        if self.state is None or entry.header.index <= self.state.index:
            return
        missed = self.state.apply(change, entry.stamp)
        if missed:
            self.summary.without_effect += 1
            if self.summary.without_effect <= ROWS_MAX:
                reason = f"{missed} of its ids, or its queue, are not there: no effect"
                yield entry.damage("no-effect", reason, Severity.HARMLESS)

    def _sealed(self, sealed: Sealed) -> Iterator[Damage]:
        self.summary.sealed += 1
        digest = blake2b(sealed.data[: sealed.offset], digest_size=HASH_SIZE).digest()
        if self.is_noted:
            expected = self.footer.footer(digest)
            if not _agree(expected, sealed.footer):
                reason = "the footer does not say what the segment holds"
                details = {"expected": str(expected), "found": str(sealed.footer)}
                yield Damage(
                    path=sealed.file.path,
                    offset=sealed.offset,
                    status="bad-footer",
                    reason=reason,
                    severity=Severity.DAMAGED,
                    details=details,
                )
        self.footer, self.is_noted = FooterBuilder(self.footer.names), True

    # Snapshots.

    def _compare(self, head: SnapshotHead, entry: Entry) -> Iterator[Damage]:
        """Compare a snapshot with the entry that it covers last, and with the state there."""
        header, start = entry.header, head.start
        known = (start.last_checksum, start.last_term, start.time_ms)
        found = (header.checksum, header.term, header.time_ms)
        if known != found:
            reason = "checksum, term or time of its last entry are not those of the log"
            yield self._disagreement(head, reason, expected=found, found=known)
        if self.state is None:
            yield from self._alone(head)
            return
        data = self._load(head)
        if isinstance(data, Damage):
            yield data
        elif not _is_same(self.state, header.checksum, data):
            yield from self._differing(head, data)

    def _differing(self, head: SnapshotHead, data: bytes) -> Iterator[Damage]:
        try:
            restore_data(data, str(head.file.path))
        except BadData as error:
            yield bad_file(head.file.path, error, "bad-snapshot", Severity.DAMAGED, "snapshot")
            return
        reason = "the snapshot holds another state than the log leads to"
        yield self._disagreement(head, reason)

    def _alone(self, head: SnapshotHead) -> Iterator[Damage]:
        """Check a snapshot by itself, and go on from its state."""
        self.waiting.pop(head.start.last_index, None)
        data = self._load(head)
        if isinstance(data, Damage):
            yield data
            return
        try:
            self.state = restore_data(data, str(head.file.path))
        except BadData as error:
            severity = Severity.LOST if not begins_at_first(self.history) else Severity.DAMAGED
            yield bad_file(head.file.path, error, "bad-snapshot", severity, "snapshot")
            return
        if not _is_same(self.state, head.start.last_checksum, data):
            yield self._disagreement(head, "the snapshot is not in canonical form")

    def _load(self, head: SnapshotHead) -> bytes | Damage:
        try:
            return load(head.file, self.history.progress)
        except BadData as error:
            return bad_file(head.file.path, error, "bad-snapshot", Severity.LOST, "snapshot")
        except (OSError, PathRefused) as error:
            return unreadable(head.file.path, error)

    def _disagreement(self, head: SnapshotHead, reason: str, **details: object) -> Damage:
        return Damage(
            path=head.file.path,
            offset=0,
            status="disagreement",
            reason=reason,
            severity=Severity.DAMAGED,
            kind="snapshot",
            details={name: str(value) for name, value in details.items()},
        )

    # The end.

    def _end(self) -> Iterator[Damage]:
        history, last = self.history, max(self.summary.last or 0, self.history.covered)
        point, home = history.synced, history.target.home
        if home is None:
            return
        index = 0 if point is None else max(point.index, point.commit_floor)
        if index > last and not self.is_end_lost:
            reason = f"entries up to {index} were synced or committed, but the log ends at {last}"
            yield self._of_file(SYNC_POINT, "missing", reason, Severity.LOST, index=last + 1)
        state, term = history.hard_state, self._term()
        if state is not None and term > state.term:
            reason = (
                f"log or snapshot are of term {term}, but the hard state is of term {state.term}"
            )
            yield self._of_file(HARD_STATE, "disagreement", reason, Severity.DAMAGED)

    def _of_file(
        self, name: str, status: str, reason: str, severity: Severity, index: int | None = None
    ) -> Damage:
        home = self.history.target.home
        assert home is not None
        return Damage(
            path=home / name,
            offset=0,
            status=status,
            reason=reason,
            severity=severity,
            kind="metadata",
            index=index,
        )

    def _term(self) -> int:
        heads = (head.start.last_term for head in self.history.snapshots)
        return max(self.summary.term, *heads, 0)


def _agree(expected: Footer, found: Footer) -> bool:
    """Return whether a footer says what a segment holds. A name that only the footer knows is believed."""
    names = {queue.queue_id: queue.name for queue in found.queues}
    queues = tuple(
        queue if queue.name is not None else queue._replace(name=names.get(queue.queue_id))
        for queue in expected.queues
    )
    return (expected.entries, expected.marks, queues, expected.digest) == (
        found.entries,
        found.marks,
        found.queues,
        found.digest,
    )


def _is_same(state: State, last_checksum: int, data: bytes) -> bool:
    """Return whether the bytes of a snapshot are those of a state. Equal bytes prove its checksums, chain and digest.

    The end of a snapshot with records of paged queues says that they follow, which no state has.
    """
    at = 0
    for piece in encode_snapshot(freeze(state), last_checksum=last_checksum):
        if not data.startswith(piece, at):
            return _continues_at(data, at)
        at += len(piece)
    return not data[at:].strip(b"\x00")


def _continues_at(data: bytes, at: int) -> bool:
    """Return whether a whole snapshot has an end here, with records of paged queues behind it."""
    try:
        snapshot = read_snapshot(data)
    except BadData:
        return False
    return snapshot.end.continues and snapshot.end_offset == at


def inspect(target: Target, *, progress: Progress = no_progress) -> Row:
    """Return what a target is and holds; ``damage`` and ``harmless`` list what ``verify`` finds."""
    summary = Summary()
    rows = list(verify(target, progress=progress, summary=summary))
    history = survey(target)
    newest, state, identity = history.newest, history.hard_state, history.identity
    members = None if summary.state is None else summary.state.members
    return {
        "family": NAME,
        "kind": target.kind,
        "path": str(target.path),
        "generation": GENERATION,
        "size": target.size,
        "node": None if identity is None else identity.node,
        "cluster_id": None
        if identity is None or identity.cluster_id is None
        else identity.cluster_id.hex(),
        "feature_level": None if members is None else members.feature_level,
        "log_files": len(target.segments),
        "sealed": summary.sealed,
        "entries": summary.entries,
        "first_index": summary.first,
        "last_index": max((each for each in (summary.last, history.covered) if each), default=None),
        "first_time": iso(summary.first_ms) if summary.first_ms else None,
        "last_time": iso(summary.last_ms) if summary.last_ms else None,
        "commit_index": history.commit_floor,
        "synced_index": None if history.synced is None else history.synced.index,
        "snapshots": len(history.snapshots),
        "snapshot_index": None if newest is None else newest.start.last_index,
        "snapshot_term": None if newest is None else newest.start.last_term,
        "term": None if state is None else state.term,
        "vote": None if state is None else state.vote,
        "queues": summary.queues,
        "tasks": summary.tasks,
        "producers": None if summary.state is None else summary.state.producers.count,
        "without_effect": summary.without_effect,
        "harmless": [row for row in rows if not is_damage(row)],
        "damage": [row for row in rows if is_damage(row)],
    }
