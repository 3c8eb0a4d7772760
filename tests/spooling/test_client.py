"""The client with a spool, against a node in a process of its own that comes and goes."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.blocking import connect as connect_node
from penstock.errors import (
    ConnectionFailed,
    DirectoryLocked,
    InvalidQueueName,
    InvalidValue,
    PayloadTooLarge,
    SpoolFull,
    StorageFailed,
)
from penstock.formats.beats.event import Event, encode_event
from penstock.formats.beats.segment import Options, PayloadFormat, decode_header
from penstock.spooling.client import SpoolClient
from penstock.storage.spool import Spool, SpoolSettings
from penstock.testing.disk import MemoryFiles, Operation
from support.node_process import NodeProcess, start

PATIENCE = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with start(tmp_path_factory.mktemp("node") / "data") as node:
        yield node


@pytest.fixture
def queue(node: NodeProcess, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name[:100].replace(" ", "_")
    with node.client() as client:
        client.create_queue(name)
    return name


@pytest.fixture
def nobody() -> str:
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def payloads_in(node: NodeProcess, queue: str) -> list[bytes]:
    with node.client() as client:
        count = client.stat(queue).count
        return [task.payload for task in client.peek(queue, max(count, 1))]


def test_tasks_arrive_in_the_order_in_which_they_were_enqueued(
    node: NodeProcess, queue: str, tmp_path: Path
) -> None:
    with penstock.connect(node.address, spool=tmp_path / "spool") as client:
        assert client.enqueue(queue, b"first", key=5) is None  # type: ignore[func-returns-value]
        assert client.enqueue_many(queue, [b"%d" % n for n in range(2500)], key=5) is None  # type: ignore[func-returns-value]
        client.enqueue_many(queue, [b"a", b"b"], keys=[9, 1])
        client.enqueue(queue, b"last", key=7)
        assert client.flush(PATIENCE)
        # The other methods are those of the client that has no spool.
        assert client.stat(queue).count == 2504
        with client.dequeue(queue) as delivery:
            assert delivery is not None
            assert delivery.payload == b"b"
        assert client.spool_stat().acknowledged == 2504
    expected = [b"first", *(b"%d" % n for n in range(2500)), b"last", b"a"]
    with node.client() as plain:
        taken = [t.payload for part in range(3) for t in plain.dequeue_many(queue, 1024)]
    assert taken == expected


def test_delay_and_ttl_reach_the_node(node: NodeProcess, queue: str, tmp_path: Path) -> None:
    with penstock.connect(node.address, spool=tmp_path / "spool") as client:
        client.enqueue(queue, b"later", delay=3600)
        client.enqueue(queue, b"gone", ttl=0.001)
        client.enqueue(queue, b"now", ttl=3600)
        assert client.flush(PATIENCE)
        with client.dequeue(queue, wait=PATIENCE) as delivery:
            assert delivery is not None
            assert delivery.payload == b"now"
        stat = client.stat(queue)
        assert (stat.count, stat.delayed) == (1, 1)


def test_the_client_is_there_without_a_node_and_its_tasks_arrive_when_there_is_one(
    tmp_path: Path, nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    with penstock.connect(nobody, spool=tmp_path / "spool", retry=0) as client:
        client.enqueue("", b"a")
        assert not client.flush(0.0)
        with pytest.raises(ConnectionFailed, match="no node answers"):
            client.stat("")
        with NodeProcess(tmp_path / "node", listen=nobody) as node:
            node.wait_listening()
            client.enqueue("", b"b")
            assert client.flush(PATIENCE)
            assert payloads_in(node, "") == [b"a", b"b"]
            assert client.stat("").count == 2
    first, second = (r.message for r in caplog.records if r.name == "penstock.spool")
    assert first.startswith("cannot send now, retrying: no node answers at")
    assert second == "tasks are sent again"


def test_a_large_task_arrives(node: NodeProcess, queue: str, tmp_path: Path) -> None:
    payload = bytes(range(256)) * 40_000
    with penstock.connect(node.address, spool=tmp_path / "spool") as client:
        client.enqueue(queue, payload)
        client.enqueue_many(queue, [payload] * 2)
        assert client.flush(PATIENCE)
        for _ in range(3):
            with client.dequeue(queue) as delivery:
                assert delivery is not None
                assert delivery.payload == payload


def test_a_node_that_is_killed_and_comes_back_gets_every_task_once(tmp_path: Path) -> None:
    with start(tmp_path / "node") as node:
        address = node.address
        with penstock.connect(address, spool=tmp_path / "spool", timeout=5) as client:
            for number in range(150):
                client.enqueue("", b"%d" % number)
            node.kill()
            for number in range(150, 300):
                client.enqueue("", b"%d" % number)
            with NodeProcess(tmp_path / "node", listen=address) as again:
                again.wait_listening()
                assert client.flush(PATIENCE)
                assert payloads_in(again, "") == [b"%d" % n for n in range(300)]


def test_what_is_not_sent_when_it_is_closed_is_sent_by_the_next(
    tmp_path: Path, nobody: str
) -> None:
    for part in range(3):
        with penstock.connect(nobody, spool=tmp_path / "spool") as client:
            client.enqueue("", b"%d" % part)
    with (
        NodeProcess(tmp_path / "node", listen=nobody) as node,
        penstock.connect(node.address, spool=tmp_path / "spool") as client,
    ):
        assert client.flush(PATIENCE)
        assert payloads_in(node, "") == [b"0", b"1", b"2"]


def test_many_threads_share_a_client(node: NodeProcess, queue: str, tmp_path: Path) -> None:
    with penstock.connect(node.address, spool=tmp_path / "spool") as client:

        def work(name: int) -> None:
            for number in range(100):
                client.enqueue(queue, b"%d %d" % (name, number), key=name)
            client.flush(PATIENCE)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    expected = [b"%d %d" % (name, number) for name in range(8) for number in range(100)]
    assert payloads_in(node, queue) == expected


@pytest.mark.parametrize(("compress", "key"), [(True, None), (False, bytes(16)), (True, bytes(16))])
def test_a_spool_can_be_compressed_and_encrypted(
    node: NodeProcess, queue: str, tmp_path: Path, compress: bool, key: bytes | None
) -> None:
    with penstock.connect(
        node.address, spool=tmp_path / "spool", spool_compress=compress, spool_key=key
    ) as client:
        client.enqueue_many(queue, [b"secret"] * 50)
        assert client.flush(PATIENCE)
    data = (tmp_path / "spool" / "0.seg").read_bytes()
    asked = (Options.COMPRESSED if compress else Options(0)) | (
        Options.ENCRYPTED if key else Options(0)
    )
    assert decode_header(data[:12]).options == asked
    assert (b"secret" in data) == (key is None)
    assert payloads_in(node, queue) == [b"secret"] * 50


def test_a_spool_can_be_written_in_protobuf(node: NodeProcess, queue: str, tmp_path: Path) -> None:
    payloads = [b"", b"text", bytes(range(256))]
    with penstock.connect(
        node.address, spool=tmp_path / "spool", spool_serialization="protobuf"
    ) as client:
        client.enqueue_many(queue, payloads, keys=[1, 2, 3])
        client.enqueue(queue, b"last", key=4)
        assert client.flush(PATIENCE)
    assert (
        decode_header((tmp_path / "spool" / "0.seg").read_bytes()[:12]).options == Options.PROTOBUF
    )
    assert payloads_in(node, queue) == [*payloads, b"last"]
    with pytest.raises(InvalidValue):
        penstock.connect(node.address, spool=tmp_path / "other", spool_serialization="json")


# --- what is refused ---


def test_a_full_spool_refuses_waits_or_drops(tmp_path: Path, nobody: str) -> None:
    payload = bytes(1000)
    with penstock.connect(
        nobody, spool=tmp_path / "refuses", spool_size=40_960, spool_when_full="refuse"
    ) as client:
        client.enqueue("", payload)
        with pytest.raises(SpoolFull, match="has no room for"):
            client.enqueue_many("", [payload] * 60)
    with (
        penstock.connect(
            nobody, spool=tmp_path / "waits", spool_size=40_960, spool_patience=0.01
        ) as client,
        pytest.raises(SpoolFull, match="has no room for") as caught,
    ):
        client.enqueue_many("", [payload] * 60)
    kept = caught.value.spooled  # type: ignore[attr-defined]
    assert 20 < kept < 60
    with penstock.connect(
        nobody, spool=tmp_path / "drops", spool_size=40_960, spool_when_full="drop-oldest"
    ) as client:
        client.enqueue_many("", [b"%03d" % n + payload for n in range(100)])
        stat = client.spool_stat()
        assert stat.size <= 40_960
        assert stat.dropped > 40
    with (
        NodeProcess(tmp_path / "node", listen=nobody) as node,
        penstock.connect(node.address, spool=tmp_path / "waits", spool_size=40_960) as client,
    ):
        assert client.flush(PATIENCE)
        assert len(payloads_in(node, "")) == kept
        client.enqueue_many("", [payload] * 60)  # there is room as they are sent
        assert client.flush(PATIENCE)
        assert len(payloads_in(node, "")) == kept + 60


def test_arguments_that_mean_nothing_are_refused_at_once(tmp_path: Path, nobody: str) -> None:
    with penstock.connect(nobody, spool=tmp_path / "spool") as client:
        for wrong in ("no name", "!penstock.x", "x" * 256):
            with pytest.raises(InvalidQueueName):
                client.enqueue(wrong, b"")
        with pytest.raises(InvalidValue, match="a payload is bytes, not str"):
            client.enqueue("q", "text")  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="key is a whole number"):
            client.enqueue("q", b"", key=2**63)
        with pytest.raises(InvalidValue, match="delay of -1 s"):
            client.enqueue("q", b"", delay=-1)
        with pytest.raises(InvalidValue, match="keys and payloads of different number"):
            client.enqueue_many("q", [b"", b""], keys=[1])
        with pytest.raises(PayloadTooLarge):
            client.enqueue("q", bytes(2**24 + 1))
        with pytest.raises(AttributeError, match="has no attribute 'enqueu'"):
            client.enqueu("q", b"")
        assert client.spool_stat().published == 0
    with (
        penstock.connect(nobody, spool=tmp_path / "small", spool_size=40_960) as client,
        pytest.raises(PayloadTooLarge, match="4072 fit in a segment"),
    ):
        client.enqueue("q", bytes(8192))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"spool_size": 100}, "a segment holds"),
        ({"spool_size": "1GB"}, "spool_size is a number of bytes"),
        ({"spool_segment_size": 1.5}, "spool_segment_size is a number of bytes"),
        ({"spool_when_full": "explode"}, "spool_when_full is one of block, refuse, drop-oldest"),
        ({"spool_key": b"short"}, "a key has 16 bytes, not 5"),
        ({"spool_key": "0" * 16}, "a key is bytes"),
        ({"spool_others": "no name"}, "holds ' '"),
        ({"spool_patience": -1}, "patience of -1 s makes no sense"),
        ({"timeout": 0}, "timeout of 0 s"),
        ({"producer": ""}, "a producer is named by a str"),
        ({"spool": ""}, "give the path of a directory"),
        ({"spool": 5}, "give the path of a directory"),
        ({"spool": None, "spool_size": 1}, "spool_size needs a spool"),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    tmp_path: Path, options: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidValue, match=words):
        penstock.connect("localhost:1", **{"spool": tmp_path / "spool", **options})  # type: ignore[call-overload]


def test_a_word_that_is_none_of_ours_is_refused_as_python_does(tmp_path: Path) -> None:
    for spool in (None, tmp_path / "spool"):
        with pytest.raises(TypeError, match="unexpected keyword argument 'spol'"):
            penstock.connect("localhost:1", spool=spool, spol="x")  # type: ignore[call-overload]


def test_a_directory_that_another_client_has_is_refused(tmp_path: Path, nobody: str) -> None:
    with penstock.connect(nobody, spool=tmp_path / "spool"), pytest.raises(DirectoryLocked):
        penstock.connect(nobody, spool=tmp_path / "spool")


def test_a_closed_client_says_so(tmp_path: Path, nobody: str) -> None:
    client = penstock.connect(nobody, spool=tmp_path / "spool")
    client.close()
    client.close()
    with pytest.raises(ConnectionFailed, match="this client is closed"):
        client.enqueue("", b"")
    with pytest.raises(ConnectionFailed, match="this client is closed"):
        client.flush()
    with pytest.raises(ConnectionFailed, match="this client is closed"):
        client.stat("")


def test_who_waits_for_room_or_arrival_is_let_go_by_a_close(tmp_path: Path, nobody: str) -> None:
    client = penstock.connect(nobody, spool=tmp_path / "spool", spool_size=40_960)
    outcomes: list[object] = []
    begun = threading.Barrier(3)

    def fill() -> None:
        begun.wait()
        try:
            client.enqueue_many("", [bytes(1000)] * 100)
        except ConnectionFailed as error:
            outcomes.append(str(error))

    def flush() -> None:
        begun.wait()
        try:
            outcomes.append(client.flush())
        except ConnectionFailed:
            outcomes.append(False)

    threads = [threading.Thread(target=fill), threading.Thread(target=flush)]
    for thread in threads:
        thread.start()
    begun.wait()
    client.close()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert len(outcomes) == 2
    assert False in outcomes


def test_an_event_that_is_no_task_ends_the_forwarding_and_enqueue_says_so(
    node: NodeProcess, tmp_path: Path
) -> None:
    event = encode_event(Event(1, 1, {}, {"message": "hello"}), PayloadFormat.CBOR)
    with Spool(tmp_path / "spool") as spool:
        spool.publish([event])
    with penstock.connect(node.address, spool=tmp_path / "spool") as client:
        with pytest.raises(InvalidValue, match="is no task of ours; name the queue"):
            client.flush(PATIENCE)
        with pytest.raises(InvalidValue, match="is no task of ours; name the queue"):
            client.enqueue("", b"x")
    with node.client() as plain:
        plain.create_queue("events")
    with penstock.connect(node.address, spool=tmp_path / "spool", spool_others="events") as client:
        assert client.flush(PATIENCE)
    assert payloads_in(node, "events") == [event]


def test_a_disk_that_failed_makes_enqueue_raise(node: NodeProcess, queue: str) -> None:
    files = MemoryFiles()
    settings = SpoolSettings(max_size=2**20)
    client = SpoolClient(
        Path("/spool"),
        settings,
        forward=lambda: connect_node(node.address, retry=0.0),
        connect=lambda: connect_node(node.address),
        files=files,
    )

    def fault(operation: Operation) -> None:
        if "state.dat" in operation.path:
            raise OSError(errno.EIO, "Input/output error")

    client.enqueue(queue, b"a")
    assert client.flush(PATIENCE)
    files.fault = fault
    client.enqueue(queue, b"b")  # is durable, but its round cannot be begun
    with pytest.raises(StorageFailed, match="Input/output error"):
        client.flush(PATIENCE)
    with pytest.raises(StorageFailed, match="Input/output error"):
        client.enqueue(queue, b"c")
    client.close()


def test_importing_and_connecting_without_a_spool_imports_none_of_it() -> None:
    code = """
import sys, penstock, penstock.aio
penstock.connect, penstock.aio.connect
heavy = [n for n in sys.modules if n.startswith(("penstock.storage", "penstock.formats", "penstock.families", "numba"))]
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
