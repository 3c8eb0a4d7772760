"""Commands as a shell runs them, with ``penstock`` on the path and bytes on stdin."""

from __future__ import annotations

import atexit
import os
import shlex
import subprocess
import sys
from base64 import b64decode
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from support import forked_command, forking
from support.command import Outcome

BIN = Path(sys.executable).parent


def shell(line: str, *, cwd: Path | None = None) -> Outcome:
    """Run a line of shell, whose ``penstock`` is forked from one that is ready."""
    server = forking.server().fileno()
    environment = {
        **os.environ,
        "PATH": f"{_commands()}:{BIN}:{os.environ.get('PATH', '')}",
        forking.SERVER_VARIABLE: str(server),
    }
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=cwd,
        env=environment,
        pass_fds=[server],
        capture_output=True,
        timeout=600,
        check=False,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


@cache
def _commands() -> Path:
    """Return a directory with a ``penstock`` that is ``support.forked_command``."""
    made = TemporaryDirectory()
    atexit.register(made.cleanup)
    command = Path(made.name) / "penstock"
    words = shlex.join([sys.executable, "-IS", forked_command.__file__])
    command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    command.chmod(0o755)
    return command.parent


def payloads(outcome: Outcome) -> list[bytes]:
    """Return the payloads of the tasks that were printed."""
    return [b64decode(row["payload"]) for row in outcome.rows]


def read_terminal(descriptor: int) -> str:
    """Return all that was written to a terminal whose other end is closed."""
    parts: list[bytes] = []
    with suppress(OSError):  # which is how Linux says that the other end is gone
        while part := os.read(descriptor, 4096):
            parts.append(part)
    os.close(descriptor)
    return b"".join(parts).decode()
