"""``penstock stat --watch``: the same numbers again and again, with rates, for a person or a program."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Protocol, Self

from rich.box import SIMPLE
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.output import cell, emit, say
from penstock.cli.queues import counts_row, ready
from penstock.errors import ConnectionFailed, NotLeader
from penstock.protocol.version2 import NodeInfo, QueueStat

TREND_COUNT: Final = 20
"""Depths that a queue's trend is drawn from, one a sample."""

_BARS: Final = "▁▂▃▄▅▆▇█"
_FRAME_LINES: Final = 9  # of the view besides the rows of queues


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a node said at one moment."""

    at: float  # monotonic seconds
    node: NodeInfo
    queues: tuple[QueueStat, ...]

    @classmethod
    def take(cls, node: NodeInfo, queues: Iterable[QueueStat]) -> Self:
        return cls(at=time.monotonic(), node=node, queues=tuple(queues))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Tasks a second."""

    enqueued: float
    delivered: float
    acked: float


def rates(before: Sample | None, now: Sample) -> dict[str, Rates]:
    """Return what happened between two samples, for the queues of both whose counters did not begin anew."""
    if before is None or now.at <= before.at:
        return {}
    seconds = now.at - before.at
    old = {stat.name: stat for stat in before.queues}
    found: dict[str, Rates] = {}
    for stat in now.queues:
        past = old.get(stat.name)
        if past is None:
            continue
        steps = (
            stat.enqueued - past.enqueued,
            stat.delivered - past.delivered,
            stat.acked - past.acked,
        )
        if min(steps) >= 0:  # else the node or the queue is a new one
            enqueued, delivered, acked = (step / seconds for step in steps)
            found[stat.name] = Rates(enqueued=enqueued, delivered=delivered, acked=acked)
    return found


class Show(Protocol):
    """Where samples are shown."""

    def sample(self, now: Sample, found: dict[str, Rates]) -> None: ...

    def problem(self, words: str) -> None: ...


def watch(
    take: Callable[[], Sample],
    show: Show,
    *,
    interval: float,
    seconds: float | None,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Show samples until Ctrl-C, or for some seconds; return whether the last one came."""
    begun = time.monotonic()
    before: Sample | None = None
    is_well = True
    turn = 0
    try:
        while True:  # It ends by Ctrl-C, or when its time is over.
            try:
                now = take()
            except (ConnectionFailed, NotLeader) as error:
                is_well = False
                show.problem(str(error))
            else:
                is_well = True
                show.sample(now, rates(before, now))
                before = now
            turn += 1
            pause = begun + turn * interval - time.monotonic()
            if seconds is not None and begun + seconds - time.monotonic() < max(0.0, pause):
                return is_well
            sleep(max(0.0, pause))
    except KeyboardInterrupt:
        return is_well


class Rows:
    """For programs: a row for each queue and sample."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sample(self, now: Sample, found: dict[str, Rates]) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        for stat in now.queues:
            rate = found.get(stat.name)
            emit(
                {
                    "time": stamp,
                    **counts_row(stat),
                    "enqueued_per_second": None if rate is None else round(rate.enqueued, 1),
                    "delivered_per_second": None if rate is None else round(rate.delivered, 1),
                    "acked_per_second": None if rate is None else round(rate.acked, 1),
                }
            )
        sys.stdout.flush()

    def problem(self, words: str) -> None:
        say(words)


class Screen:
    """For people: a view that changes in place."""

    def __init__(self, address: str, console: Console | None = None) -> None:
        self._address = address
        self._console = console or Console(file=sys.stdout)
        self._live = Live(console=self._console, auto_refresh=False)
        self._trends: dict[str, deque[int]] = {}
        self._last: tuple[Sample, dict[str, Rates]] | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def sample(self, now: Sample, found: dict[str, Rates]) -> None:
        self._trends = {
            stat.name: self._trends.get(stat.name, deque(maxlen=TREND_COUNT)) for stat in now.queues
        }
        for stat in now.queues:
            self._trends[stat.name].append(stat.count)
        self._last = (now, found)
        self._live.update(self.view(), refresh=True)

    def problem(self, words: str) -> None:
        self._live.update(self.view(words), refresh=True)

    def view(self, problem: str | None = None) -> Group:
        """Return the whole view; what was seen last stays when the node does not answer."""
        parts: list[Text | Table] = []
        if self._last is not None:
            now, found = self._last
            room = max(1, self._console.height - _FRAME_LINES)
            parts = [_node_line(self._address, now.node), self._table(now, found, room)]
            if len(now.queues) > room:
                parts.append(Text(f"and {len(now.queues) - room} shorter queues", style="dim"))
        if problem is not None:
            parts.append(Text(f"no answer, trying again: {problem}", style="bold red"))
        parts.append(Text("Ctrl-C ends this", style="dim"))
        return Group(*parts)

    def _table(self, now: Sample, found: dict[str, Rates], room: int) -> Table:
        stats = now.queues
        if len(stats) > room:
            stats = tuple(sorted(stats, key=lambda stat: -stat.count)[:room])
        columns = _columns(self._console.width)
        total = _total(now.queues, found)
        table = Table(
            box=SIMPLE,
            show_footer=True,
            header_style="bold",
            footer_style="bold",
            collapse_padding=True,
            pad_edge=False,
        )
        table.add_column("queue", "all", overflow="fold", min_width=len(_DEFAULT))
        for name in columns:
            table.add_column(name, total[name], justify="right", no_wrap=True)
        has_trend = self._console.width >= _TREND_WIDTH
        if has_trend:
            table.add_column("trend", no_wrap=True)
        for stat in stats:
            cells = _cells(stat, found.get(stat.name))
            shown = Text(_DEFAULT, style="italic") if stat.name == "" else cell(stat.name)
            trend = Text(_trend(self._trends[stat.name]), style="cyan")
            table.add_row(shown, *(cells[name] for name in columns), *[trend] * has_trend)
        return table


_DEFAULT: Final = "(default)"
_TREND_WIDTH: Final = 100
_ALL_WIDTH: Final = 135
_RARE: Final = ("returned", "expired", "dead")
_RATES: Final = ("in/s", "out/s", "done/s")


def _columns(width: int) -> list[str]:
    """Return the numbers that fit: a narrow screen goes without those about failures."""
    rare = _RARE if width >= _ALL_WIDTH else ()
    return ["tasks", "ready", "leased", "delayed", *rare, *_RATES]


def _numbers(stat: QueueStat) -> dict[str, int]:
    return {
        "tasks": stat.count,
        "ready": ready(stat),
        "leased": stat.leased,
        "delayed": stat.delayed,
        "returned": stat.returned,
        "expired": stat.expired,
        "dead": stat.dead_lettered,
    }


def _cells(stat: QueueStat, rate: Rates | None) -> dict[str, Text]:
    speeds = (None,) * 3 if rate is None else (rate.enqueued, rate.delivered, rate.acked)
    return {name: _number(value) for name, value in _numbers(stat).items()} | dict(
        zip(_RATES, map(_rate, speeds), strict=True)
    )


def _total(stats: Iterable[QueueStat], found: dict[str, Rates]) -> dict[str, Text]:
    sums: Counter[str] = Counter()
    for stat in stats:
        sums.update(_numbers(stat))
    speeds: tuple[float | None, ...] = (None,) * 3
    if found:
        each = found.values()
        speeds = (
            sum(rate.enqueued for rate in each),
            sum(rate.delivered for rate in each),
            sum(rate.acked for rate in each),
        )
    names = ("tasks", "ready", "leased", "delayed", *_RARE)
    return {name: _number(sums[name]) for name in names} | dict(
        zip(_RATES, map(_rate, speeds), strict=True)
    )


def _number(value: int) -> Text:
    return Text(f"{value:,}", style="" if value else "dim")


def _rate(value: float | None) -> Text:
    return Text("–", style="dim") if value is None else Text(f"{value:,.0f}")


def _trend(depths: Iterable[int]) -> str:
    shown = list(depths)
    highest = max(shown, default=0) or 1
    return "".join(_BARS[depth * (len(_BARS) - 1) // highest] for depth in shown)


def _node_line(address: str, node: NodeInfo) -> Text:
    return Text.assemble(
        (f"penstock {node.version}", "bold"),
        f" at {address} · generation {node.generation} · term {node.term}"
        f" · committed index {node.committed:,}",
    )
