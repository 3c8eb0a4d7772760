"""Connections that break at every point: what is safe is repeated and counts once, the rest says so."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from client.fake_node import FIRST_ENTRY, FakeNode
from penstock.client.blocking import Client
from penstock.model import QueueName
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import Request

DEFAULT = QueueName("")
BOTH = pytest.mark.parametrize("applied", [False, True])


@BOTH
def test_an_enqueue_counts_once(client: Client, node: FakeNode, applied: bool) -> None:
    node.drop(v2.Enqueue, applied=applied)
    assert client.enqueue("", b"once") == 1
    assert client.enqueue("", b"twice") == 2
    assert [task[2] for task in node.queues[DEFAULT].tasks] == [b"once", b"twice"]
    first, second, third = (r.producer for r in node.requests if isinstance(r, v2.Enqueue))
    assert first == second != third


@BOTH
@pytest.mark.parametrize("nth", [1, 2, 5, 9, 12])
def test_many_payloads_count_once_and_keep_their_order(
    client: Client, node: FakeNode, nth: int, applied: bool
) -> None:
    node.drop(v2.Enqueue, nth=nth, applied=applied)
    payloads = [b"%d" % n for n in range(11_500)]
    assert client.enqueue_many("", payloads) == list(range(1, 11_501))
    assert [task[2] for task in node.queues[DEFAULT].tasks] == payloads


def test_a_connection_that_breaks_again_and_again_is_mended_each_time(
    client: Client, node: FakeNode
) -> None:
    for nth in range(2, 20, 3):
        node.drop(v2.Enqueue, nth=nth, applied=nth % 2 == 0)
    payloads = [b"%d" % n for n in range(9000)]
    assert len(client.enqueue_many("", payloads)) == 9000
    assert [task[2] for task in node.queues[DEFAULT].tasks] == payloads


@BOTH
def test_a_dequeue_that_got_lost_is_repeated_and_its_tasks_come_again(
    client: Client, node: FakeNode, applied: bool
) -> None:
    client.enqueue("", b"x")
    node.drop(v2.Dequeue, applied=applied)
    with client.dequeue("", wait=5) as delivery:
        assert delivery is not None
        assert delivery.payload == b"x"
    assert node.queues[DEFAULT].tasks == []


READS: list[tuple[type[Request], Callable[[Client], object]]] = [
    (v2.Stat, lambda client: client.stat("")),
    (v2.Stat, lambda client: client.queues()),
    (v2.Peek, lambda client: client.peek("")),
    (v2.Node, lambda client: client.node()),
    (v2.Ping, lambda client: client.ping()),
    (v2.Read, lambda client: list(client.entries(FIRST_ENTRY))),
]


@BOTH
@pytest.mark.parametrize(("kind", "read"), READS)
def test_reads_are_repeated(
    client: Client,
    node: FakeNode,
    kind: type[Request],
    read: Callable[[Client], object],
    applied: bool,
) -> None:
    expected = read(client)
    node.drop(kind, applied=applied)
    assert read(client) == expected
    assert node.greetings == 2


@BOTH
def test_a_purge_is_not_repeated_and_its_outcome_is_unknown(
    client: Client, node: FakeNode, applied: bool
) -> None:
    node.drop(v2.Purge, applied=applied)
    with pytest.raises(penstock.ConnectionLost, match="purge took effect is unknown"):
        client.purge("")
    assert node.count(v2.Purge) == 1
    assert client.purge("") == 0


@BOTH
def test_a_queue_is_created_in_spite_of_a_lost_answer(
    client: Client, node: FakeNode, applied: bool
) -> None:
    node.drop(v2.Create, applied=applied)
    client.create_queue("q", size_max=5, lease=3)
    assert client.stat("q").policy.size_max == 5


def test_a_lost_create_finds_somebody_elses_queue(client: Client, node: FakeNode) -> None:
    client.create_queue("q", size_max=5)
    node.drop(v2.Create, applied=False)
    with pytest.raises(penstock.QueueExists):
        client.create_queue("q", size_max=6)
    node.drop(v2.Create, applied=False)
    client.create_queue("q", size_max=5)
    with pytest.raises(penstock.QueueExists):
        client.create_queue("q", size_max=5)


@BOTH
def test_a_queue_is_deleted_in_spite_of_a_lost_answer(
    client: Client, node: FakeNode, applied: bool
) -> None:
    client.create_queue("q")
    node.drop(v2.Delete, applied=applied)
    client.delete_queue("q")
    assert QueueName("q") not in node.queues


def test_leases_end_with_their_connection(client: Client, node: FakeNode) -> None:
    client.enqueue("", b"x")
    (delivery,) = client.dequeue_many("", 1)
    node.disconnect()
    client.ping()
    for settle in (client.ack, client.nack, client.extend):
        with pytest.raises(penstock.LeaseLost) as caught:
            settle(delivery)
        assert caught.value.__dict__["deliveries"] == (delivery,)
    assert node.count(v2.Ack) == node.count(v2.Nack) == node.count(v2.Extend) == 0
    assert client.stat("").count == 1


@BOTH
def test_an_ack_without_an_answer_has_an_unknown_outcome(
    client: Client, node: FakeNode, applied: bool
) -> None:
    client.enqueue("", b"x")
    (delivery,) = client.dequeue_many("", 1)
    node.drop(v2.Ack, applied=applied)
    with pytest.raises(penstock.ConnectionLost, match="ack took effect is unknown"):
        client.ack(delivery)


def test_a_delivery_means_nothing_to_another_client(client: Client, node: FakeNode) -> None:
    client.enqueue("", b"x")
    (delivery,) = client.dequeue_many("", 1)
    with penstock.connect(node.address) as other, pytest.raises(penstock.LeaseLost):
        other.ack(delivery)
    client.ack(delivery)


def test_a_node_that_comes_back_is_found_again(client: Client, node: FakeNode) -> None:
    port = node.port
    with ThreadPoolExecutor(1) as pool:
        node.close()
        enqueueing = pool.submit(client.enqueue, "", b"patient")
        revived = FakeNode(port)
        try:
            assert enqueueing.result(10) == 1
            client.close()
        finally:
            revived.close()


def test_a_node_that_stays_away_is_given_up_in_time(node: FakeNode) -> None:
    with penstock.connect(node.address, retry=0.1) as client:
        node.close()
        with pytest.raises(penstock.ConnectionFailed):
            client.enqueue("", b"x")
        with pytest.raises(penstock.Unreachable, match="penstock serve"):
            client.purge("")


def test_a_node_that_falls_silent_is_left(node: FakeNode) -> None:
    with penstock.connect(node.address, timeout=0.1, retry=0) as client:
        client.ping()
        node.is_mute = True
        with pytest.raises(penstock.ConnectionLost, match=r"did not answer for 0\.1 s"):
            client.ping()
        node.is_mute = False
        client.ping()


def test_closing_ends_the_retries_of_another_thread(node: FakeNode) -> None:
    with penstock.connect(node.address, retry=60) as client, ThreadPoolExecutor(1) as pool:
        node.drop(v2.Ping, applied=False)
        pinging = pool.submit(client.ping)
        node.wait_for(lambda: node.count(v2.Ping) == 1)
        node.close()
        client.close()
        with pytest.raises(penstock.ConnectionFailed):
            pinging.result(10)


def test_bytes_that_mean_nothing_end_the_call_and_are_not_repeated() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(100)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                sock.recv(100)

        serving = pool.submit(serve)
        with pytest.raises(penstock.ProtocolBroken, match="no Penstock node"):
            penstock.connect(f"127.0.0.1:{listener.getsockname()[1]}")
        serving.result(10)


def test_a_node_that_does_not_lead_is_left_for_the_next_address(node: FakeNode) -> None:
    other = FakeNode()
    try:
        other.script = lambda request: (
            v2.Failed(v2.Failure.NOT_LEADER, "no", -1) if isinstance(request, v2.Enqueue) else None
        )
        with penstock.connect(f"{other.address},{node.address}") as client:
            client.enqueue("", b"x")
        assert len(node.queues[DEFAULT].tasks) == 1
        assert not other.queues[DEFAULT].tasks
    finally:
        other.close()


def test_a_stopping_node_is_waited_for(client: Client, node: FakeNode) -> None:
    refusals = [v2.Failed(v2.Failure.STOPPING, "stopping")] * 2
    node.script = lambda _request: refusals.pop() if refusals else None
    assert client.purge("") == 0
    assert node.count(v2.Purge) == 3


def test_threads_all_get_through_a_broken_connection(client: Client, node: FakeNode) -> None:
    for nth in (20, 45, 70):
        node.drop(v2.Enqueue, nth=nth, applied=nth % 2 == 0)
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda n: client.enqueue("", b"%d" % n), range(200)))
    assert sorted(ids) == list(range(1, 201))
    assert {task[2] for task in node.queues[DEFAULT].tasks} == {b"%d" % n for n in range(200)}


def test_a_connection_that_was_closed_while_idle_is_noticed_before_it_is_used(
    client: Client, node: FakeNode
) -> None:
    node.disconnect()
    client._link._heard -= 10  # as if that long had passed
    assert client.purge("") == 0  # which is never repeated, so it was never lost
    assert node.count(v2.Purge) == 1
    assert node.greetings == 2


def test_an_interrupted_wait_leaves_the_client_usable(client: Client, node: FakeNode) -> None:
    class Interrupted(BaseException): ...

    transport = client._link._transport
    receive = transport.receive

    def interrupted(timeout: float | None) -> bytes:
        transport.receive = receive  # type: ignore[method-assign]
        raise Interrupted

    transport.receive = interrupted  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        client.enqueue("", b"x")
    client.ping()
    assert client.enqueue("", b"y") == 2
    assert node.greetings == 1


def test_tasks_of_an_interrupted_dequeue_are_released(client: Client, node: FakeNode) -> None:
    client.enqueue("", b"x")
    ticket = client._link.send(v2.Dequeue(DEFAULT), 10)
    ticket.abandon()
    client.ping()
    node.wait_for(lambda: node.count(v2.Release) == 1)
    with client.dequeue("") as delivery:
        assert delivery is not None
        assert delivery.attempt == 1


def test_a_named_producer_goes_on_where_no_number_was_used(node: FakeNode) -> None:
    for _ in range(2):
        with penstock.connect(node.address, producer="billing") as client:
            client.enqueue("", b"x")
    producers = [r.producer for r in node.requests if isinstance(r, v2.Enqueue) and r.producer]
    assert producers[0].id == producers[1].id
    assert producers[0].sequence < producers[1].sequence
    assert len(node.queues[DEFAULT].tasks) == 2
