"""What a member does while it leads: sends entries, counts what arrived, answers reads, hands over.

All of this begins with the term and ends with it: whoever steps down throws it away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.raft.configuration import (
    Change,
    apply_change,
    encode_change,
)
from penstock.raft.log import Compacted
from penstock.raft.messages import Entry, EntryKind, Kind, Message, ReadState
from penstock.raft.progress import Pace, Progress, Window
from penstock.raft.quorum import Outcome, committed_index, vote_outcome
from penstock.raft.refusals import BadMessage, Busy, Dropped, InvalidChange, InvariantBroken

if TYPE_CHECKING:
    from penstock.raft.core import Raft

_ALL: Final = 2**63


@dataclass(slots=True)
class _Read:
    """A read that waits for a quorum to say that this is still the leader."""

    number: int  # its own; what the caller calls it proves nothing
    sender: int
    context: int
    index: int
    echoed: set[int] = field(default_factory=set)  # only asked for membership, never walked


class Leadership:
    """One term of leadership."""

    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._settings = raft.settings
        self.progress: dict[int, Progress] = {}
        self.transferee = 0
        self.uncommitted_size = 0
        # No change of members before everything up to here is applied.
        self.pending_change = raft.log.last
        self._reads: deque[_Read] = deque()
        self._early_reads: list[tuple[int, int]] = []  # asked before the first commit of this term
        self._next_read = 1
        self._heartbeat_elapsed = 0
        # What was proposed and is not committed: (first index, last index, bytes) of each piece.
        self._uncommitted: deque[tuple[int, int, int]] = deque()
        # The entries that were sent last, with what they were asked for: mostly all members want the same.
        self._sent: tuple[int, int, tuple[Entry, ...]] = (0, 0, ())
        self._track_members(is_heard=False)

    def begin(self) -> None:
        """Append the empty entry of the new term: with it everything before is committed too."""
        self._append([(self._settings.empty_payload, EntryKind.NORMAL)])
        self._send_to_all()

    def _track_members(self, *, is_heard: bool) -> None:
        members = self._raft.configuration.members
        for member in members:
            if member not in self.progress:
                window = Window(self._settings.window_count, self._settings.window_size)
                self.progress[member] = Progress(
                    window, next=self._raft.log.last + 1, is_active=is_heard
                )
        self.progress = {member: self.progress[member] for member in members}

    def _others(self) -> list[int]:
        return [member for member in self.progress if member != self._raft.member]

    # --- proposing ---

    def propose(self, payloads: Sequence[tuple[bytes, EntryKind]]) -> int:
        """Take entries; return the index of the last. Raises ``Busy`` and ``Dropped``."""
        if self.transferee:
            raise Busy(f"leadership goes to {self.transferee}")
        size = sum(len(payload) for payload, _ in payloads)
        if (
            size
            and self.uncommitted_size
            and (self.uncommitted_size + size > self._settings.uncommitted_max)
        ):
            raise Dropped(f"{self.uncommitted_size} bytes wait to be committed already")
        self._append(payloads)
        self._send_to_all()
        return self._raft.log.last

    def _append(self, payloads: Sequence[tuple[bytes, EntryKind]]) -> None:
        log = self._raft.log
        first = log.last + 1
        log.append(
            [
                Entry(first + place, self._raft.term, payload, kind)
                for place, (payload, kind) in enumerate(payloads)
            ]
        )
        size = sum([len(payload) for payload, _ in payloads])
        self._uncommitted.append((first, log.last, size))
        self.uncommitted_size += size

    def propose_change(self, change: Change) -> int:
        """Take a change of members. Raises ``Busy`` and ``InvalidChange``."""
        log = self._raft.log
        if self.pending_change > log.applied:
            raise Busy(f"a change may be under way: {log.applied} of {self.pending_change} applied")
        if not self._has_committed:
            raise Busy("nothing of this term is committed yet")
        configuration = self._raft.configuration
        if configuration.is_joint and (change.steps or change.base is not None):
            raise Busy("the configuration is joint; leave it first")
        apply_change(configuration, change)
        index = self.propose([(encode_change(change), EntryKind.CONFIGURATION)])
        self.pending_change = index
        return index

    @property
    def _has_committed(self) -> bool:
        """Whether an entry of this term is committed."""
        log = self._raft.log
        return log.has(log.committed, self._raft.term)

    # --- time ---

    def tick(self) -> None:
        self.leave_joint()  # a transfer may have been in its way
        self._heartbeat_elapsed += 1
        if self._heartbeat_elapsed >= self._settings.heartbeat_ticks:
            self.beat()

    def beat(self) -> None:
        """Send a round of heartbeats."""
        self._heartbeat_elapsed = 0
        context = self._reads[-1].number if self._reads else 0
        for member in self._others():
            self._send_heartbeat(member, context)

    def _send_heartbeat(self, member: int, context: int) -> None:
        # Not more than the member has: it would take the commit for entries of its own that differ.
        commit = min(self._raft.log.committed, self.progress[member].match)
        self._send(Kind.HEARTBEAT, member, commit=commit, context=context)

    def check_quorum(self) -> bool:
        """Return whether a quorum was heard from since the last check."""
        votes = {
            member: one.is_active or member == self._raft.member
            for member, one in self.progress.items()
        }
        for member in self._others():
            self.progress[member].is_active = False
        configuration = self._raft.configuration
        return vote_outcome(configuration.voters, configuration.outgoing, votes) is Outcome.WON

    # --- sending entries ---

    def _send(self, kind: Kind, to: int, **fields: object) -> None:
        raft = self._raft
        raft.send(Message(kind=kind, sender=raft.member, to=to, term=raft.term, **fields))  # type: ignore[arg-type]

    def _send_to_all(self) -> None:
        for member in self._others():
            self._send_entries(member, is_empty_useful=True)

    def _send_entries(self, member: int, *, is_empty_useful: bool) -> bool:
        """Send a member what it lacks, if it may be sent anything. Return whether something was sent."""
        one, log = self.progress[member], self._raft.log
        if not one.may_send:
            return False
        previous = one.next - 1
        try:
            previous_term = log.term(previous)
            entries: tuple[Entry, ...] = ()
            # A full window lets only empty ones through: they find out whether all before were lost.
            if one.pace is not Pace.REPLICATE or not one.window.is_full:
                entries = self._entries_from(one.next)
        except Compacted:
            return self._send_snapshot(member, one)
        if not entries and not is_empty_useful:
            return False
        self._send(
            Kind.APPEND,
            member,
            index=previous,
            log_term=previous_term,
            entries=entries,
            commit=log.committed,
        )
        size = sum([len(entry.payload) for entry in entries])
        one.sent(len(entries), size, commit=log.committed)
        return True

    def _entries_from(self, first: int) -> tuple[Entry, ...]:
        """Return what a member that has everything before ``first`` is sent. Raises ``Compacted``."""
        log = self._raft.log
        if self._sent[:2] != (first, log.last):
            found = log.entries(first, _ALL, size_max=self._settings.append_size_max)
            self._sent = (first, log.last, tuple(found))
        return self._sent[2]

    def _send_snapshot(self, member: int, one: Progress) -> bool:
        if not one.is_active:
            return False  # it would travel for nothing
        snapshot = self._raft.log.snapshot()
        if snapshot is None or member not in snapshot.configuration.members:
            # Not at hand now, or the member would refuse it: asked for again at the next answer.
            return False
        self._send(Kind.SNAPSHOT, member, snapshot=snapshot)
        one.become_snapshot(snapshot.index)
        return True

    # --- answers ---

    def step(self, message: Message) -> None:
        one = self.progress.get(message.sender)
        if one is None:
            return  # it was removed
        if message.kind is Kind.APPEND_REPLY:
            one.is_active = True
            if message.is_rejected:
                self._note_rejection(message, one)
            else:
                self._note_acknowledgement(message.sender, message.index, one)
        elif message.kind is Kind.HEARTBEAT_REPLY:
            self._note_heartbeat(message, one)
        else:
            raise BadMessage(f"a leader is not told {message.kind.value}")

    def _note_rejection(self, message: Message, one: Progress) -> None:
        hint = message.hint
        if message.hint_term:
            # Where our own log is at that term or below: nothing between can agree.
            hint, _ = self._raft.log.place_of_agreement(message.hint, message.hint_term)
        if one.rejected(message.index, hint):
            if one.pace is Pace.REPLICATE:
                one.become_probe()
            self._send_entries(message.sender, is_empty_useful=True)
        elif one.doubts >= self._settings.doubts_max:
            # Old answers end with the next acknowledgement. This one's disk lost what it had promised to keep.
            one.forget(min(hint, message.index - 1))
            self._send_entries(message.sender, is_empty_useful=True)

    def _note_acknowledgement(self, member: int, index: int, one: Progress) -> None:
        if index > self._raft.log.last:
            raise InvariantBroken(f"member {member} has entry {index}, which nobody wrote")
        if not one.acknowledged(index) and not (one.match == index and one.pace is Pace.PROBE):
            return
        # A snapshot that is older than the one that was sent will do, if the log reaches that far back; the one that
        # was sent will, even if the log does not any more: then the next one follows.
        has_snapshot = index >= one.pending_snapshot or index + 1 >= self._raft.log.first
        if one.pace is Pace.PROBE or (one.pace is Pace.SNAPSHOT and has_snapshot):
            one.become_replicate()
        elif one.pace is Pace.REPLICATE:
            one.window.free_up_to(index)
        if self._try_commit():
            self._after_commit()
        elif one.lacks_commit(self._raft.log.committed):
            self._send_entries(member, is_empty_useful=True)
        while self._send_entries(member, is_empty_useful=False):
            pass
        if member == self.transferee and one.match == self._raft.log.last:
            self._send(Kind.TIMEOUT_NOW, member)

    def _note_heartbeat(self, message: Message, one: Progress) -> None:
        one.is_active = True
        one.is_paused = False
        if one.match < self._raft.log.last or one.pace is Pace.PROBE:
            self._send_entries(message.sender, is_empty_useful=True)
        if message.context:
            self._note_echo(message.sender, message.context)

    def unreachable(self, member: int) -> None:
        one = self.progress.get(member)
        if one is not None and one.pace is Pace.REPLICATE:
            one.become_probe()

    def snapshot_ended(self, member: int, *, ok: bool) -> None:
        one = self.progress.get(member)
        if one is None or one.pace is not Pace.SNAPSHOT:
            return
        if not ok:
            one.pending_snapshot = 0
        one.become_probe()
        one.is_paused = True  # until it is heard from

    # --- committing ---

    def own_entries_durable(self) -> None:
        """Count the leader's own entries that are durable by now."""
        one = self.progress.get(self._raft.member)
        if one is not None and one.acknowledged(self._raft.log.stable) and self._try_commit():
            self._after_commit()

    def _try_commit(self) -> bool:
        """Commit what a majority has, if the last of it is of this term. Return whether that was news."""
        raft = self._raft
        matches = {member: one.match for member, one in self.progress.items()}
        configuration = raft.configuration
        index = committed_index(configuration.voters, configuration.outgoing, matches)
        before = raft.log.committed
        if index <= before or not raft.log.has(index, raft.term):
            return False
        raft.log.commit(index)
        self._release(index)
        return True

    def _release(self, index: int) -> None:
        """Take what was committed out of the account of what waits."""
        pieces = self._uncommitted
        while pieces and pieces[0][0] <= index:
            first, last, size = pieces.popleft()
            if last > index:
                done = sum(e.size for e in self._raft.log.entries(first, index + 1, size_max=_ALL))
                pieces.appendleft((index + 1, last, size - done))
                size = done
            self.uncommitted_size -= size

    def _after_commit(self) -> None:
        early, self._early_reads = self._early_reads, []
        for sender, context in early:
            self.read(sender, context)
        self._send_to_all()

    # --- members ---

    def leave_joint(self) -> None:
        """Leave a joint configuration that is to be left by itself, as soon as that can be; the entry goes out once."""
        raft = self._raft
        is_due = raft.configuration.is_joint and raft.configuration.is_left_by_itself
        if is_due and raft.log.applied >= self.pending_change and not self.transferee:
            self._append([(encode_change(Change()), EntryKind.CONFIGURATION)])
            self.pending_change = raft.log.last
            self._send_to_all()

    def configuration_changed(self) -> None:
        # A newcomer counts as heard from, or the next check of the quorum could end this.
        self._track_members(is_heard=True)
        configuration = self._raft.configuration
        if self.transferee and self.transferee not in configuration.voters:
            self.transferee = 0
        if self._raft.member not in self.progress:
            return
        # Fewer voters may have made a majority of those who have it already.
        if self._try_commit():
            self._after_commit()
        else:
            for member in self._others():
                self._send_entries(member, is_empty_useful=False)
        self._answer_reads()

    def transfer(self, to: int) -> None:
        """Hand leadership to a voter, as soon as it has everything."""
        raft = self._raft
        if to == raft.member:
            self.transferee = 0
            return
        if to not in raft.configuration.voters:
            raise InvalidChange(f"member {to} is not a voter")
        if self.transferee == to:
            return  # and its time goes on running
        self.transferee = to
        raft.begin_transfer()
        if self.progress[to].match == raft.log.last:
            self._send(Kind.TIMEOUT_NOW, to)
        else:
            self._send_entries(to, is_empty_useful=True)

    # --- reads ---

    def read(self, sender: int, context: int) -> None:
        """Take a read. Raises ``Busy`` for one too many."""
        count = len(self._reads) + len(self._early_reads)
        if count >= self._settings.reads_max:
            raise Busy(f"{count} reads wait already")
        if not self._has_committed:
            # The commit index is not known to be the newest before something of this term is committed.
            self._early_reads.append((sender, context))
            return
        index = self._raft.log.committed
        read = _Read(self._next_read, sender, context, index, {self._raft.member})
        self._next_read += 1
        self._reads.append(read)
        if not self._answer_reads():
            self.beat()

    def _note_echo(self, member: int, number: int) -> None:
        for read in self._reads:
            if read.number > number:
                break
            read.echoed.add(member)
        self._answer_reads()

    def _answer_reads(self) -> bool:
        """Answer the reads that a quorum has vouched for. Return whether none is left."""
        configuration = self._raft.configuration
        answered = 0
        for place, read in enumerate(self._reads, 1):
            votes = dict.fromkeys(read.echoed, True)
            outcome = vote_outcome(configuration.voters, configuration.outgoing, votes)
            if outcome is Outcome.WON:
                answered = place  # and all that came before it
        for _ in range(answered):
            read = self._reads.popleft()
            if read.sender == self._raft.member:
                self._raft.answer_read(ReadState(read.context, read.index))
            else:
                self._raft.send(
                    Message(
                        kind=Kind.READ_REPLY,
                        sender=self._raft.member,
                        to=read.sender,
                        index=read.index,
                        context=read.context,
                    )
                )
        return not self._reads
