"""The clients against a real node: in a process of its own, and inside this one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.client.blocking import Client
from support.node_process import NodeProcess, start


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with start(tmp_path_factory.mktemp("served") / "node") as node:
        yield node


@pytest.fixture(params=["process", "inside"])
def client(request: pytest.FixtureRequest, served: NodeProcess, tmp_path: Path) -> Iterator[Client]:
    """A client of an empty queue ``q``."""
    inside = request.param == "inside"
    with penstock.open(tmp_path / "node") if inside else penstock.connect(served.address) as client:
        for stat in sorted(client.queues(), key=lambda stat: stat.options.dead_letter is None):
            if stat.name:
                client.delete_queue(stat.name)
        client.create_queue("q")
        yield client


def test_tasks_come_out_by_key_and_then_in_order(client: Client) -> None:
    ids = client.enqueue_many("q", [b"c", b"a", b"b"], keys=[2, 1, 1])
    assert ids == sorted(ids)
    assert [task.payload for task in client.peek("q", 10)] == [b"a", b"b", b"c"]
    seen = []
    for _ in range(3):
        with client.dequeue("q") as delivery:
            assert delivery is not None
            seen.append(delivery.payload)
    assert seen == [b"a", b"b", b"c"]
    with client.dequeue("q", wait=0.01) as delivery:
        assert delivery is None
    stat = client.stat("q")
    assert (stat.count, stat.leased, stat.enqueued, stat.acked) == (0, 0, 3, 3)


def test_a_failed_task_comes_back_and_ends_with_the_dead_letters(client: Client) -> None:
    client.create_queue("dead")
    client.create_queue("risky", attempts_max=2, dead_letter="dead", lease=30)
    client.enqueue("risky", b"x")
    for attempt in (1, 2):
        with pytest.raises(ZeroDivisionError), client.dequeue("risky") as delivery:  # noqa: PT012
            assert delivery is not None
            assert delivery.attempt == attempt
            raise ZeroDivisionError
    with client.dequeue("dead", wait=10) as delivery:
        assert delivery is not None
        assert delivery.payload == b"x"
    with pytest.raises(penstock.QueueInUse):
        client.delete_queue("dead")


def test_a_missing_dead_letter_queue_is_named_not_the_queue_that_is_created(client: Client) -> None:
    with pytest.raises(penstock.QueueMissing) as caught:
        client.create_queue("zzz", attempts_max=2, dead_letter="nope")
    assert caught.value.queue == "nope"
    assert "'nope'" in str(caught.value)
    assert "zzz" not in {stat.name for stat in client.queues()}
    with pytest.raises(penstock.QueueMissing) as caught:
        client.enqueue("absent", b"x")
    assert caught.value.queue == "absent"


def test_asyncio_names_the_missing_dead_letter_queue_too(served: NodeProcess) -> None:
    async def main() -> None:
        async with aio.connect(served.address) as client:
            with pytest.raises(penstock.QueueMissing) as caught:
                await client.create_queue("zzz", attempts_max=2, dead_letter="nope")
            assert caught.value.queue == "nope"

    asyncio.run(main())


def test_a_queue_cannot_be_its_own_dead_letter_queue(client: Client) -> None:
    with pytest.raises(penstock.InvalidValue):
        client.create_queue("loop", attempts_max=2, dead_letter="loop")
    assert "loop" not in {stat.name for stat in client.queues()}


def test_policies_hold_and_say_so(client: Client) -> None:
    client.create_queue(
        "strict", implementation="array", size_max=2, payload_size_max=10, keys=(0, 9)
    )
    with pytest.raises(penstock.KeyOutOfRange):
        client.enqueue("strict", b"x", key=10)
    with pytest.raises(penstock.PayloadTooLarge):
        client.enqueue("strict", b"x" * 11)
    client.enqueue_many("strict", [b"x", b"y"])
    with pytest.raises(penstock.QueueFull) as caught:
        client.enqueue_many("strict", [b"z"])
    assert caught.value.__dict__["ids"] == [None]
    with pytest.raises(penstock.QueueMissing):
        client.enqueue("nowhere", b"x")
    with pytest.raises(penstock.QueueExists):
        client.create_queue("strict")


def test_many_tasks_go_through_a_subscription(client: Client) -> None:
    payloads = [b"%d" % n for n in range(5000)]
    client.enqueue_many("q", payloads)
    with client.subscribe("q", prefetch=300) as subscription:
        seen = []
        for delivery in islice(subscription, 4000):
            seen.append(delivery.payload)
            subscription.ack(delivery)
    assert seen == payloads[:4000]
    stat = client.stat("q")
    assert (stat.count, stat.leased) == (1000, 0)
    assert client.purge("q") == 1000


def test_leases_are_extended_nacked_and_lost(client: Client) -> None:
    client.enqueue_many("q", [b"x", b"y"])
    first, second = client.dequeue_many("q", 2, lease=30)
    client.extend([first, second], lease=60)
    client.nack(second, key=-5)
    client.ack(first)
    with pytest.raises(penstock.LeaseLost):
        client.ack([first, second])
    (again,) = client.dequeue_many("q", 5, wait=5)
    assert (again.payload, again.key) == (b"y", -5)
    client.ack(again)


def test_delay_and_expiry_are_kept(client: Client) -> None:
    client.enqueue("q", b"later", delay=0.05)
    client.enqueue("q", b"never", ttl=0.001, delay=0.02)
    (delivery,) = client.dequeue_many("q", 5, wait=10)
    assert delivery.payload == b"later"
    client.ack(delivery)


def test_entries_are_read_to_the_end_and_from_the_middle(client: Client) -> None:
    client.enqueue_many("q", [b"x"] * 100)
    node = client.node()
    entries = list(client.entries(node.first))
    assert [index for index, _, _ in entries] == list(range(node.first, node.committed + 1))
    assert list(client.entries(node.committed)) == entries[-1:]
    assert list(client.entries(node.committed + 1)) == []


def test_followed_entries_go_on_as_they_are_written(client: Client) -> None:
    entries = client.entries(client.node().committed + 1, follow=True)
    written = threading.Thread(target=client.enqueue, args=("q", b"followed"))
    written.start()
    assert any(b"followed" in payload for _, _, payload in islice(entries, 2))
    written.join()


def test_a_worker_works_through_a_queue(client: Client) -> None:
    stop, seen = threading.Event(), set()

    @penstock.worker("q", concurrency=3, prefetch=30)
    def work(delivery: penstock.Delivery) -> None:
        seen.add(delivery.payload)
        if len(seen) == 200:
            stop.set()

    payloads = {b"%d" % n for n in range(200)}
    client.enqueue_many("q", payloads)
    work.run(client, stop)
    assert seen == payloads
    assert client.stat("q").count == 0


def test_tasks_stay_in_a_directory_that_is_opened_again(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "node") as client:
        client.create_queue("q", lease=5)
        client.enqueue("q", b"stays")
    with penstock.open(tmp_path / "node") as client, client.dequeue("q") as delivery:
        assert delivery is not None
        assert delivery.payload == b"stays"


def test_a_node_that_was_killed_loses_nothing_and_its_client_goes_on(tmp_path: Path) -> None:
    with start(tmp_path / "node") as node:
        port, taken = node.port, []
        with penstock.connect(node.address, retry=60) as client:
            client.create_queue("q")

            def produce() -> None:
                for batch in range(40):
                    taken.extend(client.enqueue_many("q", [b"%d" % batch] * 50))

            producing = threading.Thread(target=produce)
            producing.start()
            node.kill()
            with NodeProcess(tmp_path / "node", listen=f"127.0.0.1:{port}"):
                producing.join(60)
                assert not producing.is_alive()
                assert len(set(taken)) == len(taken) == 2000
                assert client.stat("q").count == 2000


def test_the_asyncio_client_does_the_same(served: NodeProcess) -> None:
    async def main() -> None:
        async with aio.connect(served.address) as client:
            await client.create_queue("async")
            ids = await asyncio.gather(*[client.enqueue("async", b"x") for _ in range(300)])
            assert len(set(ids)) == 300
            async with client.dequeue("async") as delivery:
                assert delivery is not None
            count = 0
            async with client.subscribe("async") as subscription:
                async for delivery in subscription:
                    await subscription.ack(delivery)
                    count += 1
                    if count == 200:
                        break
            stat = await client.stat("async")
            assert (stat.count, stat.leased) == (99, 0)
            waiting = asyncio.create_task(client.dequeue_many("", 1, wait=30))
            await client.ping()
            waiting.cancel()
            await client.enqueue("", b"for somebody else")
            async with client.dequeue("", wait=30) as delivery:
                assert delivery is not None
            await client.delete_queue("async")

    asyncio.run(main())
