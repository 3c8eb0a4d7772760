"""The metrics port as a probe uses it: what it answers, and what callers cannot do to it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest

from penstock.server.exposition import CONNECTIONS_MAX, HEAD_BYTES_MAX
from support.group_processes import group_processes, wait_until
from support.node_process import NodeProcess, start

HANGING_DISK = """
import os, time
from pathlib import Path
from penstock.server import disk
from penstock.storage.files import OsFile
disk.INLINE_SECONDS_MAX = {inline}
def sync(self):
    while Path({flag!r}).exists():
        time.sleep(0.01)
    os.fdatasync(self._descriptor)
OsFile.sync = sync
"""
"""Ahead of a node: no sync ends while a file exists."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with start(tmp_path_factory.mktemp("health") / "node", "--metrics", "127.0.0.1:0") as running:
        yield running
        assert running.stop() == 0
        assert running.words == []


def place(node: NodeProcess) -> tuple[str, int]:
    host, _, port = str(node.wait_said("listening")["metrics"]).rpartition(":")
    return host, int(port)


def ask(node: NodeProcess, path: str, method: str = "GET") -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    connection = HTTPConnection(*place(node), timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_only_metrics_and_healthz_are_found(node: NodeProcess) -> None:
    assert ask(node, "/metrics")[0] == ask(node, "/metrics?name[]=x")[0] == 200
    assert ask(node, "/healthz") == (200, b"ok\n")
    for path in ("/", "/metric", "/metrics/", "/healthz/x", "/favicon.ico", "/readyz"):
        assert ask(node, path)[0] == 404, path
    for path in ("/metrics", "/healthz"):
        assert ask(node, path, "HEAD") == (200, b"")
        assert ask(node, path, "POST")[0] == ask(node, path, "DELETE")[0] == 405


@pytest.mark.parametrize(
    "request_",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics SPDY/3\r\n\r\n",
        b"\xff\x00 /metrics\r\n\r\n",
        b"x" * HEAD_BYTES_MAX + b"\r\n\r\n",
    ],
)
def test_what_is_no_request_is_answered_with_400(node: NodeProcess, request_: bytes) -> None:
    with socket.create_connection(place(node), timeout=30) as caller:
        caller.sendall(request_)
        assert caller.recv(12) == b"HTTP/1.1 400"


def test_callers_that_send_nothing_keep_no_probe_out(node: NodeProcess) -> None:
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(place(node), timeout=30))
            for _ in range(CONNECTIONS_MAX + 10)
        ]
        for caller in silent:
            caller.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert ask(node, "/healthz")[0] == 200
        assert silent[0].recv(1) == b""  # the oldest made room


@pytest.mark.parametrize("hanging", ["loop", "disk"])
def test_a_probe_of_a_node_that_hangs_fails_and_recovers_with_it(
    tmp_path: Path, hanging: str
) -> None:
    flag = tmp_path / "hanging"
    # A small job runs on the loop if its disk is quick enough, else in the thread.
    before = HANGING_DISK.format(flag=str(flag), inline=60 if hanging == "loop" else -1)
    with start(tmp_path / "node", "--metrics", "127.0.0.1:0", before=before) as node:
        assert ask(node, "/healthz")[0] == 200
        with node.client() as client:
            flag.touch()
            waiting = Thread(target=client.enqueue, args=("", b"task"))
            waiting.start()
            wait_until(lambda: ask(node, "/healthz")[0] == 503, "a probe that fails")
            assert ask(node, "/metrics")[0] == (503 if hanging == "loop" else 200)
            flag.unlink()
            waiting.join()
            wait_until(lambda: ask(node, "/healthz")[0] == 200, "a probe that succeeds")
            assert ask(node, "/metrics")[0] == 200
        assert node.stop() == 0


def test_every_member_of_a_group_is_healthy_not_only_the_leader(tmp_path: Path) -> None:
    with group_processes(tmp_path, 3, "--metrics", "127.0.0.1:0") as group:
        group.wait_led()
        assert {number: ask(node, "/healthz")[0] for number, node in group.nodes.items()} == {
            1: 200,
            2: 200,
            3: 200,
        }
        assert set(group.stop_all().values()) == {0}
