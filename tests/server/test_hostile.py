"""Callers that break the protocol: each costs its own connection, and nobody else notices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from struct import pack

import pytest

from penstock.client.blocking import Client
from penstock.errors import LimitReached, PayloadTooLarge
from penstock.model import QueueName
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import Failure
from support.bystander import Bystander
from support.node_process import NodeProcess, attacked, start
from support.report import report
from support.wire import AUTHORIZE, Wire2, bootstrap, frame

NAME = QueueName("q")
SEED = 20_240_401
WITHOUT_UVLOOP = "sys.modules['uvloop'] = None"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    flags = ("--stall-timeout", 30, "--max-queues", 40, "--max-connections", 60)
    with attacked(tmp_path_factory.mktemp("hostile") / "node", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(node: NodeProcess) -> Iterator[Client]:
    with node.client() as client:
        yield client


@pytest.fixture
def wire(node: NodeProcess) -> Iterator[Wire2]:
    with node.wire2() as wire:
        yield wire


@pytest.fixture
def queue(client: Client) -> Iterator[str]:
    client.create_queue(NAME, exist_ok=True)
    yield NAME
    client.delete_queue(NAME)


# --- frames --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 4, 64 * 2**20 + 1, 2**31, 2**32 - 1])
def test_an_impossible_length_ends_the_connection_at_once(
    node: NodeProcess, client: Client, length: int
) -> None:
    with node.wire2() as wire:
        wire.send(pack(">I", length))
        assert wire.expect_broken().code == Failure.INVALID
    client.ping()


def test_an_unknown_request_is_said_and_the_connection_goes_on(wire: Wire2) -> None:
    for kind in "aeq!\x00\xff":
        wire.send(frame(kind, 9, b"whatever"))
        number, answer = wire.answer()
        assert (number, type(answer)) == (9, v2.Failed)
        assert isinstance(answer, v2.Failed)
        assert answer.code == Failure.UNKNOWN_REQUEST
    wire.ask(v2.Ping(), v2.Ok)


@pytest.mark.parametrize(
    "bad",
    [
        frame("H", 1, b"\x00"),  # bytes left over
        frame("E", 1, b"\x01"),  # ends inside a name
        frame("E", 1, b"\x00\xf8" + bytes(4)),  # unknown flags
        frame("E", 1, b"\x00\x00" + pack(">I", 2**32 - 1)),  # a count that no frame can hold
        frame("E", 1, b"\x00\x00" + pack(">I", 65_537) + bytes(12 * 65_537)),
        frame("E", 1, b"\x00\x00" + pack(">IqI", 1, 5, 2**32 - 1) + b"hi"),
        frame("A", 1, pack(">I", 3) + bytes(16)),
        frame("D", 1, b"\x00" + bytes(15)),
    ],
)
def test_a_frame_that_breaks_its_own_form_ends_the_connection(
    node: NodeProcess, client: Client, bad: bytes
) -> None:
    with node.wire2() as wire:
        wire.send(bad)
        wire.expect_broken()
    client.ping()


def test_a_request_id_in_use_ends_the_connection(
    node: NodeProcess, client: Client, queue: str
) -> None:
    with node.wire2() as wire:
        wire.request(v2.Dequeue(NAME, wait_ms=60_000), 7)
        wire.request(v2.Ping(), 7)
        assert "7 is in use" in wire.expect_broken().text
    with node.wire2() as wire:
        wire.request(v2.Subscribe(NAME, 1), 8)
        assert wire.answer() == (8, v2.Ok())
        wire.request(v2.Ping(), 8)
        assert "8 is in use" in wire.expect_broken().text
    client.ping()


def test_an_id_is_free_again_when_its_queue_and_so_its_subscription_are_gone(
    client: Client, wire: Wire2
) -> None:
    client.create_queue("short")
    wire.request(v2.Subscribe(QueueName("short"), 1), 8)
    assert wire.answer() == (8, v2.Ok())
    client.delete_queue("short")
    number, ended = wire.answer()
    assert number == 8
    assert isinstance(ended, v2.Failed)
    assert ended.code == Failure.QUEUE_MISSING
    wire.request(v2.Ping(), 8)
    assert wire.answer() == (8, v2.Ok())


def test_unsubscribing_twice_is_refused_the_second_time(queue: str, wire: Wire2) -> None:
    wire.request(v2.Subscribe(NAME, 1), 8)
    assert wire.answer() == (8, v2.Ok())
    wire.ask(v2.Unsubscribe(8), v2.Ok)
    assert wire.ask(v2.Unsubscribe(8), v2.Failed).code == Failure.INVALID
    wire.ask(v2.Ping(), v2.Ok)


def test_tokens_that_were_never_given_are_lost(client: Client, queue: str, wire: Wire2) -> None:
    client.enqueue(NAME, b"task")
    (delivery,) = client.dequeue_many(NAME, 1)
    random = Random(SEED)
    tokens = [t for t in (random.getrandbits(64) for _ in range(65_536)) if t != delivery.token]
    for request in (
        v2.Ack(tokens),
        v2.Nack(tokens, 0, 5),
        v2.Release(tokens),
        v2.Extend(tokens, 1000),
    ):
        assert wire.ask(request, v2.Settled).lost == tuple(tokens)
    client.ack(delivery)


def test_a_token_given_twice_is_lost_the_second_time(queue: str, wire: Wire2) -> None:
    wire.enqueue(NAME, b"task")
    token = wire.ask(v2.Dequeue(NAME), v2.Delivered).token
    assert wire.ask(v2.Ack((token, token)), v2.Settled).lost == (token,)


def test_the_largest_batch_is_taken(client: Client, queue: str, wire: Wire2) -> None:
    count = 65_536
    answer = wire.ask(v2.Enqueue(NAME, range(count), [b""] * count), v2.Enqueued)
    assert [(run.outcome, run.count) for run in answer.runs] == [(0, count)]
    assert client.purge(NAME) == count


def test_the_largest_payload_comes_back_and_a_larger_one_is_refused(
    client: Client, queue: str, wire: Wire2
) -> None:
    large = Random(SEED).randbytes(16 * 2**20)
    client.enqueue(NAME, large)
    (delivery,) = client.dequeue_many(NAME, 1)
    assert delivery.payload == large
    client.ack(delivery)
    with pytest.raises(PayloadTooLarge):
        client.enqueue(NAME, large + b"x")
    (run,) = wire.enqueue(NAME, large + b"x").runs
    assert (run.outcome, run.count) == (v2.Outcome.PAYLOAD_TOO_LARGE, 1)


def test_the_longest_times_are_kept_and_do_no_harm(client: Client, queue: str, wire: Wire2) -> None:
    century, day = v2.MILLISECONDS_MAX, 86_400_000
    for delay, ttl in ((century, None), (None, century), (century, century)):
        (run,) = wire.ask(v2.Enqueue(NAME, (0,), (b"x",), delay, ttl), v2.Enqueued).runs
        assert run.outcome == v2.Outcome.ACCEPTED
    token = wire.ask(v2.Dequeue(NAME, lease_ms=2**32 - 1), v2.Delivered).token
    assert wire.ask(v2.Extend((token,), 2**32 - 1), v2.Settled).lost == ()
    assert wire.ask(v2.Nack((token,), century), v2.Settled).lost == ()
    create = v2.Create(QueueName("long"), client.stat(NAME).policy, lease_ms=day + 1)
    assert wire.ask(create, v2.Failed).code == Failure.INVALID
    assert client.stat(NAME).delayed == 3


def test_reserved_names_and_one_queue_too_many_are_refused(node: NodeProcess) -> None:
    with node.client() as client:
        with pytest.raises(Exception, match="ours"):
            client.create_queue("!penstock.mine")
        taken = len(client.queues())
        for number in range(40 - taken):
            client.create_queue(f"many.{number}")
        with pytest.raises(LimitReached, match="--max-queues"):
            client.create_queue("one-more")
        for number in range(40 - taken):
            client.delete_queue(f"many.{number}")
        client.create_queue("one-more")
        client.delete_queue("one-more")


# --- garbage -------------------------------------------------------------------------------------


def test_garbage_of_every_kind_costs_its_own_connection_only(node: NodeProcess) -> None:
    random = Random(SEED)
    node.forget_peak()
    with Bystander(node) as bystander:
        for _ in range(300):
            throw_garbage(node, random)
        bystander.wait_rounds()
    peak = node.memory_size("VmHWM")
    assert node.said("bug") == []
    assert peak < 300 * 2**20
    report(f"node: 300 connections with garbage (seed {SEED}), peak memory {peak // 2**20} MiB")


def throw_garbage(node: NodeProcess, random: Random) -> None:
    """Talk to the node until it has had enough, or we have."""
    greeting = random.choice([b"", AUTHORIZE, AUTHORIZE + bootstrap(1), AUTHORIZE + bootstrap(2)])
    valid = b"".join(
        random.choice(VALID2 if greeting[-9:-8] == b"\x02" else VALID1) for _ in range(5)
    )
    match random.randrange(4):
        case 0:
            body = bytearray(random.randbytes(random.randrange(1, 3000)))
        case 1:
            body = bytearray(valid)
            for _ in range(random.randrange(1, 4)):
                body[random.randrange(len(body))] = random.randrange(256)
        case 2:
            body = bytearray(valid[: random.randrange(len(valid))])
        case _:
            body = bytearray(valid + random.randbytes(20))
    with node.wire() as wire, suppress(ConnectionError):
        wire.send(greeting + bytes(body))
        match random.randrange(3):
            case 0:
                wire.reset()
            case 1:
                wire.end_of_sending()
                wire.rest()
            case _:
                pass


VALID1 = [
    b"CE\x00" + pack(">qi", 1, 3) + b"abc",
    b"K",
    b"N",
    b"CD\x00" + pack(">I", 5),
    b"CC\x00",
    b"CL",
    b"M",
    b"CQ\x04junk" + pack(">iii", 1, -1, -1) + b"\x00",
    b"CR\x04junk",
]
REQUESTS: list[v2.Request] = [
    v2.Enqueue(QueueName(""), (1, 2), (b"a", b"b")),
    v2.Enqueue(QueueName(""), (1,), (b"a",), 10, 1000, v2.Producer(bytes(16), 1)),
    v2.Dequeue(QueueName(""), 10, 0, 5),
    v2.Ack((1, 2, 3)),
    v2.Nack((1, 2), 5, 6),
    v2.Release((1, 2)),
    v2.Start((1, 2), (3,)),
    v2.Extend((1,), 5),
    v2.Subscribe(QueueName(""), 3),
    v2.Unsubscribe(8),
    v2.Peek(QueueName(""), 5),
    v2.Purge(QueueName("")),
    v2.Stat(),
    v2.Read(0, 100, 5),
    v2.Node(),
    v2.Ping(),
]
VALID2 = [v2.encode_request(request, number) for number, request in enumerate(REQUESTS)]


# --- slow and silent -----------------------------------------------------------------------------


def test_a_request_in_single_bytes_is_a_request(queue: str, wire: Wire2) -> None:
    request = v2.encode_request(v2.Enqueue(NAME, (5, -1), (b"hi", b"")), 3)
    for byte in request + v2.encode_request(v2.Ping(), 4):
        wire.send(bytes([byte]))
    assert {wire.answer()[0], wire.answer()[0]} == {3, 4}


def test_silence_trickles_and_missing_ends_cost_the_connection_in_the_end(tmp_path: Path) -> None:
    flags = ("--stall-timeout", 0.5, "--idle-timeout", 1)
    with start(tmp_path / "node", *flags) as node, Bystander(node) as bystander:
        silent, greeted, begun1, begun2 = node.wire(), node.wire2(), node.wire1(), node.wire2()
        begun1.send(b"CE\x00" + pack(">qi", 1, 1000) + b"only this")
        begun2.send(frame("E", 1, bytes(1000))[:500])
        for wire in (silent, greeted, begun1, begun2):
            wire.expect_end()
            wire.close()
        trickling = node.wire2()
        trickling.send(pack(">I", 1000))
        with suppress(ConnectionError):
            while True:  # one byte for each round of the other client, until it is cut off
                bystander.wait_rounds(1)
                trickling.send(b"x")
        trickling.close()


def test_whoever_has_a_lease_or_a_subscription_may_be_silent(tmp_path: Path) -> None:
    with (
        start(tmp_path / "node", "--stall-timeout", 0.5, "--idle-timeout", 0.5) as node,
        node.wire2() as holding,
        node.wire2() as subscribed,
        node.wire2() as silent,
    ):
        holding.enqueue("", b"task")
        (task,) = holding.ask(v2.Dequeue(QueueName("")), v2.Delivered).ids
        subscribed.request(v2.Subscribe(QueueName(""), 1), 5)
        assert subscribed.answer() == (5, v2.Ok())
        silent.expect_end()
        with node.wire2() as later:  # whatever would be closed now has been silent for longer
            later.expect_end()
        holding.ask(v2.Ping(), v2.Ok)
        holding.close()
        assert subscribed.expect_delivered(5).ids == (task,)


# --- many ----------------------------------------------------------------------------------------


def test_two_thousand_connections_leave_nothing_behind(node: NodeProcess) -> None:
    with Bystander(node):
        before = node.file_count()
        for number in range(2000):
            with node.wire() as wire:
                if number % 3 == 0:
                    wire.send(AUTHORIZE)
                if number % 2:
                    wire.reset()
    with node.client() as client:
        client.ping()  # everything before it has been seen to
    assert node.file_count() <= before + 2


def test_one_connection_too_many_is_turned_away_and_the_others_stay(tmp_path: Path) -> None:
    with start(tmp_path / "node", "--max-connections", 5) as node:
        wires = [node.wire2() for _ in range(5)]
        for _ in range(3):
            with node.wire() as refused, suppress(ConnectionError):
                refused.send(AUTHORIZE)
                refused.expect_end()
        for wire in wires:
            wire.ask(v2.Ping(), v2.Ok)
        wires.pop().close()
        # Its place is free when the node has seen its end, which is before a later packet of another.
        wires[0].ask(v2.Ping(), v2.Ok)
        wires.append(node.wire2())
        for wire in wires:
            wire.ask(v2.Ping(), v2.Ok)
            wire.close()


@pytest.mark.parametrize("before", ["", WITHOUT_UVLOOP], ids=["uvloop", "asyncio"])
def test_a_caller_that_goes_away_in_mid_answer_does_not_end_the_node(
    tmp_path: Path, before: str
) -> None:
    """A write to a connection that was reset raised SIGPIPE, which the command line lets end the process."""
    peeks = b"".join(v2.encode_request(v2.Peek(QueueName("big"), 10), n) for n in range(1, 200))
    with start(tmp_path / "node", before=before) as node:
        with Bystander(node) as bystander, node.client() as client:
            client.create_queue("big")
            client.enqueue_many("big", [bytes(100_000)] * 10)
            for _ in range(10):
                wire = node.wire2()
                wire.send(peeks)
                bystander.wait_rounds(1)
                wire.reset()
        assert node.said("bug") == []
        assert node.stop() == 0


def test_whoever_breaks_the_protocol_loses_its_tasks_at_once(
    node: NodeProcess, client: Client, queue: str
) -> None:
    """They stayed out as long as the caller did not read its last answers."""
    client.enqueue(NAME, b"task")
    with node.wire2() as wire:
        assert wire.ask(v2.Dequeue(NAME, lease_ms=60_000), v2.Delivered).payloads == [b"task"]
        wire.send(pack(">I", 0))  # and it neither reads nor closes
        (delivery,) = client.dequeue_many(NAME, 1, wait=30)
        assert delivery.attempt == 2
        client.ack(delivery)
