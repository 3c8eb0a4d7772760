"""The blocking client against a node of the tests, over real sockets."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from client.fake_node import FIRST_ENTRY, LAST_ENTRY, FakeNode
from penstock.client.blocking import Client
from penstock.client.transport import SocketTransport
from penstock.model import QueueName
from penstock.protocol import version2 as v2


def test_a_task_goes_in_and_comes_out(client: Client) -> None:
    task_id = client.enqueue("", b"hello", key=3)
    with client.dequeue("") as delivery:
        assert delivery is not None
        assert (delivery.id, delivery.key, delivery.payload) == (task_id, 3, b"hello")
        assert (delivery.queue, delivery.attempt) == ("", 1)
        assert client.stat("").leased == 1
    assert client.stat("").count == client.stat("").leased == 0


def test_an_exception_nacks_and_passes_through(client: Client) -> None:
    client.enqueue("", b"hello")
    with pytest.raises(ZeroDivisionError), client.dequeue(""):
        raise ZeroDivisionError
    with client.dequeue("") as delivery:
        assert delivery is not None
        assert delivery.attempt == 2


def test_an_empty_queue_gives_none(client: Client) -> None:
    with client.dequeue("") as delivery:
        assert delivery is None
    assert client.dequeue_many("", 10) == []


def test_a_task_that_the_body_settled_is_left_alone(client: Client, node: FakeNode) -> None:
    client.enqueue_many("", [b"a", b"b"])
    with client.dequeue("") as delivery:
        assert delivery is not None
        client.ack(delivery)
    with client.dequeue("") as delivery:
        assert delivery is not None
        client.nack(delivery, delay=1.5, key=4)
    assert node.count(v2.Ack) == node.count(v2.Nack) == 1
    nack = next(r for r in node.requests if isinstance(r, v2.Nack))
    assert (nack.delay_ms, nack.key) == (1500, 4)


def test_an_extended_task_is_still_settled_at_the_end(client: Client, node: FakeNode) -> None:
    client.enqueue("", b"a")
    with client.dequeue("") as delivery:
        assert delivery is not None
        client.extend(delivery, lease=90)
    extend = next(r for r in node.requests if isinstance(r, v2.Extend))
    assert extend.lease_ms == 90_000
    assert node.count(v2.Ack) == 1


def test_a_lost_lease_names_the_deliveries_and_settles_the_others(client: Client) -> None:
    client.enqueue_many("", [b"a", b"b", b"c"])
    deliveries = client.dequeue_many("", 3)
    client.ack(deliveries[1])
    with pytest.raises(penstock.LeaseLost, match="extend") as caught:
        client.ack(deliveries)
    assert caught.value.__dict__["deliveries"] == (deliveries[1],)
    assert client.stat("").leased == 0


def test_a_dequeue_waits_for_a_task_that_comes_later(client: Client, node: FakeNode) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.dequeue_many, "", 1, wait=30)
        node.wait_for(lambda: node.count(v2.Dequeue) == 1)
        client.enqueue("", b"late")
        assert [each.payload for each in waiting.result(10)] == [b"late"]


def test_many_payloads_keep_their_order_over_many_frames(client: Client, node: FakeNode) -> None:
    payloads = [b"%d" % n for n in range(12_345)]
    ids = client.enqueue_many("", iter(payloads))
    assert ids == list(range(1, 12_346))
    assert [task[2] for task in node.queues[QueueName("")].tasks] == payloads
    assert node.count(v2.Enqueue) == 13


def test_keys_go_with_their_payloads(client: Client) -> None:
    client.enqueue_many("", [b"c", b"a", b"b"], keys=[3, 1, 2])
    assert [task.payload for task in client.peek("", 10)] == [b"a", b"b", b"c"]


def test_nothing_enqueued_is_nothing_sent(client: Client, node: FakeNode) -> None:
    assert client.enqueue_many("", []) == []
    assert node.count(v2.Enqueue) == 0


def test_a_full_queue_says_so_and_tells_what_was_taken(client: Client) -> None:
    client.create_queue("small", size_max=2500)
    with pytest.raises(penstock.QueueFull) as caught:
        client.enqueue_many("small", [b"x"] * 5000)
    ids = caught.value.__dict__["ids"]
    assert len(ids) % 1000 == 0
    assert ids[:2000] == list(range(1, 2001))
    assert all(each is None for each in ids[2000:])
    with pytest.raises(penstock.QueueFull, match="'small' is full"):
        client.enqueue_many("small", [b"x"] * 501)
    client.enqueue_many("small", [b"x"] * 500)
    with pytest.raises(penstock.QueueFull):
        client.enqueue("small", b"x")


def test_a_bad_payload_in_the_middle_tells_what_was_taken_before(client: Client) -> None:
    with pytest.raises(penstock.InvalidValue, match=r"encode\(\)") as caught:
        client.enqueue_many("", [b"x"] * 2500 + ["text"])  # type: ignore[list-item]
    assert caught.value.__dict__["ids"] == list(range(1, 2001))


def test_text_is_no_payload(client: Client) -> None:
    with pytest.raises(penstock.InvalidValue, match=r"encode\(\)"):
        client.enqueue("", "text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"implementation": "list"},
        {"implementation": "array"},
        {"size_max": -1},
        {"payload_size_max": 2**31},
        {"keys": (2, 1)},
        {"keys": 5},
        {"lease": 0},
        {"attempts_max": 0},
        {"dead_letter": "with space"},
    ],
)
def test_a_queue_that_cannot_be_is_refused_before_it_is_asked_for(
    client: Client, node: FakeNode, options: dict[str, object]
) -> None:
    with pytest.raises(penstock.InvalidValue):
        client.create_queue("q", **options)  # type: ignore[arg-type]
    assert node.count(v2.Create) == 0


def test_queues_are_created_listed_purged_and_deleted(client: Client) -> None:
    client.create_queue("a", implementation="array", keys=(0, 9), lease=5, attempts_max=3)
    client.create_queue("b", dead_letter="a")
    stats = {stat.name: stat for stat in client.queues()}
    assert set(stats) == {"", "a", "b"}
    assert stats[QueueName("a")].options.lease_ms == 5000
    assert stats[QueueName("b")].options.dead_letter == "a"
    client.enqueue_many("b", [b"x"] * 7)
    assert client.purge("b") == 7
    client.delete_queue("b")
    with pytest.raises(penstock.QueueMissing, match="create_queue"):
        client.stat("b")
    with pytest.raises(penstock.QueueMissing):
        client.delete_queue("b")
    with pytest.raises(penstock.QueueExists, match="exist_ok"):
        client.create_queue("a")
    client.create_queue("a", exist_ok=True)


def test_entries_come_page_by_page_and_end(client: Client, node: FakeNode) -> None:
    entries = list(client.entries(FIRST_ENTRY))
    assert [index for index, _, _ in entries] == list(range(FIRST_ENTRY, LAST_ENTRY + 1))
    assert entries[0] == (FIRST_ENTRY, 1, b"%d" % FIRST_ENTRY)
    assert node.count(v2.Read) == 4
    assert list(client.entries(LAST_ENTRY + 1)) == []


def test_entries_that_are_gone_name_the_first_that_is_there(client: Client) -> None:
    with pytest.raises(penstock.Compacted) as caught:
        list(client.entries(0))
    assert caught.value.__dict__["first"] == FIRST_ENTRY


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (v2.Failure.INVALID, penstock.InvalidValue),
        (v2.Failure.QUEUE_IN_USE, penstock.QueueInUse),
        (v2.Failure.CHANGE_REFUSED, penstock.RequestRefused),
        (v2.Failure.OUTCOME_UNKNOWN, penstock.ConnectionLost),
        (v2.Failure.LIMIT, penstock.LimitReached),
        (v2.Failure.SEQUENCE_FORGOTTEN, penstock.SequenceForgotten),
        (v2.Failure.UNKNOWN_REQUEST, penstock.ProtocolBroken),
        (999, penstock.RequestRefused),
    ],
)
def test_every_failure_has_its_exception(
    client: Client, node: FakeNode, code: int, expected: type[Exception]
) -> None:
    node.script = lambda request: v2.Failed(code, "no") if isinstance(request, v2.Purge) else None
    with pytest.raises(expected):
        client.purge("")
    client.ping()


def test_threads_share_a_client(client: Client) -> None:
    def work(n: int) -> list[int]:
        ids = [client.enqueue("", b"%d" % n) for _ in range(50)]
        with client.dequeue("") as delivery:
            assert delivery is not None
        return ids

    with ThreadPoolExecutor(16) as pool:
        ids = [each for many in pool.map(work, range(16)) for each in many]
    assert len(set(ids)) == 800
    assert client.stat("").count == 800 - 16


def test_a_thread_that_waits_long_does_not_hold_up_the_others(
    client: Client, node: FakeNode
) -> None:
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(client.dequeue_many, "", 1, wait=60)
        node.wait_for(lambda: node.count(v2.Dequeue) == 1)
        for _ in range(20):
            client.ping()
        assert not waiting.done()
        client.enqueue("", b"x")
        assert len(waiting.result(10)) == 1


def test_a_closed_client_says_so(client: Client) -> None:
    client.close()
    client.close()
    with pytest.raises(penstock.ConnectionFailed, match="closed"):
        client.ping()
    with pytest.raises(penstock.ConnectionFailed, match="closed"):
        client.enqueue("", b"x")


def test_closing_wakes_a_thread_that_waits(client: Client, node: FakeNode) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.dequeue_many, "", 1, wait=60)
        node.wait_for(lambda: node.count(v2.Dequeue) == 1)
        client.close()
        with pytest.raises(penstock.ConnectionFailed, match="closed"):
            waiting.result(10)


def test_nobody_at_an_address_is_told_with_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(penstock.Unreachable, match=f"127.0.0.1:{port}.*penstock serve"):
        penstock.connect(f"127.0.0.1:{port}")


def test_the_second_address_is_tried_when_nobody_is_at_the_first(node: FakeNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with penstock.connect(f"127.0.0.1:{port},{node.address}") as client:
        client.ping()


def test_a_refused_greeting_is_told_and_not_repeated(node: FakeNode) -> None:
    node.refusal = "this node is full"
    with pytest.raises(penstock.ConnectionFailed, match="this node is full"):
        penstock.connect(node.address)
    assert node.greetings == 1


def test_a_send_without_room_takes_in_what_arrives_so_that_both_sides_go_on() -> None:
    # Each side sends more than all buffers hold before it reads: without taking in, neither ends.
    size = 16 * 2**20
    ours, theirs = socket.socketpair()
    one, other = SocketTransport(ours, timeout=10), SocketTransport(theirs, timeout=10)

    def talk(transport: SocketTransport, letter: bytes) -> bytes:
        transport.send(letter * size)
        got = b""
        while len(got) < size:
            got += transport.receive(10)
        return got

    with ThreadPoolExecutor(1) as pool:
        talking = pool.submit(talk, other, b"b")
        assert talk(one, b"a") == b"b" * size
        assert talking.result(10) == b"a" * size
    one.close()
    other.close()


def test_a_send_that_finds_no_room_for_too_long_gives_up() -> None:
    ours, theirs = socket.socketpair()
    transport = SocketTransport(ours, timeout=0.05)
    with pytest.raises(TimeoutError):
        transport.send(bytes(16 * 2**20))
    transport.close()
    theirs.close()


def test_importing_penstock_is_light() -> None:
    import subprocess
    import sys

    code = (
        "import sys, penstock; heavy = {'asyncio', 'numba', 'numpy', 'pyarrow', 'socket', 'typer'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "penstock.connect; assert not {'asyncio', 'numpy', 'penstock.server'} & set(sys.modules);"
        "assert penstock.QueueFull.__name__ == 'QueueFull'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError):
        penstock.nonsense  # noqa: B018


def test_threads_that_enqueue_many_at_once_never_have_too_many_unanswered(
    client: Client, node: FakeNode
) -> None:
    started = threading.Barrier(8)

    def work(_: int) -> int:
        started.wait(10)
        return len(client.enqueue_many("", [b"x" * 100_000] * 200))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 1600
    sequences = [
        r.producer.sequence for r in node.requests if isinstance(r, v2.Enqueue) and r.producer
    ]
    assert sorted(sequences) == list(range(1, len(sequences) + 1))
