"""Payloads and frames above the limit: dropped as they arrive, answered, and not held in memory."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack

import pytest

from penstock.client.blocking import Client
from penstock.errors import InvalidValue
from penstock.model import DEFAULT_QUEUE
from penstock.protocol import version2 as v2
from penstock.protocol.frames import HEADER
from penstock.protocol.version2 import Failure
from support.bystander import Bystander
from support.node_process import NodeProcess, attacked, start

MEGA = 2**20
PAYLOAD_MAX = MEGA
FRAME_MAX = 2 * MEGA
DROPPED_MAX = 64 * MEGA
COUNT = b"CC\x00"
EMPTY = b"cc" + bytes(4)
VIOLATED = b"cp" + pack(">ii", 3, PAYLOAD_MAX)
BAD_NAME = b"e" + pack(">ii", 1, 0)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    flags = ("--max-payload", PAYLOAD_MAX, "--max-frame", FRAME_MAX)
    with attacked(tmp_path_factory.mktemp("oversized") / "node", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(node: NodeProcess) -> Iterator[Client]:
    with node.client() as client:
        yield client


def enqueue(size: int, name: bytes = b"\x00") -> bytes:
    """The packet of version 1 without its payload."""
    return b"CE" + name + pack(">qi", 5, size)


# --- version 1 -----------------------------------------------------------------------------------


def test_a_payload_above_16_mib_gets_the_answer_that_ends_the_repetition(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """It was answered by a reset, and TaskFlux's client repeated it for ever: 874 connections in 6 s."""
    size = 16 * MEGA + 1
    with start(tmp_path_factory.mktemp("default") / "node") as node, node.wire1() as wire:
        wire.send(enqueue(size) + bytes(size))
        wire.expect(bytes.fromhex("63 70 00 00 00 03 01 00 00 00"))
        wire.exchange(COUNT, EMPTY)


@pytest.mark.parametrize("size", [PAYLOAD_MAX + 1, DROPPED_MAX])
def test_an_oversized_payload_is_answered_without_being_held(node: NodeProcess, size: int) -> None:
    with Bystander(node) as bystander, node.wire1() as wire:
        node.forget_peak()
        before = node.memory_size()
        wire.send(enqueue(size) + bytes(size))
        wire.exchange(COUNT, VIOLATED + EMPTY)
        assert node.memory_size("VmHWM") - before < 8 * MEGA
        bystander.wait_rounds(2)


def test_packets_around_an_oversized_payload_are_answered_in_their_order(node: NodeProcess) -> None:
    oversized = enqueue(PAYLOAD_MAX + 1) + bytes(PAYLOAD_MAX + 1)
    with node.wire1() as wire:
        wire.send((COUNT + oversized) * 3 + COUNT)
        wire.expect((EMPTY + VIOLATED) * 3 + EMPTY)


def test_a_payload_in_pieces_is_dropped_to_its_last_byte_and_no_further(node: NodeProcess) -> None:
    payload = bytes(PAYLOAD_MAX + 1)
    with node.wire1() as wire, node.client() as client:
        for piece in (enqueue(len(payload)), payload[:10], payload[10:-1]):
            wire.send(piece)
            client.ping()
        wire.exchange(payload[-1:] + COUNT, VIOLATED + EMPTY)


def test_an_oversized_payload_for_a_bad_name_is_dropped_too(node: NodeProcess) -> None:
    size = PAYLOAD_MAX + 1
    with node.wire1() as wire:
        wire.exchange(enqueue(size, b"\x01 ") + bytes(size) + COUNT, BAD_NAME + EMPTY)


def test_an_oversized_payload_in_place_of_a_verdict_ends_the_connection(
    node: NodeProcess, client: Client
) -> None:
    client.create_queue("verdict")
    client.enqueue("verdict", b"task")
    with node.wire1() as wire:
        wire.send(b"CD\x07verdict" + bytes(4))
        wire.expect(b"cd\x01")
        wire.send(enqueue(PAYLOAD_MAX + 1))
        wire.rest()
    with client.dequeue("verdict", wait=60) as task:
        assert task is not None
    client.delete_queue("verdict")


def test_a_payload_above_what_is_dropped_ends_the_connection(
    node: NodeProcess, client: Client
) -> None:
    with node.wire1() as wire:
        wire.send(enqueue(DROPPED_MAX + 1))
        wire.expect_end()
    client.ping()


def test_a_connection_that_leaves_in_the_middle_leaves_nothing(
    node: NodeProcess, client: Client
) -> None:
    with node.wire1() as wire, node.wire2() as other:
        wire.send(enqueue(DROPPED_MAX) + bytes(MEGA))
        other.send(HEADER.pack(DROPPED_MAX, ord("E"), 1) + bytes(MEGA))
        wire.reset()
        other.reset()
    client.ping()


# --- version 2 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [FRAME_MAX + 1, DROPPED_MAX])
def test_an_oversized_frame_is_answered_without_being_held(node: NodeProcess, size: int) -> None:
    with Bystander(node) as bystander, node.wire2() as wire:
        node.forget_peak()
        before = node.memory_size()
        wire.send(HEADER.pack(size, ord("E"), 7) + bytes(size - 5))
        number, failed = wire.answer()
        assert number == 7
        assert isinstance(failed, v2.Failed)
        assert (failed.code, failed.detail) == (Failure.INVALID, FRAME_MAX)
        assert node.memory_size("VmHWM") - before < 8 * MEGA
        assert wire.ask(v2.Ping(), v2.Ok) == v2.Ok()
        bystander.wait_rounds(2)


def test_a_client_with_a_task_larger_than_a_frame_is_told_so(client: Client) -> None:
    """Its connection ended, and the client took that for an unknown outcome."""
    client.create_queue("large")
    with pytest.raises(InvalidValue):
        client.enqueue("large", bytes(3 * MEGA))
    assert client.stat("large").count == 0
    client.delete_queue("large")


@pytest.mark.parametrize("number", [0, 3], ids=["no request", "in use"])
def test_an_oversized_frame_that_cannot_be_answered_ends_the_connection(
    node: NodeProcess, client: Client, number: int
) -> None:
    with node.wire2() as wire:
        wire.request(v2.Dequeue(DEFAULT_QUEUE, wait_ms=60_000), 3)
        wire.send(HEADER.pack(FRAME_MAX + 1, ord("E"), number) + bytes(FRAME_MAX - 4))
        assert wire.expect_broken().code == Failure.INVALID
    client.ping()


def test_a_frame_above_what_is_dropped_ends_the_connection(
    node: NodeProcess, client: Client
) -> None:
    with node.wire2() as wire:
        wire.send(HEADER.pack(DROPPED_MAX + 1, ord("E"), 7))
        assert wire.expect_broken().code == Failure.INVALID
    client.ping()
