"""One of several copies: follows what the leader has written, or leads and has others agree.

Followers apply what is committed from the entries' bytes, so that a new leader serves as soon as its own first entry is
committed. A leader applies its own operations as a sole node does. Whatever it decided by itself (leases, delays that are
over, what is on its way into the log) ends with its leadership: the state is then what the log says, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.errors import PenstockError
from penstock.model import Index, SnapshotPoint, Term
from penstock.protocol.version2 import Failed, Failure
from penstock.queues.state import State
from penstock.raft.configuration import Change, decode_change, encode_configuration
from penstock.raft.messages import REPLIES, Kind, Message, Snapshot
from penstock.raft.progress import Pace
from penstock.raft.ready import Ready
from penstock.raft.refusals import InvariantBroken, Refused
from penstock.server.disk import Disk
from penstock.server.entry_store import change_in, is_change, stored_payload
from penstock.server.member import GroupMember
from penstock.server.membership import Membership
from penstock.server.metrics import Meter
from penstock.server.rebuild import Replay, restore
from penstock.server.replica import Call, Lose, Operation, Replica
from penstock.server.snapshot_exchange import SnapshotOffers, SnapshotReceipt
from penstock.storage.directory import NodeDirectory

REPLAY_SIZE: Final = 2**20
"""Bytes of entries that are applied at a time."""

UNCOMMITTED_SIZE_MAX: Final = 64 * 2**20
"""Bytes that may wait to be committed before requests are refused: without a majority they would only gather."""


UNPAGED: Final = "nodes of a group keep their queues in memory"
"""Why there are no paged queues: snapshots that nodes send each other do not hold their pages."""


class GroupReplica(Replica):
    """A copy in a group of several."""

    group: GroupMember

    def __init__(
        self,
        directory: NodeDirectory,
        group: GroupMember,
        state: State,
        replay: Replay,
        membership: Membership,
        disk: Disk,
        meter: Meter,
        *,
        on_failure: Callable[[PenstockError], None],
    ) -> None:
        super().__init__(directory, group, state, disk, meter, on_failure=on_failure)
        # The core may find more in the log that must be committed than was noted, and replayed.
        self.applied = Index(group.core.log.applied - 1)
        self.membership = membership
        self.receipt = SnapshotReceipt(directory, disk, self.fail)
        self.offers = SnapshotOffers(directory)
        self._snapshot_configuration = group.configuration  # of the snapshot that is being taken
        self._replay = replay
        self._restored = state  # made from a leader's snapshot, before it is taken over
        self._configuration = group.configuration
        self.is_alone = False
        self.is_leading = False
        self.is_fresh = False
        self._known_leader = 0
        self._epoch = 0  # the term that this node leads, served or not; 0: it does not lead
        self._own_from = Index(0)  # from here on all entries are this leader's own
        self.transmit: Callable[[Message], None] = lambda _: None
        self.flush_messages: Callable[[], None] = lambda: None  # called before the disk is
        self.soon: Callable[[Callable[[], None]], object] | None = None  # calls in another turn
        self._is_due = False  # whether ``advance`` was asked for in another turn
        self.when_role_changes: list[Callable[[], None]] = []
        self.when_ticked: list[Callable[[], None]] = []
        self._asking: list[tuple[Call, Lose]] = []  # who waits for proof of leadership
        self._asked: list[tuple[Call, Lose]] = []  # for whom it was asked
        self._context = 0  # of the proof that was asked for last
        self._proof: Index | None = None  # what must be applied before it counts
        self._changes: list[tuple[Index, Callable[[str | None], None]]] = []

    @property
    def leader(self) -> int:
        """The node that leads, 0 if none is known."""
        return self.group.core.leader

    @property
    def can_snapshot(self) -> bool:
        point = self.directory.snapshot.point
        if self.applied <= (-1 if point is None else point.index):
            return False  # there is nothing that the last one does not say
        return self.is_leading or self._replay.is_between

    @property
    def wants_snapshot(self) -> bool:
        """Whether a member waits for a snapshot that names it: it came after the last one, and the log is shorter."""
        leadership = self.group.core.leadership
        if leadership is None:
            return False  # a leader that does not serve yet counts: its first entry may wait for this very member
        first = self.group.core.log.first
        behind = [member for member, one in leadership.progress.items() if one.next < first]
        if not behind:
            return False  # asked with every batch: mostly that is all
        snapshot = self.group.store.snapshot()
        known = () if snapshot is None else snapshot.configuration.members
        return any(member not in known for member in behind)

    # --- what comes in ---

    def tick(self) -> None:
        """Let one unit of time pass."""
        if self.failure is not None:
            return
        try:
            self.group.tick()
        except PenstockError as error:  # the disk failed, and has not told us yet
            self.fail(error)
            return
        self._note_role()
        self._ask()
        self.advance()
        for call in list(self.when_ticked):
            call()

    def step(self, message: Message) -> None:
        """Take a peer's message. Raises ``BadMessage`` for one that breaks the protocol."""
        if self.failure is not None:
            return
        if message.kind in REPLIES and message.sender not in self.group.configuration.members:
            return  # it was removed, and has not heard of that yet
        try:
            self.group.step(message)
        except InvariantBroken as error:
            self.fail(PenstockError(f"stopped, for going on would be worse: {error}"))
            return
        except PenstockError as error:  # the disk failed, and has not told us yet
            self.fail(error)
            return
        self._note_role()
        self._advance_soon()

    def unreachable(self, peer: int) -> None:
        """Note that messages to a peer got lost."""
        self.group.core.report_unreachable(peer)

    def snapshot_sent(self, peer: int, ok: bool) -> None:
        """Note how the transfer of a snapshot ended."""
        self.group.core.report_snapshot(peer, ok=ok)
        self._advance_soon()

    def _advance_soon(self) -> None:
        """Go on when everything that arrived in this turn is there: it may be one write."""
        if self.soon is None:
            self.advance()
        elif not self._is_due:
            self._is_due = True
            self.soon(self._advance_now)

    def _advance_now(self) -> None:
        self._is_due = False
        if self.failure is None:
            self.advance()

    def change_members(self, change: Change, then: Callable[[str | None], None]) -> None:
        """Change the members; ``then`` hears ``None`` when that is in force, or why it is not."""
        if not self.is_leading:
            then(f"node {self.leader} leads" if self.leader else "no leader is known")
            return
        if not self.state.group and change.base is None:
            then("the group has only begun; try again")
            return
        try:
            index = self.group.change_members(change)
        except Refused as error:
            then(str(error))
            return
        self.open = None
        self._changes.append((index, then))
        self.advance()

    def transfer_leadership(self, to: int) -> None:
        """Hand leadership over. Raises ``Refused``."""
        self.group.transfer(to)
        self.advance()

    # --- proof of leadership ---

    def confirm(self, call: Call, lose: Lose) -> None:
        self._asking.append((call, lose))
        self._ask()

    def _ask(self) -> None:
        """Ask the others once for all who wait: an answer counts only for who waited before it was asked for."""
        if self._asked or not self._asking:
            return
        if not self.is_leading:
            self._lose_asking()
            return
        self._asked, self._asking = self._asking, []
        self._context += 1
        try:
            self.group.read(self._context)
        except Refused:
            self._lose_asking()

    def _note_reads(self) -> None:
        reads, self.group.reads = self.group.reads, []
        for context, index in reads:
            if context == self._context and self._asked:
                self._proof = index
        if self._proof is None or self._proof > self.applied:
            return
        self._proof = None
        asked, self._asked = self._asked, []
        for call, _ in asked:
            call()
        for call in self.after_confirm:
            call()
        self._ask()

    def _lose_asking(self) -> None:
        asked = self._asked + self._asking
        self._asked, self._asking, self._proof = [], [], None
        failed = self.not_leader()
        for _, lose in asked:
            lose(failed)

    def refusal(self) -> Failed | None:
        if not self.is_leading:
            return self.not_leader()
        leadership = self.group.core.leadership
        if leadership is not None and leadership.transferee:
            to = leadership.transferee
            return Failed(Failure.NOT_LEADER, f"leadership is going to node {to}", to)
        if self.group.uncommitted_size > UNCOMMITTED_SIZE_MAX:
            text = "too much waits for a majority of the group to have it; try again"
            return Failed(Failure.LIMIT, text)
        return None

    def not_leader(self) -> Failed:
        """Return what a caller is told who must ask another."""
        leader = self.leader
        text = f"node {leader} leads" if leader else "no leader is known; try again"
        return Failed(Failure.NOT_LEADER, text, leader or -1)

    # --- roles ---

    def _note_role(self) -> None:
        epoch = int(self.group.term) if self.group.is_leader else 0
        if epoch != self._epoch:
            if self._epoch:
                self._stop_leading()
            self._epoch = epoch
            if epoch:
                self._own_from = self.group.last
        if epoch and not self.is_leading and self.applied >= self._own_from:
            self.is_leading = True
            self._tell_role()
        elif not epoch and self.leader != self._known_leader:
            self._tell_role()

    def _tell_role(self) -> None:
        self._known_leader = self.leader
        for call in list(self.when_role_changes):
            call()

    def _stop_leading(self) -> None:
        """End everything that only a leader may do; callers learn that nobody knows what becomes of their requests."""
        was_leading, self.is_leading = self.is_leading, False
        lost = list(self._operations)
        self._operations.clear()
        self._starts.clear()
        self._ends.clear()
        self.open = None
        self.group.drop_pending()
        text = "leadership changed before this was known to be committed; it may or may not take effect"
        failed = Failed(Failure.OUTCOME_UNKNOWN, text, self.leader or -1)
        for operation in lost:
            operation.lose(failed)
        self._lose_asking()
        changes, self._changes = self._changes, []
        for _, then in changes:
            then(text)
        if was_leading:
            self._tell_role()
        self.state.stop_leading()
        for call in self.after_confirm:
            call()

    # --- going on ---

    def _advance(self) -> None:
        try:
            self._go_on()
        except InvariantBroken as error:
            self.fail(PenstockError(f"stopped, for going on would be worse: {error}"))
        except PenstockError as error:  # an entry that cannot be applied: damage, or a bug
            self.fail(error)

    def _go_on(self) -> None:
        while self.failure is None:
            if self._is_busy:
                # The disk works; what does not rest on it leaves all the same.
                self._send(self.group.urgent())
                return
            if self._chores and self._is_chore_due:
                self._is_chore_due = False
                self._run_chore()
                continue
            ready = self.group.ready()
            if ready is not None:
                self._send(ready.messages)
                self._hand_out(ready)
                if not ready.must_sync:
                    self.group.persisted(ready.token)
                    self._send(ready.messages_after)
                    self._note_role()
            before = self.applied
            self._apply(self.group.committed)
            self._note_reads()
            if ready is None and self.applied == before and not self.group.core.has_work:
                if not self._chores or self._is_busy:
                    return
                self._run_chore()

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.kind is not Kind.APPEND or message.entries or self._is_needed(message):
                self.transmit(message)
        if messages:
            self.flush_messages()

    def _is_needed(self, message: Message) -> bool:
        """Return whether an append without entries says more than that something is committed.

        That much the next heartbeat says as well, and nobody waits for it.
        """
        leadership = self.group.core.leadership
        one = None if leadership is None else leadership.progress.get(message.to)
        if one is None or one.pace is not Pace.REPLICATE or len(one.window):
            return True
        return message.index != one.match

    def _install(self, snapshot: Snapshot) -> None:
        point = SnapshotPoint(index=Index(snapshot.index - 1), term=Term(snapshot.term))
        self.receipt.install(point)
        self._restored = State(unpaged=UNPAGED)
        restore(self._restored, self.directory)

    def _write(self, ready: Ready) -> None:
        log, first = self.directory.log, ready.appends[0].first
        if log.committed < ready.committed < log.end:
            # Durable with the sync: from there on this node goes on by itself after a crash.
            log.set_committed(ready.committed)
        if first < log.end:
            log.truncate(first)
        for append in ready.appends:
            log.append(append.term, append.payloads)
        log.sync()

    def _finish(self, ready: Ready, error: BaseException | None) -> None:
        self._is_busy = False
        if error is not None:
            self.fail(error)
            return
        if ready.snapshot is not None:
            self._begin_anew(Index(ready.snapshot.index - 1))
        self.group.persisted(ready.token)
        self._note_named(ready)
        self._send(ready.messages_after)
        self._note_role()
        self._is_chore_due = True
        self.advance()

    def _note_named(self, ready: Ready) -> None:
        """Look for this node's own name in changes that are durable now, as long as it may not vote."""
        if self.membership.is_barred:
            for payload in (one for append in ready.appends for one in append.payloads):
                if is_change(payload):
                    self.membership.note_named(decode_change(change_in(payload)).labels)

    def _begin_anew(self, index: Index) -> None:
        """Go on from another's snapshot."""
        self.state = self._restored
        self._replay = Replay(self.state, is_by_id=True, initial=self.membership.initial)
        self.applied = index
        self._configuration = self.group.configuration
        self.membership.follow(self._configuration, int(self.applied))

    def _apply(self, committed: Index) -> None:
        if committed <= self.applied and not (self._ends and self._ends[0] <= self.applied):
            return
        done: list[Operation] = []
        before = self.applied
        self.is_applying = True
        while True:
            if self._starts and self._starts[0] <= self.applied + 1:
                if self._ends[0] > max(committed, self.applied):
                    break  # half of it: the rest decides
                self._starts.popleft()
                end = self._ends.popleft()
                operation = self._operations.popleft()
                operation.apply(self.state)
                done.append(operation)
                self.applied = max(self.applied, end)
                continue
            if self.applied >= committed:
                break
            stop = min(committed, Index(self._starts[0] - 1)) if self._starts else committed
            self._apply_others(stop)
        if self.applied > before:
            self.group.applied(self.applied)
            self._note_configuration()
            self.is_fresh = self.is_leading and before >= self._own_from - 1
        self._tell(done)
        if not done and self.applied > before:
            self._tell_applied()
        self._note_changes()
        self.is_fresh = False
        self.is_applying = False
        self._note_role()

    def _apply_others(self, stop: Index) -> None:
        """Apply entries that are not an operation of this leader's."""
        if self._epoch and self.applied >= self._own_from:
            self.applied = stop  # a change of members, which the core applies
            return
        entries = self.group.entries(Index(self.applied + 1), Index(stop + 1), size_max=REPLAY_SIZE)
        self._replay.apply_payloads(
            Index(self.applied + 1), [stored_payload(entry) for entry in entries]
        )
        self.applied = Index(self.applied + len(entries))

    def _note_configuration(self) -> None:
        configuration = self.group.configuration
        if configuration is not self._configuration:
            self._configuration = configuration
            self.state.group = encode_configuration(configuration)
            self.membership.follow(configuration, int(self.applied))

    def _note_changes(self) -> None:
        while self._changes and self._changes[0][0] <= self.applied:
            _, then = self._changes.pop(0)
            then(None)

    def snapshot_point(self) -> SnapshotPoint:
        self._snapshot_configuration = self._configuration
        point = self.directory.snapshot.point
        if point is not None and point.index == self.applied:
            return point
        return SnapshotPoint(index=self.applied, term=Term(self.group.store.term(self.applied + 1)))

    def note_snapshot(self, point: SnapshotPoint) -> None:
        if self.directory.snapshot.point == point:
            self.group.store.compacted(self._snapshot_configuration)

    def begin(self) -> None:
        """Admit what the membership says, now and when it changes."""
        self.membership.follow(self._configuration, int(self.applied))
        self.membership.when_admitted.append(self._note_admitted)
        self.group.core.is_barred = self.membership.is_barred

    def _note_admitted(self) -> None:
        core = self.group.core
        core.is_barred = False
        if not core.configuration.voters:
            core.configuration = self._configuration = self.membership.initial
            self.membership.follow(core.configuration, int(self.applied))
