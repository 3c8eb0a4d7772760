"""Processes of the command line that are forked from one that is ready: the start of a Python costs more than most tests.

They are processes like any other, with descriptors, signals, memory and exit codes of their own. What has to be the very
first thing that a Python does, or lowers a limit of the process, needs a real start (``subprocess``).
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from typing import Final

from support import fork_server
from support.fork_server import NUMBER, REQUEST_SIZE_MAX

COMMAND_LINE: Final = "from penstock.cli.main import main; main()"

SERVER_VARIABLE: Final = "FORK_SERVER"
"""Says to ``support.forked_command`` which of its descriptors is the socket for requests."""

_asking = Lock()


def server() -> socket.socket:
    """Return the socket for requests to the process that forks."""
    return _server()[0]


@cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the process that forks; it ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        started = subprocess.Popen(
            [sys.executable, fork_server.__file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(_end, ours, started)
    return ours, started


def _end(ours: socket.socket, started: subprocess.Popen[bytes]) -> None:
    ours.close()  # which it takes for the end of all requests
    started.wait()


class Forked:
    """A process that runs some Python, with the methods of ``subprocess.Popen`` that tests need."""

    def __init__(
        self,
        words: Sequence[str | bytes | os.PathLike[str]],
        *,
        code: str = COMMAND_LINE,
        cwd: Path | None = None,
        stdin: int,
        stdout: int,
        stderr: int,
        server: socket.socket | None = None,
    ) -> None:
        """Start it. ``words`` follow the name of the command; the descriptors stay the caller's."""
        request = {
            "code": code,
            "words": [os.fsdecode(word) for word in words],
            "environment": dict(os.environ),
            "directory": os.fspath(cwd or Path.cwd()),
        }
        self.words = words
        self._told, telling = os.pipe()
        self._code: int | None = None
        data = json.dumps(request).encode()
        assert len(data) < REQUEST_SIZE_MAX, "give it less to do, or start a Python"
        try:
            with _asking:
                socket.send_fds(server or _server()[0], [data], [stdin, stdout, stderr, telling])
        finally:
            os.close(telling)
        self.pid = self._next_number()

    def _next_number(self) -> int:
        told = os.read(self._told, NUMBER.size)
        assert len(told) == NUMBER.size, "the process that forks has ended"
        (number,) = NUMBER.unpack(told)
        return int(number)

    def poll(self) -> int | None:
        """Return its exit code if it has ended; negative for a signal."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit code. Raises ``subprocess.TimeoutExpired``."""
        code = self._ended(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired([os.fsdecode(word) for word in self.words], timeout)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self._code is None and select.select([self._told], [], [], timeout)[0]:
            self._code = self._next_number()
            os.close(self._told)
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    words: Sequence[str | bytes | os.PathLike[str]],
    *,
    code: str = COMMAND_LINE,
    given: bytes = b"",
    cwd: Path | None = None,
    timeout_s: float,
) -> tuple[int, bytes, bytes]:
    """Run a process with ``given`` on stdin to its end; return its exit code and what it wrote to stdout and stderr."""
    pipes = [os.pipe() for _ in range(3)]
    (stdin, typing), (reading, stdout), (hearing, stderr) = pipes
    try:
        process = Forked(words, code=code, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)
    finally:
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
    written: dict[int, bytes] = {}

    def read(descriptor: int) -> None:
        with open(descriptor, "rb") as file:
            written[descriptor] = file.read()

    def write() -> None:
        with suppress(BrokenPipeError), open(typing, "wb") as file:
            file.write(given)

    threads = [Thread(target=read, args=(each,)) for each in (reading, hearing)]
    threads.append(Thread(target=write))
    for thread in threads:
        thread.start()
    try:
        ended = process.wait(timeout_s)
    finally:
        process.kill()
        for thread in threads:
            thread.join()
    return ended, written[reading], written[hearing]
