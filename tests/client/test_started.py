"""Only a task that user code received counts an attempt; every other delivery is released.

Against real nodes: in a process of its own, inside this process, and a cluster of three.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.client.blocking import Client
from support.group_processes import group_processes, wait_until
from support.node_process import NodeProcess, start

TASKS = [b"%02d" % n for n in range(50)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with start(tmp_path_factory.mktemp("served") / "node") as node:
        yield node


@pytest.fixture(params=["process", "inside"])
def client(request: pytest.FixtureRequest, served: NodeProcess, tmp_path: Path) -> Iterator[Client]:
    """A client of a queue ``q`` with 50 tasks, dead letters after three attempts."""
    inside = request.param == "inside"
    with penstock.open(tmp_path / "node") if inside else penstock.connect(served.address) as client:
        prepare(client)
        yield client


@pytest.fixture
def remote(served: NodeProcess) -> Iterator[Client]:
    """The same in a process of its own."""
    with penstock.connect(served.address) as client:
        prepare(client)
        yield client


def prepare(client: Client) -> None:
    for name in ("q", "dead"):
        if name in {stat.name for stat in client.queues()}:
            client.delete_queue(name)
    client.create_queue("dead")
    client.create_queue("q", attempts_max=3, dead_letter="dead", lease=60)
    client.enqueue_many("q", TASKS)


def waiting(client: Client) -> list[tuple[bytes, int]]:
    """Return payload and attempts of each task that waits, in the order of delivery."""
    return [(task.payload, task.attempts) for task in client.peek("q", 100)]


def unattempted(*payloads: bytes) -> list[tuple[bytes, int]]:
    return [(payload, 0) for payload in payloads]


def is_delivered(client: Client, count: int) -> bool:
    return client.stat("q").delivered >= count


def wait_for_all_to_return(client: Client) -> None:
    wait_until(lambda: client.stat("q").leased == 0, "the tasks are back")


def test_tasks_that_nobody_ran_are_not_dead_lettered(client: Client) -> None:
    for _ in range(3):
        with client.subscribe("q") as subscription:
            for delivery in subscription:
                subscription.ack(delivery)
                break
    assert client.stat("dead").count == 0
    assert waiting(client) == unattempted(*TASKS[3:])
    assert client.stat("q").acked == 3


def test_tasks_that_nobody_ran_are_not_dead_lettered_by_the_asyncio_client(
    served: NodeProcess, remote: Client
) -> None:
    async def consume() -> None:
        async with aio.connect(served.address) as client:
            for _ in range(3):
                async with client.subscribe("q") as subscription:
                    async for delivery in subscription:
                        await subscription.ack(delivery)
                        break

    asyncio.run(consume())
    assert remote.stat("dead").count == 0
    assert waiting(remote) == unattempted(*TASKS[3:])
    assert remote.stat("q").acked == 3


def test_tasks_that_nobody_ran_are_not_dead_lettered_by_a_cluster(tmp_path: Path) -> None:
    with group_processes(tmp_path) as group, group.client() as client:
        prepare(client)
        for _ in range(3):
            with group.client() as consumer, consumer.subscribe("q") as subscription:
                subscription.ack(next(subscription))
        wait_for_all_to_return(client)
        assert client.stat("dead").count == 0
        assert waiting(client) == unattempted(*TASKS[3:])


def test_a_broken_connection_does_not_dead_letter_tasks_that_nobody_ran(
    served: NodeProcess, remote: Client
) -> None:
    script = """
import os, sys, penstock
subscription = penstock.connect(sys.argv[1]).subscribe("q")
next(subscription)
os._exit(0)
"""
    for _ in range(3):
        run(script, served, remote)
    assert dead(remote) == [TASKS[0]]
    assert waiting(remote) == unattempted(*TASKS[1:])


def test_a_lease_that_ends_does_not_dead_letter_tasks_that_nobody_ran(client: Client) -> None:
    for attempt in (1, 2, 3):
        with client.subscribe("q", prefetch=20, lease=0.1) as subscription:
            delivery = next(subscription)
            assert (delivery.payload, delivery.attempt) == (TASKS[0], attempt)
            delivered = client.stat("q").delivered
            # The node delivers the tasks again when their leases have ended.
            wait_until(partial(is_delivered, client, delivered + 20), "all leases ended")
        wait_for_all_to_return(client)
    assert dead(client) == [TASKS[0]]
    assert waiting(client) == unattempted(*TASKS[1:])


def test_a_task_that_was_received_and_not_acked_counts_an_attempt(
    served: NodeProcess, remote: Client
) -> None:
    for attempt in (1, 2):
        with penstock.connect(served.address) as consumer, consumer.subscribe("q") as subscription:
            for delivery in subscription:
                assert delivery.attempt == attempt
                break
        wait_for_all_to_return(remote)
        assert waiting(remote) == [(TASKS[0], attempt), *unattempted(*TASKS[1:])]


HANDLERS = {
    "blocking": "def work(delivery):",
    "asyncio": "async def work(delivery):",
}

WORKER = """
import os, sys, penstock

@penstock.worker("q", concurrency=2, prefetch=20)
{head}
    os.write(1, delivery.payload + b"\\n")
    if delivery.payload == b"05":
        {end}

work.run(sys.argv[1])
"""


@pytest.mark.parametrize("face", HANDLERS)
def test_a_handler_that_ends_its_process_reaches_the_dead_letters(
    served: NodeProcess, remote: Client, face: str
) -> None:
    script = WORKER.format(head=HANDLERS[face], end="os._exit(7)").replace(
        "concurrency=2", "concurrency=1"
    )
    for attempt in (1, 2, 3):
        process = run(script, served, remote)
        assert process.returncode == 7
        # The acks of the tasks before it travelled with the report that it was started.
        expected = [b"05"] if attempt > 1 else TASKS[:6]
        assert process.stdout.split() == [payload.decode() for payload in expected]
    assert dead(remote) == [b"05"]
    assert waiting(remote) == unattempted(*TASKS[6:])


@pytest.mark.parametrize("face", HANDLERS)
@pytest.mark.parametrize(
    ("end", "code"), [("raise SystemExit(9)", 9), ("raise KeyboardInterrupt", -2)]
)
def test_a_handler_that_exits_counts_an_attempt_of_its_own_task_alone(
    served: NodeProcess, remote: Client, face: str, end: str, code: int
) -> None:
    process = run(WORKER.format(head=HANDLERS[face], end=end), served, remote)
    assert process.returncode == code, process.stderr
    ran = {line.encode() for line in process.stdout.split()}
    left = waiting(remote)
    assert left[0] == (b"05", 1)
    # Another thread may have been at work on later tasks; each of them was acked.
    assert left[1:] == unattempted(*[p for p in TASKS if p not in ran])
    assert remote.stat("dead").count == 0


def test_only_tasks_that_a_handler_received_are_attempts_when_a_worker_is_killed(
    served: NodeProcess, remote: Client
) -> None:
    script = """
import os, sys, threading, penstock

@penstock.worker("q", concurrency=3, prefetch=30)
def work(delivery):
    os.write(1, delivery.payload + b"\\n")
    threading.Event().wait()

work.run(sys.argv[1])
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, served.address], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        begun = {process.stdout.readline().strip().encode() for _ in range(3)}
        process.kill()
    wait_for_all_to_return(remote)
    assert begun == set(TASKS[:3])
    assert waiting(remote) == [(p, 1) for p in TASKS[:3]] + unattempted(*TASKS[3:])


def test_a_task_dropped_before_it_is_received_is_released_in_order(client: Client) -> None:
    """Two subscriptions share the queue; what the first gives back the second gets in order."""
    with client.subscribe("q", prefetch=30) as first, client.subscribe("q", prefetch=5) as second:
        kept = [next(first) for _ in range(3)]
        first.close()
        seen = []
        for delivery in islice(second, 45):
            seen.append(delivery.payload)
            second.ack(delivery)
        client.ack(kept)
    # The second had five of its own; then it got the others by age.
    assert [delivery.payload for delivery in kept] == TASKS[:3]
    assert sorted(seen) == TASKS[3:48]
    rest = [payload for payload in seen if payload not in TASKS[30:35]]
    assert rest == sorted(rest)


def test_a_dequeue_that_was_cancelled_does_not_count_an_attempt(
    served: NodeProcess, remote: Client
) -> None:
    remote.purge("q")

    async def cancel() -> None:
        async with aio.connect(served.address) as client:
            for _ in range(3):
                asked = asyncio.ensure_future(client.dequeue_many("q", 1, wait=30))
                await client.ping()  # the node has the request
                enqueued = asyncio.ensure_future(client.enqueue("q", b"x"))
                await asyncio.sleep(0)
                asked.cancel()
                await enqueued
                await asyncio.wait([asked])
                (delivery,) = await client.dequeue_many("q", 1, wait=30)
                assert delivery.attempt == 1
                await client.ack(delivery)

    asyncio.run(cancel())
    assert remote.stat("q").count == remote.stat("dead").count == 0


def test_a_subscription_shared_by_threads_counts_what_they_received(
    served: NodeProcess, remote: Client
) -> None:
    received: list[bytes] = []
    with penstock.connect(served.address) as consumer:
        subscription = consumer.subscribe("q", prefetch=40)

        def take() -> None:
            received.extend(delivery.payload for delivery in islice(subscription, 4))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    wait_for_all_to_return(remote)
    assert set(received) == set(TASKS[:16])
    assert waiting(remote) == [(p, 1) for p in TASKS[:16]] + unattempted(*TASKS[16:])


def run(script: str, node: NodeProcess, client: Client) -> subprocess.CompletedProcess[str]:
    """Run a consumer to its end and wait until the node has noticed that."""
    words = [sys.executable, "-c", script, node.address]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    wait_for_all_to_return(client)
    return process


def dead(client: Client) -> list[bytes]:
    return [task.payload for task in client.peek("dead", 100)]
