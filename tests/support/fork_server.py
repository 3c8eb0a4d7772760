"""A Python that has imported the command line already, and forks for every command that it is asked to run.

Run as a script by ``support.forking``, with the number of the socket that the requests come on. Each is one message: JSON,
and the descriptors of stdin, stdout, stderr and of a pipe that is told the process's id, and its exit code when it has ended.
The child runs at the top level of this script, so that it ends as every Python ends. This process must never start a
thread, nor import more than a node does.
"""

from __future__ import annotations

import gc
import io
import json
import os
import select
import socket
import struct
import sys
from contextlib import redirect_stdout, suppress
from functools import cache
from typing import Any, Final

NUMBER: Final = struct.Struct("<q")
REQUEST_SIZE_MAX: Final = 100_000
"""Larger requests are not sent: a message of the socket has to be sent in one piece."""


def wait_forked(control: socket.socket) -> dict[str, Any] | None:
    """Fork for every request. Return it in the child, with its descriptors in place; ``None`` when nobody asks any more."""
    running: dict[int, tuple[int, int]] = {}  # by descriptor of a child: its id, and whom to tell
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != control.fileno():
                poll.unregister(ready)
                _tell_end(ready, *running.pop(ready))
                continue
            data, given, _, _ = socket.recv_fds(control, REQUEST_SIZE_MAX, 4)
            if not data:
                return None
            child = os.fork()
            if child == 0:
                control.detach()
                _take(given[:3])
                request: dict[str, Any] = json.loads(data)
                return request
            for descriptor in given[:3]:
                os.close(descriptor)
            os.write(given[3], NUMBER.pack(child))
            watched = os.pidfd_open(child)
            running[watched] = (child, given[3])
            poll.register(watched, select.POLLIN)


def _tell_end(watched: int, child: int, told: int) -> None:
    _, status = os.waitpid(child, 0)
    os.close(watched)
    with suppress(BrokenPipeError):  # whoever asked does not want to know
        os.write(told, NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os.close(told)


def _take(descriptors: list[int]) -> None:
    """Make these stdin, stdout and stderr, and close all others."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with suppress(OSError):  # the listing's own
                os.close(int(name))
    # As Python makes them at its start for what is no terminal.
    sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False))
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False))
    sys.stderr = io.TextIOWrapper(
        os.fdopen(2, "wb", closefd=False), errors="backslashreplace", line_buffering=True
    )


if __name__ == "__main__":
    import typer.main

    import penstock.server.serve  # noqa: F401 - what a node needs beyond the other commands
    from penstock.cli.main import app

    # Typer makes all commands anew in every process, which takes longer than most of them.
    typer.main.get_command = cache(typer.main.get_command)
    with suppress(SystemExit), redirect_stdout(io.StringIO()):
        app(["node", "--help"])  # and imports more when the first of them is called
    gc.freeze()
    request = wait_forked(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        sys.argv = ["penstock", *request["words"]]
        sys.path[0] = ""
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["directory"])
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
