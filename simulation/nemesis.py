"""What goes wrong, and when. Each fault is an event with a number, so that a failing run can be tried without some of them."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.raft.configuration import Change, Configuration, Step
from simulation.clock import MILLISECOND, SECOND
from simulation.process import Process, peer_address
from simulation.swarm import Fault

if TYPE_CHECKING:
    from simulation.world import World

_BY_PLAN: Final = frozenset((Fault.CLOG, Fault.FLIP, Fault.ECHO, Fault.SLOW_DISK))
"""Faults that happen all the time, as the plan says, and not as events."""

CALLS_MAX: Final = 40
"""A failpoint strikes within so many calls to the disk."""

READ_ERRORS: Final = 0.4
"""The part of disk errors that hit a read."""

READS_MAX: Final = 4
"""Nodes that run read little: for members that are behind, and for snapshots."""

AMBUSH_MAX: Final = 20 * MILLISECOND
"""Within this after a vote, or the beginning of a leader, an ambush strikes."""

AMBUSH_GAP: Final = SECOND // 4
"""A group that is struck in every election would never have a leader."""


class Nemesis:
    """Brings misfortune over a world until it is told to stop."""

    def __init__(self, world: World, random: Random, skipped: frozenset[int]) -> None:
        """``skipped``: events that do not happen, although their chance is drawn."""
        self._world = world
        self._random = random
        self._skipped = skipped
        self._is_stopped = False
        self._ambushes = world.chance.stream("ambushes")
        self._reading = world.chance.stream("reading")
        self._quiet_until = 0
        self.number = 0
        self.injected: Counter[Fault] = Counter()
        self._faults = sorted(world.plan.faults - _BY_PLAN)
        self._acts: dict[Fault, Callable[[Random], Callable[[], None] | None]] = {
            Fault.KILL: self._kill,
            Fault.POWER: self._cut_power,
            Fault.BLACKOUT: self._black_out,
            Fault.FAILPOINT: self._arm_failpoint,
            Fault.PAUSE: self._pause,
            Fault.PARTITION: self._partition,
            Fault.ONE_WAY: self._cut_one_way,
            Fault.RESET: self._reset,
            Fault.CLOCK: self._jump,
            Fault.DISK_ERROR: self._arm_disk_error,
            Fault.DISK_FULL: self._fill_disk,
            Fault.DAMAGE: self._damage,
            Fault.WIPE: self._wipe,
            Fault.TRANSFER: self._transfer,
            Fault.MEMBERS: self._change_members,
        }
        if self._faults:
            self._next()

    def stop(self) -> None:
        self._is_stopped = True

    def _next(self) -> None:
        gap = self._world.plan.fault_gap
        self._world.timeline.after(1 + int(self._random.expovariate(1 / gap)), self._strike)

    def _strike(self) -> None:
        if not self._is_stopped:
            self._hit()
            self._next()

    def ambush(self) -> None:
        """Maybe strike soon: somebody has voted, or begins to lead."""
        world, random = self._world, self._ambushes
        now = world.timeline.now
        if not world.plan.ambush or not self._faults or now < self._quiet_until:
            return
        if random.random() < world.plan.ambush:
            self._quiet_until = now + AMBUSH_GAP
            world.timeline.after(random.randrange(1, AMBUSH_MAX), self._hit)

    def _hit(self) -> None:
        world = self._world
        if self._is_stopped or (world.plan.is_patient and not world.has_begun):
            return
        self.number += 1
        fault = self._random.choice(self._faults)
        # What the fault draws comes from a seed of its own: without one event the others stay as they were.
        own = Random(self._random.randrange(2**63))  # noqa: S311 - repeatable chance is the point
        if self.number not in self._skipped and fault in self._acts:
            act = self._acts[fault](own)
            if act is not None:
                self.injected[fault] += 1
                world.note(f"fault {self.number}: {fault}")
                act()

    # Each of these returns what to do, or nothing where there is nothing to do it to.

    def _some_up(self, random: Random) -> Process | None:
        leader = self._aimed_at(random)
        if leader is not None:
            return leader
        up = [process for process in self._world.processes.values() if process.is_up]
        return random.choice(up) if up else None

    def _aimed_at(self, random: Random) -> Process | None:
        """Return the leader, if there is one and this fault is for it."""
        is_aimed = random.random() < self._world.plan.aim
        return self._world.leader() if is_aimed else None

    def _kill(self, random: Random) -> Callable[[], None] | None:
        process = self._some_up(random)
        return None if process is None else process.kill

    def _cut_power(self, random: Random) -> Callable[[], None] | None:
        process = self._some_up(random)
        return None if process is None else process.cut_power

    def _black_out(self, random: Random) -> Callable[[], None]:  # noqa: ARG002
        def act() -> None:
            for process in list(self._world.processes.values()):
                if process.is_up:
                    process.cut_power()

        return act

    def _arm_failpoint(self, random: Random) -> Callable[[], None] | None:
        process = self._some_up(random)
        if process is None:
            return None
        calls = random.randint(1, CALLS_MAX)

        def strike(kind: str, path: str) -> None:
            self._world.note(f"{process.host} stops in a call: {kind} {path}")
            process.files.go_down()

        return partial(process.files.arm, calls, strike)

    def _arm_disk_error(self, random: Random) -> Callable[[], None] | None:
        process = self._some_up(random)
        if process is None:
            return None
        calls = random.randint(1, CALLS_MAX)

        def strike(kind: str, path: str) -> None:
            self._world.note(f"{process.host} has a call that fails: {kind} {path}")
            raise OSError(errno.EIO, "Input/output error", path)

        if self._reading.random() < READ_ERRORS:
            return partial(process.files.arm_reads, self._reading.randint(1, READS_MAX), strike)
        return partial(process.files.arm, calls, strike)

    def _fill_disk(self, random: Random) -> Callable[[], None] | None:
        process = self._some_up(random)
        if process is None:
            return None
        files, duration = process.files, random.randrange(SECOND // 5, 3 * SECOND)
        room = random.randrange(6000)

        def act() -> None:
            files.quota = files.size + room
            self._world.timeline.after(duration, partial(setattr, files, "quota", None))

        return act

    def _pause(self, random: Random) -> Callable[[], None] | None:
        process = self._some_up(random)
        if process is None or process.gate.is_shut:
            return None
        duration = random.choice((200, 1000, 3000)) * random.randrange(1, 2 * MILLISECOND)

        def act() -> None:
            process.gate.shut()
            self._world.timeline.after(duration, process.gate.open)

        return act

    def _partition(self, random: Random) -> Callable[[], None] | None:
        nodes = [process.host for process in self._world.processes.values()]
        clients = self._world.client_hosts
        hosts = nodes + clients
        leader = self._aimed_at(random)
        if leader is not None:
            # With few others, and with some who go on asking it: it has entries then that nobody agreed on.
            others = [host for host in nodes if host != leader.host]
            side = {leader.host, *random.sample(others, random.randrange(len(nodes) // 2 + 1))}
            side |= {client for client in clients if random.random() < 0.6}
        elif random.random() < 0.5:
            side = {random.choice(nodes)}
        else:
            side = {host for host in hosts if random.random() < 0.5}
        rest = [host for host in hosts if host not in side]
        links = [(a, b) for a in hosts if a in side for b in rest]
        return partial(self._cut, [*links, *((b, a) for a, b in links)], self._duration(random))

    def _cut_one_way(self, random: Random) -> Callable[[], None] | None:
        hosts = [process.host for process in self._world.processes.values()]
        leader = self._aimed_at(random)
        host = random.choice(hosts) if leader is None else leader.host
        peers = [peer for peer in hosts + self._world.client_hosts if peer != host]
        chosen = [peer for peer in peers if random.random() < 0.6]
        is_deaf = random.random() < 0.5
        links = [(peer, host) if is_deaf else (host, peer) for peer in chosen]
        return partial(self._cut, links, self._duration(random))

    def _duration(self, random: Random) -> int:
        # About as long as it takes to the next fault: cuts that overlap for ever leave nobody to lead.
        longest = min(6 * SECOND, max(SECOND // 2, 2 * self._world.plan.fault_gap))
        return random.randrange(SECOND // 5, longest)

    def _cut(self, links: list[tuple[str, str]], duration: int) -> None:
        network = self._world.network
        for link in links:
            network.cut(*link)

        def heal() -> None:
            for link in links:
                network.heal(*link)

        self._world.timeline.after(duration, heal)

    def _reset(self, random: Random) -> Callable[[], None]:
        process = random.choice(list(self._world.processes.values()))
        return partial(self._world.network.reset_some, process.host)

    def _jump(self, random: Random) -> Callable[[], None]:
        process = random.choice(list(self._world.processes.values()))
        jump = random.choice((-1, 1)) * random.choice((500, 5_000, 3_600_000))

        def act() -> None:
            process.clock.jumped_ms += jump

        return act

    def _victim(self, random: Random) -> Process | None:
        if not self._world.has_begun:
            return None  # a group that never was one needs all its first members
        victims = [self._world.processes[number] for number in self._world.plan.victims]
        return random.choice(victims) if victims else None

    def _damage(self, random: Random) -> Callable[[], None] | None:
        process = self._victim(random)
        if process is None:
            return None
        is_held = self._world.invariants.is_held_by_others

        def act() -> None:
            if process.is_up:
                process.cut_power()
            process.is_damaged = True
            # What was synced within the last moments before a power cut cannot be told from a torn tail if a bit flips
            # there: the node forgets it (docs/decisions/0005). A majority of the others must have it then.
            spared = (".lock",) if is_held(process.number) else (".lock", ".log", ".synced")
            what = process.files.damage(lambda name: not name.endswith(spared))
            self._world.note(f"{process.host} has a bit flipped: {what}")

        return act

    def _wipe(self, random: Random) -> Callable[[], None] | None:
        process = self._victim(random)
        if process is None:
            return None

        def act() -> None:
            if process.is_up:
                process.cut_power()
            process.is_damaged = True
            process.is_wiped = True
            process.files.wipe()
            self._world.note(f"{process.host} gets an empty disk")

        return act

    def _transfer(self, random: Random) -> Callable[[], None] | None:
        leader = self._world.leader()
        others = [number for number in self._world.processes if leader and number != leader.number]
        if leader is None or not others:
            return None
        to = random.choice(others)

        def act() -> None:
            group = None if leader.node is None else leader.node.group
            if group is not None:
                leader.guard(lambda: group.transfer_leadership(to, lambda _: None))

        return act

    def _change_members(self, random: Random) -> Callable[[], None] | None:
        leader = self._world.leader()
        if leader is None or leader.node is None:
            return None
        group = leader.node.group
        assert group is not None
        change = self._draw_change(random, group.replica.group.configuration)

        def act() -> None:
            for step, number in change.steps:
                process = self._world.processes[number]
                if step is not Step.REMOVE and not process.life:
                    process.start()
            self._world.note(f"{leader.host} is asked for {change.steps}")
            leader.guard(lambda: group.change_members(change, self._note_change))

        return act

    def _note_change(self, reason: str | None) -> None:
        self._world.note(f"the change of members: {reason or 'done'}")

    def _draw_change(self, random: Random, configuration: Configuration) -> Change:
        """Return a change that leaves at least two voters: add, promote, remove, demote, or replace."""
        voters, learners = configuration.voters, configuration.learners
        outside = [n for n in self._world.processes if n not in configuration.members]
        choices: list[tuple[tuple[Step, int], ...]] = []
        choices += [((random.choice((Step.LEARNER, Step.VOTER)), n),) for n in outside]
        choices += [((random.choice((Step.VOTER, Step.REMOVE)), n),) for n in learners]
        if len(voters) > 2:
            choices += [((random.choice((Step.REMOVE, Step.LEARNER)), n),) for n in voters]
        choices += [((Step.REMOVE, n), (Step.VOTER, new)) for n in voters for new in outside]
        steps = random.choice(choices) if choices else ()
        labels = tuple((n, f"{peer_address(n)}#") for step, n in steps if step is not Step.REMOVE)
        return Change(steps, labels=labels)
