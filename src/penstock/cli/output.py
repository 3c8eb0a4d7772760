"""How the command line speaks: data on stdout as JSON lines, words on stderr, progress when it lasts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

PATIENCE_S: Final = 1.0
"""Work that takes longer than this shows a bar."""

BATCH_SIZE: Final = 2**16
"""Bytes of rows that are written at once: a pipe takes no more, and more would only be held in memory."""


# Made once: json.dumps makes an encoder per call when it is given separators.
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Exit(IntEnum):
    """What the process says to its parent."""

    OK = 0
    DAMAGE = 1  # damage found, or the operation refused
    USAGE = 2


def say(words: str) -> None:
    """Tell people something, on one line."""
    sys.stderr.write(f"penstock: {printable(words)}\n")


def printable(words: str) -> str:
    """Return ``words`` with everything escaped that would move the cursor: paths may hold any byte."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in words)


def emit(row: dict[str, Any]) -> None:
    """Write one row for programs."""
    emit_rows((row,))


def emit_rows(rows: Iterable[dict[str, Any]]) -> None:
    """Write rows for programs: a JSON object per line, in UTF-8 whatever the locale is.

    On a terminal each row is shown at once and in ASCII, for text may hold characters that move the cursor. Elsewhere the
    caller flushes stdout, or the end of the command does.
    """
    if sys.stdout.isatty():
        for row in rows:
            _write(_ascii_line(row))
            sys.stdout.flush()
        return
    import orjson  # here, because commands without rows do not need it

    dumps, option, refused = orjson.dumps, orjson.OPT_APPEND_NEWLINE, orjson.JSONEncodeError
    lines: list[bytes] = []
    size = 0
    try:
        for row in rows:
            try:
                line = dumps(row, None, option)
            except refused:
                line = _ascii_line(row)
            lines.append(line)
            size += len(line)
            if size >= BATCH_SIZE:
                _write(b"".join(lines))
                lines, size = [], 0
    finally:  # rows before an error are written too
        _write(b"".join(lines))


def _ascii_line(row: dict[str, Any]) -> bytes:
    """Return a row as JSON in ASCII, by the standard library.

    orjson refuses text that is not UTF-8, such as a path, and integers beyond 64 bits. Here a byte of a path that is not
    UTF-8 becomes an escape of its own, from ``\\udc80`` to ``\\udcff``, which no text contains: two paths never look
    alike, and Python's ``os.fsencode`` returns the bytes.
    """
    return _encode(row).encode("ascii") + b"\n"


def _write(data: bytes) -> None:
    """Write all bytes to stdout. If Python does not buffer stdout, one call may write only some of them."""
    left = memoryview(data)
    while left:
        left = left[sys.stdout.buffer.write(left) :]


_OF_BYTES: Final = (
    TextColumn("{task.description}"),
    BarColumn(),
    DownloadColumn(),
    TimeRemainingColumn(),
)
_OF_COUNTS: Final = (
    SpinnerColumn(),
    TextColumn("{task.completed:,.0f} {task.description}, {task.fields[rate]:,.0f} a second"),
    TimeElapsedColumn(),
)


class Bar:
    """Shows bytes done, or a count of unknown total, once the work has lasted a second and somebody can see it."""

    def __init__(self, total: int | None, words: str) -> None:
        self._total = total
        self._words = words
        self._done = 0
        self._start = time.monotonic()
        self._progress: Progress | None = None
        self._is_seen = sys.stderr.isatty()

    def advance(self, size: int) -> None:
        self._done += size
        lasted = time.monotonic() - self._start if self._is_seen else 0.0
        if lasted < PATIENCE_S:
            return
        if self._progress is None:
            self._progress = Progress(
                *(_OF_COUNTS if self._total is None else _OF_BYTES),
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,  # else rows would go where the bar is drawn
                redirect_stderr=False,
            )
            self._progress.add_task(self._words, total=self._total, rate=0.0)
            self._progress.start()
        done = self._done if self._total is None else min(self._done, self._total)
        self._progress.update(self._progress.task_ids[0], completed=done, rate=done / lasted)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


@contextmanager
def bar(total: int | None, words: str) -> Iterator[Bar]:
    """Show a bar while the block runs."""
    shown = Bar(total, words)
    try:
        yield shown
    finally:
        shown.stop()


def show_table(title: str, row: dict[str, Any], damage: list[dict[str, Any]]) -> None:
    """Show what ``inspect`` found to a person."""
    console = Console(file=sys.stdout)
    table = Table(title=cell(title), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in row.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {text}" for key, text in value.items())
        table.add_row(name.replace("_", " "), "–" if value is None else cell(f"{value}"))
    console.print(table)
    if not damage:
        console.print("no damage", style="green")
        return
    found = Table(title="damage", title_justify="left", title_style="red")
    columns = ("status", "path", "offset", "size", "reason")
    for name in columns:
        found.add_column(name, overflow="fold")
    for piece in damage:
        found.add_row(*(cell(piece.get(name)) for name in columns))
    console.print(found)


def cell(value: object) -> Text:
    """Return a value as it is, for rich reads square brackets in a string as commands."""
    return Text("" if value is None else printable(str(value)))
