"""A node's place in its group: how it is put together, what it tells, and what a leader does about its members."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from penstock.errors import InvalidValue, PenstockError, StorageFailed
from penstock.formats.taskflux.generation import Generation
from penstock.model import Index
from penstock.protocol.peers.packets import Members
from penstock.queues.state import State
from penstock.raft.configuration import (
    Change,
    Configuration,
    Step,
    decode_configuration,
)
from penstock.raft.core import Raft
from penstock.raft.messages import HardState
from penstock.raft.refusals import Refused
from penstock.server.broker import Broker
from penstock.server.disk import Disk
from penstock.server.entry_store import EMPTY, EntryStore
from penstock.server.group_replica import UNPAGED, GroupReplica
from penstock.server.group_status import GroupStatus, MemberStatus
from penstock.server.member import GroupMember
from penstock.server.membership import Membership, label, parse_label
from penstock.server.metrics import Meter
from penstock.server.rebuild import Replay, restore
from penstock.server.settings import GroupSettings
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import Files
from penstock.storage.records import Stretch
from penstock.storage.segmented_log import SegmentedLog

_NO_LIMIT: Final = 2**62
"""What waits to be committed is bounded before it is proposed."""


class Group:
    """One node of a group of several, without its sockets."""

    def __init__(
        self,
        directory: NodeDirectory,
        settings: GroupSettings,
        disk: Disk,
        meter: Meter,
        files: Files,
        draw: Callable[[int], int],
        on_failure: Callable[[PenstockError], None],
    ) -> None:
        """Recover up to what was known to be committed. Raises ``InvalidValue`` for files of an older generation."""
        if directory.layout.generation is not Generation.THREE:
            raise InvalidValue(
                "a member of a cluster needs files of generation 3; convert the directory first:"
                " penstock convert PATH --to taskflux-3 --out DIR"
            )
        log = directory.log
        assert isinstance(log, SegmentedLog)
        stored = directory.metadata.state
        is_new = log.end == 0 and stored.term == 1 and directory.snapshot.point is None
        self.settings = settings
        log.kept_bytes = settings.kept_bytes
        self.membership = Membership(
            files, directory.layout.home, settings, is_new=is_new, draw=draw
        )
        state = State(unpaged=UNPAGED)
        restore(state, directory)
        initial = self.membership.initial
        store = EntryStore(directory, _configuration(state, initial))
        replay = Replay(state, is_by_id=True, initial=initial)
        floor = log.known_committed
        _replay_up_to(directory, replay, floor)
        core = Raft(
            settings.node,
            store,
            hard_state=HardState(stored.term, stored.vote or 0, floor + 1),
            configuration=_configuration(state, initial),
            applied=floor + 1,
            settings=replace(
                settings.core,
                election_ticks=settings.election_ticks,
                heartbeat_ticks=settings.heartbeat_ticks,
                uncommitted_max=_NO_LIMIT,
                empty_payload=EMPTY,
                hands_out_committed=False,
            ),
            draw=draw,
        )
        member = GroupMember(core, store, stored)
        self.replica = GroupReplica(
            directory, member, state, replay, self.membership, disk, meter, on_failure=on_failure
        )
        self.replica.begin()
        self._ticks_to_leave = 0  # before leadership may be handed over again for want of room
        self._changing = False  # whether a change of the leader's own making is under way
        # The voter that came back without its files and was removed, with its address: it is to be added again.
        self._returning: tuple[int, str] = (0, "")

    def serve(self, broker: Broker) -> None:
        """Let a broker decide while this node leads."""
        is_open = False

        def follow() -> None:
            nonlocal is_open
            if self.replica.is_leading and not is_open:
                is_open = True
                broker.begin_leading()
                self._look_after_members()
            elif is_open and not self.replica.is_leading:
                is_open = False
                broker.stop_leading(self.replica.not_leader())

        self.replica.when_role_changes.append(follow)

    def hear(self, peer: int, incarnation: str, knows: str | None) -> None:
        """Note what a handshake told (``Membership.hear``); a disk that fails stops the node."""
        try:
            self.membership.hear(peer, incarnation, knows)
        except StorageFailed as error:
            self.replica.fail(error)

    def note_client_address(self, peer: int, address: str) -> None:
        """Note where clients reach a peer; a disk that fails stops the node."""
        try:
            self.membership.note_client_address(peer, address)
        except StorageFailed as error:
            self.replica.fail(error)

    def member_ids(self) -> tuple[int, ...]:
        """Return all members in the order of their ids, without this node while it is not one of them."""
        return tuple(sorted(self.membership.members()))

    def client_address(self, peer: int) -> str:
        """Return where clients reach a member, or last did; empty if that was never known."""
        return self.membership.client_address(peer)

    def members(self) -> Members:
        """Return where the members of this node's configuration listen, for its peers."""
        membership = self.membership
        found = {member: parse_label(text)[0] for member, text in membership.configuration.labels}
        return Members(
            index=int(self.replica.applied),
            addresses={member: address for member, address in found.items() if address},
        )

    def hear_members(self, members: Members) -> None:
        """Note where the members of a peer's configuration listen, if it has applied more than this node."""
        if members.index > self.replica.applied:
            self.membership.note_addresses(members.addresses, members.index)

    def tick(self) -> None:
        """Let one unit of time pass."""
        self.replica.tick()
        if self.replica.is_leading:
            self._look_after_members()
            self._leave_if_short_of_room()

    # --- what a leader does about its members ---

    def _look_after_members(self) -> None:
        """Tell all what the group began with; let those that lost their files in again, as learners first."""
        if self._changing or not self.replica.is_leading:
            return
        if not self.replica.state.group:
            self._change(Change(base=self.replica.group.configuration))
            return
        if self._promote_returning():
            return
        for peer in self.membership.strangers():
            change = self._next_step_for(peer)
            if change is not None:
                self._change(change)
                return
        self._name_learners()

    def _name_learners(self) -> None:
        """Say of each learner which incarnation it is: it may vote from then on, before it is made a voter.

        Were it named by the very change that makes it one, that change could be in force without it, and nobody could
        win an election any more.
        """
        configuration = self.replica.group.configuration
        for peer in () if configuration.is_joint else configuration.learners:
            address, named = parse_label(configuration.label(peer))
            heard = self.membership.heard.get(peer, "")
            if heard and not named:
                self._change(
                    Change(((Step.LEARNER, peer),), labels=((peer, label(address, heard)),))
                )
                return

    def _leave_if_short_of_room(self) -> None:
        """Let another lead that may have room on its disk; not more often than that takes."""
        self._ticks_to_leave = max(0, self._ticks_to_leave - 1)
        to = self.best_successor()
        if self.replica.is_short_of_room and to and not self._ticks_to_leave:
            self._ticks_to_leave = 2 * self.settings.election_ticks
            self.transfer_leadership(to, lambda _: None)

    def _promote_returning(self) -> bool:
        """Let one that lost its files vote again, now that it has everything. Return whether that was done."""
        peer = self._returning[0]
        configuration = self.replica.group.configuration
        if peer not in configuration.learners or not self._may_vote(peer):
            return False
        self._change(Change(((Step.VOTER, peer),)))
        return True

    def _may_vote(self, peer: int) -> bool:
        """Return whether a learner has all that is committed, what names it among that."""
        _, named = parse_label(self.replica.group.configuration.label(peer))
        is_named = bool(named) and named == self.membership.heard.get(peer)
        return is_named and self.has_caught_up(peer)

    def _next_step_for(self, peer: int) -> Change | None:
        configuration = self.replica.group.configuration
        if configuration.is_joint:
            return None
        address = self.membership.address(peer) or ""
        if peer in configuration.voters:
            self._returning = (peer, address)
            return Change(((Step.REMOVE, peer),)) if len(configuration.voters) > 1 else None
        if peer not in configuration.learners:
            # Only one that was a voter comes back by itself; who was removed on purpose stays away.
            if self._returning[0] != peer:
                return None
            own = label(self._returning[1], self.membership.heard[peer])
            return Change(((Step.LEARNER, peer),), labels=((peer, own),))
        return None

    def _change(self, change: Change) -> None:
        self._changing = True
        self.replica.change_members(change, self._changed)

    def _changed(self, reason: str | None) -> None:  # noqa: ARG002
        self._changing = False

    def has_caught_up(self, peer: int) -> bool:
        """Return whether a leader knows that a member has all that is committed."""
        leadership = self.replica.group.core.leadership
        if leadership is None or peer not in leadership.progress:
            return False
        return leadership.progress[peer].match >= self.replica.group.core.log.committed

    # --- what people ask for ---

    def change_members(self, change: Change, then: Callable[[str | None], None]) -> None:
        """Change the members; ``then`` hears ``None`` when that is in force, or why it is not."""
        configuration = self.replica.group.configuration
        for step, peer in change.steps:
            if (
                step is not Step.VOTER
                or configuration.is_voter(peer)
                or not self.replica.is_leading
            ):
                continue
            if peer not in configuration.learners or not self._may_vote(peer):
                # It could not vote yet, and it may be that nobody can lead without it.
                then(f"node {peer} has not caught up; start it, add it as a learner, and try again")
                return
        # An address that is told anew says nothing of who is there.
        labels = [
            (peer, label(address, named or parse_label(configuration.label(peer))[1]))
            for peer, (address, named) in ((one, parse_label(text)) for one, text in change.labels)
        ]
        self.replica.change_members(Change(change.steps, change.leave, tuple(labels)), then)

    def transfer_leadership(self, to: int, then: Callable[[str | None], None]) -> None:
        """Hand leadership over; ``then`` hears ``None`` when another leads, or why not."""
        replica = self.replica
        if to == self.settings.node and replica.is_leading:
            then(None)
            return
        try:
            replica.transfer_leadership(to)
        except Refused as error:
            then(str(error))
            return
        _Transfer(replica, to, then)

    def best_successor(self) -> int:
        """Return the voter that has most of the log, 0 if there is none but this node."""
        leadership = self.replica.group.core.leadership
        voters = self.replica.group.configuration.voters
        if leadership is None:
            return 0
        others = [
            (one.match, one.is_active, -peer)
            for peer, one in leadership.progress.items()
            if peer in voters and peer != self.settings.node
        ]
        return -max(others)[2] if others else 0

    def status(self) -> GroupStatus:
        core, replica = self.replica.group.core, self.replica
        return GroupStatus(
            node=self.settings.node,
            role=core.role.value,
            is_leading=replica.is_leading,
            term=core.term,
            leader=core.leader,
            first=core.log.first - 1,
            last=core.log.last - 1,
            committed=core.log.committed - 1,
            applied=int(replica.applied),
            is_joint=core.configuration.is_joint,
            members=tuple(
                self._member(core.configuration, one) for one in core.configuration.members
            ),
        )

    def _member(self, configuration: Configuration, peer: int) -> MemberStatus:
        core = self.replica.group.core
        standing = "learner"
        if peer in configuration.voters:
            standing = "voter"
        elif peer in configuration.outgoing:
            standing = "outgoing"
        progress = None if core.leadership is None else core.leadership.progress.get(peer)
        is_self = peer == self.settings.node
        match = None if progress is None else (core.log.stable if is_self else progress.match)
        return MemberStatus(
            id=peer,
            address=self.membership.address(peer) or "",
            client_address=self.membership.client_address(peer),
            standing=standing,
            is_leader=peer == core.leader,
            is_self=is_self,
            match=None if match is None else match - 1,
            lag=None if match is None else max(0, core.log.last - match),
            pace=None if progress is None or is_self else progress.pace.value,
            window=None if progress is None or is_self else len(progress.window),
        )


class _Transfer:
    """Waits for a transfer to succeed or to be given up."""

    def __init__(self, replica: GroupReplica, to: int, then: Callable[[str | None], None]) -> None:
        self._replica = replica
        self._to = to
        self._then: Callable[[str | None], None] | None = then
        replica.when_role_changes.append(self._look)
        replica.when_ticked.append(self._look)

    def _look(self) -> None:
        replica, then = self._replica, self._then
        if then is None:
            return
        if replica.leader == self._to:
            self._end(None)
        elif replica.is_leading and not replica.group.is_handing_over:
            self._end(
                f"node {self._to} did not take over in time; node {replica.leader} still leads"
            )
        elif not replica.is_leading and replica.leader not in (
            0,
            self._to,
            int(replica.group.node),
        ):
            self._end(f"node {replica.leader} leads now")

    def _end(self, reason: str | None) -> None:
        then, self._then = self._then, None
        self._replica.when_role_changes.remove(self._look)
        self._replica.when_ticked.remove(self._look)
        assert then is not None
        then(reason)


def _configuration(state: State, initial: Configuration) -> Configuration:
    return decode_configuration(state.group) if state.group else initial


def _replay_up_to(directory: NodeDirectory, replay: Replay, floor: Index) -> None:
    """Apply what was known to be committed in bulk; the rest comes when the group says so."""
    point = directory.snapshot.point
    after = Index(0 if point is None else point.index + 1)
    for stretch in directory.log.stretches(after):
        count = min(len(stretch.starts), floor + 1 - stretch.first)
        if count <= 0:
            return
        replay.apply(
            Stretch(stretch.first, stretch.data, stretch.starts[:count], stretch.ends[:count])
        )
