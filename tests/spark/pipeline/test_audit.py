"""An audit of replicas compares all that a record says, in the log and behind a snapshot, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.new_directory import new_directory
from penstock.families.taskflux.read import Found, read_history
from penstock.families.taskflux.replay import replay
from penstock.formats.taskflux import notes
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import DEFAULT_QUEUE, HardState, Index, QueueName, SnapshotPoint, Term
from penstock.queues.contents import QueueContents
from penstock.spark.pipeline.audit import audit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DEAD, ORDERS = QueueName("dead"), QueueName("orders")


def make_node(path: Path) -> int:
    """Make a node with a queue that has every kind of setting, and a task that was returned; return its last index."""
    with penstock.open(path) as node:
        node.create_queue(DEAD)
        node.create_queue(
            ORDERS, size_max=100, keys=(0, 9), lease=5, attempts_max=3, dead_letter=DEAD
        )
        node.enqueue_many(ORDERS, [b"one", b"two", b"three"], keys=[1, 2, 3])
        first, second = node.dequeue_many(ORDERS, 2)
        node.nack(first)
        node.ack(second)
        node.enqueue_many("", [b"four", b"five"])
    return replay(read_history(resolve(path))).index


def compacted(
    source: Path, target: Path, at: int, *, size_max: int = 100, dead_letter: int = 1
) -> str:
    """Write what a replica of ``source`` has whose snapshot is of entry ``at``, with other settings if told."""
    found = [one for one in read_history(resolve(source)).scan() if isinstance(one, Found)]
    queues = replay(read_history(resolve(source)), at=at).queues
    numbers = {name: number for number, name in enumerate((DEFAULT_QUEUE, DEAD, ORDERS))}
    orders = queues.by_name[ORDERS]
    changed = QueueContents(ORDERS, replace(orders.policy, size_max=size_max), orders.last_id)
    changed.tasks.update(orders.tasks)
    queues.by_name[ORDERS] = changed
    kept: list[notes.Note] = [notes.Header(next_number=3)]
    for name, number in numbers.items():
        is_orders = name == ORDERS
        kept.append(
            notes.QueueNote(
                name=name,
                number=number,
                last_id=queues.by_name[name].last_id,
                lease_ms=5_000 if is_orders else 60_000,
                attempts_max=3 if is_orders else None,
                dead_letter=dead_letter if is_orders else None,
            )
        )
    kept.append(notes.TaskNotes(queue=numbers[ORDERS], rows=[(1, 1, -1, -1)]))
    with new_directory(target, WRITTEN[Generation.THREE]) as new:
        point = SnapshotPoint(index=Index(at), term=Term(found[at].term))
        new.write_snapshot(point, queues, kept=kept)
        for one in found[at + 1 :]:
            new.append(one.term, one.payload)
        new.commit()
        new.write_metadata(HardState(term=point.term, vote=None))
    return str(target)


def test_replicas_that_differ_in_a_policy_alone_are_not_called_equal(
    spark: SparkSession, tmp_path: Path
) -> None:
    paths = [tmp_path / name for name in ("one", "three", "two")]
    for path, size_max in zip(paths, (10, 20, 10), strict=True):
        with penstock.open(path) as node:
            node.create_queue(ORDERS, size_max=size_max)
    found = audit(spark, [str(path) for path in paths])
    assert found.damage.count() == found.gaps.count() == 0
    (row,) = found.divergence.collect()
    assert (row["source"], row["queue"], row["log_index"]) == (str(paths[1]), ORDERS, 1)
    assert row["other_source"] == str(paths[0])
    assert "size_max" in row["reason"]


def test_a_policy_that_differs_behind_a_snapshot_is_found_and_snapshots_that_agree_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    last = make_node(whole)
    early = compacted(whole, tmp_path / "early", last - 2)
    late = compacted(whole, tmp_path / "late", last - 1)
    other = compacted(whole, tmp_path / "other", last - 1, size_max=50, dead_letter=0)
    assert audit(spark, [str(whole), early, late]).divergence.collect() == []
    (row,) = audit(spark, [early, late, other]).divergence.collect()
    assert (row["source"], row["queue"], row["log_index"]) == (other, ORDERS, last - 1)
    assert {"size_max", "dead_letter"} == set(
        row["reason"].rpartition("differs in ")[2].split(", ")
    )
