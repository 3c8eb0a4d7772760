"""One member of a group that agrees on a log: Raft, without a disk, a network or a clock of its own (docs/raft.md).

Everything comes in through calls and goes out as a ``Ready``. What rests on the disk leaves after the disk: answers,
votes and requests for votes wait until the Ready that they stand in was reported durable (``persisted``), and so do the
member's own vote and its own entries. A change of members is in force when it is applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from penstock.model import TERM_MAX
from penstock.raft.configuration import Change, Configuration, apply_change, decode_change
from penstock.raft.leading import Leadership
from penstock.raft.log import Log, Storage
from penstock.raft.messages import (
    FROM_LEADER,
    REPLIES,
    Entry,
    EntryKind,
    HardState,
    Kind,
    Message,
    ReadState,
    Ready,
    Snapshot,
)
from penstock.raft.outbox import Outbox
from penstock.raft.quorum import Outcome, vote_outcome
from penstock.raft.refusals import (
    BadMessage,
    Busy,
    InvariantBroken,
    NotLeading,
    OutstandingReady,
    Refused,
)
from penstock.raft.roles import FORBIDDEN, Role
from penstock.raft.settings import Settings

INPUTS_KEPT: Final = 100
"""Inputs that an ``InvariantBroken`` tells of."""


class Raft:
    """One member of a group."""

    def __init__(
        self,
        member: int,
        storage: Storage,
        *,
        hard_state: HardState | None = None,
        configuration: Configuration,
        applied: int | None = None,
        settings: Settings | None = None,
        draw: Callable[[int], int],
    ) -> None:
        """Begin as a follower with what the disk holds.

        ``applied``: how far the state machine is; else as far as the snapshot. ``draw(n)`` returns chance, 0 to
        n - 1. Raises ``InvariantBroken`` if what is stored cannot be, ``ValueError`` for a bad member id.
        """
        if member < 1:
            raise ValueError(f"members are numbered from 1 on, not {member}")
        state = hard_state or HardState()
        self.member = member
        self.settings = settings or Settings()
        self.configuration = configuration
        self.term, self.vote = state.term, state.vote
        base = storage.first - 1
        self.log = Log(
            storage, committed=max(state.commit, base), applied=base if applied is None else applied
        )
        self.role = Role.FOLLOWER
        self.leader = 0
        self.leadership: Leadership | None = None
        self.votes: dict[int, bool] = {}
        # Whether it may have forgotten votes and entries of its own: it neither votes nor runs until its driver
        # knows better.
        self.is_barred = False
        self._draw = draw
        self._elapsed = (
            0  # ticks since the leader was heard, or since this leader checked its quorum
        )
        self._timeout = 0
        self._draw_timeout()
        self._outbox = Outbox(member)
        self._read_states: list[ReadState] = []
        self._reported = HardState(self.term, self.vote, self.log.committed)
        self._is_term_durable = True
        self._token = 0
        self._outstanding: deque[Ready] = deque()
        self._inputs: deque[tuple[object, ...]] = deque(maxlen=INPUTS_KEPT)

    # --- what others ask ---

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def can_lead(self) -> bool:
        """Whether it may run: a voter of its own configuration, with nothing on its way that may change that."""
        return (
            self.configuration.is_voter(self.member)
            and self.term < TERM_MAX  # after the last term there is no other to run for
            and self.log.pending_snapshot is None
            and not self.is_barred
        )

    def tick(self) -> None:
        """Let one unit of time pass."""
        self._elapsed += 1
        if self.leadership is not None:
            self._tick_leader(self.leadership)
        elif self._elapsed >= self._timeout and self.can_lead:
            self._elapsed = 0
            self._campaign(is_transfer=False)

    def _tick_leader(self, leadership: Leadership) -> None:
        if self._elapsed >= self.settings.election_ticks:
            self._elapsed = 0
            if self.settings.has_check_quorum and not leadership.check_quorum():
                self.become_follower(self.term, 0)
                return
            leadership.transferee = 0  # it had its time
        leadership.tick()

    def campaign(self) -> None:
        """Act as if the election timer had fired."""
        self._inputs.append(("campaign",))
        if self.role is not Role.LEADER:
            self._campaign(is_transfer=False)

    def propose(self, payloads: Sequence[bytes]) -> int:
        """Take entries for the log; return the index of the last. Raises ``NotLeading``, ``Busy``, ``Dropped``."""
        return self._leading().propose([(payload, EntryKind.NORMAL) for payload in payloads])

    def propose_conf(self, change: Change) -> int:
        """Take a change of members. Raises ``InvalidChange`` besides."""
        return self._leading().propose_change(change)

    def transfer(self, to: int) -> None:
        """Hand leadership over. Raises ``NotLeading``, ``InvalidChange`` for one that cannot lead."""
        self._leading().transfer(to)

    def begin_transfer(self) -> None:
        """Give a transfer one election timeout from now on."""
        self._elapsed = 0

    def beat(self) -> None:
        """Send a round of heartbeats now."""
        self._leading().beat()

    def _leading(self) -> Leadership:
        if self.leadership is None:
            raise NotLeading(self.leader)
        return self.leadership

    def read_index(self, context: int) -> None:
        """Ask for an index that a read must wait for; it comes as a ``ReadState``. Raises ``NotLeading``, ``Busy``."""
        if self.leadership is not None:
            self.leadership.read(self.member, context)
        elif self.leader:
            self.send(Message(kind=Kind.READ, sender=self.member, to=self.leader, context=context))
        else:
            raise NotLeading(0)

    def report_unreachable(self, peer: int) -> None:
        """Say that messages to a member got lost."""
        if self.leadership is not None:
            self.leadership.unreachable(peer)

    def report_snapshot(self, peer: int, *, ok: bool) -> None:
        """Say how the transfer of a snapshot ended."""
        if self.leadership is not None:
            self.leadership.snapshot_ended(peer, ok=ok)

    # --- messages ---

    def step(self, message: Message) -> None:
        """Take a message of another member. Raises ``BadMessage`` before anything has changed."""
        self._check(message)
        self._note_input(message)
        try:
            self._step(message)
        except InvariantBroken as error:
            inputs = "\n".join(map(str, self._inputs))
            raise InvariantBroken(
                f"member {self.member}, term {self.term}: {error}; the last inputs:\n{inputs}"
            ) from None

    def _note_input(self, message: Message) -> None:
        # Not the message itself, whose entries may be large; and not as text, which costs more than the step.
        self._inputs.append(
            (
                message.kind,
                message.sender,
                message.term,
                message.index,
                message.log_term,
                len(message.entries),
                message.commit,
                message.is_rejected,
            )
        )

    def _check(self, message: Message) -> None:
        if message.to != self.member or message.sender in (0, self.member):
            raise BadMessage(f"from {message.sender} to {message.to}, but this is {self.member}")
        if message.kind in REPLIES and not (
            self.configuration.has(message.sender) or message.sender == self.leader
        ):
            raise BadMessage(f"a {message.kind.value} of {message.sender}, which is not a member")
        if message.term > TERM_MAX:
            raise BadMessage(f"term {message.term} is beyond the last one, {TERM_MAX}")
        if message.kind is Kind.SNAPSHOT and message.snapshot is None:
            raise BadMessage("a snapshot message without a snapshot")
        term, index = message.log_term, message.index
        for entry in message.entries:
            if entry.index != index + 1 or not max(term, 1) <= entry.term <= message.term:
                raise BadMessage(f"entry {entry.index} of term {entry.term} does not follow")
            term, index = entry.term, entry.index

    def _step(self, message: Message) -> None:
        if self.is_barred and message.kind in (Kind.VOTE, Kind.PRE_VOTE):
            return  # not even a refusal: it would tell a term that others may have moved on from
        if message.kind in (Kind.READ, Kind.READ_REPLY):
            self._step_read(message)
        elif message.term < self.term:
            self._answer_old_term(message)
        elif message.term == self.term or self._enter_newer_term(message):
            self._step_in_term(message)

    def _answer_old_term(self, message: Message) -> None:
        """Tell a sender that is behind, where it could be stuck without that."""
        helps = self.settings.has_check_quorum or self.settings.has_pre_vote
        if helps and message.kind in (Kind.HEARTBEAT, Kind.APPEND):
            # A leader that was cut off learns that others moved on: they may be refused by all until then.
            self._reply(message, Kind.APPEND_REPLY)
        elif message.kind is Kind.PRE_VOTE:
            self._reply(message, Kind.PRE_VOTE_REPLY, is_rejected=True)

    def _enter_newer_term(self, message: Message) -> bool:
        """Follow a newer term, unless the message is not to be believed. Return whether to go on with it."""
        if message.kind in (Kind.VOTE, Kind.PRE_VOTE):
            heard_lately = self.leader != 0 and self._elapsed < self.settings.election_ticks
            if self.settings.has_check_quorum and heard_lately and not message.is_transfer:
                return False
        if message.kind is Kind.PRE_VOTE:
            return True  # nobody's term changes by being asked
        if message.kind is Kind.PRE_VOTE_REPLY and not message.is_rejected:
            return True  # it carries the term that we would run for
        leader = message.sender if message.kind in FROM_LEADER else 0
        is_only_asked = message.kind is Kind.VOTE and self.leadership is None
        timer = self._elapsed, self._timeout
        self.become_follower(message.term, leader)
        if is_only_asked:
            # Its timer runs on unless it gives its vote: one with an old log could else keep all from running.
            self._elapsed, self._timeout = timer
        return True

    def _step_in_term(self, message: Message) -> None:
        kind = message.kind
        if kind in (Kind.VOTE, Kind.PRE_VOTE):
            self._decide_vote(message)
        elif kind in FROM_LEADER:
            self._follow(message)
        elif kind is Kind.TIMEOUT_NOW:
            if self.role is Role.FOLLOWER and self.can_lead:
                self._campaign(is_transfer=True)
        elif kind in (Kind.VOTE_REPLY, Kind.PRE_VOTE_REPLY):
            self._count_vote(message)
        elif self.leadership is not None:
            self.leadership.step(message)

    def _step_read(self, message: Message) -> None:
        if message.kind is Kind.READ_REPLY:
            self._read_states.append(ReadState(message.context, message.index))
        elif self.leadership is not None:
            with suppress(Busy):  # one too many is dropped like any message: who waits asks again
                self.leadership.read(message.sender, message.context)
        elif self.leader not in (0, message.sender):
            self.send(replace(message, to=self.leader, term=0))

    # --- elections ---

    def _campaign(self, *, is_transfer: bool) -> None:
        if not self.can_lead or self._has_unapplied_change():
            return
        if self.settings.has_pre_vote and not is_transfer:
            self._become(Role.PRE_CANDIDATE)
            self._ask_for_votes(Kind.PRE_VOTE, self.term + 1, is_transfer=False)
        else:
            self._run(is_transfer=is_transfer)

    def _run(self, *, is_transfer: bool) -> None:
        self._become(Role.CANDIDATE)
        self._set_term(self.term + 1)
        self.vote = self.member
        self._ask_for_votes(Kind.VOTE, self.term, is_transfer=is_transfer)

    def _has_unapplied_change(self) -> bool:
        """Return whether a committed change of members is not in force here yet."""
        return self.log.has_change_up_to(self.log.committed)

    def _ask_for_votes(self, kind: Kind, term: int, *, is_transfer: bool) -> None:
        self.votes = {}
        self.leader = 0
        self._elapsed = 0
        self._draw_timeout()
        for peer in self._voters():
            # Its own vote goes the same way as all others, and counts when it is durable.
            self.send(
                Message(
                    kind=kind,
                    sender=self.member,
                    to=peer,
                    term=term,
                    index=self.log.last,
                    log_term=self.log.last_term,
                    is_transfer=is_transfer,
                )
            )

    def _voters(self) -> list[int]:
        return sorted({*self.configuration.voters, *self.configuration.outgoing})

    def _decide_vote(self, message: Message) -> None:
        is_pre_vote = message.kind is Kind.PRE_VOTE
        is_free = (
            self.vote == message.sender
            or (self.vote == 0 and self.leader == 0)
            or (is_pre_vote and message.term > self.term)
        )
        reply = Kind.PRE_VOTE_REPLY if is_pre_vote else Kind.VOTE_REPLY
        if not is_free or not self.log.is_older_than(message.index, message.log_term):
            # Who left cannot run, however long its log is: it helps those who stay with what it knows.
            hint = 0 if self.configuration.is_voter(self.member) else self.log.committed
            hint_term = self.log.term(hint) if hint else 0
            self._reply(message, reply, is_rejected=True, hint=hint, hint_term=hint_term)
            return
        self._reply(message, reply, term=message.term)
        if not is_pre_vote:
            self._elapsed = 0
            self.vote = message.sender

    def _count_vote(self, message: Message) -> None:
        wanted = Role.PRE_CANDIDATE if message.kind is Kind.PRE_VOTE_REPLY else Role.CANDIDATE
        if self.role is not wanted or (message.is_rejected and self._learn_commit(message)):
            return
        self.votes.setdefault(message.sender, not message.is_rejected)
        outcome = vote_outcome(self.configuration.voters, self.configuration.outgoing, self.votes)
        if outcome is Outcome.LOST:
            self.become_follower(self.term, 0)
        elif outcome is Outcome.WON and wanted is Role.PRE_CANDIDATE:
            self._run(is_transfer=False)
        elif outcome is Outcome.WON:
            self._lead()

    def _learn_commit(self, message: Message) -> bool:
        """Learn from a refusal what is committed. Return whether that ends this election.

        Those who left with a change that this member has, but does not know to be committed, refuse it if their logs
        are longer, and cannot run any more: without this no election might ever be won.
        """
        is_here = self.log.has(message.hint, message.hint_term)
        if not is_here or not self.log.commit(message.hint) or not self._has_unapplied_change():
            return False
        self.become_follower(self.term, 0)
        return True

    def _lead(self) -> None:
        self._become(Role.LEADER)
        self.leader = self.member
        self._elapsed = 0
        self.leadership = Leadership(self)
        self.leadership.begin()

    def become_follower(self, term: int, leader: int) -> None:
        """Follow a leader, or nobody that is known."""
        self._become(Role.FOLLOWER)
        if term != self.term:
            self._set_term(term)
        self.leader = leader
        self._elapsed = 0
        self._draw_timeout()

    def _become(self, role: Role) -> None:
        if (self.role, role) in FORBIDDEN:
            raise InvariantBroken(f"a {self.role.value} cannot become a {role.value}")
        self.role = role
        self.votes = {}
        if role is not Role.LEADER:
            self.leadership = None

    def _set_term(self, term: int) -> None:
        if term < self.term:
            raise InvariantBroken(f"term {self.term} cannot fall to {term}")
        self.term, self.vote = term, 0

    def _draw_timeout(self) -> None:
        self._timeout = self.settings.election_ticks + self._draw(self.settings.election_ticks)

    # --- following ---

    def _follow(self, message: Message) -> None:
        if self.leadership is not None:
            raise InvariantBroken(f"member {message.sender} leads in term {self.term} as well")
        if self.role is not Role.FOLLOWER:
            self.become_follower(message.term, message.sender)
        self.leader = message.sender
        self._elapsed = 0
        if message.kind is Kind.APPEND:
            self._take_entries(message)
        elif message.kind is Kind.HEARTBEAT:
            self.log.commit(min(message.commit, self.log.last))
            self._reply(message, Kind.HEARTBEAT_REPLY, context=message.context)
        else:
            self._take_snapshot(message)

    def _take_entries(self, message: Message) -> None:
        self.log.check_agreed(message.index, message.log_term, message.entries)
        if message.index < self.log.committed:
            # All of that is agreed on: an old message, or one that was repeated.
            self._reply(message, Kind.APPEND_REPLY, index=self.log.committed)
            return
        last = self.log.take(message.index, message.log_term, message.entries)
        if last is not None:
            self.log.commit(min(message.commit, last))
            self._reply(message, Kind.APPEND_REPLY, index=last)
            return
        hint, hint_term = self.log.place_of_agreement(message.index, message.log_term)
        self._reply(
            message,
            Kind.APPEND_REPLY,
            index=message.index,
            is_rejected=True,
            hint=hint,
            hint_term=hint_term,
        )

    def _take_snapshot(self, message: Message) -> None:
        snapshot = message.snapshot
        assert snapshot is not None
        if self._is_wanted(snapshot):
            self.log.restore(snapshot)
            self.configuration = snapshot.configuration
            self._reply(message, Kind.APPEND_REPLY, index=self.log.last)
        else:
            self._reply(message, Kind.APPEND_REPLY, index=self.log.committed)

    def _is_wanted(self, snapshot: Snapshot) -> bool:
        if snapshot.index <= self.log.committed:
            return False
        if not snapshot.configuration.has(self.member):
            return False  # of a group that does not know this member
        if self.log.has(snapshot.index, snapshot.term):
            self.log.commit(snapshot.index)  # the log agrees with it and holds more
            return False
        return True

    # --- what goes out ---

    def send(self, message: Message) -> None:
        self._outbox.messages.append(message)

    def answer_read(self, state: ReadState) -> None:
        self._read_states.append(state)

    def _reply(self, message: Message, kind: Kind, **fields: Any) -> None:
        """Answer a message, in our own term unless the fields say another."""
        fields.setdefault("term", self.term)
        self.send(Message(kind=kind, sender=self.member, to=message.sender, **fields))

    @property
    def has_ready(self) -> bool:
        """Whether there is something to do."""
        return bool(
            self._outbox.messages
            or self._read_states
            or self.log.has_unwritten
            or self._has_unwritten_snapshot
            or self._hard_state != self._reported
            or self.log.committed_unapplied(size_max=1)
        )

    @property
    def has_work(self) -> bool:
        """Whether there is something to write, to send or to answer; what may be applied is not counted."""
        # Asked several times for every message: in one piece, without the properties.
        log, reported = self.log, self._reported
        return bool(
            self._outbox.messages
            or self._read_states
            or log.has_unwritten
            or (log.pending_snapshot is not None and not log.is_snapshot_handed_out)
            or self.term != reported.term
            or self.vote != reported.vote
        )

    def urgent(self) -> list[Message]:
        """Take out the messages that need not wait for the disk, while a ``Ready`` is under way."""
        if not self._outbox.messages:
            return []
        return self._outbox.take_urgent(waits=self._is_vote_new or self._is_writing)

    @property
    def _is_vote_new(self) -> bool:
        """Whether term or vote were not handed out to be written."""
        return self.term != self._reported.term or self.vote != self._reported.vote

    @property
    def _is_writing(self) -> bool:
        """Whether a write is under way: what rests on it is not durable yet."""
        return bool(self._outstanding) and any(one.must_sync for one in self._outstanding)

    @property
    def _hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.committed)

    @property
    def _has_unwritten_snapshot(self) -> bool:
        return self.log.pending_snapshot is not None and not self.log.is_snapshot_handed_out

    def ready(self) -> Ready:
        """Return all that is to be done now. Raises ``OutstandingReady`` while an earlier one is not durable."""
        if self._outstanding and not self.settings.is_pipelined:
            raise OutstandingReady("the last Ready was not reported durable yet")
        self._token += 1
        is_new_vote = self._is_vote_new
        ready = Ready(token=self._token)
        if is_new_vote or self.log.committed != self._reported.commit:
            ready.hard_state = self._reported = self._hard_state
        ready.entries = self.log.unwritten()
        if self._has_unwritten_snapshot:
            ready.snapshot = self.log.pending_snapshot
        ready.must_sync = bool(ready.entries or ready.snapshot or is_new_vote)
        self._outbox.split(ready, waits=is_new_vote or self._is_writing)
        if self.settings.hands_out_committed:
            ready.committed = self.log.committed_unapplied(size_max=self.settings.apply_size_max)
        if ready.committed:
            self.log.handed_out = ready.committed[-1].index
        ready.read_states, self._read_states = self._read_states, []
        self.log.begin_write(self._token, with_snapshot=ready.snapshot is not None)
        self._outstanding.append(ready)
        return ready

    def persisted(self, token: int) -> None:
        """Note that a Ready is durable; they become so in order."""
        if not self._outstanding or self._outstanding[0].token != token:
            raise InvariantBroken(f"Ready {token} is not the oldest one under way")
        self._outstanding.popleft()
        self.log.end_write(token)
        for message in self._outbox.take_own():
            self._hear_itself(message)
        if self.leadership is not None:
            self.leadership.own_entries_durable()

    def _hear_itself(self, message: Message) -> None:
        """Count its own vote, if it still stands for what it was asked for."""
        if message.kind is Kind.VOTE and self.term == message.term and self.vote == self.member:
            reply = Kind.VOTE_REPLY
        elif message.kind is Kind.PRE_VOTE and self.term + 1 == message.term:
            reply = Kind.PRE_VOTE_REPLY
        else:
            return
        self._count_vote(replace(message, kind=reply))

    def applied(self, index: int) -> None:
        """Note that the state machine has applied everything up to ``index``; changes of members take effect."""
        while (entry := self.log.take_change(index)) is not None:
            self._apply_change(entry)
        if index > self.log.applied:
            self.log.note_applied(index)
        if self.leadership is not None:
            self.leadership.leave_joint()

    def _apply_change(self, entry: Entry) -> None:
        try:
            self.configuration = apply_change(self.configuration, decode_change(entry.payload))
        except Refused as error:
            raise InvariantBroken(f"entry {entry.index} cannot be applied: {error}") from None
        if self.leadership is None:
            return
        self.leadership.configuration_changed()
        if not self.configuration.is_voter(self.member):
            self.become_follower(self.term, 0)

    def advance(self) -> None:
        """Report the outstanding Ready durable and applied: what a simple driver does after each."""
        ready = self._outstanding[0]
        self.persisted(ready.token)
        if ready.committed:
            self.applied(ready.committed[-1].index)
