"""A broker's directories through Spark: what real ones must hold, the pipeline's tables, and migration to a node."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import InvalidValue
from penstock.families.rabbitmq.ingest import RANGE, plan, read_requests
from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.read import selection_of
from penstock.families.rabbitmq.verify import verify
from penstock.families.sources import find_sources
from penstock.formats.rabbitmq.envelope import decode_envelope
from penstock.formats.taskflux.generation import Generation
from penstock.spark.pipeline.audit import audit
from penstock.spark.pipeline.migrate import to_directory, to_node
from penstock.spark.pipeline.moment import moment
from penstock.spark.pipeline.run import run
from penstock.spark.pipeline.unlogged import count_missing
from spark.pipeline.test_run import comparable, live, rows
from support.at_rest import listed
from support.command import penstock as command
from support.node_process import NodeProcess
from support.rabbitmq_directories import NAMES, Directory, journaled, publish, stored, unpacked
from support.rabbitmq_tables import check_truth, dumped
from support.spark_tables import read_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_all_real_directories_hold_their_truth_and_are_read_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    roots = {str(unpacked(name, tmp_path / name)): name for name in NAMES}
    reader = spark.read.format("penstock")
    tasks = (
        reader.option("table", "tasks")
        .option("asOf", "1970-01-01")
        .option("properties", "envelope")
    )
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in tasks.load(list(roots)).collect():
        found[row["source"]].append(row.asDict())
    for root, name in roots.items():
        check_truth(found[root], name)

    # What a reader says without Spark is held against the dump elsewhere.
    columns = ("source", "path", "offset", "kind", "op", "status", "log_index", "queue")
    read = spark.read.format("penstock").option("columns", ",".join(columns))
    told = [tuple(row) for row in read.option("splitSize", "256k").load(list(roots)).collect()]
    assert told == [tuple(row.values()) for row in read_rows(*roots, columns=columns)]


def test_a_run_makes_the_tables_that_a_source_without_a_log_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = ("c4_props_ttl_priority_kill9", "c8_damage_store_file_missing")
    roots = [unpacked(name, tmp_path / name) for name in names]
    outcome = run(spark, [str(root) for root in roots], tmp_path / "out", report=True)
    for name in ("spans", "lifecycles", "depth", "throughput", "gaps", "divergence", "base"):
        assert outcome.rows[name] == 0
    entries = [row for root in roots for row in dumped(root)]
    assert outcome.rows["entries"] == len(entries)
    assert outcome.rows["changes"] == sum(row["op"] is not None for row in entries)
    damage = rows(spark, outcome, "damage")
    expected = [
        (row["status"], row["seq"]) for root in roots for row in verify(resolve(root))
        if row["severity"] != "harmless"
    ]  # fmt: skip
    assert sorted((row["status"], row["log_index"]) for row in damage) == sorted(expected)
    tasks, keys = rows(spark, outcome, "tasks"), rows(spark, outcome, "keys")
    assert len(tasks) == sum(row["waiting"] for row in keys) > 0
    assert {row["queue"] for row in tasks} <= {
        row["queue"] for row in rows(spark, outcome, "lives")
    }
    added = sum(row["adds"] for row in rows(spark, outcome, "sizes"))
    assert added == sum(row["adds"] for row in keys)
    page = (outcome.run.home / "report.html").read_text()
    assert "tenant/a~p_prio" in page


def broker(path: Path) -> Path:
    """Write a directory with priorities, a store, two vhosts, and a message that is missing."""
    made = Directory(path)
    for priority in (0, 2):
        records = [
            journaled(n, publish(10 * priority + n, b"%d-%d" % (priority, n))) for n in (1, 0)
        ]
        made.journal(made.queue(b"orders", priority=priority), *records)
    made.journal(
        made.queue(b"mail"),
        journaled(0, publish(100, b"large", stored=True)),
        journaled(1, publish(101, b"gone", stored=True)),
        journaled(2, publish(102, b"expires", expiry_us=10**15)),
    )
    made.store("0.rdq", stored(100, b"large"))
    other = Directory(path, b"other")
    other.journal(other.queue(b"mail"), journaled(0, publish(200, b"theirs")))
    other.queue(b"empty")
    return path


BODIES = {
    "mail": [b"large"],
    "orders": [b"2-0", b"2-1", b"0-0", b"0-1"],
    "other~empty": [],
    "other~mail": [b"theirs"],
}


def test_a_migration_brings_envelopes_in_order_and_repeated_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = broker(tmp_path / "rabbit")
    with NodeProcess(tmp_path / "new").wait_listening() as node:
        for found in (moment(spark, str(root), for_migration=True) for _ in range(2)):
            assert to_node(found, node.address, lambda _: None) == (4, 6)
            assert count_missing(spark, found.source, found.values) == 1
        with penstock.connect(node.address) as client:
            held = {
                str(stat.name): [(task.key, *decode_envelope(task.payload)) for task in client.peek(stat.name, 10)]
                for stat in client.queues()
                if stat.name
            }  # fmt: skip
    assert {name: [body for _, _, body in tasks] for name, tasks in held.items()} == BODIES
    assert [(key, e.sequence) for key, e, _ in held["orders"]] == [(-2, 0), (-2, 1), (0, 0), (0, 1)]
    ((key, envelope, _),) = held["other~mail"]
    assert (key, envelope.vhost, envelope.queue) == (0, b"other", b"mail")


def test_two_import_tools_doubled_each_others_messages(spark: SparkSession, tmp_path: Path) -> None:
    """Each repeats what the other did, and finishes what the other began."""
    root = broker(tmp_path / "rabbit")
    made = Directory(tmp_path / "rabbit", b"many")
    numbers = range(0, 8 * RANGE, 100)  # eight requests
    made.journal(
        made.queue(b"many"), *(journaled(n, publish(1000 + n, b"%d" % n)) for n in numbers)
    )
    expected = BODIES | {"many~many": [b"%d" % n for n in numbers]}
    words: list[str | Path] = ["enqueue", "--from", root, "--node"]

    def held(node: NodeProcess) -> dict[str, list[bytes]]:
        with penstock.connect(node.address) as client:
            return {
                str(stat.name): [decode_envelope(task.payload)[1] for task in client.peek(stat.name, 100)]
                for stat in client.queues() if stat.name
            }  # fmt: skip

    def migrate(node: NodeProcess) -> tuple[int, int]:
        return to_node(moment(spark, str(root), for_migration=True), node.address, lambda _: None)

    with NodeProcess(tmp_path / "first").wait_listening() as node:
        assert command(*words, node.address).code == 1  # one message is missing
        assert migrate(node) == (5, 86)
        assert held(node) == expected
    with NodeProcess(tmp_path / "second").wait_listening() as node:
        assert migrate(node) == (5, 86)
        assert command(*words, node.address).code == 1
        assert held(node) == expected
    with NodeProcess(tmp_path / "third").wait_listening() as node:
        selection = selection_of(find_sources([str(root)])[0].migrated_with, 0)
        (target,) = [each for each in plan(resolve(root), selection) if each.name == "many~many"]
        ((_, requests, _),) = read_requests([target], selection, report=lambda _: None)
        with penstock.connect(node.address) as client:
            client.create_queue("many~many")
            client.enqueue_numbered(islice(requests, 3))  # as a run that was killed
        assert migrate(node) == (5, 86)
        assert command(*words, node.address).code == 1
        assert held(node) == expected


@pytest.mark.heavy
def test_an_incremental_run_beside_a_log_reads_a_broker_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    root, node = broker(tmp_path / "rabbit"), tmp_path / "node"
    paths = [str(node), str(root)]
    live(node, Random(5), 40, generation=3)
    run(spark, paths, tmp_path / "steps")
    live(node, Random(6), 40, generation=3)
    made = Directory(root, b"third")
    made.journal(made.queue(b"late"), journaled(0, publish(300, b"late")))
    outcome = run(spark, paths, tmp_path / "steps", incremental=True)
    whole = run(spark, paths, tmp_path / "whole")
    assert outcome.continued == [str(node)]
    assert outcome.rows == whole.rows
    for name in ("changes", "tasks", "lives", "keys", "sizes", "damage", "depth"):
        assert comparable(spark, outcome, name) == comparable(spark, whole, name)


def test_a_directory_that_a_node_serves_is_written(spark: SparkSession, tmp_path: Path) -> None:
    root, out = broker(tmp_path / "rabbit"), tmp_path / "new"
    found = moment(spark, str(root), values={"properties": "drop"}, for_migration=True)
    assert to_directory(found, out, Generation.THREE) == (5, 6)  # the default queue is one
    assert [body for _, _, body in listed(out)] == [b for bodies in BODIES.values() for b in bodies]
    with penstock.open(out) as node:
        counts = {stat.name: stat.count for stat in node.queues() if stat.name}
        node.enqueue("orders", b"new", key=-3)
        assert node.peek("orders", 1)[0].payload == b"new"
    assert counts == {name: len(bodies) for name, bodies in BODIES.items()}


def test_what_only_a_log_has_is_refused_in_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    root = str(broker(tmp_path / "rabbit"))
    with pytest.raises(InvalidValue, match=r"RabbitMQ, node has no log, .* omit --at"):
        moment(spark, root, 4)
    with pytest.raises(InvalidValue, match="an audit compares copies of a log"):
        audit(spark, [root])
    with pytest.raises(InvalidValue, match="no log of which it could be a replica"):
        run(spark, [root], tmp_path / "out", replicas=True)
    store = str(next(Path(root).rglob("0.rdq")).parent)
    with pytest.raises(InvalidValue, match="has no queues; name a node, vhost or queue"):
        moment(spark, store)
