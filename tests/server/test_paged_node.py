"""A paged queue in a real node: killed, it has what it answered; at rest it reads like any other; damage stops it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.errors import ConnectionFailed, PenstockError
from penstock.families.rabbitmq.location import resolve as resolve_rabbitmq
from penstock.formats.taskflux.generation import Generation
from penstock.model import Implementation, Policy, QueueName
from penstock.protocol import version1 as v1
from penstock.protocol import version2 as v2
from penstock.storage.paged.task_pages import DIRECTORY
from support.at_rest import damage_of, identified, repaired, statuses
from support.node_process import NodeProcess, start
from support.node_rig import Rig
from support.spark_tables import read_rows

PAGED = Policy(implementation=Implementation.PAGED)
COUNT = 1200
Held = list[tuple[int, bytes]]


def everything(seed: int) -> Held:
    """Return tasks, small ones and some beyond what an index takes."""
    random = Random(seed)
    return [
        (random.randint(-2, 2), random.randbytes(random.choice([0, 10, 1000, 5000])))
        for _ in range(COUNT)
    ]


def fill(node: NodeProcess, *, seed: int) -> Held:
    """Put tasks in, and return them in order of delivery."""
    tasks = everything(seed)
    with node.client() as client:
        client.create_queue("large", implementation="paged", exist_ok=True)
        for first in range(0, COUNT, 100):
            some = tasks[first : first + 100]
            client.enqueue_many("large", [p for _, p in some], keys=[key for key, _ in some])
    return sorted(tasks, key=lambda task: task[0])


def taken(node: NodeProcess, count: int) -> Held:
    """Take tasks out for good, and return them as they came."""
    found: Held = []
    with node.client() as client:
        while len(found) < count:
            deliveries = client.dequeue_many("large", min(100, count - len(found)))
            if not deliveries:
                break
            found += [(one.key, one.payload) for one in deliveries]
            client.ack(deliveries)
    return found


def killed(path: Path, *, seed: int = 1) -> Held:
    """Leave the directory of a node that was killed behind a snapshot, with tasks on both sides of it."""
    with start(path, "--snapshot-bytes", 2**20) as node:
        held = fill(node, seed=seed)
        node.wait_said("snapshot")
        assert taken(node, 300) == held[:300]
        node.kill()
    return held[300:]


def test_a_killed_node_has_every_task_that_it_answered_in_order(tmp_path: Path) -> None:
    held = killed(tmp_path / "node")
    with start(tmp_path / "node") as node:
        assert taken(node, 100) == held[:100]
        node.kill()
    with start(tmp_path / "node") as node:
        assert taken(node, COUNT) == held[100:]
        assert node.stop() == 0
    assert not list((tmp_path / "node").rglob("*.penstock-temporary"))


def test_a_directory_with_pages_reads_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "node"
    held = killed(path)
    tasks = identified(path)
    assert [(key, payload) for _, _, key, payload in tasks] == held
    assert damage_of(path) == []
    rows = read_rows(path, table="tasks")
    assert [(row["key"], row["payload"]) for row in rows] == held
    entries = read_rows(path)
    stored = [row for row in entries if (row["kind"], row["queue"]) == ("task", "large")]
    later = [row for row in entries if (row["log_index"] or 0) > stored[0]["log_index"]]
    added = sum(row["op"] == "add" for row in later)
    removed = sum(row["op"] == "remove" for row in later)
    assert len(stored) + added - removed == len(held)
    assert {row["payload"] for row in stored} <= {payload for _, payload in everything(1)}


def test_pages_are_a_vhost_of_rabbitmq(tmp_path: Path) -> None:
    killed(tmp_path / "node")
    (vhost,) = resolve_rabbitmq(tmp_path / "node" / "data" / DIRECTORY).vhosts
    assert vhost.name == b"penstock"
    assert [queue.label for queue in vhost.queues] == [b"large"]


def test_a_repair_makes_a_heap_of_a_paged_queue(tmp_path: Path) -> None:
    held = killed(tmp_path / "node")
    rows, result = repaired(tmp_path / "node", tmp_path / "out")
    assert rows == []
    assert result.notes == ["paged queues are heaps now, held in memory: 'large'"]
    with start(tmp_path / "out") as node:
        assert taken(node, COUNT) == held


def test_a_damaged_page_stops_the_node_and_is_found_at_rest(tmp_path: Path) -> None:
    path = tmp_path / "node"
    held = killed(path)
    key, payload = next(task for task in held if len(task[1]) == 5000)
    (store, *_) = sorted((path / "data" / DIRECTORY).rglob("*.rdq"))
    data = bytearray(store.read_bytes())
    data[data.index(payload) + 100] ^= 1
    store.write_bytes(data)
    assert statuses(path) == ["bad-snapshot"]
    with start(path) as node:
        found: Held = []
        with pytest.raises(ConnectionFailed):
            found += taken(node, COUNT)
        assert node.wait() == 1
        (said,) = node.said("failed")
        assert "the payload of a stored task is damaged" in said["text"]
        assert node.said("bug") == []
        assert (key, payload) not in found


def test_missing_pages_stop_the_start(tmp_path: Path) -> None:
    path = tmp_path / "node"
    held = killed(path)
    pages = path / "data" / DIRECTORY
    pages.rename(tmp_path / "kept")
    with NodeProcess(path) as node:
        assert node.wait() == 1
        (words,) = node.words
        assert "the pages of queue 'large' are missing" in words
    assert statuses(path) == ["bad-snapshot"]
    (tmp_path / "kept").rename(pages)
    with start(path) as node:
        assert taken(node, COUNT) == held


def test_only_generation_3_has_paged_queues() -> None:
    rig = Rig(Generation.TWO)
    answer = rig.ask(rig.caller(), v2.Create(QueueName("large"), PAGED))
    assert isinstance(answer, v2.Failed)
    assert answer.text == "queue 'large' cannot be paged: it needs files of generation 3"
    assert QueueName("large") not in rig.state.by_name


def test_version_1_knows_no_paged_queues() -> None:
    request = v1.Create(queue=QueueName("large"), policy=PAGED)
    found = v1.decode_request(v1.encode_request(request))
    assert found is not None
    assert found[0] == v1.Refused(code=v1.Code.UNKNOWN_IMPLEMENTATION, is_packet=True)


def test_an_unknown_implementation_is_told_with_those_that_there_are() -> None:
    good = v2.encode_request(v2.Create(QueueName("q"), PAGED), 1)
    bad = good.replace((1001).to_bytes(4, "big"), (1002).to_bytes(4, "big"))
    with pytest.raises(PenstockError, match="1 is heap, 2 is array, 1001 is paged"):
        v2.decode_request(bad[4], bad[9:])
