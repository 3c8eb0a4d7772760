"""The end of a node: asked for, with requests under way, or because its disk failed."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable
from errno import EIO
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest

from penstock import open as open_node
from penstock.client.blocking import connect
from penstock.errors import ConnectionFailed, Unreachable
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import QueueName
from penstock.protocol import version2 as v2
from penstock.storage.directory import layout_for
from penstock.storage.files import OsFile
from rigs.kill_node import drain
from support.at_rest import listed
from support.command import refused
from support.node_process import NodeProcess, file_size_limit, start
from support.report import report
from support.wire import Wire2

NAME = QueueName("")


class Answered(Thread):
    """Enqueues as fast as it can and notes what was answered, until the connection ends."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._prefix = f"{number}.".encode()
        self.began = Event()
        self.sent: set[bytes] = set()
        self.kept: set[bytes] = set()
        self.start()

    def run(self) -> None:
        with Wire2(self._port) as wire, contextlib.suppress(ConnectionError, EOFError):
            wire.greet(2)
            under_way: dict[int, bytes] = {}
            serial = 0
            while True:
                while len(under_way) < 20:
                    serial += 1
                    payload = self._prefix + str(serial).encode()
                    self.sent.add(payload)
                    under_way[wire.request(v2.Enqueue(NAME, (0,), (payload,)))] = payload
                number, answer = wire.answer()
                assert isinstance(answer, v2.Enqueued)
                self.kept.add(under_way.pop(number))
                if serial > 100:
                    self.began.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_answered_before_the_end_is_there_after_it(tmp_path: Path, number: int) -> None:
    with start(tmp_path / "node") as node:
        callers = [Answered(node.port, n) for n in range(3)]
        for caller in callers:
            assert caller.began.wait(60)
        node.send_signal(number)
        assert node.wait() == 0
        assert node.wait_said("stopped")["text"] == "as asked"
        assert node.words == []
        for caller in callers:
            caller.join(60)
    kept = set().union(*(caller.kept for caller in callers))
    sent = set().union(*(caller.sent for caller in callers))
    there = {payload for _, _, payload in listed(tmp_path / "node")}
    assert kept <= there <= sent
    report(f"node stopped under load: {len(kept)} of {len(sent)} enqueues answered, all there")


def test_an_idle_node_stops_at_once_however_many_are_connected(tmp_path: Path) -> None:
    with start(tmp_path / "node") as node:
        wires = [node.wire2() for _ in range(20)]
        wires[0].request(v2.Dequeue(NAME, wait_ms=60_000))
        wires[1].request(v2.Subscribe(NAME, 5))
        wires[1].answer()
        wires[2].send(b"\x00\x00")
        assert node.stop() == 0
        for wire in wires:
            assert wire.rest() == b""
            wire.close()
        assert node.events[-1]["event"] == "stopped"


def test_a_caller_that_never_reads_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with start(tmp_path / "node") as node, node.wire2() as wire, node.client() as client:
        client.enqueue_many("", [bytes(500_000)] * 20)
        wire.request(v2.Subscribe(NAME, 100))
        wire.request(v2.Peek(NAME, 100))
        client.ping()
        assert node.stop() == 0
        assert node.words == []
    assert len(listed(tmp_path / "node")) == 20


def test_a_second_signal_does_not_make_the_end_worse(tmp_path: Path) -> None:
    with start(tmp_path / "node") as node, node.client() as client:
        client.enqueue("", b"task")
        for _ in range(5):
            node.send_signal(signal.SIGTERM)
        assert node.wait() == 0
    assert listed(tmp_path / "node") == [("", 0, b"task")]


def test_a_node_leaves_a_short_log_behind_when_that_is_cheap(tmp_path: Path) -> None:
    """Of generation 3 the last segment stays; only its part behind the snapshot is replayed."""
    root = tmp_path / "node"
    with start(root, "--generation", 2) as node, node.client() as client:
        client.enqueue_many("", [bytes(10_000)] * 300)
        while deliveries := client.dequeue_many("", 100):
            client.ack(deliveries)
        client.enqueue("", b"left")
        assert node.stop() == 0
        assert len(node.said("snapshot")) == 1
    assert layout_for(root, WRITTEN[Generation.TWO]).snapshot.exists()
    with open_node(root) as client:
        assert client.stat("").count == 1
        assert client.node().committed - client.node().first < 5


def test_tasks_that_are_out_when_a_node_stops_are_there_when_it_starts(tmp_path: Path) -> None:
    root = tmp_path / "node"
    with start(root) as node, node.client() as client:
        client.enqueue_many("", [b"a", b"b", b"c"])
        assert len(client.dequeue_many("", 2)) == 2
        assert node.stop() == 0
    with open_node(root) as client:
        assert [task.payload for task in client.peek("", 10)] == [b"a", b"b", b"c"]


# --- a disk that fails ---------------------------------------------------------------------------


def fill(node: NodeProcess) -> tuple[int, int]:
    """Enqueue large tasks until the node is gone; return how many were answered, and sent."""
    answered = sent = 0
    with contextlib.suppress(ConnectionFailed), node.client() as client:
        while True:
            sent += 1
            client.enqueue("", bytes(100_000))
            answered += 1
    return answered, sent


@pytest.mark.parametrize(("generation", "size_max"), [(2, 12 * 2**20), (3, 18 * 2**20)])
def test_a_full_disk_ends_the_node_and_nothing_unwritten_was_answered(
    tmp_path: Path, generation: int, size_max: int
) -> None:
    root = tmp_path / "node"
    flags = ("--generation", generation)
    with start(root, *flags, prepare=file_size_limit(size_max)) as node:
        answered, sent = fill(node)
        assert node.wait() == 1
        (failed,) = node.said("failed")
        assert "File too large" in failed["text"]
        assert node.events[-1]["event"] == "stopped"
        assert node.said("bug") == []
        assert node.words == []
    assert 0 < answered < sent
    with open_node(root) as client:  # with a disk that has room again
        assert answered <= client.stat("").count <= sent
        client.enqueue("", b"and on")


FAILING_SYNC = """
import errno
from penstock.storage.files import OsFile
sync, count = OsFile.sync, [0]
def fail(self):
    count[0] += 1
    if count[0] > {allowed}:
        raise OSError(errno.EIO, "Input/output error")
    sync(self)
OsFile.sync = fail
"""


def test_the_first_failed_sync_ends_the_node_and_is_never_tried_again(tmp_path: Path) -> None:
    """A sync that succeeds after one that failed may have lost what was written before both."""
    root = tmp_path / "node"
    with start(root, before=FAILING_SYNC.format(allowed=40)) as node:
        answered, sent = fill(node)
        assert sent == answered + 1
        assert node.wait() == 1
        (failed,) = node.said("failed")
        assert "Input/output error" in failed["text"]
        assert node.words == []
    with open_node(root) as client:
        assert answered <= client.stat("").count <= sent


def test_what_is_under_way_when_the_disk_fails_is_not_answered(tmp_path: Path) -> None:
    with start(tmp_path / "node", before=FAILING_SYNC.format(allowed=30)) as node:
        callers = [Answered(node.port, n) for n in range(3)]
        assert node.wait() == 1
        for caller in callers:
            caller.join(60)
        assert all(len(caller.kept) < len(caller.sent) for caller in callers)
    kept = set().union(*(caller.kept for caller in callers))
    there = {payload for _, _, payload in listed(tmp_path / "node", uncommitted=True)}
    assert kept <= there


def test_a_disk_that_fails_within_the_start_is_one_line_and_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for allowed in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(OsFile, "sync", failing(OsFile.sync, allowed=allowed))
            words = refused("serve", "--data", tmp_path / "node", "--listen", "127.0.0.1:0")
        assert "Input/output error" in words
    with open_node(tmp_path / "node") as client:
        client.enqueue("", b"task")


def failing(sync: Callable[[OsFile], None], *, allowed: int) -> Callable[[OsFile], None]:
    """Return a sync that fails behind the first ``allowed``."""
    calls = count()

    def fail(file: OsFile) -> None:
        if next(calls) >= allowed:
            raise OSError(EIO, "Input/output error")
        sync(file)

    return fail


# --- a bug ---------------------------------------------------------------------------------------


def test_a_bug_that_leaves_the_state_half_changed_ends_the_node(tmp_path: Path) -> None:
    """What is in the log is right; a new start applies it anew."""
    root = tmp_path / "node"
    before = (
        "from penstock.server.operations import Remove\n"
        "def apply(self, state):\n"
        "    assert False, 'a bug'\n"
        "Remove.apply = apply\n"
    )
    with start(root, before=before) as node, node.client() as client:
        for _ in range(
            30
        ):  # long enough for the disk's speed to be known: some are done on the loop
            client.enqueue("", b"task")
        (delivery,) = client.dequeue_many("", 1)
        with pytest.raises(ConnectionFailed):
            client.ack(delivery)
        assert node.wait() == 1
        assert "a bug" in node.wait_said("bug")["traceback"]
        assert "report it" in node.wait_said("failed")["text"]
        assert node.words == []
    assert len(listed(root, uncommitted=True)) == 29
    with open_node(root) as client:
        assert client.stat("").count == 29


def test_a_bug_that_meets_a_callers_bytes_costs_that_connection_only(tmp_path: Path) -> None:
    before = (
        "import penstock.server.session2 as session2\n"
        "decode = session2.decode_request\n"
        "def wrong(kind, body):\n"
        "    return {}['a bug'] if kind == ord('P') else decode(kind, body)\n"
        "session2.decode_request = wrong\n"
    )
    with start(tmp_path / "node", before=before) as node, node.client() as client:
        with node.wire2() as wire:
            wire.request(v2.Peek(NAME))
            wire.expect_end()
        assert "KeyError" in node.wait_said("bug")["text"]
        client.enqueue("", b"task")
        assert node.stop() == 0


# --- snapshots while tasks come ------------------------------------------------------------------


def test_snapshots_under_load_shorten_the_log_and_a_restart_has_exactly_what_is_left(
    tmp_path: Path,
) -> None:
    root = tmp_path / "node"
    with start(root, "--snapshot-bytes", 2**20) as node, node.client() as client:
        client.create_queue("orders")
        held = client.dequeue_many("orders", 1)
        left: dict[int, bytes] = {}
        serial = 0
        while len(node.said("snapshot")) < 4 or client.node().first == 0:
            payloads = [f"{serial + n}".encode().ljust(20_000) for n in range(100)]
            serial += 100
            ids = client.enqueue_many("orders", payloads, keys=[n % 3 for n in range(100)])
            left |= dict(zip(ids, payloads, strict=True))
            if not held:
                held = client.dequeue_many("orders", 5, lease=3600)  # out over every snapshot
            done = client.dequeue_many("orders", 95)
            client.ack(done)
            for delivery in done:
                del left[delivery.id]
        first, count = client.node().first, len(node.said("snapshot"))
        log = layout_for(root, WRITTEN[Generation.THREE]).log
        size = sum(path.stat().st_size for path in log.iterdir())
        assert size < 64 * 2**20
        assert {row["text"].split()[0] for row in node.said("snapshot")} == {"snapshot"}
        node.kill()
    with start(root) as node, node.wire2() as wire:
        assert node.wait_said("listening")["entries"] < serial * 2
        found = drain(wire, "orders")
        assert {task_id: payload for _, task_id, payload in found} == left
        assert found == sorted(found)
    report(f"node: {serial} tasks over {count} snapshots, log from entry {first}, {len(left)} left")


def test_a_full_disk_within_a_snapshot_ends_the_node_and_loses_nothing(tmp_path: Path) -> None:
    root = tmp_path / "node"
    before = FAILING_SYNC + (
        "from penstock.storage.snapshot import SnapshotWriter\n"
        "count[0] = -10**9\n"
        "SnapshotWriter.finish = lambda self, patch: fail_now()\n"
        "def fail_now():\n"
        "    raise OSError(errno.ENOSPC, 'No space left on device')\n"
    )
    flags = ("--snapshot-bytes", 2**20)
    with start(root, *flags, before=before.format(allowed=0)) as node:
        answered, sent = fill(node)
        assert node.wait() == 1
        assert "No space left on device" in node.wait_said("failed")["text"]
    with open_node(root) as client:
        assert answered <= client.stat("").count <= sent


def test_a_log_line_that_nobody_reads_does_not_end_the_node(tmp_path: Path) -> None:
    before = "import os; os.close(2); os.open('/dev/full', os.O_WRONLY)"
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with NodeProcess(tmp_path / "node", listen=address, before=before) as node:
        while True:  # it cannot say when it listens
            with contextlib.suppress(Unreachable), connect(address) as client:
                client.enqueue("", b"task")
                break
        assert node.stop() == 0
        assert node.events == []
    assert listed(tmp_path / "node") == [("", 0, b"task")]
