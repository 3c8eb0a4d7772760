"""A node in the process of a test: its fixture, its clock, its failing disk, and how long it takes to start."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

import penstock
import penstock.testing
from penstock.testing import InProcessNode, ManualClock, MemoryFiles

STARTS = 10
CPU_SECONDS_MAX = 0.05
"""Of the quickest start and close. About 2 ms on an idle machine."""


@pytest.fixture
def node(penstock_node: InProcessNode) -> InProcessNode:
    penstock_node.client.create_queue("mail", lease=30)
    return penstock_node


def payloads(client: penstock.Client) -> list[bytes]:
    return [task.payload for task in client.peek("mail", 100)]


def wait_for_a_consumer(node: InProcessNode) -> None:
    """Return when the node has a consumer that waits for a task."""
    counters = node._node._node.broker._counters
    end = time.monotonic() + 30
    while not any(each.consumers for each in list(counters.values())):
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_fixture_gives_a_client_of_an_empty_node(penstock_node: InProcessNode) -> None:
    assert isinstance(penstock_node.client, penstock.Client)
    assert [queue.count for queue in penstock_node.client.queues()] == [0]


def test_every_test_gets_a_node_of_its_own(node: InProcessNode) -> None:
    # The same queue is created by the fixture of every test here: a shared node would refuse the second.
    assert node.client.stat("mail").enqueued == 0


def test_a_node_starts_and_closes_in_milliseconds() -> None:
    InProcessNode().close()  # the first one imports the node
    used = []
    for _ in range(STARTS):
        begin = time.process_time()
        InProcessNode().close()
        used.append(time.process_time() - begin)
    assert min(used) < CPU_SECONDS_MAX


def test_a_lease_ends_when_the_clock_passes_it(node: InProcessNode) -> None:
    node.client.enqueue("mail", b"a")
    [first] = node.client.dequeue_many("mail", 1)
    node.clock.advance(29.999)
    assert node.client.dequeue_many("mail", 1) == []
    node.clock.advance(0.001)
    [second] = node.client.dequeue_many("mail", 1)
    assert (second.id, first.attempt, second.attempt) == (first.id, 1, 2)
    with pytest.raises(penstock.LeaseLost):
        node.client.ack(first)


def test_delays_and_expiry_follow_the_clock(node: InProcessNode) -> None:
    node.client.enqueue("mail", b"delayed", delay=60)
    node.client.enqueue("mail", b"expiring", ttl=59)
    assert payloads(node.client) == [b"expiring"]
    node.clock.advance(59)
    assert payloads(node.client) == []
    node.clock.advance(1)
    assert payloads(node.client) == [b"delayed"]
    assert node.client.stat("mail").expired == 1


def test_advancing_the_clock_wakes_a_consumer_that_waits(node: InProcessNode) -> None:
    node.client.enqueue("mail", b"delayed", delay=3600)
    taken: list[bytes] = []

    def take() -> None:
        with node.connect() as client, client.subscribe("mail") as subscription:
            taken.append(next(iter(subscription)).payload)

    thread = threading.Thread(target=take)
    thread.start()
    wait_for_a_consumer(node)
    node.clock.advance(3600)
    thread.join(30)
    assert taken == [b"delayed"]


def test_a_call_waits_in_real_time_while_the_clock_stands_still(node: InProcessNode) -> None:
    before = node.clock.now_ms
    begin = time.monotonic()
    assert node.client.dequeue_many("mail", 1, wait=0.05) == []
    assert time.monotonic() - begin >= 0.049  # clocks in whole milliseconds round
    assert node.clock.now_ms == before


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", None, True])
def test_a_clock_is_not_moved_by_what_is_no_time(seconds: float) -> None:
    clock = ManualClock(5)
    with pytest.raises(penstock.InvalidValue):
        clock.advance(seconds)
    assert clock.now_ms == 5


def test_a_closed_node_no_longer_hears_its_clock() -> None:
    clock = ManualClock()
    with InProcessNode(clock=clock) as node:
        node.restart()
        node.restart()
        assert len(clock._listeners) == 1
    node.close()
    clock.advance(1)
    assert clock._listeners == []
    with pytest.raises(penstock.ConnectionFailed):
        node.client.ping()
    with pytest.raises(penstock.Unreachable):
        node.connect().ping()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("fail", [MemoryFiles.fail_writes, MemoryFiles.fail_syncs])
def test_a_node_whose_disk_fails_stops_and_says_why(
    node: InProcessNode, fail: Callable[[MemoryFiles, int], None], error: int
) -> None:
    node.client.enqueue("mail", b"acknowledged")
    fail(node.disk, error)
    with pytest.raises(penstock.ConnectionLost, match=errno_words(error)):
        node.client.enqueue("mail", b"unknown")
    node.clock.advance(60)
    node.disk.mend()
    for _ in range(2):  # a disk that works again proves nothing: the node stays stopped
        with pytest.raises(penstock.ConnectionLost, match=errno_words(error)):
            node.client.stat("mail")
    node.restart()
    assert payloads(node.client)[0] == b"acknowledged"
    node.client.enqueue("mail", b"again")


def errno_words(error: int) -> str:
    return {errno.EIO: "Input/output error", errno.ENOSPC: "No space left on device"}[error]


def test_a_node_does_not_start_on_a_disk_that_still_fails(node: InProcessNode) -> None:
    node.client.enqueue("mail", b"acknowledged")
    node.disk.fail_writes()
    node.disk.fail_syncs()
    with pytest.raises(penstock.PenstockError):
        node.restart()
    with pytest.raises(penstock.ConnectionFailed):
        node.client.ping()
    node.disk.mend()
    node.restart()
    assert payloads(node.client) == [b"acknowledged"]


@pytest.mark.parametrize("error", [0, -5, 10**6, None, "EIO"])
def test_a_disk_fails_only_with_an_error_that_there_is(error: int) -> None:
    disk = MemoryFiles()
    with pytest.raises(penstock.InvalidValue):
        disk.fail_writes(error)


def test_a_restart_keeps_tasks_and_ends_leases_and_connections(node: InProcessNode) -> None:
    before, patient = node.client, node.connect(retry=5)
    ids = before.enqueue_many("mail", [b"a", b"b"])
    patient.ping()
    [held] = before.dequeue_many("mail", 1)
    node.restart()
    assert [task.id for task in node.client.peek("mail", 2)] == ids
    with pytest.raises(penstock.ConnectionLost):
        before.ack(held)
    with pytest.raises(penstock.LeaseLost):
        before.ack(held)
    assert before.stat("mail").count == 2
    assert patient.enqueue("mail", b"c") > max(ids)


def test_a_restart_ends_the_wait_of_a_consumer(node: InProcessNode) -> None:
    raised: list[type[BaseException]] = []
    client = node.connect()

    def take() -> None:
        try:
            client.dequeue_many("mail", 1, wait=60)
        except penstock.ConnectionLost as error:
            raised.append(type(error))

    thread = threading.Thread(target=take)
    thread.start()
    wait_for_a_consumer(node)
    node.restart()
    thread.join(30)
    assert raised == [penstock.ConnectionLost]


def test_a_node_outlives_its_clients(node: InProcessNode) -> None:
    node.connect().close()
    node.client.close()
    with node.connect() as client:
        assert client.stat("mail").count == 0


def test_two_nodes_do_not_share_a_disk(node: InProcessNode) -> None:
    with pytest.raises(penstock.DirectoryLocked):
        InProcessNode(disk=node.disk)


def test_a_disk_outlives_its_node() -> None:
    with InProcessNode() as first:
        first.client.enqueue("", b"kept")
    with InProcessNode(disk=first.disk) as second:
        assert second.client.peek("")[0].payload == b"kept"


def test_the_disk_of_a_node_keeps_no_record_that_grows(node: InProcessNode) -> None:
    node.client.enqueue_many("mail", [b"task"] * 100)
    assert node.disk.operations == []


def test_all_names_are_there_and_no_others() -> None:
    assert {name: getattr(penstock.testing, name) for name in penstock.testing.__all__} == {
        "InProcessNode": InProcessNode,
        "ManualClock": ManualClock,
        "MemoryFiles": MemoryFiles,
    }
    assert set(penstock.testing.__all__) <= set(dir(penstock.testing))
    with pytest.raises(AttributeError):
        penstock.testing.simulation  # noqa: B018


def test_the_plugin_imports_nothing_that_a_run_without_the_fixture_would_pay_for() -> None:
    program = (
        "import sys, pytest; before = {*sys.modules}; import penstock.testing.plugin;"
        "print(*sorted({*sys.modules} - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    testing = ["penstock.testing", "penstock.testing.plugin"]
    assert done.stdout.split() == ["penstock", "penstock.errors", *testing]
