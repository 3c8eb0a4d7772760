"""The 25 defects that TaskFlux's newest source shows (specification, 11.2): each is named, and none is ours.

What a lower layer holds is proved there; ``ELSEWHERE`` says where, and a thin test here shows it of a whole node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from penstock import open as open_node
from penstock.client.blocking import Client
from penstock.errors import (
    ConnectionFailed,
    CorruptData,
    KeyOutOfRange,
    LeaseLost,
    QueueExists,
    QueueFull,
    QueueMissing,
)
from penstock.formats.taskflux.deltas import decode_delta
from penstock.formats.taskflux.generation import Contents, Generation
from penstock.formats.taskflux.log import RECORD_MARKER
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import NO_LIMITS, CreateQueue, DeleteQueue, QueueName, RemoveTask
from penstock.protocol import version2 as v2
from penstock.server.disk import LaterDisk
from penstock.server.embedded import EmbeddedNode
from penstock.server.node import Node
from penstock.server.session2 import Session2
from penstock.server.settings import Settings
from penstock.storage.directory import NodeDirectory, layout_for
from penstock.storage.files import OsFiles
from support.at_rest import listed, tree
from support.damage import overwritten
from support.node_process import NodeProcess, start

NO_CLUSTER: Final = "belongs to a cluster; one node alone has neither followers nor elections"
NO_SUCH_FACE: Final = "belongs to a face that we do not have"
ELSEWHERE: Final = {
    5: NO_CLUSTER,
    6: NO_CLUSTER,
    7: NO_CLUSTER,
    8: NO_CLUSTER,
    9: NO_CLUSTER,
    15: NO_SUCH_FACE + ": HTTP",
    16: NO_SUCH_FACE + ": gRPC",
    19: NO_CLUSTER + "; a disk that does not answer holds up whoever asked, as it must",
}
"""Findings without a test in this file."""


def test_each_of_the_25_findings_is_tested_here_or_said_not_to_concern_us() -> None:
    source = Path(__file__).read_text()
    tested = {int(number) for number in re.findall(r"^def test_w(\d+)_", source, re.MULTILINE)}
    assert tested | set(ELSEWHERE) == set(range(1, 26))
    assert not tested & set(ELSEWHERE)


@contextmanager
def embedded(root: Path, *, snapshot_bytes: int = 2**20) -> Iterator[Client]:
    """Serve a directory in this process, with snapshots as often as is possible."""
    node = EmbeddedNode(Settings(data=root, snapshot_bytes=snapshot_bytes))
    with Client(node.connect, retry=0.0) as client:
        yield client


def contents(client: Client, queue: str) -> list[tuple[int, bytes]]:
    return [(task.id, task.payload) for task in client.peek(queue, 1000)]


# --- W1 to W4: what is logged, and what a snapshot holds -----------------------------------------


def test_w1_a_created_queue_is_there_after_a_restart_and_a_deleted_one_is_not(
    tmp_path: Path,
) -> None:
    with open_node(tmp_path) as client:
        client.create_queue("orders", size_max=2, keys=(-10, 10))
        client.create_queue("gone")
        client.enqueue("orders", b"task", key=5)
        client.enqueue("gone", b"task")
        client.delete_queue("gone")
        deltas = [
            decode_delta(payload, Contents.DELTAS_BY_ID) for _, _, payload in client.entries()
        ]
        assert {type(delta) for delta in deltas} >= {CreateQueue, DeleteQueue}
    with open_node(tmp_path) as client:
        assert [stat.name for stat in client.queues()] == ["", "orders"]
        assert contents(client, "orders") == [(1, b"task")]
        with pytest.raises(KeyOutOfRange):
            client.enqueue("orders", b"", key=11)
        client.enqueue("orders", b"")
        with pytest.raises(QueueFull):
            client.enqueue("orders", b"")


def test_w2_a_task_is_removed_once_however_often_its_ack_comes(tmp_path: Path) -> None:
    with open_node(tmp_path) as client:
        client.enqueue_many("", [b"a", b"b"])
        first, second = client.dequeue_many("", 2)
        client.ack(first)
        with pytest.raises(LeaseLost):
            client.ack([first, second])
        with pytest.raises(LeaseLost):
            client.nack(first)
        removals = [
            delta.id
            for _, _, payload in client.entries()
            if isinstance(delta := decode_delta(payload, Contents.DELTAS_BY_ID), RemoveTask)
        ]
        assert removals == [1, 2]
    with open_node(tmp_path) as client:
        assert contents(client, "") == []


def test_w3_a_single_node_rotates_its_log_takes_snapshots_and_drops_what_they_cover(
    tmp_path: Path,
) -> None:
    with embedded(tmp_path, snapshot_bytes=20 * 2**20) as client:
        while client.node().first == 0:
            client.enqueue_many("", [bytes(500_000)] * 8)
            while deliveries := client.dequeue_many("", 8):
                client.ack(deliveries)
        client.enqueue("", b"left")
    layout = layout_for(tmp_path, WRITTEN[Generation.THREE])
    assert layout.snapshot.exists()
    assert sum(path.stat().st_size for path in layout.log.iterdir()) < 100 * 2**20
    assert listed(tmp_path) == [("", 0, b"left")]


def test_w4_a_task_that_is_out_is_in_the_snapshot_and_its_late_ack_does_no_harm(
    tmp_path: Path,
) -> None:
    with embedded(tmp_path) as client:
        client.enqueue_many("", [b"acked later", b"never acked"], key=-1)
        acked, _ = client.dequeue_many("", 2)
        with client.dequeue("") as nothing:
            assert nothing is None
        layout = layout_for(tmp_path, WRITTEN[Generation.THREE])
        while not layout.snapshot.exists():
            client.enqueue("", bytes(200_000), ttl=0.001)
            client.purge("")
        first = layout.snapshot.read_bytes()
        assert b"acked later" in first
        assert b"never acked" in first
        client.ack(acked)
    with open_node(tmp_path) as client:
        assert contents(client, "") == [(2, b"never acked")]


# --- W10, W11: recovery --------------------------------------------------------------------------


def test_w10_entries_behind_a_torn_tail_survive_the_next_restarts(tmp_path: Path) -> None:
    """Also: test_r5_a_torn_tail_becomes_zeros_that_are_synced, and all of tests/storage/test_crash.py."""
    with open_node(tmp_path) as client:
        client.enqueue("", b"before the cut")
    (log,) = layout_for(tmp_path, WRITTEN[Generation.THREE]).log.glob("*.log")
    for number in range(3):
        data = log.read_bytes()
        last = data.rindex(b"the cut") + len(b"the cut")
        log.write_bytes(
            overwritten(data, last, RECORD_MARKER + b"\x00\x00\x00\x00\x00\x00\x00\x07")
        )
        with open_node(tmp_path) as client:
            client.enqueue("", f"{number} behind the cut".encode())
    expected = ["before", "0 behind", "1 behind", "2 behind"]
    assert [payload.split(b" the")[0].decode() for _, _, payload in listed(tmp_path)] == expected


def test_w11_a_gap_between_segments_stops_the_start_and_removes_nothing(tmp_path: Path) -> None:
    """Also: test_a_gap_between_segments_is_refused_and_nothing_is_removed of the storage."""
    with open_node(tmp_path) as client:
        for _ in range(4):
            client.enqueue_many("", [bytes(1_000_000)] * 15)
    segments = sorted(layout_for(tmp_path, WRITTEN[Generation.THREE]).log.glob("*.log"))
    assert len(segments) >= 3
    segments[1].unlink()
    before = tree(tmp_path)
    with pytest.raises(CorruptData):
        open_node(tmp_path)
    assert tree(tmp_path) == before


# --- W12 to W17: what callers see ----------------------------------------------------------------


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with start(tmp_path_factory.mktemp("weaknesses") / "node") as running:
        yield running


def test_w12_no_packet_of_a_caller_stops_the_node(node: NodeProcess) -> None:
    """Also: tests/server/test_version1_session.py, each packet by itself, and test_hostile.py."""
    with node.client() as client:
        for first in (b"B" + bytes(12), b"N", b"k"):
            with node.wire() as wire:
                wire.send(first)
                wire.expect_end()
        for packet in (b"CC\x01\x07", b"CR\x01\x07"):
            with node.wire1() as wire:
                wire.exchange(packet, b"ce\x00\x00\x00\x01\x00\x00\x00\x00")
        with node.wire1() as wire:
            wire.send(b"CE\x00" + bytes(8) + b"\xff\xff\xff\xff")
            wire.expect_end()
        client.enqueue("", b"task")
        with node.wire1() as wire:
            wire.send(b"CD\x00" + bytes(4))
            assert wire.receive(3) == b"cd\x01"
            wire.send(b"M")
            wire.rest()
        (delivery,) = client.dequeue_many("", 1, wait=30)
        client.ack(delivery)


def test_w13_a_missing_queue_is_not_an_empty_one(node: NodeProcess) -> None:
    with node.client() as client, node.wire1() as wire:
        with pytest.raises(QueueMissing):
            client.dequeue_many("missing", 1)
        wire.send(b"CD\x07missing" + bytes(4))
        assert wire.receive(6) == b"ce\x00\x00\x00\x02"


def test_w14_a_task_whose_reader_is_gone_goes_to_the_next(node: NodeProcess) -> None:
    with node.client() as client:
        client.create_queue("w14")
        for _ in range(20):
            waiting, holding = node.wire2(), node.wire2()
            client.enqueue("w14", b"task")
            assert holding.ask(v2.Dequeue(QueueName("w14")), v2.Delivered).payloads == [b"task"]
            waiting.request(v2.Dequeue(QueueName("w14"), wait_ms=60_000))
            waiting.reset()
            holding.reset()
            (delivery,) = client.dequeue_many("w14", 1, wait=30)
            client.ack(delivery)
            client.enqueue("w14", b"another")
            (delivery,) = client.dequeue_many("w14", 1, wait=30)
            assert delivery.payload == b"another"
            client.ack(delivery)


def test_w17_a_repeated_request_neither_lies_nor_doubles(tmp_path: Path) -> None:
    enqueue = v2.Enqueue(QueueName(""), (0,), (b"once",), producer=v2.Producer(bytes(16), 1))
    with start(tmp_path / "node") as node:
        with node.client() as client:
            client.create_queue("orders")
            with pytest.raises(QueueExists):
                client.create_queue("orders")
            client.create_queue("orders", exist_ok=True)
            client.delete_queue("orders")
            with pytest.raises(QueueMissing):
                client.delete_queue("orders")
        with node.wire2() as first, node.wire2() as again:
            answer = first.ask(enqueue, v2.Enqueued)
            assert again.ask(enqueue, v2.Enqueued) == answer
        node.kill()
    with start(tmp_path / "node") as node, node.wire2() as wire:
        assert wire.ask(enqueue, v2.Enqueued) == answer
        assert wire.ask(v2.Stat(QueueName("")), v2.Stats).queues[0].count == 1


# --- W18, W20: what is committed, and when the state is there ------------------------------------


def test_w18_nobody_sees_what_the_disk_does_not_have(tmp_path: Path) -> None:
    disk = LaterDisk()
    node = Node(Settings(data=tmp_path), disk, on_failure=lambda _: None)
    while disk.waiting:
        disk.run_one()
    sent: list[bytes] = []
    session = Session2(node.broker, sent.append)

    def ask(request: v2.Request, number: int) -> None:
        session.receive(v2.encode_request(request, number))
        node.broker.serve()
        node.replica.advance()
        node.broker.flush()

    name = QueueName("")
    ask(v2.Enqueue(name, (0,), (b"unsynced",)), 1)
    ask(v2.Create(QueueName("q"), NO_LIMITS), 2)
    assert sent == []
    ask(v2.Peek(name, 10), 3)
    ask(v2.Dequeue(name), 4)
    ask(v2.Stat(), 5)
    assert len(sent) == 3
    assert b"unsynced" not in b"".join(sent)
    sent.clear()
    while disk.waiting:
        disk.run_one()
    node.broker.flush()
    answered = b"".join(sent)
    assert len(answered) == len(v2.encode_answer(v2.Enqueued((v2.Run(0, 1, 1),)), 1)) + 9
    ask(v2.Dequeue(name), 6)
    assert b"unsynced" in sent[-1]
    node.close()


def test_w20_the_first_request_to_a_node_meets_its_whole_state(tmp_path: Path) -> None:
    with open_node(tmp_path / "node") as client:
        client.enqueue_many("", [b"x"] * 20_000)
    with start(tmp_path / "node") as node, node.wire2() as wire:
        (stat,) = wire.ask(v2.Stat(QueueName("")), v2.Stats).queues
        assert stat.count == 20_000


# --- W21 to W25 ----------------------------------------------------------------------------------


def test_w21_tasks_of_one_key_keep_their_order_over_nacks_restarts_and_snapshots(
    tmp_path: Path,
) -> None:
    for generation in (2, 3):
        root = tmp_path / str(generation)
        payloads = [str(number).encode() for number in range(100)]
        with open_node(root, generation=generation) as client:
            client.enqueue_many("", payloads, keys=[number % 3 for number in range(100)])
            expected = [p for key in range(3) for p in payloads[key::3]]
            for _ in range(3):
                taken = client.dequeue_many("", 50)
                client.nack(taken[::-1])
            assert [payload for _, payload in contents(client, "")] == expected
        with open_node(root) as client:
            assert [payload for _, payload in contents(client, "")] == expected


def test_w22_an_array_over_all_keys_costs_what_its_tasks_do(node: NodeProcess) -> None:
    before = node.memory_size()
    with node.client() as client:
        client.create_queue("wide", implementation="array", keys=(-(2**63), 2**63 - 1))
        keys = [2**63 - 1, 0, -(2**63)]
        client.enqueue_many("wide", [b"last", b"middle", b"first"], keys=keys)
        assert client.stat("wide").count == 3
        taken = client.dequeue_many("wide", 3)
        assert [delivery.payload for delivery in taken] == [b"first", b"middle", b"last"]
    assert node.memory_size() - before < 16 * 2**20


def test_w23_the_default_queue_cannot_be_deleted(tmp_path: Path) -> None:
    with open_node(tmp_path) as client:
        client.enqueue("", b"task")
        with pytest.raises(Exception, match="always exists"):
            client.delete_queue("")
        assert contents(client, "") == [(1, b"task")]


def test_w24_the_vote_of_a_single_node_can_be_stored_in_generation_2(tmp_path: Path) -> None:
    """Also: test_a_vote_for_node_0_is_refused_where_it_would_read_as_none; so our node is not 0."""
    for term in (2, 3, 4):
        with open_node(tmp_path, generation=2) as client:
            assert client.node().term == term
        directory = NodeDirectory(OsFiles(), tmp_path)
        assert directory.metadata.state.term == term
        assert directory.metadata.state.vote == 1
        directory.close()


def test_w25_a_crash_between_snapshot_and_shortened_log_applies_nothing_twice(
    tmp_path: Path,
) -> None:
    """Also: test_r13_a_compaction_interrupted_after_any_step_is_finished_or_undone."""
    before = (
        "import os\n"
        "from penstock.storage.single_log import SingleLog\n"
        "SingleLog.drop_prefix = lambda self, point: os.kill(os.getpid(), 9)\n"
    )
    flags = ("--generation", 2, "--snapshot-bytes", 2**20)
    answered: set[bytes] = set()
    open_questions: set[bytes] = set()  # what was under way when the node was killed
    with start(tmp_path / "node", *flags, before=before) as node, node.client() as client:
        with suppress(ConnectionFailed):
            for number in range(1000):
                payload = f"{number}".encode().ljust(20_000)
                open_questions = {payload}
                client.enqueue("", payload)
                answered.add(payload)
                if number % 2:
                    (delivery,) = client.dequeue_many("", 1)
                    open_questions = {delivery.payload}
                    client.ack(delivery)
                    answered.remove(delivery.payload)
        assert node.wait() == -9
    assert (tmp_path / "node/consensus/raft.snapshot").exists()
    with open_node(tmp_path / "node"):  # which recovers
        pass
    found = [payload for _, _, payload in listed(tmp_path / "node")]
    assert len(set(found)) == len(found)
    assert answered - open_questions <= set(found) <= answered | open_questions
