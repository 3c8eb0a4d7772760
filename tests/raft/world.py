"""The world of the scenarios: cores with disks in memory, mailboxes between them, and the verbs of a script."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from penstock.raft.configuration import (
    Change,
    Configuration,
    Leave,
    Step,
    apply_change,
    decode_change,
)
from penstock.raft.core import Raft
from penstock.raft.log import Compacted, Unavailable
from penstock.raft.messages import Entry, EntryKind, HardState, Kind, Message, Ready, Snapshot
from penstock.raft.refusals import BadMessage, NotLeading, Refused
from penstock.raft.roles import Role
from penstock.raft.settings import Settings

KINDS = {
    "MsgVote": Kind.VOTE,
    "MsgVoteResp": Kind.VOTE_REPLY,
    "MsgPreVote": Kind.PRE_VOTE,
    "MsgPreVoteResp": Kind.PRE_VOTE_REPLY,
    "MsgApp": Kind.APPEND,
    "MsgAppResp": Kind.APPEND_REPLY,
    "MsgHeartbeat": Kind.HEARTBEAT,
    "MsgHeartbeatResp": Kind.HEARTBEAT_REPLY,
    "MsgSnap": Kind.SNAPSHOT,
    "MsgTimeoutNow": Kind.TIMEOUT_NOW,
    "MsgReadIndex": Kind.READ,
    "MsgReadIndexResp": Kind.READ_REPLY,
}

SCRIPT_SETTINGS = Settings(has_pre_vote=False, has_check_quorum=False)


class Disk:
    """What one member has stored: the storage that its core reads."""

    def __init__(self, configuration: Configuration) -> None:
        self.hard_state = HardState()
        self.kept: list[Entry] = []
        self.stored_snapshot = Snapshot(0, 0, configuration)
        self.is_snapshot_ready = True

    @property
    def first(self) -> int:
        return self.stored_snapshot.index + 1 if not self.kept else self.kept[0].index

    @property
    def last(self) -> int:
        return self.kept[-1].index if self.kept else self.stored_snapshot.index

    def term(self, index: int) -> int:
        if index == self.stored_snapshot.index:
            return self.stored_snapshot.term
        if index < self.first:
            raise Compacted(index)
        if index > self.last:
            raise Unavailable(index)
        return self.kept[index - self.first].term

    def entries(self, first: int, end: int, *, size_max: int) -> Sequence[Entry]:
        if first < self.first:
            raise Compacted(first)
        if end > self.last + 1:
            raise Unavailable(end - 1)
        found: list[Entry] = []
        size = 0
        for entry in self.kept[first - self.first : end - self.first]:
            size += entry.size
            if found and size > size_max:
                break
            found.append(entry)
        return found

    def snapshot(self) -> Snapshot | None:
        return self.stored_snapshot if self.is_snapshot_ready else None

    def store(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            self.stored_snapshot = ready.snapshot
            self.kept = []
        if ready.entries:
            first = ready.entries[0].index
            assert self.first <= first <= self.last + 1, "a gap on the disk"
            del self.kept[first - self.first :]
            self.kept += ready.entries
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state

    def compact(self, index: int, configuration: Configuration) -> None:
        self.stored_snapshot = Snapshot(index, self.term(index), configuration)
        self.kept = [entry for entry in self.kept if entry.index > index]


@dataclass
class Member:
    """One member of the world: its core while it is up, and what survives it."""

    number: int
    disk: Disk
    start: Configuration  # before any entry
    core: Raft | None = None
    settings: Settings = SCRIPT_SETTINGS
    applied: int = 0
    held: Ready | None = None
    is_holding: bool = False
    reads: dict[int, int] = field(default_factory=dict)  # context -> index
    last_read: int | None = None


class World:
    """A group of members, their network, and what must always hold."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.members: dict[int, Member] = {}
        self.mail: dict[tuple[int, int], deque[Message]] = {}
        self.cuts: set[tuple[int, int]] = set()
        self.drops: list[tuple[Kind, tuple[int, int] | None]] = []
        self.base = Configuration()
        self.leaders: dict[int, int] = {}  # by term
        self.applied_entries: dict[int, Entry] = {}
        self.next_context = 1
        self.asked: dict[int, int] = {}  # context -> the member that was asked
        self.trace: list[Message] = []  # everything that left a member

    # --- members ---

    def cluster(self, voters: Sequence[int], learners: Sequence[int] = ()) -> None:
        self.base = Configuration(voters=tuple(sorted(voters)), learners=tuple(sorted(learners)))
        for number in self.base.members:
            self.add(number)

    def add(self, number: int) -> Member:
        member = Member(number, Disk(self.base), self.base)
        self.members[number] = member
        self.boot(member)
        return member

    def boot(self, member: Member) -> None:
        """Start a core from its disk."""
        disk = member.disk
        snapshot = disk.stored_snapshot
        member.applied = max(member.applied, snapshot.index)
        member.core = Raft(
            member.number,
            disk,
            hard_state=disk.hard_state,
            configuration=self.configuration_at(disk, member.applied),
            applied=member.applied,
            settings=member.settings,
            draw=self.random.randrange,
        )

    def configuration_at(self, disk: Disk, applied: int) -> Configuration:
        configuration = disk.stored_snapshot.configuration
        for entry in disk.kept:
            if entry.index <= applied and entry.kind is EntryKind.CONFIGURATION:
                configuration = apply_change(configuration, decode_change(entry.payload))
        return configuration

    def up(self) -> list[Member]:
        return [member for member in self.members.values() if member.core is not None]

    def core(self, number: int) -> Raft:
        core = self.members[number].core
        assert core is not None, f"{number} is down"
        return core

    # --- pumping ---

    def pump(self, member: Member) -> None:
        core = member.core
        while core is not None and member.core is core and member.held is None and core.has_ready:
            ready = core.ready()
            self._post(ready.messages)
            if member.is_holding:
                member.held = ready
                self._answer_reads(member, ready)
                return
            self._finish(member, ready)
            self._answer_reads(member, ready)
            self.check(member)

    def _finish(self, member: Member, ready: Ready) -> None:
        core = member.core
        assert core is not None
        member.disk.store(ready)
        core.persisted(ready.token)
        self._post(ready.messages_after)
        if ready.snapshot is not None:
            member.applied = max(member.applied, ready.snapshot.index)
        if ready.committed:
            for entry in ready.committed:
                assert entry.index == member.applied + 1, "applied out of order"
                member.applied = entry.index
                known = self.applied_entries.setdefault(entry.index, entry)
                assert known == entry, f"two entries at {entry.index}: {known}, {entry}"
            core.applied(member.applied)

    def _answer_reads(self, member: Member, ready: Ready) -> None:
        for state in ready.read_states:
            asked = self.members[self.asked.get(state.context, member.number)]
            asked.reads[state.context] = state.index
            asked.last_read = state.index

    def _post(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.trace.append(message)
            self.mail.setdefault((message.sender, message.to), deque()).append(message)

    def check(self, member: Member) -> None:
        core = member.core
        if core is None:
            return
        if core.role is Role.LEADER:
            leader = self.leaders.setdefault(core.term, member.number)
            assert leader == member.number, f"two leaders in term {core.term}"
        log = core.log
        assert log.first - 1 <= log.applied <= log.committed <= log.last or log.pending_snapshot

    def pump_all(self) -> None:
        for member in self.up():
            self.pump(member)

    def settle(self) -> None:
        self.pump_all()
        while boxes := [pair for pair in sorted(self.mail) if self.mail[pair]]:
            self.deliver_one(self.random.choice(boxes))

    def deliver_one(self, pair: tuple[int, int]) -> None:
        message = self.mail[pair].popleft()
        receiver = self.members.get(message.to)
        is_lost = (
            pair in self.cuts
            or receiver is None
            or receiver.core is None
            or any(message.kind is kind and link in (None, pair) for kind, link in self.drops)
        )
        if is_lost:
            self._report_lost(message)
            return
        self.give(message)

    def _report_lost(self, message: Message) -> None:
        sender = self.members.get(message.sender)
        if message.kind is Kind.SNAPSHOT and sender is not None and sender.core is not None:
            sender.core.report_snapshot(message.to, ok=False)
            self.pump(sender)

    def give(self, message: Message) -> None:
        """Hand a message to its receiver, whatever the network is like."""
        receiver = self.members[message.to]
        if receiver.core is None:
            return
        with contextlib.suppress(BadMessage):
            receiver.core.step(message)
        self.pump(receiver)

    # --- verbs ---

    def crash(self, number: int) -> None:
        member = self.members[number]
        member.core, member.held, member.is_holding = None, None, False
        member.last_read = None
        lost: list[Message] = []
        for pair in sorted(self.mail):
            if number in pair:
                lost += self.mail[pair]
                self.mail[pair].clear()
        for message in lost:
            self._report_lost(message)
        for other in self.up():
            assert other.core is not None
            other.core.report_unreachable(number)

    def release(self, number: int) -> None:
        member = self.members[number]
        member.is_holding = False
        ready, member.held = member.held, None
        if ready is not None:
            self._finish(member, ready)

    def compact(self, number: int, index: int) -> None:
        member = self.members[number]
        member.disk.compact(index, self.configuration_at(member.disk, index))

    def at_leader(self, number: int, call: Callable[[Raft], object]) -> bool:
        """Make a request, at the leader instead if the member sends it there. Return whether it was taken."""
        try:
            call(self.core(number))
        except NotLeading as error:
            other = self.members.get(error.leader)
            if other is None or other.core is None or other.number == number:
                return False
            try:
                call(other.core)
            except Refused:
                return False
        except Refused:
            return False
        return True

    def read(self, number: int) -> int:
        context = self.next_context
        self.next_context += 1
        self.asked[context] = number
        self.at_leader(number, lambda core: core.read_index(context))
        return context

    def change(self, number: int, change: Change) -> bool:
        for step, member in change.steps:
            if step is not Step.REMOVE and member not in self.members:
                self.add(member)
        return self.at_leader(number, lambda core: core.propose_conf(change))


def parse_change(words: Sequence[str]) -> Change:
    """Return the change that the words of a ``conf`` line mean."""
    leave: Leave | None = None
    steps: list[tuple[Step, int]] = []
    for word in words:
        if word in ("auto", "explicit"):
            leave = Leave.AUTOMATIC if word == "auto" else Leave.EXPLICIT
        elif word.startswith("l+"):
            steps.append((Step.LEARNER, int(word[2:])))
        else:
            steps.append((Step.VOTER if word[0] == "+" else Step.REMOVE, int(word[1:])))
    return Change(tuple(steps), leave)


def stored(world: World, number: int, **fields: str) -> None:
    """Give a member stored state and start it from that."""
    member = world.members[number]
    terms = [int(term) for term in fields.get("log", "").split(",") if term]
    commit = int(fields.get("commit", 0))
    member.disk.kept = [Entry(index, term) for index, term in enumerate(terms, 1)]
    member.disk.hard_state = HardState(
        int(fields.get("term", 0)), int(fields.get("vote", 0)), commit
    )
    member.applied = int(fields.get("applied", commit))
    world.boot(member)


def with_option(settings: Settings, text: str) -> Settings:
    """Return settings with an ``option`` of a script."""
    name, _, value = text.partition("=")
    if name == "prevote":
        return replace(settings, has_pre_vote=value == "true")
    if name == "checkquorum":
        return replace(settings, has_check_quorum=value == "true")
    if name == "mode":
        return replace(settings, has_lease_reads=value == "lease")
    raise ValueError(f"no option {text!r}")
