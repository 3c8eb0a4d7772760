"""What TaskFlux's own client and server said to each other, replayed against a node (docs/protocol.md)."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.bystander import Bystander
from support.group_processes import free_ports, group_processes, wait_until
from support.node_process import NodeProcess, attacked, start
from support.recordings import Replay, recorded, scenarios, streams
from support.report import report
from support.wire import Wire

DECIDED: Final = {
    # A returned task keeps its place among those of its key.
    "21-nack-order": [f"dequeue {kind} {number}" for kind in (1, 2) for number in range(3)],
    "22-in-flight": ["dequeue 0", "dequeue 1"],
    "25-disconnect-order-same-key": [f"again {number}" for number in range(4)],
    # A wait on a queue that is deleted fails.
    "38-waiting-then-delete": ["delete"],
    # Defects of TaskFlux that are not copied.
    "q03-version-2": ["bootstrap 2.0.0"],
    "q07-ack-byte-of-the-document": ["Q as the ack", "count"],
    "q10-implementation-0": ["implementation 0"],
    "q13-unknown-queue-dequeue": ["dequeue", "dequeue wait 100"],
    "q36-names-high-bytes": ["create"],
    "q40-waiting-client-leaves": ["count", "dequeue"],
    "q99-delete-default": ["delete default"],
}
"""Steps whose answers differ by decision; docs/protocol.md gives the reasons."""


@pytest.mark.parametrize("scenario", scenarios("single"))
def test_a_lone_node_answers_as_taskflux_does(tmp_path: Path, scenario: str) -> None:
    """16 of 48 conversations went otherwise."""
    with start(tmp_path / "node", "--generation", 2) as node, node.client() as client:
        replay = Replay(node, client)
        replay.run(recorded("single", scenario))
        assert replay.different == DECIDED.get(scenario, [])
        assert replay.equal > 0
        assert node.said("bug") == []
        assert node.words == []


def test_every_decision_is_about_a_recording() -> None:
    assert DECIDED.keys() <= set(scenarios("single"))
    assert len(scenarios("single")) == 48
    assert scenarios("cluster") == ["follower", "no-leader"]


# --- a cluster -----------------------------------------------------------------------------------


def test_a_node_without_a_leader_answers_as_taskflux_does(tmp_path: Path) -> None:
    """It listed no members; ids count too: TaskFlux's node 0 is the first of the members."""
    peers = ",".join(f"{n}=127.0.0.1:{port}" for n, port in enumerate(free_ports(3), start=1))
    flags = ("--node", 1, "--peers", peers, "--advertise", "127.0.0.1:2602")
    with start(tmp_path / "node", *flags) as node, node.client() as client:
        replay = Replay(node, client)
        replay.run(recorded("cluster", "no-leader"))
        assert replay.different == []
        assert node.words == []


def test_a_follower_answers_as_taskflux_does(tmp_path: Path) -> None:
    """As recorded, the first member leads and the second is asked."""
    with group_processes(tmp_path) as group, group.client() as client:
        leader = group.wait_led()
        for number in (1, 2, 3):
            group.wait_caught_up(client, number)
        if leader != 1:
            client.transfer(1)
        with group.nodes[2].client() as asked:
            wait_until(lambda: asked.cluster().leader == 1, "node 2 knows that node 1 leads")
            replay = Replay(group.nodes[2], asked)
            replay.run(recorded("cluster", "follower"))
        assert replay.different == []


# --- hostile streams -----------------------------------------------------------------------------

SAMPLE: Final = 300
SEED: Final = 20
GARBAGE: Final = b"\xff" * 5000
"""Longer than any field of the recordings: ends what was cut, and then breaks the protocol, so that the node closes."""

QUIET_SECONDS: Final = 0.2
"""After which a node that says nothing more waits for a task or for the rest of a packet."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    flags = ("--generation", 2, "--max-queues", 100, "--stall-timeout", 600)
    with attacked(tmp_path_factory.mktemp("hostile") / "node", *flags) as running:
        yield running


def cut() -> Iterator[bytes]:
    """Every stream of the recordings, cut at every offset."""
    for stream in streams():
        for size in range(len(stream)):
            yield stream[:size]


def flipped() -> Iterator[bytes]:
    """Every stream of the recordings, with every one of its bytes flipped."""
    for stream in streams():
        for offset, byte in enumerate(stream):
            for mask in (0xFF, 0x01):
                yield stream[:offset] + bytes((byte ^ mask,)) + stream[offset + 1 :]


HOSTILE: Final = {"cut": cut, "flipped": flipped}


def leave(node: NodeProcess, hostile: bytes) -> None:
    """Send a stream and leave at once, whatever the node is doing with it."""
    with Wire(node.port) as wire, contextlib.suppress(OSError):
        wire.send(hostile)


def stay(node: NodeProcess, hostile: bytes) -> int:
    """Send a stream and read its answers until the node ends the connection or is quiet; return their size."""
    size = 0
    with Wire(node.port) as wire, contextlib.suppress(OSError):  # a time-out too
        wire.socket.settimeout(QUIET_SECONDS)
        wire.send(hostile + GARBAGE)
        while part := wire.socket.recv(2**16):
            size += len(part)
    return size


def send_all(node: NodeProcess, hostile: list[bytes]) -> int:
    answered = 0
    with Bystander(node) as bystander:
        for number, stream in enumerate(hostile):
            leave(node, stream)
            answered += stay(node, stream)
            if number % 100 == 0:
                bystander.wait_rounds(1)
    return answered


@pytest.mark.parametrize("kind", HOSTILE)
def test_streams_that_went_wrong_cost_only_their_own_connection(
    node: NodeProcess, kind: str
) -> None:
    sample = random.Random(SEED).sample(list(HOSTILE[kind]()), SAMPLE)
    answered = send_all(node, sample)
    assert answered > 4 * SAMPLE  # most of them got beyond the greeting
    report(f"version 1: {SAMPLE} recorded streams, {kind} (seed {SEED}), {answered} bytes answered")


@pytest.mark.heavy
@pytest.mark.parametrize("kind", HOSTILE)
def test_all_streams_that_went_wrong_cost_only_their_own_connection(
    node: NodeProcess, kind: str
) -> None:
    hostile = list(HOSTILE[kind]())
    answered = send_all(node, hostile)
    report(f"version 1: all {len(hostile)} recorded streams, {kind}, {answered} bytes answered")
