"""Tasks as a table for people: payloads as text. Programs read the JSON lines instead (docs/cli.md)."""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from penstock.cli.output import cell
from penstock.families.family import LEFT_OUT

ROWS_MAX: Final = 1000
"""Rows of one table: its columns are as wide as its rows need, so it is held in memory. More rows begin another table."""

WIDTH_MAX: Final = 32
"""Characters that a column keeps beside long payloads; a queue's name may have 255."""

_COLUMNS: Final = ("queue", "key", "id", "seq", "attempts", "payload")
"""Fields that are shown, of those that a family's rows have."""


def show_tasks(rows: Iterable[dict[str, Any]]) -> None:
    """Print rows of tasks."""
    console = Console(file=sys.stdout)
    # A row of a queue that was left out is no task; stderr reports such queues.
    coming = (row for row in rows if row.get("status") != LEFT_OUT)
    while some := list(islice(coming, ROWS_MAX)):
        names = [name for name in _COLUMNS if name in some[0]]
        cells = [[cell(_shown(name, row.get(name))) for name in names] for row in some]
        table = Table()
        room = console.width - 1
        for name, *column in zip(names, *cells, strict=True):
            if name == "payload":  # the last one gets the room that the others leave
                table.add_column(
                    name, no_wrap=True, overflow="ellipsis", max_width=max(8, room - 3)
                )
            else:
                width = min(WIDTH_MAX, max(len(name), *(one.cell_len for one in column)))
                table.add_column(name, justify="left" if name == "queue" else "right", width=width)
                room -= width + 3
        for row in cells:
            table.add_row(*row)
        console.print(table)


def _shown(name: str, value: Any) -> object:
    """Return a payload as text if it is UTF-8; else as base64, marked as such."""
    if name != "payload" or value is None:
        return value
    try:
        return b64decode(value).decode()
    except UnicodeDecodeError:
        return f"base64:{value}"
