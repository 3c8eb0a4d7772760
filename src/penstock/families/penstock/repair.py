"""Salvage: everything that is provably whole, into a new directory; everything else as rows.

A log that is whole behind a whole snapshot, or from its first entry on, is copied record by record. Otherwise it cannot be a log
any more: its whole entries are folded into a snapshot. Where an entry was lost, doubt is decided for the task: it may come back
although it was done, it is never dropped although it was not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import BadData, BadRecord, PathRefused
from penstock.families.damage import Damage, Severity, is_damage
from penstock.families.family import Progress, Row, no_progress
from penstock.families.penstock.dump import BAD_CHANGE
from penstock.families.penstock.fold import Fold, restore_part
from penstock.families.penstock.location import Target
from penstock.families.penstock.new_directory import (
    NewDirectory,
    lone_member,
    new_cluster_id,
    new_directory,
)
from penstock.families.penstock.read import History, SnapshotHead, bad_file, load, survey
from penstock.families.penstock.replay import restore_data
from penstock.families.penstock.rows import row_of
from penstock.families.penstock.scan import Entry, scan
from penstock.formats.records.changes import Change
from penstock.formats.records.segment import decode_file_header
from penstock.formats.records.writer import write_segments
from penstock.model import HardState, Term
from penstock.queues.columnar.snapshot import encode_snapshot, freeze
from penstock.queues.columnar.state import State


@dataclass
class Repaired:
    """What a repair wrote; filled as it goes."""

    entries: int = 0  # whole entries taken along
    left: int = 0  # rows of what was left behind
    queues: int = 0
    tasks: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """The last entries of a log that continue each other."""

    first: int = 0
    before: int = 0  # head checksum that the first one continues
    last: int = 0
    checksum: int = 0  # of the last one
    count: int = 0  # of all whole entries of the log, also those in front of the run
    covered: dict[int, int] = field(
        default_factory=dict
    )  # checksums of entries that snapshots end with


def repair(
    target: Target, out: Path, result: Repaired, *, progress: Progress = no_progress
) -> Iterator[Row]:
    """Write all that is whole into ``out``; yield a row for everything that was left."""
    history = survey(target, progress=progress)
    with new_directory(out, source=target.path) as new:
        for row in _Repair(history, new, result).run():
            result.left += is_damage(row)
            yield row


class _Repair:
    def __init__(self, history: History, new: NewDirectory, result: Repaired) -> None:
        self.history = history
        self.new = new
        self.result = result
        self.run_found = Run()
        self.cluster_id: bytes | None = None
        self.is_broken = False  # whether something is missing behind the run

    def run(self) -> Iterator[Row]:
        for damage in self._judge():
            if damage.is_lost:
                yield row_of(damage)
            else:
                self.result.notes.append(damage.words)
        head, state, damages = self._newest_whole()
        yield from map(row_of, damages)
        base = 0 if head is None else head.start.last_index
        if self._is_copied(head):
            state = self._copy(head, state)
        else:
            state = self._fold(state, base)
            self._write_state(state)
        self._finish(state)

    # Judging.

    def _judge(self) -> Iterator[Damage]:
        """Find the last run of entries that continue each other; yield the damage."""
        yield from (each for each in self.history.damage if each.kind != "snapshot")
        found, ends = self.run_found, {h.start.last_index for h in self.history.snapshots}
        for each in scan(self.history):
            if isinstance(each, Damage):
                self.is_broken = self.is_broken or each.is_lost
                yield each
            elif isinstance(each, Entry):
                header = each.header
                self._note_cluster(each)
                try:
                    each.change()
                except BadRecord as error:
                    self.is_broken = True
                    yield each.damage(BAD_CHANGE, error.reason, Severity.LOST)
                    continue
                if self.is_broken or not found.count:
                    found.first, found.before, self.is_broken = header.index, header.previous, False
                found.last, found.checksum = header.index, header.checksum
                found.count += 1
                if header.index in ends:
                    found.covered[header.index] = header.checksum

    def _note_cluster(self, entry: Entry) -> None:
        if self.cluster_id is None:
            try:
                self.cluster_id = decode_file_header(entry.data).cluster_id
            except BadData:
                return

    def _newest_whole(self) -> tuple[SnapshotHead | None, State | None, list[Damage]]:
        """Return the newest whole snapshot and its state, and the damage of newer ones."""
        damage = [each for each in self.history.damage if each.kind == "snapshot"]
        for head in reversed(self.history.snapshots):
            try:
                state = restore_data(load(head.file, self.history.progress), str(head.file.path))
            except BadData as error:
                damage.append(bad_file(head.file.path, error, "bad-snapshot", Severity.LOST, "snapshot"))  # fmt: skip
            except (OSError, PathRefused) as error:
                reason = str(error)
                damage.append(Damage(path=head.file.path, status="unreadable", reason=reason, severity=Severity.LOST))  # fmt: skip
            else:
                return head, state, damage
        return None, None, damage

    def _is_copied(self, head: SnapshotHead | None) -> bool:
        """Return whether the log can stay a log: its last run begins with the first entry, or continues the snapshot."""
        found = self.run_found
        if self.is_broken or not found.count:
            return head is not None and not self.is_broken
        if head is None:
            return found.first == 1 and found.before == 0
        start = head.start
        if found.last < start.last_index:
            return False
        if found.first == start.last_index + 1:
            return found.before == start.last_checksum
        return found.covered.get(start.last_index) == start.last_checksum

    # Writing.

    def _copy(self, head: SnapshotHead | None, state: State | None) -> State:
        """Take the snapshot and the run along as they are."""
        state = state or State()
        names = {queue_id: queue.name for queue_id, queue in state.queues.items()}
        if head is not None:
            self.new.write_snapshot(head.start.last_index, [load(head.file)])
            self.cluster_id = head.start.cluster_id
        self.new.write_log(write_segments(
            self._records(state), cluster_id=self._cluster(state), names=names
        ))  # fmt: skip
        return state

    def _records(self, state: State) -> Iterator[tuple[bytes, Change]]:
        """Yield the records of the run, and apply them behind the snapshot."""
        first = self.run_found.first
        if not self.run_found.count:
            return
        for each in scan(self.history, behind=first - 1):
            if isinstance(each, Entry) and each.header.index >= first:
                change = each.change()
                if each.header.index > state.index:
                    state.apply(change, each.stamp)
                self.result.entries += 1
                yield each.record(), change

    def _fold(self, state: State | None, base: int) -> State:
        """Apply every whole entry behind the snapshot to its state, or to what is whole of a damaged one."""
        if state is None:
            state = restore_part(self.history)
            base = state.index
        fold = Fold(state)
        for each in scan(self.history, behind=base):
            if isinstance(each, Entry) and each.header.index > base:
                try:
                    fold.apply(each.change(), each.stamp)
                except BadRecord:
                    continue
                self.result.entries += 1
        self.result.notes += fold.notes
        return state

    def _write_state(self, state: State) -> None:
        if state.members is None:
            node = 1 if self.history.identity is None else self.history.identity.node
            state.members = lone_member(node, self._cluster(state))
            self.result.notes.append("the members are lost: the directory is that of a node alone")
        if not state.index:
            return
        pieces = encode_snapshot(freeze(state), last_checksum=self.run_found.checksum)
        self.new.write_snapshot(state.index, pieces)

    def _cluster(self, state: State) -> bytes:
        identity = self.history.identity
        known = None if state.members is None else state.members.cluster_id
        own = None if identity is None else identity.cluster_id
        self.cluster_id = known or self.cluster_id or own or new_cluster_id()
        return self.cluster_id

    def _finish(self, state: State) -> None:
        history, result = self.history, self.result
        result.queues = len(state.queues)
        result.tasks = sum(queue.count for queue in state.queues.values())
        floor = history.commit_floor
        self.new.finish(
            node=self._node(state),
            cluster_id=self._cluster(state),
            state=self._hard_state(state),
            last=state.index,
            committed=state.index if floor is None else min(floor, state.index),
        )

    def _node(self, state: State) -> int:
        if self.history.identity is not None:
            return self.history.identity.node
        members = () if state.members is None else state.members.members
        return members[0].number if len(members) == 1 else 1

    def _hard_state(self, state: State) -> HardState:
        known = self.history.hard_state
        if known is not None and known.term >= state.term:
            return known
        self.result.notes.append(
            "the vote is lost: let this node join as a new member, not under its old number"
        )
        return HardState(term=Term(max(1, state.term)))
