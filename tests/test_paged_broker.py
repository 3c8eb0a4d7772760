"""A real RabbitMQ, started on the directory of a ``PagedStore``, delivers every message of it.

The broker is the machine's or that of ``bench/peers``; without one the test is skipped.
"""

from __future__ import annotations

import shutil
import signal
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.paged import PagedStore

ROOT = Path(__file__).parent.parent
VHOST = "penstock"
LARGE = b"L" * 6000


def filled(path: Path) -> dict[str, list[bytes]]:
    """Write a store with flushed and journaled messages, small and large, acked and not; return what is left."""
    with PagedStore(
        path, queue_index_max_journal_entries=3000, msg_store_file_size_limit=100_000
    ) as store:
        for turn in range(50):
            store.publish("mail", [b"%d-%d" % (turn, n) + LARGE * (n % 7 == 0) for n in range(100)])
            delivered = store.deliver("mail", 60)
            store.ack("mail", [m.number for m in delivered if m.number % 3])
        store.publish("journal", [b"small", LARGE])
        store.publish("drained", [b"x"] * 10)
        store.ack("drained", range(10))  # without a deliver before
    with PagedStore(path) as store:
        return {name: [m.body for m in store.deliver(name, 10**6)] for name in store.queues}


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that a server without privileges can reach."""
    with tempfile.TemporaryDirectory(prefix="penstock-broker-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.heavy
def test_a_real_broker_delivers_every_message_of_a_paged_store(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    from peers.base import Server, Unavailable, give_away
    from peers.rabbitmq import METHOD, Rabbitmq, RabbitmqWire, method, short

    class PenstockWire(RabbitmqWire):
        vhost = VHOST

        def get(self) -> bytes | None:
            """Take one message, ``None`` if the queue is empty."""
            self.socket.sendall(method(1, 60, 70, struct.pack(">H", 0) + short(self.queue) + b"\0"))
            body, size = b"", None
            while size is None or len(body) < size:
                for kind, data in self._frames(self.receive()):
                    if kind == METHOD and struct.unpack_from(">HH", data) == (60, 72):
                        return None
                    if kind == 2:
                        (size,) = struct.unpack_from(">Q", data, 4)
                    elif kind == 3:
                        body += data
            return body

    class Broker(Rabbitmq):
        def connect(self, queue: str) -> PenstockWire:
            return PenstockWire(self.port, queue)

        def prepare(self, home: Path) -> None:
            (home / "rabbitmq.conf").write_text(f"default_vhost = {VHOST}\n")

    def stop(server: Server) -> None:
        server.signal(signal.SIGTERM)
        for process in server.processes:
            process.wait(60)

    expected = filled(home / "store")
    assert {name: len(bodies) for name, bodies in expected.items()} == {
        "mail": 3000,
        "journal": 2,
        "drained": 0,
    }
    broker = Broker()
    try:
        broker.obtain()
    except Unavailable as reason:
        pytest.skip(f"no RabbitMQ: {reason}")
    try:
        broker.start(home / "broker", sync=True)
        for name in expected:
            broker.connect(name).close()  # declares the durable queue
        assert broker.server is not None
        stop(broker.server)
        broker.kill()
        (vhost,) = (home / "broker" / "mnesia").rglob(".vhost")
        shutil.rmtree(vhost.parent)
        shutil.copytree(home / "store", vhost.parent)
        for path in (vhost.parent, *vhost.parent.rglob("*")):
            give_away(path)
        broker.start(home / "broker", sync=True)
        for name, bodies in expected.items():
            wire = broker.connect(name)
            assert list(iter(wire.get, None)) == bodies, name
            wire.close()
    finally:
        broker.kill()
