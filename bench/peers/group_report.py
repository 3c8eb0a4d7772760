"""What a run of ``bench/cluster`` found, as tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from peers.group_lines import LINES, Cost
from peers.lines import Figure, Line
from peers.penstock import Penstock
from peers.penstock_group import PenstockGroup

BEGIN, END = "<!-- cluster:begin -->", "<!-- cluster:end -->"
OURS, ALONE = PenstockGroup.name, Penstock.name
FAILOVER_SECONDS_WANTED = 2.0
# A campaign of 20,000 seeds of a minute each is to take two and a half hours on two cores.
SIMULATED_HOURS_WANTED = 67.0
THOUSAND = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What the simulator did on one core."""

    seeds: int
    events: int
    seconds: float  # of this world
    simulated_seconds: float
    broken: int

    @property
    def events_per_second(self) -> float:
        return self.events / self.seconds

    @property
    def hours_per_hour(self) -> float:
        return self.simulated_seconds / self.seconds


@dataclass
class Found:
    """Figures of one run; the best of the repeats is kept."""

    versions: dict[str, str] = field(default_factory=dict)  # by system, in the order of the tables
    promises: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # why something was not measured
    figures: dict[tuple[str, str], Figure] = field(default_factory=dict)  # by line and system
    costs: dict[str, Cost] = field(default_factory=dict)
    failovers: dict[str, list[float]] = field(default_factory=dict)  # seconds
    simulated: Simulated | None = None

    def keep(self, line: Line, system: str, figure: Figure) -> None:
        before = self.figures.get((line.key, system))
        self.figures[line.key, system] = figure if before is None else line.better(before, figure)

    def keep_cost(self, system: str, cost: Cost) -> None:
        """Keep the cheapest: what disturbs a run makes it dearer."""
        before = self.costs.get(system)
        if before is None or _cpu_ms(cost) < _cpu_ms(before):
            self.costs[system] = cost

    def ratio(self, line: Line, system: str) -> float:
        """Return how many times better our group is than a system, 0 where it cannot be said."""
        ours, theirs = self.figures.get((line.key, OURS)), self.figures.get((line.key, system))
        if ours is None or theirs is None or not ours.value or not theirs.value:
            return 0.0
        return theirs.value / ours.value if line.less_is_better else ours.value / theirs.value


def _cpu_ms(cost: Cost) -> float:
    spent = cost.leader.cpu_seconds + sum(one.cpu_seconds for one in cost.followers)
    return spent * 1000 * THOUSAND / cost.tasks


def report(found: Found, head: list[str]) -> list[str]:
    """Return the section of docs/benchmarks.md, without its markers."""
    lines = ["## Three nodes: `bench/cluster --write`", "", *head, ""]
    if found.versions:
        lines += ["| system | version | durable by |", "|---|---|---|"]
    lines += [
        f"| {name} | {version} | {found.promises[name]} |"
        for name, version in found.versions.items()
    ]
    for line in LINES:
        lines += _line_table(found, line)
    lines += _cost_table(found) + _failover_table(found) + _simulator(found) + _goals(found)
    for name, reason in found.missing.items():
        lines += ["", f"Not measured: {name}, {reason}."]
    return lines


def _line_table(found: Found, line: Line) -> list[str]:
    rows = []
    for name in found.versions:
        figure = found.figures.get((line.key, name))
        if figure is None:
            continue
        cells = [f"{figure.value:,.0f}"] + (
            [f"{figure.second:,.0f}"] if line.less_is_better else []
        )
        ratio = found.ratio(line, name)
        cells.append(f"{ratio:.2f} ×" if ratio and name != OURS else "–")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    if not rows:
        return []
    names = ["p50 µs", "p99 µs"] if line.less_is_better else [line.unit]
    head = f"| system | {' | '.join(names)} | our three nodes are better by |"
    return ["", f"({line.key}) {line.title}:", "", head, _rule(len(names) + 1), *rows]


def _cost_table(found: Found) -> list[str]:
    if not found.costs:
        return []
    rows = []
    for name, cost in found.costs.items():
        tasks = cost.tasks / THOUSAND
        follower_cpu = sum(one.cpu_seconds for one in cost.followers) / max(1, len(cost.followers))
        cells = [
            f"{cost.tasks:,}",
            f"{cost.leader.cpu_seconds * 1000 / tasks:.2f}",
            f"{follower_cpu * 1000 / tasks:.2f}" if cost.followers else "–",
            f"{cost.leader.sent / tasks / 1000:,.1f}" if cost.followers else "–",
            f"{cost.leader.received / tasks / 1000:,.1f}" if cost.followers else "–",
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    head = (
        "| system | tasks | leader, ms of CPU | a follower, ms of CPU | leader to others, kB"
        " | others to leader, kB |"
    )
    title = "What 1,000 tasks of 100 bytes cost, in batches of 100 (bytes without headers of the network):"
    return ["", title, "", head, _rule(5), *rows]


def percentile(taken: list[float], hundredths: int) -> float:
    """Return a percentile: of 50 values the 99th is the largest."""
    ordered = sorted(taken)
    return ordered[min(len(ordered) - 1, len(ordered) * hundredths // 100)]


def _failover_table(found: Found) -> list[str]:
    if not found.failovers:
        return []
    rows = [
        f"| {name} | {len(taken)} | {percentile(taken, 50):.2f} | {percentile(taken, 99):.2f} | {min(taken):.2f} |"
        for name, taken in found.failovers.items()
    ]
    head = "| system | kills | p50, s | p99, s | fastest, s |"
    title = "The leader is killed (`kill -9`); from the kill to the first enqueue that another node answered:"
    return ["", title, "", head, _rule(4), *rows]


def _simulator(found: Found) -> list[str]:
    simulated = found.simulated
    if simulated is None:
        return []
    return [
        "",
        (
            f"The simulator, one core, {simulated.seeds} seeds: {simulated.events_per_second:,.0f} events/s,"
            f" {simulated.hours_per_hour:,.0f} simulated hours an hour; {simulated.broken} of the seeds broke something."
        ),
    ]


def _goals(found: Found) -> list[str]:
    rows = []
    for line in LINES:
        for name in found.versions:
            ratio = found.ratio(line, name)
            if ratio and name not in (OURS, ALONE):
                rows.append(
                    _goal(f"({line.key}) times {name}", "1 or more", f"{ratio:.2f}", ratio >= 1)
                )
    taken = found.failovers.get(OURS)
    if taken:
        slow = percentile(taken, 99)
        wanted = f"{FAILOVER_SECONDS_WANTED:g} or less"
        rows.append(
            _goal("failover p99, s", wanted, f"{slow:.2f}", slow <= FAILOVER_SECONDS_WANTED)
        )
    if found.simulated is not None:
        hours = found.simulated.hours_per_hour
        wanted = f"{SIMULATED_HOURS_WANTED:g} or more"
        met = hours >= SIMULATED_HOURS_WANTED
        rows.append(_goal("simulated hours an hour and core", wanted, f"{hours:,.0f}", met))
    return ["", "| goal | wanted | measured | |", "|---|---:|---:|---|", *rows] if rows else []


def _goal(what: str, wanted: str, measured: str, met: bool) -> str:
    return f"| {what} | {wanted} | {measured} | {'met' if met else 'missed'} |"


def _rule(numbers: int) -> str:
    return "|---|" + "---:|" * numbers


def write(page: Path, section: list[str]) -> None:
    """Put the section into the documentation; the rest of the page stays."""
    text = page.read_text()
    block = "\n".join([BEGIN, *section, END])
    if BEGIN in text and END in text:
        before, _, rest = text.partition(BEGIN)
        text = before + block + rest.partition(END)[2]
    else:
        text = f"{text.rstrip()}\n\n{block}\n"
    page.write_text(text)
