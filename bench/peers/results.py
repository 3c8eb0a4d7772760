"""What a run measured: the figures by line, payload size and system, and what they say together."""

from __future__ import annotations

from dataclasses import dataclass, field

from peers.lines import LINES, Figure, Line
from peers.million import Load
from peers.yardsticks import ECHO, PREALLOCATED

OURS = "Penstock"
# A line whose calmest run met syncs this many times slower than the calmest of all was disturbed.
CALM_TIMES_MAX = 1.6
# It promises less, so it is not among the peers of which the best is sought; it has a row of its own.
WEAKER = "Redis list, at most once"
# No peer: it holds no queue.
BARE = "Bare server"


@dataclass
class Results:
    """Figures of one run; the best of the repeats is kept."""

    versions: dict[str, str] = field(default_factory=dict)  # by system, in the order of the tables
    missing: dict[str, str] = field(default_factory=dict)  # why a system was not measured
    figures: dict[tuple[str, int, str], Figure] = field(default_factory=dict)
    yardsticks: dict[tuple[int, str], Figure] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    # p50 in µs of a bare sync just before each run of a line: how busy the machine was with other work.
    syncs: dict[str, list[float]] = field(default_factory=dict)

    @property
    def systems(self) -> list[str]:
        return list(self.versions)

    def keep(self, line: Line, size: int, system: str, figure: Figure) -> None:
        key = (line.key, size, system)
        before = self.figures.get(key)
        self.figures[key] = figure if before is None else line.better(before, figure)

    def keep_yardstick(self, size: int, name: str, figure: Figure) -> None:
        before = self.yardsticks.get((size, name))
        if before is None or figure.value < before.value:
            self.yardsticks[size, name] = figure

    def value(self, line: Line, size: int, system: str) -> float:
        """Return a figure, 0 where there is none."""
        figure = self.figures.get((line.key, size, system))
        return figure.value if figure else 0.0

    def ratio(self, line: Line, size: int, system: str) -> float:
        """Return how many times better we are, 0 where it cannot be said."""
        ours, theirs = self.value(line, size, OURS), self.value(line, size, system)
        if not ours or not theirs:
            return 0.0
        return theirs / ours if line.less_is_better else ours / theirs

    def disturbance(self) -> str:
        """Say how steady the machine was, so that a reader can tell a slow system from a busy machine."""
        calmest = min((min(taken) for taken in self.syncs.values()), default=0.0)
        busy = [key for key, taken in self.syncs.items() if min(taken) > calmest * CALM_TIMES_MAX]
        spans = [f"({key}) {min(taken):.0f}–{max(taken):.0f}" for key, taken in self.syncs.items()]
        words = f"A bare sync before the runs of each line, p50 in µs: {', '.join(spans)}."
        if busy:
            words += f" The machine was never calm for {', '.join(f'({key})' for key in busy)}: measure again."
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    what: str
    wanted: str
    measured: str
    met: bool


def goals(results: Results, size: int) -> list[Goal]:
    """Return the goals with what was measured; those that could not be measured are left out."""
    a, b, c, d, e, _ = LINES
    found: list[Goal | None] = [
        _latency(results, a, size),
        _times(results, b, size, "Redis list", 2.5),
        _times(results, b, size, "beanstalkd", 50),
        _times(results, c, size, _best_peer(results, c, size), 1.5),
        _times(results, d, size, "PostgreSQL", 3),
        _times(results, e, size, _best_peer(results, e, size), 2),
        _times(results, e, size, WEAKER, 2),
        *(_times(results, line, size, "RabbitMQ", 1) for line in LINES),
    ]
    load = results.loads.get(OURS)
    if load and load.count >= 10**6:  # Less says nothing of a million.
        found += _full(load)
    return [goal for goal in found if goal is not None]


def _full(load: Load) -> list[Goal]:
    memory, seconds = load.memory_per_million / 1e6, load.restart_seconds
    return [
        Goal(
            what="memory with a million tasks, MB",
            wanted="200 or less",
            measured=f"{memory:,.0f}",
            met=memory <= 200,
        ),
        Goal(
            what="restart with a million tasks, s",
            wanted="4 or less",
            measured=f"{seconds:.2f}",
            met=seconds <= 4,
        ),
    ]


def _latency(results: Results, line: Line, size: int) -> Goal | None:
    echo, bare = results.yardsticks.get((size, ECHO)), results.yardsticks.get((size, PREALLOCATED))
    ours = results.value(line, size, OURS)
    if not ours or echo is None or bare is None:
        return None
    times = ours / (echo.value + bare.value)
    return Goal(
        what="(a) p50, times echo + bare preallocated sync",
        wanted="1.5 or less",
        measured=f"{times:.2f}",
        met=times <= 1.5,
    )


def _times(results: Results, line: Line, size: int, peer: str, wanted: float) -> Goal | None:
    ratio = results.ratio(line, size, peer)
    if not ratio:
        return None
    return Goal(
        what=f"({line.key}) times {peer}",
        wanted=f"{wanted:g} or more",
        measured=f"{ratio:.2f}",
        met=ratio >= wanted,
    )


def _best_peer(results: Results, line: Line, size: int) -> str:
    peers = [name for name in results.systems if name not in (OURS, WEAKER, BARE)]
    return max(peers, key=lambda name: results.value(line, size, name), default="")
