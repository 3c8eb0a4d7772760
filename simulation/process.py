"""One simulated machine with the production node on it: its clock, its disk, its links, its sessions, its ends and starts.

Everything that touches the node goes through ``guard``, which does what the loop of a server does after each event,
and deals with a machine that goes down in the middle of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from penstock.errors import PenstockError, StorageFailed
from penstock.server.node import Node
from penstock.server.session2 import Session2
from penstock.server.settings import GroupSettings, Limits, Settings
from penstock.server.snapshots import SLICE_SECONDS, Snapshots, Spares
from simulation.clock import MILLISECOND, SECOND, Chance, NodeClock, Timeline
from simulation.disk import MachineDown, SimulatedDisk, SimulatedFiles
from simulation.network import End, Network
from simulation.peering import Peering
from simulation.swarm import Plan
from simulation.witnessing import WatchedSession, Witness

ROOT: Final = Path("/node")
LOOK_SECONDS: Final = SLICE_SECONDS / 8
"""What a look at the clock takes while a snapshot is made: about so many pieces are in a slice."""

WAKE_MIN: Final = 5 * MILLISECOND
"""Leases, delays and waits end no finer than this, as in a server."""


@dataclass(slots=True)
class Surroundings:
    """What a process needs of its world."""

    timeline: Timeline
    network: Network
    chance: Chance
    plan: Plan
    witness: Witness
    note: Callable[[str], None]  # into the trace
    detail: Callable[[str], None] | None  # into the trace if all of it is kept
    accuse: Callable[[str], None]  # something happened that must not
    watch: Callable[[Process], None]  # after everything that a process has done
    ended: Callable[[Process], None]  # a process is gone, for whatever reason


def peer_address(number: int) -> str:
    return f"n{number}:9000"


def client_address(number: int) -> str:
    return f"n{number}:9001"


class _SliceClock:
    """A clock that moves on whenever somebody looks: a snapshot then comes in slices, in simulation too."""

    def __init__(self, clock: NodeClock) -> None:
        self._clock = clock
        self._looks = 0

    def __call__(self) -> float:
        self._looks += 1
        return self._clock.seconds() + self._looks * LOOK_SECONDS


class Process:
    """A machine, and the process on it if one runs."""

    def __init__(self, around: Surroundings, number: int, *, peers: dict[int, str]) -> None:
        """``peers``: the first configuration. One that is not in it waits to be added."""
        self.around = around
        self.number = number
        self.host = f"n{number}"
        self._peers = peers
        plan, chance = around.plan, around.chance
        drift = plan.drifts[number - 1] if number <= len(plan.drifts) else 0.0
        self.clock = NodeClock(around.timeline, drift=drift)
        self.files = SimulatedFiles(chance.stream(f"files {self.host}"))
        self.files.write_back_chance = plan.write_back
        self.gate = around.network.gate(self.host)
        self._random: Random = chance.stream(f"node {self.host}")
        self._disk_random = chance.stream(f"disk {self.host}")
        self.node: Node | None = None
        self.peering: Peering | None = None
        self.snapshots: Snapshots | None = None
        self.life = 0  # how often it was started; what belongs to an earlier life is ignored
        self.is_damaged = False  # whether its disk was damaged or emptied: it may refuse to start
        self.is_wiped = False
        self.is_admitted = False  # whether its group has let it vote, as of its last tick
        self.refusal: PenstockError | None = None  # why it did not start
        self._failure: PenstockError | None = None
        self._sessions: dict[End, Session2] = {}
        self._disks: list[SimulatedDisk] = []
        self._wake_at: int | None = None
        self._soon: list[Callable[[], None]] = []

    @property
    def is_up(self) -> bool:
        return self.node is not None

    @property
    def is_crippled(self) -> bool:
        """Whether it may never come back: its disk was emptied, or is damaged and nothing runs on it."""
        return self.is_wiped or (self.is_damaged and not self.is_up)

    @property
    def term(self) -> int:
        return 0 if self.node is None else self.node.replica.group.term

    @property
    def progress(self) -> tuple[int, int] | None:
        """How far it knows the log to be committed, and has applied it; ``None`` if it does not run."""
        if self.node is None:
            return None
        return int(self.node.replica.group.committed), int(self.node.replica.applied)

    # Beginning and end.

    def start(self) -> None:
        """Start the process, on the disk as it is."""
        assert self.node is None
        around = self.around
        self.life += 1
        self.gate.forget()
        self._failure = None
        self._wake_at = None
        self._soon = []
        self._disks = [self._new_disk(), self._new_disk()]
        around.note(f"{self.host} starts")
        try:
            self.node = self._open()
        except MachineDown:
            self._go_down()
            return
        except PenstockError as error:
            self.refusal = error
            self.files.kill()
            self._disks = []
            around.note(f"{self.host} refuses to start: {error}")
            if not self.is_damaged:
                around.accuse(
                    f"{self.host} does not start on a disk that no fault has damaged: {error}"
                )
            return
        self.refusal = None
        self.guard(partial(self._begin, self.node))

    def _new_disk(self) -> SimulatedDisk:
        around = self.around
        disk = SimulatedDisk(around.timeline, self._disk_random, self.gate, around.plan.pace)
        disk.guard = self.guard
        disk.when_down = self._go_down
        return disk

    def _settings(self) -> Settings:
        plan, number = self.around.plan, self.number
        group = GroupSettings(
            node=number,
            peers=self._peers,
            is_joining=number not in self._peers,
            listen=peer_address(number),
            client_address=client_address(number),
            tick_ms=plan.tick_ms,
            election_ticks=plan.raft.election_ticks,
            core=plan.raft,
            kept_bytes=plan.kept_bytes,
        )
        return Settings(
            data=ROOT,
            node=number,
            snapshot_bytes=plan.snapshot_bytes,
            limits=Limits(),
            group=group,
        )

    def _open(self) -> Node:
        return Node(
            self._settings(),
            self._disks[0],
            on_failure=self._fail,
            clock=self.clock.wall_ms,
            steady=lambda: int(self.clock.seconds() * 1000),
            files=self.files,
            draw=self._random.randrange,
            log_limits=self.around.plan.log_limits,
        )

    def _begin(self, node: Node) -> None:
        around, life, group = self.around, self.life, node.group
        assert group is not None
        group.replica.soon = self._soon_append
        self.snapshots = Snapshots(
            node, self._disks[1], self._call_later, self._say, now=_SliceClock(self.clock)
        )
        Spares(node, self._disks[1], self._say, now=self.clock.seconds)
        self.peering = Peering(
            group,
            around.network,
            self.host,
            clock=self.clock,
            timeline=around.timeline,
            random=self._random,
            guard=self.guard,
            is_ended=lambda: self.life != life or self.node is None,
            echo=around.plan.echo,
            detail=around.detail,
        )
        around.network.listen(peer_address(self.number), self.peering.accept)
        around.network.listen(client_address(self.number), self._accept)
        self._tick_later(life)

    def _soon_append(self, call: Callable[[], None]) -> None:
        """Call at the end of this event: what arrives in one is one write, as in one turn of a loop."""
        self._soon.append(call)

    def _say(self, words: str) -> None:
        self.around.note(f"{self.host} says: {words}")

    def _fail(self, error: PenstockError) -> None:
        self._failure = error

    def kill(self) -> None:
        """End the process; the machine goes on."""
        self._end("is killed")
        self.files.kill()

    def cut_power(self) -> None:
        """Turn the machine off."""
        self._end("loses power")
        self.files.cut_power(survival=self.around.plan.survival)

    def _go_down(self) -> None:
        """Turn the machine off in the middle of a call."""
        self._end("loses power in the middle of a call")
        self.files.cut_power(survival=self.around.plan.survival)

    def _end(self, how: str) -> None:
        self.around.note(f"{self.host} {how}")
        for disk in self._disks:
            disk.end()
        self.node = None
        self.peering = None
        self._sessions.clear()
        self.around.network.crash(self.host)
        self.gate.forget()
        self.around.ended(self)

    # Events.

    def guard(self, call: Callable[[], None]) -> None:
        """Let something happen to the node, then do what its loop does."""
        node, life = self.node, self.life
        if node is None:
            return
        self.files.is_in_use = True
        try:
            call()
            if self.node is node and self.life == life and self._failure is None:
                self._go_on(node)
        except MachineDown:
            self._go_down()
            return
        except StorageFailed as error:
            self._fail(error)  # as a server does with what comes as far as its loop
        finally:
            self.files.is_in_use = False
        if self.node is not node:
            return
        if self._failure is not None:
            # A server ends when its disk has failed; whoever watches it starts it again.
            self.around.note(f"{self.host} fails: {self._failure}")
            self.kill()
            return
        self.around.watch(self)

    def _go_on(self, node: Node) -> None:
        broker = node.broker
        broker.serve()
        soon, self._soon = self._soon, []
        for call in soon:
            call()
        if not soon:
            node.replica.advance()
        broker.flush()
        while broker.is_hungry and self._failure is None:
            broker.serve()
            node.replica.advance()
            broker.flush()
        self._schedule(node)

    def _schedule(self, node: Node) -> None:
        wait = node.broker.wakeup_in_ms()
        if wait is None:
            return
        timeline = self.around.timeline
        delay = max(WAKE_MIN, wait * MILLISECOND)
        moment = timeline.now + self.clock.span(delay)
        if self._wake_at is None or moment < self._wake_at:
            self._wake_at = moment
            timeline.at(moment, partial(self._in_life, self.life, partial(self._wake, moment)))

    def _wake(self, moment: int) -> None:
        if self._wake_at == moment:
            self._wake_at = None
        assert self.node is not None
        self.node.broker.tick()

    def _in_life(self, life: int, call: Callable[[], None]) -> None:
        """Let something happen to the node unless it has ended since."""
        if life == self.life and self.node is not None:
            self.gate.run(partial(self._guarded, life, call))

    def _guarded(self, life: int, call: Callable[[], None]) -> None:
        if life == self.life:
            self.guard(call)

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        delay = self.clock.span(int(seconds * SECOND))
        self.around.timeline.after(delay, partial(self._in_life, self.life, call))

    def _tick_later(self, life: int) -> None:
        delay = self.clock.span(self.around.plan.tick_ms * MILLISECOND)
        self.around.timeline.after(delay, partial(self._in_life, life, partial(self._tick, life)))

    def _tick(self, life: int) -> None:
        assert self.node is not None
        assert self.peering is not None
        self._tick_later(life)
        assert self.node.group is not None
        self.node.group.tick()
        self.is_admitted = not self.node.group.membership.is_barred
        self.peering.tick()

    # Clients.

    def _accept(self, end: End) -> None:
        node, life = self.node, self.life
        if node is None:
            end.close()
            return
        session = WatchedSession(node.broker, end, node.group, self.around.witness)
        self._sessions[end] = session
        end.on_data = lambda data: self._guarded(life, partial(self._receive, end, session, data))
        end.on_lost = lambda: self._guarded(life, partial(self._farewell, end, session))

    def _receive(self, end: End, session: Session2, data: bytes) -> None:
        session.receive(data)
        if session.is_broken:
            self.around.accuse(f"{self.host} finds that a client broke the protocol")
            session.close()
            end.close()

    def _farewell(self, end: End, session: Session2) -> None:
        self._sessions.pop(end, None)
        session.close()
