"""A real broker, started on repaired directories: it must deliver every message (docs/testing.md)."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from penstock.formats.rabbitmq.metadata import scan_log
from support.amqp import Connection
from support.command import penstock
from support.rabbitmq_directories import unpacked

pytestmark = pytest.mark.heavy

START_SECONDS = 120.0
DAMAGED = (
    "c1_small_embedded_kill9_ack_race",
    "c3_large_store_limit1m_kill9",
    "c6_fanout_refcount_kill9",
    "c8_damage_crashed_merge",
    "c8_damage_store_marker_bad",
    "c8_damage_torn_segment",
    "c8_damage_torn_store_tail",
)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> str:
    """The program ``rabbitmq-server``; without it, or without --broker-check, the test is skipped with the reason."""
    if not request.config.getoption("broker_check"):
        pytest.skip("BROKER CHECK NOT RUN: give --broker-check to start a real RabbitMQ")
    found = shutil.which("rabbitmq-server") or shutil.which(
        "rabbitmq-server", path="/usr/sbin:/usr/lib/rabbitmq/bin"
    )
    if found is None:
        pytest.skip("BROKER CHECK NOT RUN: rabbitmq-server is not installed on this machine")
    return found


@contextmanager
def broker(server: str, directory: Path, home: Path) -> Iterator[int]:
    """Run a broker on a data directory; give the port that it listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    node = scan_log((directory / "LATEST.LOG").read_bytes()).node
    assert node is not None
    environment = os.environ | {
        "HOME": str(home),
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_MNESIA_DIR": str(directory),
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(port + 1 if port < 65_535 else port - 1),
        "RABBITMQ_LOG_BASE": str(home),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(home / "none"),
    }
    process = subprocess.Popen(
        [server],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        log = []
        for line in process.stdout:  # ends when the broker does
            log.append(line)
            if b"completed with" in line or b"Server startup complete" in line:
                break
        else:
            raise AssertionError(b"".join(log[-40:]).decode(errors="replace"))
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=START_SECONDS)


@pytest.mark.parametrize("name", DAMAGED)
def test_a_broker_delivers_every_message_of_a_repaired_node(
    server: str, tmp_path: Path, name: str
) -> None:
    source, out = unpacked(name, tmp_path / "damaged"), tmp_path / "repaired"
    penstock("repair", source, "--out", out)
    expected: dict[tuple[str, str], list[bytes]] = defaultdict(list)
    for row in penstock("tasks", out).rows:
        expected[row["vhost"], row["queue"]].append(b64decode(row["payload"]))
    assert expected
    home = tmp_path / "home"
    home.mkdir()
    with broker(server, out, home) as port:
        for (vhost, queue), bodies in expected.items():
            with closing(Connection("127.0.0.1", port, vhost.encode())) as connection:
                assert list(connection.drain(queue.encode())) == bodies, (vhost, queue)
