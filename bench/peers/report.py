"""The run in words and tables, for the terminal and for docs/benchmarks.md."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from peers.base import Peer
from peers.lines import LINES, Line
from peers.plot import draw
from peers.results import OURS, Results, goals

BEGIN, END = "<!-- node:begin -->", "<!-- node:end -->"
PICTURE = "images/node.svg"
WIDTH_MIN = 120  # columns; in fewer the names of the systems are cut

Rows = list[list[str]]


def line_table(results: Results, line: Line, sizes: list[int]) -> tuple[list[str], Rows]:
    """Return the head and the rows of one line's table."""
    head = ["system"]
    for size in sizes:
        names = ["p50 µs", "p99 µs"] if line.less_is_better else [line.unit]
        names += ["of it removals"] if line.key == "f" else []
        head += [f"{name}, {size} B" for name in names] + ["ours is better by"]
    rows = []
    if line.less_is_better:
        names_ = dict.fromkeys(name for _, name in results.yardsticks)
        rows += [_yardstick_row(results, name, sizes) for name in names_]
    rows += [_system_row(results, line, name, sizes) for name in results.systems]
    return head, [row for row in rows if any(cell != "–" for cell in row[1:])]


def _yardstick_row(results: Results, name: str, sizes: list[int]) -> list[str]:
    row = [f"*{name}*"]
    for size in sizes:
        figure = results.yardsticks.get((size, name))
        row += ["–", "–", "–"] if figure is None else [_big(figure.value), _big(figure.second), "–"]
    return row


def _system_row(results: Results, line: Line, name: str, sizes: list[int]) -> list[str]:
    row = [name]
    for size in sizes:
        figure = results.figures.get((line.key, size, name))
        row.append("–" if figure is None else _big(figure.value))
        if line.key in "af":
            row.append("–" if figure is None else _big(figure.second))
        ratio = results.ratio(line, size, name)
        row.append(f"{ratio:.2f} ×" if ratio and name != OURS else "–")
    return row


def load_table(results: Results) -> tuple[list[str], Rows]:
    head = ["system", "tasks", "MB empty", "MB full", "disk bytes a task", "restart, s"]
    rows = [
        [
            name,
            f"{load.count:,}",
            f"{load.memory_empty / 1e6:,.0f}",
            f"{load.memory / 1e6:,.0f}",
            f"{load.disk / load.count:,.0f}",
            f"{load.restart_seconds:.2f}",
        ]
        for name, load in results.loads.items()
    ]
    return head, rows


def goal_table(results: Results, size: int) -> tuple[list[str], Rows]:
    head = ["goal", "wanted", "measured", ""]
    rows = [
        [goal.what, goal.wanted, goal.measured, "met" if goal.met else "missed"]
        for goal in goals(results, size)
    ]
    return head, rows


def show(results: Results, sizes: list[int]) -> None:
    """Print every table."""
    for line in LINES:
        _print(f"({line.key}) {line.title}", *line_table(results, line, sizes))
    _print(
        "A full queue, 100-byte tasks; restart after a kill, to the first task",
        *load_table(results),
    )
    _print(f"Goals, {sizes[0]} B", *goal_table(results, sizes[0]))
    if results.syncs:
        Console().print(results.disturbance(), highlight=False)
    for name, reason in results.missing.items():
        Console().print(f"not measured: {name}: {reason}", highlight=False)


def markdown(results: Results, sizes: list[int], peers: list[Peer], head: list[str]) -> list[str]:
    """Return the section of docs/benchmarks.md, without its markers."""
    lines = ["## The node and its peers: `bench/node --write`", "", *head, ""]
    lines += ["| system | version | durable by |", "|---|---|---|"]
    lines += [
        f"| {peer.name} | {results.versions[peer.name]} | {peer.promise} |"
        for peer in peers
        if peer.name in results.versions
    ]
    lines += ["", f"![the lines below at {sizes[0]} bytes]({PICTURE})"]
    for line in LINES:
        lines += ["", f"({line.key}) {line.title}:", "", *_lines(*line_table(results, line, sizes))]
    if results.loads:
        lines += ["", "A full queue of 100-byte tasks; restart from a kill to the first task:", ""]
        lines += _lines(*load_table(results))
    if goals(results, sizes[0]):
        lines += ["", f"At {sizes[0]} bytes:", "", *_lines(*goal_table(results, sizes[0]))]
    if results.syncs:
        lines += ["", results.disturbance()]
    for name, reason in results.missing.items():
        lines += ["", f"Not measured: {name}, {reason}."]
    return lines


def write(results: Results, sizes: list[int], page: Path, section: list[str]) -> None:
    """Put the section and the picture into the documentation; the rest of the page stays."""
    text = page.read_text()
    block = "\n".join([BEGIN, *section, END])
    if BEGIN in text and END in text:
        before, _, rest = text.partition(BEGIN)
        text = before + block + rest.partition(END)[2]
    else:
        text = f"{text.rstrip()}\n\n{block}\n"
    page.write_text(text)
    picture = page.parent / PICTURE
    picture.parent.mkdir(exist_ok=True)
    picture.write_text(draw(results, sizes[0]))


def _big(number: float) -> str:
    return f"{number:,.0f}"


def _print(title: str, head: list[str], rows: Rows) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(cell.strip("*") for cell in row))
    console = Console()
    console.width = max(console.width, WIDTH_MIN)
    console.print(table)


def _lines(head: list[str], rows: Rows) -> list[str]:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [
        f"| {' | '.join(row)} |" if row is not rule else f"|{'|'.join(row)}|"
        for row in (head, rule, *rows)
    ]
