"""What each seed draws before anything happens: the size of the world, what may go wrong in it, and how much.

Many seeds know one kind of fault only, or two: a mix of everything hides what one fault does by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from penstock.raft.settings import Settings as RaftSettings
from penstock.storage.log import LogLimits
from simulation.clock import MILLISECOND, SECOND, Chance
from simulation.disk import Pace
from simulation.network import Weather


class Fault(StrEnum):
    """A kind of thing that goes wrong."""

    KILL = "kill"  # a process ends; what it wrote stays
    POWER = "power"  # a machine goes off; what was not synced may be lost
    BLACKOUT = "blackout"  # all machines go off at once
    FAILPOINT = "failpoint"  # a machine goes off at the n-th call to its disk
    PAUSE = "pause"
    PARTITION = "partition"
    ONE_WAY = "one-way"
    RESET = "reset"
    CLOG = "clog"
    FLIP = "flip"
    ECHO = "echo"  # a message between nodes arrives once more, later
    CLOCK = "clock"
    DISK_ERROR = "disk-error"
    DISK_FULL = "disk-full"
    SLOW_DISK = "slow-disk"
    DAMAGE = "damage"  # of what was synced, on a minority of machines
    WIPE = "wipe"
    TRANSFER = "transfer"  # leadership is handed over
    MEMBERS = "members"  # members come and go


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large a run is."""

    safety: int  # how long things go wrong
    liveness: int  # how long the healed group may take
    rate: float  # operations a second of all clients together
    # What every seed has, whatever else it draws.
    nodes: int | None = None
    faults: frozenset[Fault] = frozenset()
    snapshot_bytes: int | None = None


SHORT: Final = Scale(safety=8 * SECOND, liveness=30 * SECOND, rate=16.0)
"""Hundreds of these fit the normal suite."""

FULL: Final = Scale(safety=50 * SECOND, liveness=60 * SECOND, rate=10.0)
"""One seed of a campaign."""

DEEP: Final = Scale(
    safety=3600 * SECOND,
    liveness=120 * SECOND,
    rate=10.0,
    nodes=5,
    faults=frozenset((Fault.MEMBERS,)),
    snapshot_bytes=20_000,  # some 200 entries
)
"""An hour in which members come and go: what only adds up in a long life."""

SCALES: Final = {"short": SHORT, "full": FULL, "deep": DEEP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a seed has decided in advance."""

    seed: int
    scale: Scale
    nodes: int  # at the beginning
    spares: int  # further ones, that may be added
    faults: frozenset[Fault]
    fault_gap: int  # mean time between two faults
    is_patient: bool  # whether nothing happens before somebody has led
    aim: float  # how often a fault hits the leader
    ambush: float  # how often one happens right after a vote, or a change of leaders
    weather: Weather
    pace: Pace
    tick_ms: int
    raft: RaftSettings
    log_limits: LogLimits
    snapshot_bytes: int
    kept_bytes: int  # of the log behind a snapshot
    drifts: tuple[float, ...]  # by node
    survival: float  # of each unsynced sector at a power cut
    write_back: float
    echo: float
    producers: int
    consumers: int
    queues: tuple[str, ...]
    size_max: int | None  # of the first queue
    keys: int
    victims: tuple[int, ...] = field(default=())  # nodes that may lose what was synced: a minority


def draw_plan(seed: int, scale: Scale, *, faults: frozenset[Fault] | None = None) -> Plan:
    """Return the plan of a seed; ``faults`` in place of those that it would draw."""
    random = Chance(seed).stream("swarm")
    nodes = random.choices((1, 2, 3, 4, 5), weights=(1, 1, 12, 1, 5))[0]
    nodes = scale.nodes or nodes
    drawn = _draw_faults(random, nodes)
    if faults is None:
        faults = drawn | scale.faults
    victims = tuple(sorted(random.sample(range(1, nodes + 1), (nodes - 1) // 2)))
    if Fault.MEMBERS in faults:
        victims = ()  # which minority can lose its disks is known only while the members stay
    queues = tuple(f"q{number}" for number in range(random.randint(1, 3)))
    aiming = Chance(seed).stream("aiming")
    return Plan(
        seed=seed,
        scale=scale,
        nodes=nodes,
        spares=2 if Fault.MEMBERS in faults else 0,
        faults=faults,
        fault_gap=int(random.choice((0.3, 0.6, 1.2, 2.5)) * SECOND),
        is_patient=aiming.random() < 0.8,
        aim=aiming.choice((0.0, 0.5, 0.9)),
        ambush=aiming.choice((0.0, 0.0, 0.1, 0.4)),
        weather=_draw_weather(random, faults),
        pace=_draw_pace(random, faults),
        tick_ms=random.choice((100, 100, 200)),
        raft=_draw_raft(random, aiming),
        log_limits=_draw_limits(random),
        snapshot_bytes=scale.snapshot_bytes or random.choice((600, 2000, 8000, 10**9)),
        kept_bytes=random.choice((0, 500, 10**9)),
        drifts=tuple(
            random.uniform(-0.05, 0.05) if Fault.CLOCK in faults else 0.0 for _ in range(nodes)
        ),
        survival=random.choice((0.0, 0.2, 0.5, 0.8, 1.0)),
        write_back=random.choice((0.0, 0.0, 0.05)),
        echo=random.uniform(0.01, 0.3) if Fault.ECHO in faults else 0.0,
        producers=random.randint(1, 3),
        consumers=random.randint(1, 3),
        queues=queues,
        size_max=random.choice((None, None, 3, 10)),
        keys=random.choice((1, 2, 5)),
        victims=victims,
    )


def _draw_faults(random: Random, nodes: int) -> frozenset[Fault]:
    kinds = [fault for fault in Fault if nodes > 1 or fault not in _NEEDS_OTHERS]
    mix = random.random()
    if mix < 0.4:
        return frozenset((random.choice(kinds),))
    if mix < 0.7:  # what goes wrong while leaders change
        return frozenset((random.choice(_UNSEATING), random.choice(kinds)))
    chance = random.uniform(0.15, 0.6)
    return frozenset(fault for fault in kinds if random.random() < chance)


_UNSEATING: Final = (Fault.KILL, Fault.POWER, Fault.PAUSE, Fault.PARTITION, Fault.ONE_WAY)

_NEEDS_OTHERS: Final = frozenset(
    (Fault.ECHO, Fault.FLIP, Fault.DAMAGE, Fault.WIPE, Fault.TRANSFER, Fault.MEMBERS)
)


def _draw_weather(random: Random, faults: frozenset[Fault]) -> Weather:
    is_far = random.random() < 0.3
    return Weather(
        delay_min=random.randrange(30) * MILLISECOND if is_far else random.randrange(50, 500),
        delay_mean=random.randrange(1, 60) * MILLISECOND if is_far else random.randrange(100, 2000),
        reset=random.uniform(0.001, 0.05) if Fault.RESET in faults else 0.0,
        clog=random.uniform(0.0005, 0.005) if Fault.CLOG in faults else 0.0,
        clog_max=random.randrange(1, 5 * SECOND),
        flip=random.uniform(0.001, 0.02) if Fault.FLIP in faults else 0.0,
    )


def _draw_pace(random: Random, faults: frozenset[Fault]) -> Pace:
    return Pace(
        mean=random.randrange(50, 4000),
        slow=random.uniform(0.01, 0.1) if Fault.SLOW_DISK in faults else 0.0,
        slow_max=random.randrange(50, 2000) * MILLISECOND,
    )


def _draw_raft(random: Random, aiming: Random) -> RaftSettings:
    is_tight = random.random() < 0.4
    return RaftSettings(
        # With the default of 10, elections would take up a good part of a short life.
        election_ticks=aiming.choice((3, 3, 5, 10)),
        append_size_max=random.choice((1, 100, 1000)) if is_tight else 2**20,
        window_count=random.choice((1, 2, 8)) if is_tight else 256,
        window_size=random.choice((1, 500, 5000)) if is_tight else 8 * 2**20,
        apply_size_max=random.choice((1, 100)) if is_tight else 2**20,
        has_pre_vote=random.random() < 0.85,
        has_check_quorum=random.random() < 0.85,
    )


def _draw_limits(random: Random) -> LogLimits:
    soft = random.choice((512, 2048, 16 * 1024))
    return LogLimits(soft=soft, hard=2 * soft, growth=random.choice((512, 4096)))
