"""A real RabbitMQ for heavy tests: the machine's, or the one that ``bench/peers`` unpacks from the distribution's packages."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peers.base import START_SECONDS_MAX, Server, Unavailable, free_port, give_away
from peers.rabbitmq import Rabbitmq
from support.amqp import Connection

STOP_SECONDS = 60.0


@contextmanager
def reachable() -> Iterator[Path]:
    """Give a directory that a server without privileges can reach."""
    with tempfile.TemporaryDirectory(prefix="penstock-broker-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def obtain(request: pytest.FixtureRequest) -> Rabbitmq:
    """Return RabbitMQ; without --broker-check, or where there is none to be had, skip the test with the reason."""
    if not request.config.getoption("broker_check"):
        pytest.skip("BROKER CHECK NOT RUN: give --broker-check to start a real RabbitMQ")
    program = Rabbitmq()
    try:
        program.obtain()
    except Unavailable as reason:
        pytest.skip(f"BROKER CHECK NOT RUN: {reason}")
    return program


@contextmanager
def running(
    program: Rabbitmq, home: Path, directory: Path, *, node: str, vhost: str
) -> Iterator[int]:
    """Run a broker with a data directory under its node name; give the port that it listens at.

    ``home`` is for its other files; a server without privileges must be able to reach both.
    """
    for path in (home, directory, *directory.rglob("*")):
        give_away(path)
    server = Server(home / "broker.log", free_port())
    env = program.environment(home, names=free_port(), node="", port=server.port)
    env |= {"RABBITMQ_NODENAME": node, "RABBITMQ_MNESIA_DIR": os.fspath(directory)}
    try:
        program.launch_names(server, home, env)
        program.launch_one(server, home, env)
        _wait(server, vhost)
        yield server.port
        server.signal(signal.SIGTERM)
        for process in server.processes:
            process.wait(STOP_SECONDS)
    finally:
        server.kill()


def _wait(server: Server, vhost: str) -> None:
    """Return when a client can use the vhost."""
    end = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            Connection("127.0.0.1", server.port, vhost.encode()).close()
        except (OSError, AssertionError):
            is_dead = any(process.poll() is not None for process in server.processes)
            assert not is_dead, server.log.read_text(errors="replace")[-4000:]
            assert time.monotonic() < end, server.log.read_text(errors="replace")[-4000:]
            time.sleep(0.05)
        else:
            return
