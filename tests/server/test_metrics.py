"""Metrics over HTTP: the names are a promise, and the values move."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.node_process import NodeProcess, start

GAUGES = {
    "connections", "leases", "log_bytes", "log_first_index", "committed_index", "term",
    "start_time_seconds", "queue_tasks", "queue_leased", "queue_delayed", "queue_payload_bytes",
}  # fmt: skip
COUNTERS = {
    "connections_accepted", "connections_refused", "protocol_errors", "received_bytes", "sent_bytes",
    "snapshots", "paged_flushes", "queue_enqueued", "queue_delivered", "queue_acked", "queue_returned",
    "queue_expired", "queue_dead_lettered",
}  # fmt: skip
HISTOGRAMS = {"sync_seconds", "commit_seconds", "batch_entries"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    root = tmp_path_factory.mktemp("metrics") / "node"
    with start(root, "--metrics", "127.0.0.1:0", "--snapshot-bytes", 2**20) as running:
        yield running
        assert running.stop() == 0  # also with somebody who reads metrics
        assert running.words == []


def read(node: NodeProcess) -> dict[str, float]:
    """Return the values by name, those of a queue with the queue behind a slash."""
    address = node.wait_said("listening")["metrics"]
    with urlopen(f"http://{address}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            queue = sample.labels.get("queue")
            bound = sample.labels.get("le")
            name = sample.name.removeprefix("penstock_")
            assert name != sample.name
            values[
                name
                + ("" if queue is None else f"/{queue}")
                + ("" if bound is None else f"<{bound}")
            ] = sample.value
    return values


def test_the_documented_names_are_all_there_with_their_types(node: NodeProcess) -> None:
    address = node.wait_said("listening")["metrics"]
    with urlopen(f"http://{address}/metrics", timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    by_type: dict[str, set[str]] = {}
    for family in families:
        by_type.setdefault(family.type, set()).add(family.name.removeprefix("penstock_"))
    assert by_type == {"gauge": GAUGES, "counter": COUNTERS, "histogram": HISTOGRAMS}
    assert all(family.documentation for family in families)


def test_a_tasks_life_moves_the_values(node: NodeProcess) -> None:
    with node.client() as client:
        client.create_queue("orders")
        before = read(node)
        client.enqueue_many("orders", [b"12345"] * 4)
        client.enqueue("orders", b"late", delay=3600)
        first, second, third = client.dequeue_many("orders", 3)
        client.ack(first)
        client.nack(second)
        after = read(node)
        moved = {name: after[name] - before[name] for name in after if name in before}
        assert moved["queue_enqueued_total/orders"] == 5
        assert moved["queue_delivered_total/orders"] == 3
        assert moved["queue_acked_total/orders"] == 1
        assert moved["queue_returned_total/orders"] == 1
        assert after["queue_tasks/orders"] == 4
        assert after["queue_leased/orders"] == after["leases"] == 1
        assert after["queue_delayed/orders"] == 1
        assert after["queue_payload_bytes/orders"] == 3 * 5 + 4
        assert after["connections"] >= 1
        assert moved["committed_index"] >= 6
        assert moved["log_bytes"] > 0
        assert moved["received_bytes_total"] > 0
        assert moved["sent_bytes_total"] > 0
        assert after["term"] >= 1
        client.ack(third)


def test_each_batch_is_measured_once(node: NodeProcess) -> None:
    with node.client() as client:
        before = read(node)
        for number in range(10):
            client.enqueue("", str(number).encode())
        after = read(node)
        count = after["commit_seconds_count"] - before["commit_seconds_count"]
        syncs = after["sync_seconds_count"] - before["sync_seconds_count"]
        assert count == syncs == 10
        assert after["batch_entries_sum"] - before["batch_entries_sum"] >= 10
        commit = after["commit_seconds_sum"] - before["commit_seconds_sum"]
        sync = after["sync_seconds_sum"] - before["sync_seconds_sum"]
        assert 0 < sync <= commit < 60
        assert after["commit_seconds_bucket<+Inf"] == after["commit_seconds_count"]


def test_refusals_and_broken_protocols_are_counted(node: NodeProcess) -> None:
    before = read(node)
    with node.wire() as wire:
        wire.send(b"nonsense")
        wire.expect_end()
    with node.wire2() as wire:
        wire.send(b"\xff" * 8)
        wire.expect_broken()
    after = read(node)
    assert after["protocol_errors_total"] - before["protocol_errors_total"] == 2
    assert after["connections_accepted_total"] - before["connections_accepted_total"] == 2


def test_snapshots_are_counted(node: NodeProcess) -> None:
    with node.client() as client:
        client.create_queue("large")
        while not node.said("snapshot"):
            client.enqueue("large", bytes(200_000))
            client.purge("large")
    assert read(node)["snapshots_total"] >= 1


def test_a_deleted_queue_is_not_shown_any_more(node: NodeProcess) -> None:
    with node.client() as client:
        client.create_queue("short")
        assert "queue_tasks/short" in read(node)
        client.delete_queue("short")
        assert "queue_tasks/short" not in read(node)
