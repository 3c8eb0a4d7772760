"""A whole cluster with its clients, from the first start to the last check.

First anything that the plan knows may go wrong (*safety*); then a majority is healed, all work must drain, and all that
are up must have agreed on the same (*liveness*).
"""

from __future__ import annotations

import hashlib
from collections import deque
from functools import partial
from typing import Final

from penstock.model import Policy
from penstock.server.node import Node
from simulation import promises
from simulation.clients import Closer, Consumer, Founder, Producer, Town
from simulation.clock import MILLISECOND, SECOND, Chance, Timeline
from simulation.discipline import Discipline, QuorumWatch
from simulation.invariants import Broken, Invariants, core_of
from simulation.nemesis import Nemesis
from simulation.network import Network
from simulation.process import (
    Process,
    Surroundings,
    client_address,
    peer_address,
)
from simulation.recording import Recorder
from simulation.swarm import Plan
from simulation.witnessing import Witness

LINES_KEPT: Final = 400
"""Lines of the trace that are kept when nobody asked for all of it."""

LOOK_GAP: Final = 100 * MILLISECOND
"""How often it is asked whether all work has drained."""


class World:
    """One run of one plan."""

    def __init__(
        self, plan: Plan, *, skipped: frozenset[int] = frozenset(), keeps_trace: bool = False
    ) -> None:
        self.plan = plan
        self.chance = Chance(plan.seed)
        self.timeline = Timeline()
        self.network = Network(self.timeline, self.chance.stream("network"))
        self.witness = Witness()
        self.recorder = Recorder(self.timeline, self.witness)
        self.lines: deque[str] = deque(maxlen=None if keeps_trace else LINES_KEPT)
        self.crashes = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._restarts = self.chance.stream("restarts")
        self._is_healed = False
        self._is_over = False
        self._healthy: list[int] = []
        self._listened: dict[int, Node] = {}
        self._closer: Closer | None = None
        self._discipline: Discipline | None = None
        self.invariants = Invariants(self)
        around = Surroundings(
            timeline=self.timeline,
            network=self.network,
            chance=self.chance,
            plan=plan,
            witness=self.witness,
            note=self.note,
            detail=self._detail if keeps_trace else None,
            accuse=self.accuse,
            watch=self._watch,
            ended=self._ended,
        )
        peers = {number: peer_address(number) for number in range(1, plan.nodes + 1)}
        self.processes = {
            number: Process(around, number, peers=peers)
            for number in range(1, plan.nodes + plan.spares + 1)
        }
        self.network.weather = plan.weather
        for number in peers:
            delay = self._restarts.randrange(200) * MILLISECOND + number
            self.timeline.at(delay, self.processes[number].start)
        self._found_town()
        self.nemesis = Nemesis(self, self.chance.stream("nemesis"), skipped)
        QuorumWatch(self)

    def _found_town(self) -> None:
        plan, chance = self.plan, self.chance
        addresses = {number: client_address(number) for number in self.processes}
        self.town = Town(self.timeline, self.network, self.recorder, addresses)
        policies = {queue: Policy() for queue in plan.queues}
        policies[plan.queues[0]] = Policy(size_max=plan.size_max)
        self.founder = Founder(self.town, "cf", chance.stream("founder"), policies=policies)
        actors = plan.producers + plan.consumers
        gap = int(actors * SECOND / plan.scale.rate)
        self.producers = [
            Producer(
                self.town,
                f"p{number}",
                chance.stream(f"producer {number}"),
                queues=plan.queues,
                keys=plan.keys,
                gap=gap,
                is_counted=number % 3 != 2,
            )
            for number in range(plan.producers)
        ]
        self.consumers = [
            Consumer(
                self.town,
                f"c{number}",
                chance.stream(f"consumer {number}"),
                queues=plan.queues,
                gap=gap,
            )
            for number in range(plan.consumers)
        ]
        self.client_hosts = ["cf", *(one.name for one in (*self.producers, *self.consumers))]

    # What others tell.

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        line = f"{self.timeline.now / SECOND:.6f} {line}"
        self._digest.update(line.encode())
        self.lines.append(line)

    def _detail(self, line: str) -> None:
        """Add a line that is worth its bytes only to somebody who reads all of them."""
        self.lines.append(f"{self.timeline.now / SECOND:.6f}   {line}")

    def accuse(self, words: str) -> None:
        """End the run: something happened that must not."""
        raise Broken(words)

    def _watch(self, process: Process) -> None:
        node = process.node
        if node is not None and self._listened.get(process.number) is not node:
            self._listened[process.number] = node
            promises.listen(process, node)
        self.invariants.watch(process)

    def _ended(self, process: Process) -> None:
        self.crashes += 1
        if not self._is_healed:
            delay = self._restarts.choice((50, 500, 3000)) * self._restarts.randrange(
                1, MILLISECOND
            )
            self.timeline.after(delay, partial(self._restart, process, process.life))
        elif process.is_damaged:
            self._healthy = [number for number in self._healthy if number != process.number]
        elif process.number in self._healthy:
            self.timeline.after(SECOND, partial(self._restart, process, process.life))

    def _restart(self, process: Process, life: int) -> None:
        is_wanted = not self._is_healed or process.number in self._healthy
        if is_wanted and not process.is_up and process.life == life:
            process.start()

    # What others ask.

    def leader(self) -> Process | None:
        """Return the process that leads in the highest term, if one does."""
        leading = [
            process
            for process in self.processes.values()
            if process.node is not None and process.node.replica.is_leading
        ]
        return max(leading, key=lambda one: one.term, default=None)

    @property
    def has_begun(self) -> bool:
        """Whether somebody has led once."""
        return self.invariants.has_seen_leader

    @property
    def trace_hash(self) -> str:
        return self._digest.hexdigest()

    # The two phases.

    def run(self) -> None:
        """Live through both phases. Raises ``Broken``, or whatever the product raises."""
        scale = self.plan.scale
        self.timeline.run(scale.safety)
        self._heal()
        self.timeline.after(SECOND, self._look)
        self.timeline.run(self.timeline.now + scale.liveness, lambda: self._is_over)
        if not self._is_over:
            raise Broken(f"nothing is wrong any more, and still: {self._what_is_missing()}")
        self.invariants.finish(self.recorder.finish())
        self.note(f"ends after {self.timeline.events} events, {self.timeline.fingerprint:016x}")

    def _heal(self) -> None:
        random = self.chance.stream("healing")
        self.nemesis.stop()
        self.note("all is healed")
        able = [n for n, one in self.processes.items() if one.life and not one.is_crippled]
        majority = self.plan.nodes // 2 + 1
        count = len(able)
        # Where members come and go, any of them may be needed, and so may those who never voted yet: a new group
        # begins when most of its first members have met.
        has_met = all(one.is_admitted for one in self.processes.values())
        if count > majority and has_met and not self.plan.spares:
            count = random.randint(majority, count)
        self._healthy = sorted(random.sample(able, count))
        self._is_healed = True
        self.network.heal_all()
        # Syncs that take longer than an election may keep a group from ever settling.
        self.plan.pace.slow = 0.0
        for number, process in self.processes.items():
            process.files.quota = None
            process.files.strike_at = 0
            process.gate.open()
            if number not in self._healthy and process.is_up:
                process.kill()
            elif number in self._healthy and not process.is_up:
                process.start()
        self.town.addresses = {number: client_address(number) for number in self._healthy}
        self.town.is_draining = True

    def _look(self) -> None:
        if self._closer is None and self._what_is_missing() is None:
            self._closer = Closer(
                self.town, "cz", self.chance.stream("closer"), queues=self.plan.queues
            )
        is_closed = self._closer is not None and self._closer.is_done
        leader = self.leader()
        if is_closed and leader is not None and self._what_is_missing() is None:
            if self._discipline is None:
                self._discipline = Discipline(self, leader, self._healthy)
            self._is_over = self._discipline.is_done
        if not self._is_over:
            self.timeline.after(LOOK_GAP, self._look)

    def _what_is_missing(self) -> str | None:
        """Return what keeps the group from being done, or ``None``."""
        leader = self.leader()
        if leader is None or leader.node is None:
            return "nobody leads"
        busy = [one.name for one in self.producers if not one.is_idle]
        if busy:
            return f"producers wait for answers: {', '.join(busy)}"
        state = leader.node.replica.state
        full = [f"{len(q)} in {q.name!r}" for q in state.queues() if len(q)]
        if full:
            return f"tasks are left: {', '.join(full)}"
        members = core_of(leader.node).configuration.members
        live = [number for number in self._healthy if number in members]
        places = {number: self.processes[number].progress for number in live}
        if len(set(places.values())) > 1 or None in places.values():
            return f"nodes have not come to the same place: {places}"
        return None
