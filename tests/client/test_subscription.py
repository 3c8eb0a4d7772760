"""Subscriptions of the blocking client: acks that are gathered, ends, and broken connections."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

import penstock
from client.fake_node import FakeNode
from penstock.client.blocking import Client
from penstock.client.prefetch import Prefetch
from penstock.model import QueueName
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import Failure

DEFAULT = QueueName("")


def acked(node: FakeNode) -> list[int]:
    return [len(request.tokens) for request in node.requests if isinstance(request, v2.Ack)]


def test_tasks_come_in_order_and_those_not_handed_out_are_given_back(
    client: Client, node: FakeNode
) -> None:
    client.enqueue_many("", [b"%d" % n for n in range(30)])
    with client.subscribe("", prefetch=10) as subscription:
        for delivery in islice(subscription, 15):
            subscription.ack(delivery)
    assert [task[2] for task in node.queues[DEFAULT].tasks] == [b"%d" % n for n in range(15, 30)]
    assert client.stat("").leased == 0


def test_acks_travel_together_and_all_are_durable_after_flush(
    client: Client, node: FakeNode
) -> None:
    client.enqueue_many("", [b"x"] * 1000)
    with client.subscribe("", prefetch=500) as subscription:
        for delivery in islice(subscription, 450):
            subscription.ack(delivery)
        assert max(acked(node), default=0) <= 100
        subscription.flush()
        assert sum(acked(node)) == 450
        assert len(acked(node)) <= 6


def test_a_small_window_never_waits_for_acks_that_nobody_sends(
    client: Client, node: FakeNode
) -> None:
    client.enqueue_many("", [b"x"] * 50)
    with client.subscribe("", prefetch=1) as subscription:
        for delivery in islice(subscription, 50):
            subscription.ack(delivery)
    assert node.queues[DEFAULT].tasks == []


def test_an_ack_goes_at_once_while_somebody_waits_for_a_task(
    client: Client, node: FakeNode
) -> None:
    client.enqueue("", b"x")
    with client.subscribe("") as subscription, ThreadPoolExecutor(1) as pool:
        delivery = next(subscription)
        waiting = pool.submit(next, subscription, None)
        while not subscription._state.waiting_count:  # ends within moments, or the test is at fault
            os.sched_yield()
        subscription.ack(delivery)
        node.wait_for(lambda: acked(node) == [1])
        client.enqueue("", b"y")
        last = waiting.result(10)
        assert last is not None
        subscription.ack(last)


def test_closing_ends_an_iteration_in_another_thread(client: Client, node: FakeNode) -> None:
    subscription = client.subscribe("")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(list, subscription) for _ in range(4)]
        node.wait_for(lambda: node.count(v2.Subscribe) == 1)
        subscription.close()
        subscription.close()
        assert [each.result(10) for each in waiting] == [[]] * 4
    assert node.count(v2.Unsubscribe) == 1


def test_threads_share_a_subscription_and_each_task_goes_to_one(
    client: Client, node: FakeNode
) -> None:
    seen: list[int] = []
    lock = threading.Lock()
    subscription = client.subscribe("", prefetch=20)

    def work() -> None:
        for delivery in subscription:
            with lock:
                seen.append(delivery.id)
                is_last = len(seen) == 500
            subscription.ack(delivery)
            if is_last:
                subscription.close()

    with ThreadPoolExecutor(8) as pool:
        working = [pool.submit(work) for _ in range(8)]
        client.enqueue_many("", [b"x"] * 500)
        for each in working:
            each.result(20)
    subscription.flush()
    assert sorted(seen) == list(range(1, 501))
    assert node.queues[DEFAULT].tasks == []


def test_a_broken_connection_is_subscribed_anew_and_tasks_come_again(
    client: Client, node: FakeNode
) -> None:
    client.enqueue_many("", [b"%d" % n for n in range(10)])
    with pytest.raises(penstock.LeaseLost) as caught, client.subscribe("") as subscription:  # noqa: PT012
        first = next(subscription)
        node.wait_for(lambda: node.count(v2.Start) == 1)
        node.disconnect()
        subscription.ack(first)
        again = [next(subscription)]
        while again[-1].attempt == 1:  # what was in memory of the old connection may come first
            again.append(next(subscription))
        assert again[-1].id == first.id
        for delivery in again:
            subscription.ack(delivery)
        subscription.flush()
    assert first in caught.value.__dict__["deliveries"]
    assert node.greetings == 2
    assert node.count(v2.Subscribe) == 2


def test_a_queue_that_is_missing_is_told_to_everybody(client: Client, node: FakeNode) -> None:
    subscription = client.subscribe("nowhere")
    with ThreadPoolExecutor(4) as pool:
        for waiting in [pool.submit(next, subscription) for _ in range(4)]:
            with pytest.raises(penstock.QueueMissing):
                waiting.result(10)
    subscription.close()
    assert node.count(v2.Unsubscribe) == 0  # there is nothing to end


def test_a_subscription_that_the_node_ends_is_told(client: Client, node: FakeNode) -> None:
    node.script = lambda request: (
        v2.Failed(Failure.LIMIT, "too many") if isinstance(request, v2.Subscribe) else None
    )
    with pytest.raises(penstock.LimitReached), client.subscribe("") as subscription:
        next(subscription)


def test_the_bodys_error_is_the_one_to_see(client: Client, node: FakeNode) -> None:
    client.enqueue("", b"x")
    with pytest.raises(ZeroDivisionError), client.subscribe("") as subscription:  # noqa: PT012
        subscription.ack(next(subscription))
        node.disconnect()
        raise ZeroDivisionError


def test_a_task_whose_lease_ran_out_in_memory_is_not_handed_out() -> None:
    from penstock.client.effects import Exchange

    prefetch = Prefetch(v2.Subscribe(DEFAULT, 10))
    prefetch.receive(Exchange(v2.Delivered(1, 1000, [5], [0], [1], [b"x"]), 1, 100.0))
    prefetch.receive(Exchange(v2.Delivered(2, 9000, [6], [0], [1], [b"y"]), 1, 100.0))
    handed_out = prefetch.hand_out(102.0)
    assert handed_out is not None
    assert handed_out.id == 6
    assert prefetch.hand_out(102.0) is None
