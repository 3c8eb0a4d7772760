"""The node as a process: how it starts, what it refuses, and what it says when it cannot."""

from __future__ import annotations

import socket
from collections.abc import Callable
from errno import EIO
from pathlib import Path
from typing import Any

import pytest

from penstock import open as open_node
from penstock.client.blocking import connect
from penstock.errors import LeaseLost
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import RECORD_MARKER, segment_name
from penstock.model import QueueName
from penstock.protocol import version2 as v2
from penstock.server import serve
from penstock.server.disk import Disk
from penstock.server.node import Node
from penstock.server.settings import Settings
from penstock.storage.files import OsFile, OsFiles
from support.at_rest import listed, tree
from support.command import penstock, refused
from support.damage import flipped, overwritten
from support.directories import EXPECTED, build
from support.node_process import NodeProcess, start

FIRST_SEGMENT = Path("data/log") / segment_name(0)


# --- flags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--listen 0.0.0.0:2700", "0.0.0.0 is reachable from other machines"),
        ("--listen 192.168.0.1:2700", "or add --allow-remote"),
        ("--listen [::]:2700", ":: is reachable from other machines"),
        ("--listen localhost:99999", "port that is not 1 to 65535"),
        ("--listen here,there", "--listen takes one address"),
        ("--metrics nothing:x", "port that is not 1 to 65535"),
        ("--generation 1", "--generation is 2 or 3"),
        ("--snapshot-bytes 5", "--snapshot-bytes is 1048576 or more"),
        ("--max-connections 0", "--max-connections must be a number above 0"),
        ("--max-queues -1", "--max-queues must be a number above 0"),
        ("--max-payload 16777217", "--max-payload is at most 16777216"),
        ("--max-frame 20971521", "--max-frame is 4096 to 20971520 bytes"),
        ("--max-frame 1", "--max-frame is 4096 to 20971520 bytes"),
        ("--idle-timeout nan", "--idle-timeout must be a number above 0"),
        ("--stall-timeout inf", "--stall-timeout must be a number above 0"),
        ("--max-queues many", "valid integer"),
        ("--unheard-of", "No such option"),
    ],
)
def test_wrong_usage_exits_2_says_why_and_leaves_no_directory(
    tmp_path: Path, flags: str, words: str
) -> None:
    outcome = penstock("serve", "--data", tmp_path / "node", *flags.split())
    assert outcome.code == 2
    assert words in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "node").exists()


def test_a_node_without_a_directory_is_wrong_usage() -> None:
    outcome = penstock("serve")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--data" in outcome.err


def test_an_address_that_others_can_reach_is_taken_when_that_is_said(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node", "--allow-remote", listen="0.0.0.0:0") as node:
        assert node.wait_said("listening")["address"] == f"0.0.0.0:{node.port}"
        with connect(f"127.0.0.1:{node.port}") as client:
            client.ping()


def test_a_node_listens_on_ipv6_too(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    with NodeProcess(tmp_path / "node", listen="[::1]:0") as node, node.client() as client:
        client.ping()


def test_an_address_that_is_taken_is_said_before_the_directory_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = refused("serve", "--data", tmp_path / "node", "--listen", address)
        assert words.startswith(f"penstock: cannot listen on {address}: ")
        assert not (tmp_path / "node").exists()
        flags = ("--listen", "127.0.0.1:0", "--metrics", address)
        words = refused("serve", "--data", tmp_path / "node", *flags)
        assert words.startswith(f"penstock: cannot serve metrics on {address}: ")


def test_two_nodes_that_bind_one_address_at_a_time_do_not_both_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may bind while neither listens; uvloop does not say that the second to listen has failed."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{other.getsockname()[1]}"

        def make(settings: Settings, disk: Disk, **given: Any) -> Node:
            other.listen()  # while we recover
            return Node(settings, disk, **given)

        monkeypatch.setattr(serve, "Node", make)
        words = refused("serve", "--data", tmp_path / "node", "--listen", address)
        assert words.startswith(f"penstock: cannot listen on {address}: ")


# --- the directory -------------------------------------------------------------------------------


def test_a_second_node_on_a_directory_exits_1_and_the_first_goes_on(tmp_path: Path) -> None:
    with start(tmp_path / "node") as node, node.client() as client:
        client.enqueue("", b"task")
        words = refused("serve", "--data", tmp_path / "node", "--listen", "127.0.0.1:0")
        assert "another process" in words
        client.enqueue("", b"more")
        assert client.stat("").count == 2


def test_a_file_in_place_of_the_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        refused("serve", "--data", path, "--listen", "127.0.0.1:0")
    assert (tmp_path / "file").read_text() == "not a directory"


@pytest.mark.parametrize("generation", [Generation.TWO, Generation.THREE])
def test_a_damaged_directory_is_refused_with_the_place_and_nothing_is_changed(
    tmp_path: Path, generation: Generation
) -> None:
    root = build(tmp_path / "node", generation)
    log = root / (FIRST_SEGMENT if generation is Generation.THREE else "consensus/log.raft")
    data = log.read_bytes()
    log.write_bytes(flipped(data, 8 * data.index(b"second")))
    before = tree(root)
    words = refused("serve", "--data", root, "--listen", "127.0.0.1:0")
    assert words.startswith(f"penstock: {log}, offset ")
    assert "expected" in words
    assert "found" in words
    after = tree(root)
    after.pop("penstock.lock", None)
    before.pop("penstock.lock", None)
    assert after == before


def test_a_torn_tail_is_cut_and_said(tmp_path: Path) -> None:
    root = tmp_path / "node"
    with start(root) as node, node.client() as client:
        client.enqueue("", b"the last")
        node.kill()
    log = root / FIRST_SEGMENT
    data = log.read_bytes()
    end = data.index(b"the last") + len(b"the last")
    log.write_bytes(overwritten(data, end, RECORD_MARKER + b"\x00\x00\x00\x00\x00\x00\x00\x09"))
    with start(root) as node:
        (cut,) = node.said("cut")
        assert str(log) in cut["text"]
        assert node.wait_said("listening")["tasks"] == 1
        with node.client() as client:
            client.enqueue("", b"behind the cut", key=1)
        node.kill()
    assert listed(root) == [("", 0, b"the last"), ("", 1, b"behind the cut")]
    with start(root) as node:
        assert node.said("cut") == []


@pytest.mark.parametrize("name", ["tflux.metadata", "tflux.snapshot", "0000000000000000003.log"])
def test_a_disk_that_cannot_be_read_is_one_line_and_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    root = build(tmp_path / "node", Generation.THREE, snapshot_after=2)
    monkeypatch.setattr(OsFiles, "open", opening_sick(OsFiles.open, name))
    words = refused("serve", "--data", root, "--listen", "127.0.0.1:0")
    assert "Input/output error" in words


def opening_sick(opened: Callable[..., OsFile], name: str) -> Callable[..., OsFile]:
    """Return an open whose file of this name cannot be read."""

    class SickFile(OsFile):
        def read(self, *_: Any, **__: Any) -> bytes:
            raise OSError(EIO, "Input/output error")

    def open_(files: OsFiles, path: Path, **given: bool) -> OsFile:
        file = opened(files, path, **given)
        return SickFile(file._descriptor) if path.name == name else file

    return open_


# --- restarts ------------------------------------------------------------------------------------


def test_a_token_from_before_a_restart_is_lost_and_the_task_is_delivered_again(
    tmp_path: Path,
) -> None:
    with start(tmp_path / "node") as node, node.client() as client:
        client.enqueue("", b"task")
        (old,) = client.dequeue_many("", 1)
        node.kill()
    with start(tmp_path / "node") as node, node.wire2() as wire, node.client() as client:
        assert wire.ask(v2.Ack((old.token,)), v2.Settled).lost == (old.token,)
        (new,) = client.dequeue_many("", 1)
        assert (new.id, new.payload) == (old.id, b"task")
        assert new.token != old.token
        assert wire.ask(v2.Extend((old.token,), 1000), v2.Settled).lost == (old.token,)
        client.ack(new)
        with pytest.raises(LeaseLost):
            client.ack(new)
        assert client.stat("").count == 0


def test_a_node_serves_generation_2_in_place_and_the_tools_read_it(tmp_path: Path) -> None:
    root = tmp_path / "node"
    with start(root, "--generation", 2) as node, node.client() as client:
        client.create_queue("orders", keys=(-10, 10))
        client.enqueue_many("orders", [b"a", b"b", b"b", b"c"], keys=[5, 1, 1, -3])
        with client.dequeue("orders") as delivery:
            assert delivery is not None
            assert delivery.payload == b"c"
        assert node.stop() == 0
    assert (root / "consensus" / "log.raft").exists()
    assert not (root / "data").exists()
    rows = penstock("tasks", root).rows
    assert [(row["queue"], row["key"]) for row in rows] == [("orders", 1)] * 2 + [("orders", 5)]
    with start(root) as node, node.wire2() as wire:  # an old directory keeps its own generation
        assert node.wait_said("listening")["generation"] == 2
        assert wire.ask(v2.Node(), v2.NodeInfo).generation == 2
        delivered = wire.ask(v2.Dequeue(QueueName("orders"), 10), v2.Delivered)
        assert list(delivered.payloads) == [b"b", b"b", b"a"]
        assert list(delivered.ids) == [2, 3, 1]


def test_what_taskflux_wrote_is_served(tmp_path: Path) -> None:
    for generation in (Generation.TWO, Generation.THREE):
        root = build(tmp_path / generation.name, generation, snapshot_after=4)
        with open_node(root) as client:
            found = [
                (stat.name, task.key, task.payload)
                for stat in client.queues()
                for task in client.peek(stat.name, 100)
            ]
            assert sorted(found) == sorted(EXPECTED)
            assert client.stat("orders").policy.size_max == 100
