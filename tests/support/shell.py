"""Commands as a shell runs them, with ``penstock`` on the path and bytes on stdin."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64decode
from contextlib import suppress
from pathlib import Path

from support.command import Outcome

BIN = Path(sys.executable).parent


def shell(line: str, *, cwd: Path | None = None) -> Outcome:
    """Run a line of shell."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ.get('PATH', '')}"}
    done = subprocess.run(
        ["sh", "-c", line], cwd=cwd, env=environment, capture_output=True, timeout=600, check=False
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


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
