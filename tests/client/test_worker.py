"""Workers: acks, nacks with backoff, leases kept alive, graceful ends; in threads and in a loop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import penstock
from client.fake_node import FakeNode
from penstock.client.blocking import Client
from penstock.client.worker import Worker
from penstock.model import QueueName
from penstock.protocol import version2 as v2

DEFAULT = QueueName("")


@contextmanager
def running(worker: Worker, target: Client | str) -> Iterator[threading.Event]:
    """Run a worker in a thread until the end of the ``with``; what it raises is raised here."""
    stop, errors = threading.Event(), []

    def run() -> None:
        try:
            worker.run(target, stop)
        except penstock.PenstockError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_every_task_is_worked_on_once_and_acked(client: Client, node: FakeNode) -> None:
    seen: set[bytes] = set()

    @penstock.worker("", concurrency=4, prefetch=20)
    def work(delivery: penstock.Delivery) -> None:
        seen.add(delivery.payload)

    client.enqueue_many("", [b"%d" % n for n in range(500)])
    with running(work, client):
        node.wait_for(lambda: not node.queues[DEFAULT].tasks and client_is_idle(node))
    assert seen == {b"%d" % n for n in range(500)}
    assert client.stat("").count == client.stat("").leased == 0


def client_is_idle(node: FakeNode) -> bool:
    return not any(peer.leases for peer in node._peers)


def test_as_many_run_at_once_as_was_asked_for(client: Client) -> None:
    together = threading.Barrier(4)

    @penstock.worker("", concurrency=4)
    def work(_: penstock.Delivery) -> None:
        together.wait(10)

    client.enqueue_many("", [b"x"] * 4)
    with running(work, client) as stop:
        together_passed = threading.Event()
        while together.n_waiting or client.stat("").count + client.stat("").leased:
            together_passed.wait(0)
        assert not stop.is_set()


def test_a_failing_task_is_nacked_with_backoff_logged_and_others_go_on(
    client: Client, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    @penstock.worker("", backoff=0.5)
    def work(delivery: penstock.Delivery) -> None:
        if delivery.payload == b"bad" and delivery.attempt < 3:
            raise ZeroDivisionError
        if delivery.payload == b"bad":
            done.set()

    client.enqueue_many("", [b"bad", b"good"])
    with caplog.at_level(logging.WARNING, "penstock.worker"), running(work, client):
        assert done.wait(10)
        node.wait_for(lambda: not node.queues[DEFAULT].tasks and client_is_idle(node))
    delays = [r.delay_ms for r in node.requests if isinstance(r, v2.Nack) and r.delay_ms]
    assert delays == [500, 1000]
    assert "task 1 of queue ''" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert client.stat("").count == 0


def test_leases_of_long_tasks_are_extended(client: Client, node: FakeNode) -> None:
    extended = threading.Event()

    @penstock.worker("", lease=0.2)
    def work(_: penstock.Delivery) -> None:
        assert extended.wait(10)

    client.enqueue("", b"x")
    with running(work, client):
        node.wait_for(lambda: node.count(v2.Extend) >= 3)
        extended.set()
    extend = next(r for r in node.requests if isinstance(r, v2.Extend))
    assert extend.lease_ms == 200


def test_stopping_finishes_the_task_at_work_and_gives_the_rest_back(
    client: Client, node: FakeNode
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @penstock.worker("", prefetch=5)
    def work(_: penstock.Delivery) -> None:
        begun.set()
        assert go_on.wait(10)

    client.enqueue_many("", [b"x"] * 10)
    with running(work, client) as stop:
        assert begun.wait(10)
        stop.set()
        node.wait_for(lambda: node.count(v2.Unsubscribe) == 1)
        go_on.set()
    assert client.stat("").count == 9
    assert client.stat("").leased == 0


def test_a_worker_survives_a_broken_connection(client: Client, node: FakeNode) -> None:
    seen: list[int] = []
    broken = threading.Event()

    @penstock.worker("", concurrency=2)
    def work(delivery: penstock.Delivery) -> None:
        seen.append(delivery.id)
        if len(seen) == 5 and not broken.is_set():
            broken.set()
            node.disconnect()

    client.enqueue_many("", [b"x"] * 20)
    with running(work, client):
        node.wait_for(lambda: not node.queues[DEFAULT].tasks and client_is_idle(node))
    assert set(seen) == set(range(1, 21))


def test_a_missing_queue_ends_the_worker(client: Client) -> None:
    @penstock.worker("nowhere")
    def work(_: penstock.Delivery) -> None: ...

    with pytest.raises(penstock.QueueMissing):
        work.run(client, threading.Event())


def test_a_deleted_queue_ends_the_worker(client: Client, node: FakeNode) -> None:
    @penstock.worker("", concurrency=3)
    def work(_: penstock.Delivery) -> None: ...

    node.script = lambda request: (
        v2.Failed(v2.Failure.QUEUE_MISSING, "") if isinstance(request, v2.Subscribe) else None
    )
    with pytest.raises(penstock.QueueMissing):
        work.run(client, threading.Event())


def test_an_async_function_runs_in_a_loop(client: Client, node: FakeNode) -> None:
    together = 0
    most = 0

    @penstock.worker("", concurrency=5, backoff=0.1)
    async def work(delivery: penstock.Delivery) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0)
        together -= 1
        if delivery.payload == b"bad" and delivery.attempt == 1:
            raise ZeroDivisionError

    client.enqueue_many("", [b"x"] * 50 + [b"bad"])
    with running(work, node.address):
        node.wait_for(lambda: not node.queues[DEFAULT].tasks and client_is_idle(node))
    assert 1 < most <= 5
    assert client.stat("").count == 0
    assert [r.delay_ms for r in node.requests if isinstance(r, v2.Nack) and r.delay_ms] == [100]


def test_a_worker_is_still_its_function() -> None:
    @penstock.worker("mail")
    def double(delivery: penstock.Delivery) -> bytes:
        return delivery.payload * 2

    delivery = penstock.Delivery(
        queue="mail", id=1, key=0, payload=b"x", attempt=1, token=1, connection=1, deadline=0.0
    )
    assert double(delivery) == b"xx"
    with pytest.raises(penstock.InvalidValue):
        penstock.worker("mail", concurrency=0)


SCRIPT = """
import sys, penstock

@penstock.worker("", concurrency=2)
def work(delivery):
    print("begun", flush=True)
    sys.stdin.readline()
    print("done", flush=True)

work.run(sys.argv[1])
print("stopped", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_gracefully(
    client: Client, node: FakeNode, number: signal.Signals
) -> None:
    client.enqueue("", b"x")
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, node.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, number)
        node.wait_for(lambda: node.count(v2.Unsubscribe) == 1)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.read() == "done\nstopped\n"
        assert process.wait(10) == 0
    assert client.stat("").count == 0
