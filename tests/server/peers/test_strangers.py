"""A sender that reaches the peer port of real nodes and is no member changes nothing in their cluster."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Final

import pytest

from penstock.binary import CHECKSUM_START, checksum_of_one
from penstock.protocol import version2 as v2
from penstock.protocol.peers import Packet, encode_packet
from penstock.protocol.peers import packets as p
from support.command import penstock as command
from support.group_processes import GroupProcesses, group_processes, incarnation_of

LAST_TERM: Final = 2**63 - 1
STRANGE: Final = 77  # a number that no member has
CLOSE_SECONDS: Final = 2.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[GroupProcesses]:
    with group_processes(tmp_path) as group:
        yield group


def announcement(number: int) -> bytes:
    payload = pack(">i", number)
    return b"C" + payload + pack(">I", checksum_of_one(payload) ^ CHECKSUM_START)


HELLO: Final = encode_packet(p.Hello(incarnation="", knows="", client_address=""))


def old_greeting(number: int) -> bytes:
    """Return how an opener began before links had to be proven."""
    return announcement(number) + HELLO


def greeting(number: int) -> bytes:
    """Return how an opener begins that has no nonce of the node, and guesses one."""
    connect, proof = p.Connect(node=number, nonce=bytes(16)), p.Proof(nonce=bytes(16))
    return encode_packet(connect) + encode_packet(proof)


def say(group: GroupProcesses, to: int, number: int, *packets: Packet) -> None:
    """Speak as ``number`` to a node in every way, and wait until it has closed the links."""
    for begin in (old_greeting(number), greeting(number), greeting(number) + HELLO, b""):
        answered(group, to, begin + b"".join(map(encode_packet, packets)))


def answered(group: GroupProcesses, to: int, data: bytes) -> bytes:
    """Send bytes to a node's peer port; return all that comes back until it closes the link."""
    host, port = group.peer_address(to).rsplit(":", 1)
    found = b""
    with (
        socket.create_connection((host, int(port)), CLOSE_SECONDS) as link,
        contextlib.suppress(TimeoutError, ConnectionError),
    ):
        link.sendall(data)
        while more := link.recv(2**16):
            found += more
    return found


class Standing:
    """Term and leader of a cluster, which a stranger must not change."""

    def __init__(self, group: GroupProcesses) -> None:
        self._group = group
        with group.client() as client:
            client.enqueue("", b"before")
            info = client.cluster()
        self.leader, self.term = info.node, info.term
        self.followers = [number for number in group.nodes if number != self.leader]

    def check(self) -> None:
        """Fail unless all nodes run, the cluster takes a task, and term and leader are the same."""
        nodes = self._group.nodes
        assert [number for number, node in nodes.items() if not node.is_running] == []
        with self._group.client() as client:
            client.enqueue("", b"after")
            info = client.cluster()
            for number in self.followers:
                self._group.wait_caught_up(client, number)
        assert (info.node, info.term) == (self.leader, self.term)
        assert [row for node in nodes.values() for row in node.said("bug")] == []
        assert [number for number, node in nodes.items() if not node.is_running] == []


def append(number: int, term: int) -> p.Append:
    return p.Append(
        commit=10**6,
        term=term,
        previous_term=1,
        previous_index=-1,
        leader=number,
        terms=[term],
        payloads=[b"no entry"],
    )


@pytest.mark.parametrize("kind", ["heartbeat", "append"])
def test_a_stranger_with_the_last_term_stops_two_of_three_nodes_for_good(
    nodes: GroupProcesses, kind: str
) -> None:
    before = Standing(nodes)
    packets: dict[str, Packet] = {
        "heartbeat": p.Heartbeat(term=LAST_TERM, commit=-1, context=0),
        "append": append(before.leader, LAST_TERM),
    }
    for number in before.followers:
        say(nodes, number, before.leader, packets[kind])
    before.check()
    for number in before.followers:
        nodes.nodes[number].kill()
        nodes.start(number).wait_listening()
    nodes.wait_led()
    with nodes.client() as client:
        client.enqueue("", b"after the restart")


def test_a_heartbeat_of_an_unknown_node_forces_an_election(nodes: GroupProcesses) -> None:
    before = Standing(nodes)
    for number in nodes.nodes:
        say(nodes, number, STRANGE, p.Heartbeat(term=10**6, commit=-1, context=0))
    before.check()


def test_an_append_of_an_unknown_node_ends_a_follower(nodes: GroupProcesses) -> None:
    before = Standing(nodes)
    say(nodes, before.followers[0], STRANGE, append(STRANGE, before.term + 1))
    before.check()


def test_nine_timeout_nows_raise_the_term(nodes: GroupProcesses) -> None:
    before = Standing(nodes)
    for _ in range(9):
        with nodes.client() as client:
            info = client.cluster()
        for number in before.followers:
            say(nodes, number, STRANGE, p.TimeoutNow(term=info.term))
    before.check()


def test_an_incarnation_is_disclosed_to_a_client_or_a_stranger(nodes: GroupProcesses) -> None:
    nodes.start(4, is_joining=True).wait_listening()
    place = f"4={nodes.peer_address(4)}"  # the entry that makes it a voter names its incarnation
    assert command("cluster", "add", place, "--connect", nodes.connect).code == 0
    secrets = [incarnation_of(nodes.data(number)).encode() for number in nodes.nodes]
    log = b"".join(path.read_bytes() for path in nodes.data(1).rglob("*.log"))
    assert secrets[-1] in log
    for number, node in nodes.nodes.items():
        said = answered(nodes, number, greeting(STRANGE) + HELLO)
        assert said == encode_packet(p.Connected(node=number, nonce=bytes(16)))
        with node.wire2() as wire:
            for request in (v2.Cluster(), v2.Node(), v2.Read(0)):
                wire.request(request)
            wire.end_of_sending()
            said = wire.rest()
        assert said.count(nodes.peer_address(4).encode()) >= 2, (
            "the members and their changes are told"
        )
        assert [secret for secret in secrets if secret in said] == []


def test_strangers_cost_one_line_of_a_nodes_log(nodes: GroupProcesses) -> None:
    before = Standing(nodes)
    for _ in range(20):
        say(nodes, before.leader, STRANGE, p.TimeoutNow(term=before.term))
    before.check()
    assert len(nodes.nodes[before.leader].said("stranger")) == 1
