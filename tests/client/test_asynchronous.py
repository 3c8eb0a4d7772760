"""The asyncio client against a node of the tests, in asyncio's loop and in uvloop's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

import penstock
from client.fake_node import FIRST_ENTRY, LAST_ENTRY, FakeNode
from penstock import aio
from penstock.model import QueueName
from penstock.protocol import version2 as v2

DEFAULT = QueueName("")
Test = Callable[[aio.AsyncClient], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, node: FakeNode) -> Callable[[Test], None]:
    def run(test: Test) -> None:
        async def main() -> None:
            async with asyncio.timeout(20):
                async with aio.connect(node.address, timeout=5, retry=5) as client:
                    await test(client)

        if request.param == "uvloop":
            uvloop.run(main())
        else:
            asyncio.run(main())

    return run


def test_the_whole_api_once(run: Callable[[Test], None], node: FakeNode) -> None:
    async def test(client: aio.AsyncClient) -> None:
        await client.ping()
        assert (await client.node()).version == "fake"
        await client.create_queue("q", size_max=9000)
        assert await client.enqueue("q", b"a", key=2) == 1
        assert await client.enqueue_many("q", [b"b"] * 5000, key=1) == list(range(2, 5002))
        assert [task.payload for task in await client.peek("q", 2)] == [b"b", b"b"]
        async with client.dequeue("q") as delivery:
            assert delivery is not None
            await client.extend(delivery, lease=5)
        with pytest.raises(ZeroDivisionError):
            async with client.dequeue("q"):
                raise ZeroDivisionError
        many = await client.dequeue_many("q", 10)
        await client.ack(many[:5])
        await client.nack(many[5:], delay=1)
        with pytest.raises(penstock.LeaseLost):
            await client.ack(many)
        assert (await client.stat("q")).count == 4995
        assert {stat.name for stat in await client.queues()} == {"", "q"}
        with pytest.raises(penstock.QueueFull):
            await client.enqueue_many("q", [b"x"] * 6000)
        assert await client.purge("q") > 0
        await client.delete_queue("q")
        entries = [entry async for entry in client.entries(FIRST_ENTRY)]
        assert [entry[0] for entry in entries] == list(range(FIRST_ENTRY, LAST_ENTRY + 1))

    run(test)


def test_many_tasks_at_once_share_a_client(run: Callable[[Test], None], node: FakeNode) -> None:
    async def test(client: aio.AsyncClient) -> None:
        ids = await asyncio.gather(*[client.enqueue("", b"x") for _ in range(2000)])
        assert sorted(ids) == list(range(1, 2001))

    run(test)


@pytest.mark.parametrize("applied", [False, True])
def test_enqueues_count_once_over_broken_connections(
    run: Callable[[Test], None], node: FakeNode, applied: bool
) -> None:
    async def test(client: aio.AsyncClient) -> None:
        for nth in (2, 7, 11):
            node.drop(v2.Enqueue, nth=nth, applied=applied)
        payloads = [b"%d" % n for n in range(8000)]
        assert await client.enqueue_many("", payloads) == list(range(1, 8001))
        assert [task[2] for task in node.queues[DEFAULT].tasks] == payloads

    run(test)


def test_a_cancelled_dequeue_releases_its_task(run: Callable[[Test], None], node: FakeNode) -> None:
    async def test(client: aio.AsyncClient) -> None:
        waiting = asyncio.create_task(client.dequeue_many("", 1, wait=60))
        await asyncio.to_thread(node.wait_for, lambda: node.count(v2.Dequeue) == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await client.enqueue("", b"x")
        await asyncio.to_thread(node.wait_for, lambda: node.count(v2.Release) == 1)
        async with client.dequeue("", wait=60) as delivery:
            assert delivery is not None
            assert (delivery.payload, delivery.attempt) == (b"x", 1)

    run(test)


def test_a_subscription_hands_out_acks_and_gives_back(
    run: Callable[[Test], None], node: FakeNode
) -> None:
    async def test(client: aio.AsyncClient) -> None:
        await client.enqueue_many("", [b"%d" % n for n in range(300)])
        seen = []
        async with client.subscribe("", prefetch=50) as subscription:
            async for delivery in subscription:
                seen.append(delivery.payload)
                await subscription.ack(delivery)
                if len(seen) == 120:
                    break
        assert seen == [b"%d" % n for n in range(120)]
        assert (await client.stat("")).count == 180
        assert (await client.stat("")).leased == 0

    run(test)


def test_a_subscription_survives_a_broken_connection(
    run: Callable[[Test], None], node: FakeNode
) -> None:
    async def test(client: aio.AsyncClient) -> None:
        await client.enqueue_many("", [b"x"] * 10)
        subscription = client.subscribe("", prefetch=1)
        first = await anext(subscription)
        await asyncio.to_thread(node.wait_for, lambda: node.count(v2.Start) == 1)
        node.disconnect()
        await subscription.ack(first)
        again = await anext(subscription)
        assert (again.id, again.attempt) == (first.id, 2)
        await subscription.ack(again)
        with pytest.raises(penstock.LeaseLost):
            await subscription.close()
        assert (await client.stat("")).count == 9

    run(test)


def test_closing_a_subscription_ends_those_who_wait(
    run: Callable[[Test], None], node: FakeNode
) -> None:
    async def test(client: aio.AsyncClient) -> None:
        async def drain() -> list[penstock.Delivery]:
            return [delivery async for delivery in subscription]

        async with client.subscribe("") as subscription:
            waiting = [asyncio.create_task(drain()) for _ in range(3)]
            await asyncio.sleep(0)
            await subscription.close()
            assert await asyncio.gather(*waiting) == [[], [], []]

    run(test)


def test_leases_end_with_their_connection(run: Callable[[Test], None], node: FakeNode) -> None:
    async def test(client: aio.AsyncClient) -> None:
        await client.enqueue("", b"x")
        (delivery,) = await client.dequeue_many("", 1)
        node.disconnect()
        await client.ping()
        with pytest.raises(penstock.LeaseLost):
            await client.ack(delivery)

    run(test)


def test_a_silent_node_is_left(node: FakeNode) -> None:
    async def main() -> None:
        async with aio.connect(node.address, timeout=0.1, retry=0) as client:
            node.is_mute = True
            with pytest.raises(penstock.ConnectionLost, match="did not answer"):
                await client.ping()
            node.is_mute = False
            await client.ping()

    asyncio.run(main())


def test_nobody_at_an_address_and_a_refused_greeting_are_told(node: FakeNode) -> None:
    async def main() -> None:
        node.refusal = "full"
        with pytest.raises(penstock.ConnectionFailed, match="full"):
            await aio.connect(node.address)
        address = node.address
        node.close()
        with pytest.raises(penstock.Unreachable, match="penstock serve"):
            await aio.connect(address)

    asyncio.run(main())


def test_a_closed_client_says_so(run: Callable[[Test], None]) -> None:
    async def test(client: aio.AsyncClient) -> None:
        waiting = asyncio.create_task(client.dequeue_many("", 1, wait=60))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(penstock.ConnectionFailed, match="closed"):
            await waiting
        with pytest.raises(penstock.ConnectionFailed, match="closed"):
            await client.enqueue("", b"x")

    run(test)
