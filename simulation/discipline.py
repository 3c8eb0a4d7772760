"""What a group owes beyond keeping its promises: no leader without a majority, and order where nothing is wrong.

``QuorumWatch`` looks on while things go wrong. ``Discipline`` is the last act of a life, when all work has drained: a
member that loses sight of the leader alone disturbs nobody, and leadership goes where it is sent.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from simulation.clock import MILLISECOND, SECOND
from simulation.invariants import Broken, core_of
from simulation.swarm import Fault, Plan

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World

LOOK_GAP: Final = 200 * MILLISECOND


def election_timeout(plan: Plan) -> int:
    """Return the shortest time in which a member may miss its leader, with clocks that are a little off."""
    return int(1.1 * plan.raft.election_ticks * plan.tick_ms * MILLISECOND)


class QuorumWatch:
    """With check-quorum on, a leader that reaches no majority must not lead for long."""

    def __init__(self, world: World) -> None:
        self._world = world
        # By node: its life, term and voters, and when each of them could last be reached. Members that go may have
        # made up the majority, so with others the time begins anew, also with those who were voters before.
        self._reached: dict[int, tuple[tuple[object, ...], dict[int, int]]] = {}
        # Two rounds of its own check, and what was still on its way when the others went.
        self._patience = 3 * election_timeout(world.plan) + SECOND
        # Bytes of a clogged link arrive seconds later, and prove that somebody was there.
        if world.plan.raft.has_check_quorum and Fault.CLOG not in world.plan.faults:
            self._look()

    def _look(self) -> None:
        for process in self._world.processes.values():
            if process.node is not None and core_of(process.node).is_leader:
                self._judge(process)
        self._world.timeline.after(LOOK_GAP, self._look)

    def _judge(self, leader: Process) -> None:
        assert leader.node is not None
        now, configuration = self._world.timeline.now, core_of(leader.node).configuration
        led = (leader.life, leader.term, configuration.voters, configuration.outgoing)
        if leader.number not in self._reached or self._reached[leader.number][0] != led:
            self._reached[leader.number] = led, {}
        reached = self._reached[leader.number][1]
        for number in {*configuration.voters, *configuration.outgoing}:
            if number not in reached or leader.gate.is_shut or self._may_reach(leader, number):
                reached[number] = now
        for voters in (configuration.voters, configuration.outgoing):
            count = sum(1 for number in voters if reached[number] >= now - self._patience)
            if voters and 2 * count <= len(voters):
                raise Broken(
                    f"{leader.host} leads in term {leader.term}, and reached no majority of {voters} for"
                    f" {self._patience / SECOND:.1f} s"
                )

    def _may_reach(self, leader: Process, number: int) -> bool:
        other, network = self._world.processes[number], self._world.network
        if other is leader:
            return True
        is_cut = network.is_cut(leader.host, other.host) or network.is_cut(other.host, leader.host)
        return other.is_up and not other.gate.is_shut and not is_cut


class Discipline:
    """The last act. ``is_done`` when all of it went as it should; raises ``Broken`` otherwise."""

    def __init__(self, world: World, leader: Process, healthy: list[int]) -> None:
        """``healthy``: who is up, the leader counted; all of them have the same."""
        assert leader.node is not None
        self.is_done = False
        self._world = world
        self._leader = leader
        self._random = world.chance.stream("discipline")
        configuration = core_of(leader.node).configuration
        voters = [number for number in healthy if number in configuration.voters]
        self._followers = [world.processes[n] for n in voters if n != leader.number]
        # Whoever is left besides the one that is cut off must be a majority.
        is_enough = 2 * (len(voters) - 1) > len(configuration.voters)
        raft = world.plan.raft
        # A vote may take longer than an election there, on a disk, in a link that was clogged, or in one in which the
        # length of a packet was changed: it takes what follows for the rest until its patience ends.
        is_slow = bool(world.plan.faults & {Fault.SLOW_DISK, Fault.CLOG, Fault.FLIP})
        is_orderly = raft.has_pre_vote and raft.has_check_quorum
        # Without both, one that was removed and has not heard of it unseats every leader.
        members = configuration.members
        strays = [n for n, one in world.processes.items() if one.is_up and n not in members]
        is_disturbed = bool(strays) and not is_orderly
        if not self._followers or configuration.outgoing or is_slow or is_disturbed:
            self.is_done = True
        elif is_enough and is_orderly:
            self._hide()
        else:
            self._transfer()

    def _hide(self) -> None:
        """Cut one member off from the leader, and from nobody else."""
        world, leader = self._world, self._leader
        one = self._random.choice(self._followers)
        world.note(f"{one.host} loses sight of {leader.host} alone")
        links = ((one.host, leader.host), (leader.host, one.host))
        for link in links:
            world.network.cut(*link)
        world.timeline.after(
            4 * election_timeout(world.plan), partial(self._uncover, links, leader.term)
        )

    def _uncover(self, links: tuple[tuple[str, str], ...], term: int) -> None:
        for link in links:
            self._world.network.heal(*link)
        # The news of a term that somebody began must have the time to come.
        self._world.timeline.after(SECOND, partial(self._judge_term, term))

    def _judge_term(self, term: int) -> None:
        leader = self._leader
        if leader.node is None or not core_of(leader.node).is_leader or leader.term != term:
            raise Broken(
                f"{leader.host} led in term {term}, and is there no more since one member alone lost sight of it"
            )
        self._transfer()

    def _transfer(self) -> None:
        self._transfer_to(self._random.choice(self._followers), is_last=False)

    def _transfer_to(self, to: Process, *, is_last: bool) -> None:
        world, leader = self._world, self._leader
        group = None if leader.node is None else leader.node.group
        if group is None or not group.replica.is_leading:
            raise Broken(f"{leader.host} led, and does so no more although nothing has happened")
        world.note(f"{leader.host} is asked to hand over to {to.host}")
        leader.guard(lambda: group.transfer_leadership(to.number, lambda _: None))
        world.timeline.after(
            2 * election_timeout(world.plan) + SECOND, partial(self._judge, to, is_last=is_last)
        )

    def _judge(self, to: Process, *, is_last: bool) -> None:
        if to.node is not None and core_of(to.node).is_leader:
            self.is_done = True
        elif is_last:
            raise Broken(
                f"{self._leader.host} was asked twice to hand over to {to.host}, and did not"
            )
        else:
            # A link that was cut may have been on its way back, and the word got lost.
            self._transfer_to(to, is_last=True)
