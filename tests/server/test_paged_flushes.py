"""A real node counts the flushes of its paged queues by reason, with the limits of its flags and its file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.storage.paged.task_pages import DIRECTORY
from support.command import penstock
from support.group_processes import wait_until
from support.node_process import NodeProcess, start

METRICS = ("--metrics", "127.0.0.1:0")


def flushes(node: NodeProcess) -> dict[str, float]:
    """Return the metric by reason."""
    address = node.wait_said("listening")["metrics"]
    with urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        sample.labels["reason"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "penstock_paged_flushes_total"
    }


@contextmanager
def paged(
    path: Path, *flags: str | float, queues: tuple[str, ...] = ("a", "b")
) -> Iterator[NodeProcess]:
    with start(path, *METRICS, *flags) as node:
        with node.client() as client:
            for name in queues:
                client.create_queue(name, implementation="paged")
        yield node
        assert node.stop() == 0


def test_the_metric_names_every_reason_from_the_start_and_a_silent_queue_is_flushed(
    tmp_path: Path,
) -> None:
    with paged(tmp_path / "node") as node, node.client() as client:
        zero = dict.fromkeys(("idle", "count", "memory", "checkpoint"), 0.0)
        assert flushes(node) == zero
        client.enqueue_many("a", [b"x"] * 10)

        def is_flushed_while_another_is_busy() -> bool:
            client.enqueue("b", b"y")
            return flushes(node) == {**zero, "idle": 1}

        wait_until(is_flushed_while_another_is_busy, "queue a was flushed")


def test_the_names_of_rabbitmq_are_keys_of_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text(
        "queue_index_max_journal_entries = 100\nmsg_store_file_size_limit = 100000\n"
        "paged-memory = 1000000000\n"
    )
    with paged(tmp_path / "node", "--config", str(config)) as node, node.client() as client:
        client.enqueue_many("a", [b"x"] * 100)
        for delivery in client.dequeue_many("a", 1):
            client.ack(delivery)
        wait_until(lambda: flushes(node)["count"] == 1, "the queue was flushed by its count")
        client.enqueue_many("a", [b"z" * 60_000] * 4)
        pages = tmp_path / "node" / "data" / DIRECTORY
        assert len(list(pages.rglob("*.rdq"))) == 2


def test_little_memory_flushes_and_so_does_a_snapshot(tmp_path: Path) -> None:
    with (
        paged(tmp_path / "node", "--paged-memory", 2**16, "--snapshot-bytes", 2**20) as node,
        node.client() as client,
    ):
        client.enqueue_many("a", [b"x" * 1000] * 100)
        assert flushes(node)["memory"] == 1
        while not node.said("snapshot"):
            client.enqueue_many("a", [b"x" * 5000] * 20)
            client.enqueue("b", b"y")
        assert flushes(node)["checkpoint"] >= 1


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--queue-index-max-journal-entries", "0"),
        ("--msg-store-file-size-limit", str(2**32)),
        ("--paged-memory", "10"),
        ("--paged-memory", "much"),
    ],
)
def test_limits_out_of_range_are_wrong_usage(tmp_path: Path, flag: str, value: str) -> None:
    outcome = penstock("serve", "--data", tmp_path / "node", flag, value)
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "node").exists()
