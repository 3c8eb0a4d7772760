"""The ``penstock`` command, called in this process or in one of its own."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from penstock.cli.main import main
from support import forking

COMMAND = [sys.executable, "-m", "penstock.cli.main"]

# Typer makes all commands anew at every call, which takes longer than most of them.
typer.main.get_command = cache(typer.main.get_command)


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return stdout as the JSON lines that it must be."""
        assert self.out == "" or self.out.endswith("\n")
        return [json.loads(line) for line in self.out.split("\n")[:-1]]

    @property
    def words(self) -> list[str]:
        """Return the lines that were said."""
        return self.err.splitlines()


def penstock(*words: str | Path) -> Outcome:
    """Run the command in this process."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), io.StringIO()
    handler = signal.getsignal(signal.SIGPIPE)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["penstock", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        finally:
            signal.signal(signal.SIGPIPE, handler)
    out.seek(0)
    return Outcome(code, out.read(), err.getvalue())


def refused(*words: str | Path) -> str:
    """Run a command in this process that must refuse: exit 1 and one line, which is returned.

    A node that starts instead would serve for ever; the alarm makes a loud end of that.
    """
    signal.alarm(60)
    try:
        outcome = penstock(*words)
    finally:
        signal.alarm(0)
    assert (outcome.code, outcome.out) == (1, ""), outcome
    (line,) = outcome.words
    assert line.startswith("penstock: "), line
    return line


def process(*words: str | bytes | Path, cwd: Path | None = None, timeout_s: float = 60) -> Outcome:
    """Run the command in a process of its own."""
    return fed(b"", *words, cwd=cwd, timeout_s=timeout_s)


def fed(
    data: bytes, *words: str | bytes | Path, cwd: Path | None = None, timeout_s: float = 600
) -> Outcome:
    """Run the command in a process of its own, with these bytes on stdin."""
    code, out, err = forking.run(words, given=data, cwd=cwd, timeout_s=timeout_s)
    return Outcome(code, out.decode(), err.decode())


def run(
    command: Sequence[str | bytes | Path], *, cwd: Path | None = None, timeout_s: float = 60
) -> Outcome:
    done = subprocess.run(command, cwd=cwd, capture_output=True, timeout=timeout_s, check=False)
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())
