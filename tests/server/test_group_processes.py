"""A group of real nodes: its leader is killed, its nodes are restarted, members come and go, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.blocking import Client
from penstock.protocol import version1 as v1
from support.command import penstock as command
from support.group_processes import GroupProcesses, group_processes, wait_until
from support.wire import Wire


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupProcesses]:
    with group_processes(tmp_path_factory.mktemp("group")) as group:
        yield group
        assert set(group.stop_all().values()) == {0}


@pytest.fixture
def group(shared: GroupProcesses) -> GroupProcesses:
    """Three nodes that run and have a leader, whatever the test before has done to them."""
    for number, node in shared.nodes.items():
        if not node.is_running:
            shared.start(number).wait_listening()
    shared.wait_led()
    return shared


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The name of a queue of the test's own."""
    return str(request.node.name)


class Producer:
    """Enqueues one task after the other in a thread of its own, and keeps account of what was answered."""

    def __init__(self, client: Client, queue: str, name: bytes = b"") -> None:
        self._client = client
        self._queue = queue
        self._name = name
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self.acknowledged: list[bytes] = []
        self.failures: list[Exception] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            payload = b"%b%d" % (self._name, number)
            try:
                self._client.enqueue(self._queue, payload)
            except penstock.PenstockError as error:
                self.failures.append(error)
            else:
                with self._changed:
                    self.acknowledged.append(payload)
                    self._changed.notify_all()
            number += 1

    def wait_for_more(self, count: int) -> None:
        """Wait until that many more were answered from now on."""
        with self._changed:
            goal = len(self.acknowledged) + count
            assert self._changed.wait_for(lambda: len(self.acknowledged) >= goal, 60)

    def stop(self) -> list[bytes]:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.acknowledged


class Consumer:
    """Takes tasks out in a thread of its own, and keeps account of those whose acks were answered or not."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._stop = threading.Event()
        self._gone: set[bytes] = set()
        self._doubtful: set[bytes] = set()  # their acks have an unknown outcome
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for delivery in self._client.dequeue_many(self._queue, 5, wait=0.1):
                try:
                    self._client.ack(delivery)
                except penstock.LeaseLost:
                    continue
                except penstock.ConnectionLost:
                    self._doubtful.add(delivery.payload)
                else:
                    self._gone.add(delivery.payload)

    def stop(self) -> tuple[set[bytes], set[bytes]]:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self._gone, self._doubtful


def taken_out(client: Client, queue: str) -> list[bytes]:
    """Take all tasks out, in their order."""
    payloads: list[bytes] = []
    while deliveries := client.dequeue_many(queue, 1000):
        payloads += [delivery.payload for delivery in deliveries]
        client.ack(deliveries)
    return payloads


def test_killing_the_leader_loses_nothing_and_doubles_nothing(
    group: GroupProcesses, queue: str
) -> None:
    with group.client() as client:
        client.create_queue(queue)
        producer = Producer(client, queue)
        producer.wait_for_more(50)
        killed = group.wait_led()
        group.nodes[killed].kill()
        producer.wait_for_more(50)
        group.start(killed).wait_listening()
        group.wait_caught_up(client, killed)
        producer.wait_for_more(20)
        acknowledged = producer.stop()
        assert producer.failures == []
        assert taken_out(client, queue) == acknowledged


def test_every_member_of_a_group_names_the_missing_dead_letter_queue(
    group: GroupProcesses, queue: str
) -> None:
    group.wait_led()
    for number in group.nodes:
        with (
            penstock.connect(group.address(number)) as client,
            pytest.raises(penstock.QueueMissing) as caught,
        ):
            client.create_queue(queue, attempts_max=2, dead_letter="nope")
        assert caught.value.queue == "nope"


def test_a_rolling_restart_with_transfers_loses_no_request(
    group: GroupProcesses, queue: str
) -> None:
    with group.client() as client, group.client() as watching:
        client.create_queue(queue)
        producer = Producer(client, queue)
        for number in (1, 2, 3):
            producer.wait_for_more(20)
            if group.wait_led() == number:
                outcome = command(
                    "cluster", "transfer", str(number % 3 + 1), "--connect", group.connect
                )
                assert outcome.code == 0, outcome.err
            assert group.nodes[number].stop() == 0
            group.start(number).wait_listening()
            group.wait_caught_up(watching, number)
        acknowledged = producer.stop()
        assert producer.failures == []
        assert taken_out(client, queue) == acknowledged


def test_a_member_is_added_while_the_load_goes_on_and_others_are_removed(
    tmp_path: Path, queue: str
) -> None:
    with group_processes(tmp_path) as group, group.client() as client:
        client.create_queue(queue)
        producer = Producer(client, queue)
        producer.wait_for_more(20)
        group.start(4, is_joining=True).wait_listening()
        place = f"4={group.peer_address(4)}"
        added = command("cluster", "add", place, "--connect", group.connect)
        assert added.code == 0, added.err
        assert (added.rows[0]["node"], added.rows[0]["standing"]) == (4, "voter")
        assert added.rows[0]["address"] == group.address(4)
        leader = group.wait_led()
        gone = next(number for number in (1, 2, 3) if number != leader)
        for number in (gone, leader):  # the leader, too
            removed = command("cluster", "remove", str(number), "--connect", group.connect)
            assert removed.rows == [{"node": number, "removed": True}], removed.err
            group.nodes[number].stop()
            producer.wait_for_more(10)
        acknowledged = producer.stop()
        assert producer.failures == []
        info = client.cluster()
        assert [each.node for each in info.members] == sorted({1, 2, 3, 4} - {gone, leader})
        assert taken_out(client, queue) == acknowledged


@pytest.mark.heavy
def test_ten_leaders_killed_in_a_row_lose_nothing(group: GroupProcesses, queue: str) -> None:
    """Two produce and one consumes meanwhile; what was acknowledged and not consumed is there in the end."""
    with group.client() as one, group.client() as two, group.client() as three:
        one.create_queue(queue)
        consumer = Consumer(three, queue)
        producers = [Producer(one, queue, b"one"), Producer(two, queue, b"two")]
        for _ in range(10):
            for producer in producers:
                producer.wait_for_more(20)
            killed = group.wait_led()
            group.nodes[killed].kill()
            for producer in producers:
                producer.wait_for_more(20)
            group.start(killed).wait_listening()
            group.wait_caught_up(one, killed)
        acknowledged = [payload for producer in producers for payload in producer.stop()]
        assert [producer.failures for producer in producers] == [[], []]
        gone, doubtful = consumer.stop()
        rest = taken_out(one, queue)
        assert len(set(rest)) == len(rest)
        assert not set(rest) & gone, "a task came back after its ack was answered"
        assert set(acknowledged) - gone - doubtful <= set(rest)
        assert set(rest) | gone | doubtful <= set(acknowledged)


@pytest.mark.heavy
def test_a_worker_and_a_subscription_outlast_the_leader(group: GroupProcesses, queue: str) -> None:
    done: set[bytes] = set()
    stop, once = threading.Event(), threading.Semaphore(1)

    @penstock.worker(queue, concurrency=2)
    def work(delivery: penstock.Delivery) -> None:
        if len(done) >= 30 and once.acquire(blocking=False):
            group.nodes[group.wait_led()].kill()
        done.add(delivery.payload)
        if len(done) == 100:
            stop.set()

    with group.client() as client:
        client.create_queue(queue)
        client.enqueue_many(queue, [b"%d" % number for number in range(100)])
        work.run(client, stop)
        assert done == {b"%d" % number for number in range(100)}
        # Acks that came too late for the old leader let tasks come again.
        wait_until(lambda: client.stat(queue).leased == 0, "leases have ended")
        assert client.stat(queue).count < 20


def test_version_1_is_told_all_client_addresses_by_every_node(group: GroupProcesses) -> None:
    addresses = tuple(group.address(number) for number in (1, 2, 3))
    with group.client() as client:
        wait_until(
            lambda: all(each.client_address for each in client.cluster().members), "all are known"
        )
    for number in (1, 2, 3):

        def is_told(number: int = number) -> bool:
            with Wire(int(group.address(number).rpartition(":")[2])) as wire:
                wire.greet(1)
                wire.send(v1.encode_request(v1.AskCluster()))
                data = b""
                while (found := v1.decode_response(data)) is None:
                    data += wire.receive(1)
                return found[0] == v1.Cluster(
                    addresses=addresses, leader=group.wait_led() - 1, node=number - 1
                )

        wait_until(is_told, f"node {number} knows all addresses")
