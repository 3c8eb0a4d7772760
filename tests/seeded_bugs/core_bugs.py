"""Wrong versions of the Raft core, each with one bug that programs like ours have had.

Every function patches the core for as long as the patch lasts. None of this is in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from penstock.model import HardState as StoredState
from penstock.raft import core, leading, outbox, quorum
from penstock.raft.configuration import apply_change, decode_change
from penstock.raft.core import Raft
from penstock.raft.leading import Leadership
from penstock.raft.log import Log
from penstock.raft.messages import (
    REPLIES,
    Entry,
    EntryKind,
    Kind,
    Message,
    ReadState,
    Ready,
    Snapshot,
)
from penstock.raft.progress import Pace, Progress
from penstock.raft.quorum import Outcome
from penstock.raft.refusals import Refused
from penstock.server import member
from penstock.server.group_replica import GroupReplica
from penstock.server.member import GroupMember

Patch = pytest.MonkeyPatch


def returning(value: object) -> Callable[..., object]:
    """Return a function that does nothing but return ``value``."""

    def function(*_: object, **__: object) -> object:
        return value

    return function


def waiting_without(*kinds: Kind) -> tuple[Kind, ...]:
    """Return the kinds of messages that wait for the disk, less some."""
    return tuple(kind for kind in outbox._WAITING if kind not in kinds)


# Votes.


def seed_vote_not_stored(patch: Patch) -> None:
    original = Raft.ready

    def ready(self: Raft) -> Ready:
        found = original(self)
        if found.hard_state is not None:
            found.hard_state = replace(found.hard_state, vote=0)
        return found

    def without_vote(**fields: Any) -> StoredState:
        return StoredState(**fields | {"vote": None})

    patch.setattr(Raft, "ready", ready)
    patch.setattr(member, "HardState", without_vote)


def seed_vote_given_twice(patch: Patch) -> None:
    original = Raft._decide_vote

    def decide(self: Raft, message: Message) -> None:
        before, self.vote = self.vote, 0
        original(self, message)
        self.vote = self.vote or before

    patch.setattr(Raft, "_decide_vote", decide)


def seed_freshness_by_index_only(patch: Patch) -> None:
    def is_older_than(self: Log, index: int, term: int) -> bool:
        return index >= self.last

    patch.setattr(Log, "is_older_than", is_older_than)


def seed_freshness_not_checked(patch: Patch) -> None:
    patch.setattr(Log, "is_older_than", returning(True))


def seed_refusal_resets_timer(patch: Patch) -> None:
    original = Raft._decide_vote

    def decide(self: Raft, message: Message) -> None:
        original(self, message)
        if message.kind is Kind.VOTE:
            self._elapsed = 0

    patch.setattr(Raft, "_decide_vote", decide)


def seed_own_vote_before_sync(patch: Patch) -> None:
    original = Raft._ask_for_votes

    def ask(self: Raft, kind: Kind, term: int, *, is_transfer: bool) -> None:
        original(self, kind, term, is_transfer=is_transfer)
        own = [message for message in self._outbox.messages if message.to == self.member]
        for message in own:
            self._hear_itself(message)

    patch.setattr(Raft, "_ask_for_votes", ask)
    patch.setattr(outbox, "_WAITING", waiting_without(Kind.VOTE, Kind.PRE_VOTE))


def seed_vote_forgotten_in_term(patch: Patch) -> None:
    original = Raft.become_follower

    def become_follower(self: Raft, term: int, leader: int) -> None:
        original(self, term, leader)
        self.vote = 0

    patch.setattr(Raft, "become_follower", become_follower)


# Pre-vote, quorum.


def seed_pre_vote_moves_term(patch: Patch) -> None:
    original = Raft._enter_newer_term

    def enter(self: Raft, message: Message) -> bool:
        goes_on = original(self, message)
        if goes_on and message.kind is Kind.PRE_VOTE:
            self.become_follower(message.term, 0)
        return goes_on

    patch.setattr(Raft, "_enter_newer_term", enter)


def seed_old_terms_unanswered(patch: Patch) -> None:
    patch.setattr(Raft, "_answer_old_term", returning(None))


def seed_leader_stays_without_quorum(patch: Patch) -> None:
    patch.setattr(Leadership, "check_quorum", returning(True))


def seed_lease_ignored(patch: Patch) -> None:
    original = Raft._enter_newer_term

    def enter(self: Raft, message: Message) -> bool:
        heard, self.leader = self.leader, 0
        goes_on = original(self, message)
        if message.kind is Kind.PRE_VOTE:
            self.leader = heard
        return goes_on

    patch.setattr(Raft, "_enter_newer_term", enter)


def seed_lease_against_transfer(patch: Patch) -> None:
    original = Raft._enter_newer_term

    def enter(self: Raft, message: Message) -> bool:
        heard_lately = self.leader != 0 and self._elapsed < self.settings.election_ticks
        if message.is_transfer and self.settings.has_check_quorum and heard_lately:
            return False
        return original(self, message)

    patch.setattr(Raft, "_enter_newer_term", enter)


def seed_half_is_majority(patch: Patch) -> None:
    def majority_index(voters: Collection[int], acknowledged: Mapping[int, int]) -> int:
        indexes = sorted((acknowledged.get(voter, 0) for voter in voters), reverse=True)
        return indexes[(len(indexes) - 1) // 2]

    def majority_outcome(voters: Collection[int], votes: Mapping[int, bool]) -> Outcome:
        granted = sum(votes.get(voter) is True for voter in voters)
        refused = sum(votes.get(voter) is False for voter in voters)
        needed = (len(voters) + 1) // 2
        if granted >= needed:
            return Outcome.WON
        return Outcome.LOST if len(voters) - refused < needed else Outcome.PENDING

    patch.setattr(quorum, "_majority_index", majority_index)
    patch.setattr(quorum, "_majority_outcome", majority_outcome)


# Log and commit.


def seed_every_append_truncates(patch: Patch) -> None:
    def take(self: Log, previous: int, term: int, entries: Sequence[Entry]) -> int | None:
        if not self.has(previous, term):
            return None
        new = [entry for entry in entries if entry.index > self.committed]
        first = max(previous, self.committed) + 1
        if new:
            self.append(new)
        elif first <= self.last:
            self._cut(first)
        return previous + len(entries)

    patch.setattr(Log, "take", take)


def seed_old_terms_counted(patch: Patch) -> None:
    original = Leadership._try_commit

    def try_commit(self: Leadership) -> bool:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Log, "has", returning(True))
            return original(self)

    patch.setattr(Leadership, "_try_commit", try_commit)


def seed_follower_takes_leaders_commit(patch: Patch) -> None:
    original = Raft._take_entries

    def take_entries(self: Raft, message: Message) -> None:
        original(self, message)
        if self.log.has(message.index, message.log_term):
            self.log.commit(min(message.commit, self.log.last))

    patch.setattr(Raft, "_take_entries", take_entries)


def seed_heartbeat_commit_above_match(patch: Patch) -> None:
    def send_heartbeat(self: Leadership, to: int, context: int) -> None:
        self._send(Kind.HEARTBEAT, to, commit=self._raft.log.committed, context=context)

    patch.setattr(Leadership, "_send_heartbeat", send_heartbeat)


def seed_next_below_match(patch: Patch) -> None:
    def rejected(self: Progress, index: int, hint: int) -> bool:
        self.next = max(min(index, hint + 1), 1)
        self.is_paused = False
        return True

    patch.setattr(Progress, "rejected", rejected)


def seed_loss_never_believed(patch: Patch) -> None:
    original = Progress.rejected

    def rejected(self: Progress, index: int, hint: int) -> bool:
        is_news = original(self, index, hint)
        self.doubts = 0
        return is_news

    patch.setattr(Progress, "rejected", rejected)


def seed_sent_is_acknowledged(patch: Patch) -> None:
    original = Progress.sent

    def sent(self: Progress, count: int, size: int, *, commit: int) -> None:
        original(self, count, size, commit=commit)
        if self.pace is Pace.REPLICATE:
            self.match = self.next - 1

    patch.setattr(Progress, "sent", sent)


def seed_old_write_speaks_for_new_entries(patch: Patch) -> None:
    def cut(self: Log, first: int) -> None:
        if first >= self.offset:
            del self._unstable[first - self.offset :]
        else:
            self._unstable.clear()
            self.offset = first
        self._written = min(self._written, first - 1)

    def end_write(self: Log, token: int) -> None:
        write = self._writes.pop(0)
        pending = self.pending_snapshot
        if pending is not None and write.snapshot == pending.index:
            self.pending_snapshot = None
            self.applied = self.handed_out = max(self.applied, write.snapshot)
        if self.offset <= write.last <= self.last:
            del self._unstable[: write.last + 1 - self.offset]
            self.offset = write.last + 1

    patch.setattr(Log, "_cut", cut)
    patch.setattr(Log, "end_write", end_write)


def seed_conflict_found_by_index(patch: Patch) -> None:
    def take(self: Log, previous: int, term: int, entries: Sequence[Entry]) -> int | None:
        if not self.has(previous, term):
            return None
        self.append([entry for entry in entries if entry.index > self.last])
        return previous + len(entries)

    patch.setattr(Log, "take", take)


def seed_previous_not_checked(patch: Patch) -> None:
    original = Log.take

    def take(self: Log, previous: int, term: int, entries: Sequence[Entry]) -> int | None:
        if self.committed <= previous <= self.last:
            term = self.term(previous)
        return original(self, previous, term, entries)

    patch.setattr(Log, "take", take)


# What waits for the disk.


def seed_ack_before_sync(patch: Patch) -> None:
    patch.setattr(outbox, "_WAITING", waiting_without(Kind.APPEND_REPLY))


def seed_own_entry_before_sync(patch: Patch) -> None:
    original = Leadership._append

    def append(self: Leadership, payloads: Sequence[tuple[bytes, EntryKind]]) -> None:
        original(self, payloads)
        own = self.progress.get(self._raft.member)
        if own is not None:
            own.acknowledged(self._raft.log.last)

    patch.setattr(Leadership, "_append", append)


# Snapshots.


def seed_restore_over_agreeing_log(patch: Patch) -> None:
    def is_wanted(self: Raft, snapshot: Snapshot) -> bool:
        is_member = self.member in snapshot.configuration.members
        return is_member and snapshot.index > self.log.committed

    patch.setattr(Raft, "_is_wanted", is_wanted)


def seed_old_snapshot_taken(patch: Patch) -> None:
    def is_wanted(self: Raft, snapshot: Snapshot) -> bool:
        return self.member in snapshot.configuration.members

    patch.setattr(Raft, "_is_wanted", is_wanted)


# Members.


def seed_change_before_own_commit(patch: Patch) -> None:
    original = Leadership.propose_change

    def propose_change(self: Leadership, change: Any) -> int:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Leadership, "_has_committed", True)
            return original(self, change)

    patch.setattr(Leadership, "propose_change", propose_change)


def seed_removed_peer_counts(patch: Patch) -> None:
    original, check, step = Leadership._track_members, Raft._check, GroupReplica.step

    def track(self: Leadership, *, is_heard: bool) -> None:
        before = self.progress
        original(self, is_heard=is_heard)
        self.progress = before | self.progress

    def committed_index(
        voters: Collection[int], outgoing: Collection[int], matches: Mapping[int, int]
    ) -> int:
        return sorted(matches.values(), reverse=True)[len(voters) // 2]

    def accept(self: Raft, message: Message) -> None:
        if message.kind not in REPLIES:
            check(self, message)

    def step_all(self: GroupReplica, message: Message) -> None:
        if message.kind in REPLIES and self.failure is None:
            self.group.step(message)
            self._note_role()
            self._advance_soon()
        else:
            step(self, message)

    patch.setattr(Leadership, "_track_members", track)
    patch.setattr(leading, "committed_index", committed_index)
    patch.setattr(Raft, "_check", accept)
    patch.setattr(GroupReplica, "step", step_all)


def seed_learner_counts(patch: Patch) -> None:
    def committed_index(
        voters: Collection[int], outgoing: Collection[int], matches: Mapping[int, int]
    ) -> int:
        return sorted(matches.values(), reverse=True)[len(voters) // 2]

    patch.setattr(leading, "committed_index", committed_index)


def seed_joint_asks_incoming_only(patch: Patch) -> None:
    index, outcome = quorum.committed_index, quorum.vote_outcome

    def committed_index(
        incoming: Collection[int], outgoing: Collection[int], matches: Mapping[int, int]
    ) -> int:
        return index(incoming, (), matches)

    def vote_outcome(
        incoming: Collection[int], outgoing: Collection[int], votes: Mapping[int, bool]
    ) -> Outcome:
        return outcome(incoming, (), votes)

    patch.setattr(quorum, "committed_index", committed_index)
    patch.setattr(quorum, "vote_outcome", vote_outcome)
    patch.setattr(leading, "committed_index", committed_index)
    for module in (core, leading):
        patch.setattr(module, "vote_outcome", vote_outcome)


def seed_changes_forgotten_at_start(patch: Patch) -> None:
    original = Log.__init__

    def begin(self: Log, storage: Any, *, committed: int, applied: int) -> None:
        original(self, storage, committed=committed, applied=applied)
        self.committed = committed

    patch.setattr(Log, "__init__", begin)


def seed_truncated_change_stays(patch: Patch) -> None:
    take, apply, propose = Raft._take_entries, Raft._apply_change, Raft.propose_conf

    def put_in_force(self: Raft, entry: Entry) -> None:
        with suppress(Refused):
            self.configuration = apply_change(self.configuration, decode_change(entry.payload))
            early(self).add((entry.index, entry.term))

    def propose_conf(self: Raft, change: Any) -> int:
        index = propose(self, change)
        (entry,) = self.log.entries(index, index + 1, size_max=1)
        put_in_force(self, entry)
        return index

    def take_entries(self: Raft, message: Message) -> None:
        before = self.log.last
        take(self, message)
        for entry in message.entries:
            if entry.kind is EntryKind.CONFIGURATION and before < entry.index <= self.log.last:
                put_in_force(self, entry)

    def apply_change_once(self: Raft, entry: Entry) -> None:
        if (entry.index, entry.term) not in early(self):
            apply(self, entry)

    def early(self: Raft) -> set[tuple[int, int]]:
        found: set[tuple[int, int]] = self.__dict__.setdefault("early_changes", set())
        return found

    patch.setattr(Raft, "_take_entries", take_entries)
    patch.setattr(Raft, "_apply_change", apply_change_once)
    patch.setattr(Raft, "propose_conf", propose_conf)


def seed_runs_with_unapplied_change(patch: Patch) -> None:
    patch.setattr(Raft, "_has_unapplied_change", returning(False))


# Reads and transfers.


def seed_read_without_round(patch: Patch) -> None:
    def read(self: Leadership, sender: int, context: int) -> None:
        if not self._has_committed:
            self._early_reads.append((sender, context))
            return
        raft, index = self._raft, self._raft.log.committed
        if sender == raft.member:
            raft.answer_read(ReadState(context, index))
            return
        reply = Kind.READ_REPLY
        raft.send(Message(kind=reply, sender=raft.member, to=sender, index=index, context=context))

    patch.setattr(Leadership, "read", read)


def seed_old_echo_counts(patch: Patch) -> None:
    original = Leadership._note_heartbeat

    def note_heartbeat(self: Leadership, message: Message, one: Progress) -> None:
        original(self, message, one)
        self._note_echo(message.sender, self._next_read)

    patch.setattr(Leadership, "_note_heartbeat", note_heartbeat)


def seed_reads_before_first_commit(patch: Patch) -> None:
    original = Leadership.read

    def read(self: Leadership, sender: int, context: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Leadership, "_has_committed", True)
            original(self, sender, context)

    def note_role(self: GroupReplica) -> None:
        role(self)
        if self._epoch and not self.is_leading:
            self.is_leading = True
            self._tell_role()

    role = GroupReplica._note_role
    patch.setattr(Leadership, "read", read)
    patch.setattr(GroupReplica, "_note_role", note_role)


def seed_proposals_during_transfer(patch: Patch) -> None:
    original, refusal = Leadership.propose, GroupReplica.refusal

    def propose(self: Leadership, payloads: Sequence[tuple[bytes, EntryKind]]) -> int:
        to, self.transferee = self.transferee, 0
        try:
            return original(self, payloads)
        finally:
            self.transferee = to

    def refuse(self: GroupReplica) -> object:
        leadership = self.group.core.leadership
        if leadership is None:
            return refusal(self)
        to, leadership.transferee = leadership.transferee, 0
        try:
            return refusal(self)
        finally:
            leadership.transferee = to

    def flush(self: GroupMember) -> None:
        if self._pending:
            payloads, self._pending, self._pending_size = self._pending, [], 0
            self.core.propose(payloads)

    patch.setattr(Leadership, "propose", propose)
    patch.setattr(GroupReplica, "refusal", refuse)
    patch.setattr(GroupMember, "flush", flush)


def seed_apply_page_skips_one(patch: Patch) -> None:
    original, others = Raft.ready, GroupReplica._apply_others

    def ready(self: Raft) -> Ready:
        found = original(self)
        end = min(self.log.committed, self.log.stable)
        if found.committed and found.committed[-1].index < end:
            self.log.handed_out += 1
        return found

    def apply_others(self: GroupReplica, stop: Any) -> None:
        others(self, stop)
        if self.applied < stop:
            self.applied += 1  # type: ignore[assignment]

    patch.setattr(Raft, "ready", ready)
    patch.setattr(GroupReplica, "_apply_others", apply_others)
