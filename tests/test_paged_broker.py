"""A real RabbitMQ, started on the directory of a ``PagedStore``, delivers every message of it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from penstock.paged import PagedStore
from support.amqp import Connection
from support.broker import obtain, reachable, running

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


@pytest.mark.heavy
def test_a_real_broker_delivers_every_message_of_a_paged_store(
    request: pytest.FixtureRequest,
) -> None:
    program = obtain(request)
    with reachable() as place:
        expected = filled(place / "store")
        assert {name: len(bodies) for name, bodies in expected.items()} == {
            "mail": 3000,
            "journal": 2,
            "drained": 0,
        }
        home, data = place / "home", place / "data"
        home.mkdir()
        data.mkdir()
        (home / "rabbitmq.conf").write_text(f"default_vhost = {VHOST}\n")
        how = {"node": "store@localhost", "vhost": VHOST}
        with (
            running(program, home, data, **how) as port,
            closing(Connection("127.0.0.1", port, VHOST.encode())) as connection,
        ):
            for name in expected:
                connection.declare(name.encode())
        (vhost,) = data.rglob(".vhost")
        shutil.rmtree(vhost.parent)
        shutil.copytree(place / "store", vhost.parent)
        with (
            running(program, home, data, **how) as port,
            closing(Connection("127.0.0.1", port, VHOST.encode())) as connection,
        ):
            for name, bodies in expected.items():
                assert list(connection.drain(name.encode())) == bodies, name
