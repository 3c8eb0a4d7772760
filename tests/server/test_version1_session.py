"""TaskFlux's packets over a socket, byte for byte (specification 7.5, 7.2, 8.4)."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack

import pytest

from penstock.client.blocking import Client
from support.node_process import NodeProcess, start
from support.wire import AUTHORIZE, Wire, bootstrap

OK = b"k"
ACK = b"K"
NACK = b"N"
ORDERS = bytes.fromhex("06 6F 72 64 65 72 73")
ENQUEUE = bytes.fromhex("43 45 06 6F 72 64 65 72 73 00 00 00 00 00 00 00 05 00 00 00 02 68 69")
DEQUEUE = bytes.fromhex("43 44 06 6F 72 64 65 72 73 00 00 00 00")
FOUND = bytes.fromhex("63 64 01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 05 00 00 00 02 68 69")
EMPTY = bytes.fromhex("63 64 00")
COUNT = bytes.fromhex("43 43 06 6F 72 64 65 72 73")
CREATE = bytes.fromhex(
    "43 51 06 6F 72 64 65 72 73 00 00 00 01 00 00 00 64 FF FF FF FF 01 FF FF FF FF FF FF FF F6"
    " 00 00 00 00 00 00 00 0A"
)
DELETE = bytes.fromhex("43 52 06 6F 72 64 65 72 73")
LIST = bytes.fromhex("43 4C")
FAILED = b"ce"
BAD_NAME = b"\x03a b"
NO_LIMITS = bytes.fromhex("FF FF FF FF FF FF FF FF 00")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with start(tmp_path_factory.mktemp("version1") / "node") as running:
        yield running
        assert running.words == []


@pytest.fixture(scope="module")
def client(node: NodeProcess) -> Iterator[Client]:
    with node.client() as client:
        yield client


@pytest.fixture
def orders(client: Client) -> Iterator[Client]:
    """A queue named orders, new for each test."""
    client.create_queue("orders")
    yield client
    if any(stat.name == "orders" for stat in client.queues()):
        client.delete_queue("orders")


@pytest.fixture
def wire(node: NodeProcess) -> Iterator[Wire]:
    with node.wire1() as wire:
        yield wire


def counted(count: int) -> bytes:
    return b"cc" + pack(">i", count)


def failed(code: int, text: bytes = b"") -> bytes:
    return FAILED + pack(">ii", code, len(text)) + text


def refused(code: int) -> bytes:
    """The packet that answers a bad value in a create or an enqueue."""
    return b"e" + pack(">ii", code, 0)


# --- entering (7.2, steps 1 and 2) ---------------------------------------------------------------


def test_authorization_and_bootstrap_are_answered_byte_for_byte(node: NodeProcess) -> None:
    with node.wire() as wire:
        wire.exchange(bytes.fromhex("41 4E"), bytes.fromhex("61 01"))
        wire.exchange(
            bytes.fromhex("42 00 00 00 01 00 00 00 00 00 00 00 00"), bytes.fromhex("62 01")
        )


def test_the_patch_of_a_version_does_not_matter(node: NodeProcess) -> None:
    with node.wire() as wire:
        wire.exchange(AUTHORIZE + bootstrap(1, 0, 77), b"a\x01b\x01")


@pytest.mark.parametrize("minor", [-1, -(2**31)])
def test_a_negative_minor_version_is_welcome(node: NodeProcess, minor: int) -> None:
    with node.wire() as wire:
        wire.exchange(AUTHORIZE + bootstrap(1, minor) + b"CC\x00", b"a\x01b\x01" + counted(0))


@pytest.mark.parametrize("version", [(0, 9), (1, 1), (2, 1), (3, 0), (-1, 0)])
def test_another_version_is_refused_with_a_reason_and_the_connection_ends(
    node: NodeProcess, version: tuple[int, int]
) -> None:
    with node.wire() as wire:
        wire.send(AUTHORIZE + bootstrap(*version) + ENQUEUE)
        text = b"versions 1.0 and 2.0 are spoken here"
        wire.expect(b"a\x01" + b"b\x00" + pack(">i", len(text)) + text)
        wire.expect_end()


@pytest.mark.parametrize(
    "first", [bootstrap(1), OK, ACK, NACK, b"M", ENQUEUE, LIST, b"AX", b"\x00", b"GET / HTTP/1.1"]
)
def test_a_first_packet_other_than_an_authorization_ends_the_connection(
    node: NodeProcess, client: Client, first: bytes
) -> None:
    """W12: three of these stop a TaskFlux node."""
    with node.wire() as wire:
        wire.send(first)
        wire.expect_end()
    client.ping()


@pytest.mark.parametrize("second", [AUTHORIZE, OK, ACK, NACK, b"M", ENQUEUE])
def test_a_second_packet_other_than_a_bootstrap_ends_the_connection(
    node: NodeProcess, client: Client, second: bytes
) -> None:
    with node.wire() as wire:
        wire.send(AUTHORIZE + second)
        wire.expect(b"a\x01")
        wire.expect_end()
    client.ping()


def test_a_greeting_in_single_bytes_is_a_greeting(node: NodeProcess) -> None:
    with node.wire() as wire:
        for byte in AUTHORIZE + bootstrap(1) + b"M":
            wire.send(bytes([byte]))
        wire.expect(b"a\x01b\x01m")


def test_the_cluster_is_this_node_at_the_port_it_listens_on(node: NodeProcess, wire: Wire) -> None:
    address = f"127.0.0.1:{node.port}".encode()
    wire.exchange(b"M", b"m" + pack(">ii", 1, len(address)) + address + pack(">ii", 0, 0))


# --- commands ------------------------------------------------------------------------------------


def test_every_vector_of_a_tasks_life_is_answered_byte_for_byte(client: Client, wire: Wire) -> None:
    wire.exchange(CREATE, OK)
    wire.exchange(ENQUEUE, OK)
    wire.exchange(ACK, OK)
    wire.exchange(COUNT, counted(1))
    wire.exchange(DEQUEUE, FOUND)
    wire.exchange(ACK, OK)
    wire.exchange(DEQUEUE, EMPTY)
    wire.exchange(COUNT, counted(0))
    wire.exchange(DELETE, OK)
    assert [stat.name for stat in client.queues()] == [""]


def test_the_list_of_queues_is_that_of_the_vectors(client: Client, wire: Wire) -> None:
    wire.exchange(CREATE, OK)
    for _ in range(2):
        wire.exchange(ENQUEUE + ACK, OK + OK)
    # "orders", 2 tasks, at most 100, keys from -10 to 10; the default queue stands before it.
    orders = bytes.fromhex(
        "06 6F 72 64 65 72 73 00 00 00 02 00 00 00 02 00 00 00 0E 6D 61 78 2D 71 75 65 75 65 2D 73"
        " 69 7A 65 00 00 00 03 31 30 30 00 00 00 0E 70 72 69 6F 72 69 74 79 2D 72 61 6E 67 65"
        " 00 00 00 06 2D 31 30 20 31 30"
    )
    default = b"\x00" + pack(">ii", 0, 0)
    wire.exchange(LIST, bytes.fromhex("63 6C 00 00 00 02") + default + orders)
    client.delete_queue("orders")


def test_an_enqueue_that_is_not_meant_changes_nothing(orders: Client, wire: Wire) -> None:
    wire.exchange(ENQUEUE, OK)
    wire.exchange(NACK, OK)
    wire.exchange(COUNT, counted(0))
    assert orders.stat("orders").last_id == 0


def test_an_enqueue_counts_only_after_its_confirmation(orders: Client, wire: Wire) -> None:
    wire.exchange(ENQUEUE, OK)
    assert orders.stat("orders").count == 0
    wire.exchange(ACK, OK)
    assert orders.stat("orders").count == 1


def test_the_documented_byte_of_an_acknowledgement_is_understood(
    orders: Client, wire: Wire
) -> None:
    """P1: the documents say Q, the programs send K."""
    wire.exchange(ENQUEUE + b"Q", OK + OK)
    wire.exchange(DEQUEUE, FOUND)
    wire.exchange(b"Q", OK)
    assert orders.stat("orders").count == 0


def test_a_rejected_task_goes_back_to_its_place_with_its_id(orders: Client, wire: Wire) -> None:
    """TaskFlux puts it behind the other tasks of its key."""
    wire.exchange((ENQUEUE + ACK) * 2, (OK + OK) * 2)
    wire.exchange(DEQUEUE, FOUND)
    wire.exchange(NACK, OK)
    wire.exchange(COUNT, counted(2))
    wire.exchange(DEQUEUE, FOUND)


def test_a_task_that_is_out_is_not_counted(orders: Client, node: NodeProcess, wire: Wire) -> None:
    wire.exchange(ENQUEUE + ACK, OK + OK)
    wire.exchange(DEQUEUE, FOUND)
    with node.wire1() as other:
        other.exchange(COUNT, counted(0))


@pytest.mark.parametrize("wait_ms", [60_000, 2**31, 2**32 - 1])
def test_a_dequeue_that_waits_gets_the_next_task(
    orders: Client, node: NodeProcess, wire: Wire, wait_ms: int
) -> None:
    """The longest wait stops a TaskFlux node."""
    wire.send(DEQUEUE[:-4] + pack(">I", wait_ms))
    with node.wire1() as other:
        other.exchange(ENQUEUE + ACK, OK + OK)
    wire.expect(FOUND)
    wire.exchange(ACK, OK)


def test_a_dequeue_that_waited_in_vain_is_answered_with_nothing(orders: Client, wire: Wire) -> None:
    wire.exchange(DEQUEUE[:-4] + pack(">I", 30), EMPTY)


def test_whoever_waited_and_left_gets_no_task(
    orders: Client, node: NodeProcess, wire: Wire
) -> None:
    """W14: readers that are gone are handed records in TaskFlux."""
    with node.wire1() as gone:
        gone.send(DEQUEUE[:-4] + pack(">I", 60_000))
        gone.reset()
    wire.exchange(ENQUEUE + ACK, OK + OK)
    # The node may hear of the reset only after the task has come; then it is on its way back.
    wire.exchange(DEQUEUE[:-4] + pack(">I", 10_000), FOUND)


def test_a_wait_on_a_queue_that_is_deleted_fails_at_once(
    orders: Client, node: NodeProcess, wire: Wire
) -> None:
    """TaskFlux answers "empty", and its client asks for ever."""
    wire.send(DEQUEUE[:-4] + pack(">I", 2**32 - 1))
    with node.wire1() as other:
        other.exchange(DELETE, OK)
    wire.expect(failed(2, b"queue 'orders' does not exist; create it first"))


def test_implementation_0_is_the_heap(client: Client, wire: Wire) -> None:
    """P7: the documents have it as the default, the programs refuse it."""
    wire.exchange(b"CQ" + ORDERS + pack(">i", 0) + NO_LIMITS, OK)
    assert client.stat("orders").policy.implementation == 1
    client.delete_queue("orders")


# --- refusals ------------------------------------------------------------------------------------


def test_a_missing_queue_is_said_of_every_command(wire: Wire) -> None:
    """W13: a dequeue from a missing queue is answered "empty" by TaskFlux."""
    text = b"queue 'orders' does not exist; create it first"
    for packet in (DEQUEUE, COUNT, DELETE):
        wire.exchange(packet, failed(2, text))
    wire.exchange(ENQUEUE, OK)
    wire.exchange(ACK, failed(2, text))


def test_a_queue_that_exists_is_said(orders: Client, wire: Wire) -> None:
    wire.exchange(CREATE, failed(3, b"queue 'orders' exists"))


def test_an_invalid_name_is_answered_by_the_packet_of_its_command(wire: Wire) -> None:
    """W12: in count and delete it stops a TaskFlux node."""
    for packet, answer in (
        (b"CE" + BAD_NAME + pack(">qi", 5, 2) + b"hi", refused(1)),
        (b"CQ" + BAD_NAME + pack(">i", 1) + NO_LIMITS, refused(1)),
        (b"CD" + BAD_NAME + pack(">I", 0), failed(1)),
        (b"CC" + BAD_NAME, failed(1)),
        (b"CR" + BAD_NAME, failed(1)),
    ):
        wire.exchange(packet, answer)
    wire.exchange(b"CC\x00", counted(0))


def test_the_default_queue_cannot_be_created_again(wire: Wire) -> None:
    wire.exchange(b"CQ\x00" + pack(">i", 1) + NO_LIMITS, failed(3, b"queue '' exists"))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (pack(">iii", 1, -1, -1) + b"\x01" + pack(">qq", 10, -10), 4),
        (pack(">iii", 1, -2, -1) + b"\x00", 5),
        (pack(">iii", 1, -1, -2) + b"\x00", 6),
        (pack(">iii", 2, -1, -1) + b"\x00", 7),
        (pack(">iii", 9, -1, -1) + b"\x00", 8),
    ],
)
def test_bad_parameters_of_a_new_queue_have_their_codes(
    wire: Wire, fields: bytes, code: int
) -> None:
    wire.exchange(b"CQ" + ORDERS + fields, refused(code))
    wire.exchange(b"CC\x00", counted(0))


def test_a_policy_that_forbids_a_task_is_named_with_its_limits(client: Client, wire: Wire) -> None:
    enqueue = b"CE" + ORDERS
    client.create_queue("orders", size_max=1, keys=(-10, 10), payload_size_max=1024)
    wire.exchange(
        enqueue + pack(">qi", 11, 1) + b"x" + ACK,
        OK + bytes.fromhex("63 70 00 00 00 02 FF FF FF FF FF FF FF F6 00 00 00 00 00 00 00 0A"),
    )
    wire.exchange(
        enqueue + pack(">qi", 1, 1025) + bytes(1025) + ACK,
        OK + bytes.fromhex("63 70 00 00 00 03 00 00 04 00"),
    )
    wire.exchange(enqueue + pack(">qi", 1, 1024) + bytes(1024) + ACK, OK + OK)
    wire.exchange(
        enqueue + pack(">qi", 1, 1) + b"x" + ACK,
        OK + bytes.fromhex("63 70 00 00 00 01 00 00 00 01"),
    )
    client.delete_queue("orders")


def test_the_default_queue_cannot_be_deleted(wire: Wire) -> None:
    """W23."""
    wire.exchange(b"CR\x00", failed(0, b"the default queue always exists; purge it instead"))
    wire.exchange(b"CC\x00", counted(0))


# --- packets out of place ------------------------------------------------------------------------


def test_known_packets_without_a_meaning_are_ignored_between_requests(wire: Wire) -> None:
    """7.2, step 3."""
    wire.exchange(ACK + NACK + AUTHORIZE + bootstrap(1) + b"CC\x00", counted(0))


@pytest.mark.parametrize(
    "stray",
    [
        OK,
        b"a\x01",
        b"b\x01",
        b"l" + pack(">i", 3),
        b"e" + pack(">ii", 1, 0),
        b"cc" + pack(">i", 5),
        b"m" + pack(">iii", 0, -1, 0),
    ],
)
def test_a_response_that_a_client_sends_is_ignored(wire: Wire, stray: bytes) -> None:
    """It cost the sender its connection."""
    wire.exchange(stray + b"CC\x00" + stray + b"CC\x00", counted(0) * 2)


@pytest.mark.parametrize(
    "unknown", [b"Z", b"CZ", b"cZ", b"c" * 2 + b"K" * 4 + b"Z", b"\xff", b"AX"]
)
def test_an_unknown_packet_ends_the_connection(
    node: NodeProcess, client: Client, unknown: bytes
) -> None:
    with node.wire1() as wire:
        wire.exchange(b"CC\x00" + unknown, counted(0))
        wire.expect_end()
    client.ping()


@pytest.mark.parametrize("length", [-1, -(2**31), 64 * 2**20 + 1, 2**31 - 1])
def test_an_impossible_length_ends_the_connection(
    node: NodeProcess, client: Client, length: int
) -> None:
    """W12: a negative length stops a TaskFlux node."""
    with node.wire1() as wire:
        wire.send(b"CE\x00" + pack(">qi", 1, length))
        wire.expect_end()
    client.ping()


@pytest.mark.parametrize("instead", [COUNT, LIST, b"M", ENQUEUE, AUTHORIZE, bootstrap(1), b"Z"])
def test_anything_but_a_verdict_ends_the_connection_and_the_task_goes_back(
    orders: Client, node: NodeProcess, instead: bytes
) -> None:
    """W12: it stops a TaskFlux node."""
    orders.enqueue("orders", b"hi", key=5)
    with node.wire1() as wire:
        wire.exchange(DEQUEUE, FOUND)
        wire.send(instead)
        wire.expect_end()
    with node.wire1() as next_wire:
        next_wire.exchange(DEQUEUE[:-4] + pack(">I", 60_000), FOUND)
        next_wire.exchange(ACK, OK)


@pytest.mark.parametrize("instead", [COUNT, LIST, b"M", ENQUEUE, AUTHORIZE])
def test_anything_but_a_confirmation_ends_the_connection_and_nothing_is_enqueued(
    orders: Client, node: NodeProcess, instead: bytes
) -> None:
    with node.wire1() as wire:
        wire.exchange(ENQUEUE, OK)
        wire.send(instead)
        wire.expect_end()
    assert orders.stat("orders").count == 0


def test_a_lost_connection_returns_the_task(orders: Client, node: NodeProcess) -> None:
    """W14."""
    orders.enqueue("orders", b"hi", key=5)
    with node.wire1() as wire:
        wire.exchange(DEQUEUE, FOUND)
        wire.reset()
    with node.wire1() as next_wire:
        next_wire.exchange(DEQUEUE[:-4] + pack(">I", 60_000), FOUND)
        next_wire.exchange(ACK, OK)


# --- early packets -------------------------------------------------------------------------------


def test_packets_that_come_early_wait_for_their_turn(orders: Client, node: NodeProcess) -> None:
    """The whole life of a task in one write."""
    with node.wire() as wire:
        wire.send(AUTHORIZE + bootstrap(1) + ENQUEUE + ACK + DEQUEUE + ACK + COUNT + LIST)
        wire.expect(b"a\x01b\x01" + OK + OK + FOUND + OK + counted(0) + b"cl")


def test_a_thousand_early_enqueues_are_all_done(orders: Client, wire: Wire) -> None:
    wire.exchange((ENQUEUE + ACK) * 1000 + COUNT, (OK + OK) * 1000 + counted(1000))


def test_garbage_behind_an_early_packet_ends_the_connection_in_its_turn(
    orders: Client, node: NodeProcess
) -> None:
    """It stayed open until its idle time, because only what had just come was looked at."""
    with node.wire1() as wire:
        wire.send(ENQUEUE + ACK + b"\xff")
        wire.expect(OK + OK)
        wire.expect_end()
    assert orders.stat("orders").count == 1


# --- settings ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that waits for nobody, for clients from before April 2024."""
    flags = ("--without-ids", "--idle-timeout", 1, "--stall-timeout", 0.1)
    with start(tmp_path_factory.mktemp("hasty") / "node", *flags) as running:
        yield running


def test_an_early_packet_may_wait_longer_than_a_packet_may_take(hasty: NodeProcess) -> None:
    """It was taken for a packet that does not end, and cost its sender the connection."""
    with hasty.client() as client, hasty.wire1() as wire:
        client.create_queue("empty")
        wait = b"CD\x05empty" + pack(">I", 1600)
        wire.exchange(wait + b"CC\x05empty", EMPTY + counted(0))


def test_without_ids_a_delivery_is_as_it_was_before_april_2024(hasty: NodeProcess) -> None:
    """P6; and a connection that is silent about its task loses it after the idle time."""
    found = b"cd\x01" + pack(">qi", 5, 2) + b"hi"
    with hasty.wire1() as wire:
        wire.exchange(b"CE\x00" + pack(">qi", 5, 2) + b"hi" + ACK, OK + OK)
        wire.exchange(b"CD\x00" + pack(">I", 0), found)
        wire.expect_end()
    with hasty.wire1() as next_wire:
        next_wire.exchange(b"CD\x00" + pack(">I", 60_000), found)
        next_wire.exchange(ACK, OK)
