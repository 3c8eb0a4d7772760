"""A real broker, started on repaired directories: it must deliver every message (docs/testing.md)."""

from __future__ import annotations

from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.formats.rabbitmq.metadata import scan_log
from support.amqp import Connection
from support.broker import obtain, reachable, running
from support.command import penstock
from support.rabbitmq_directories import unpacked

pytestmark = pytest.mark.heavy

DAMAGED = (
    "c1_small_embedded_kill9_ack_race",
    "c3_large_store_limit1m_kill9",
    "c6_fanout_refcount_kill9",
    "c8_damage_crashed_merge",
    "c8_damage_store_marker_bad",
    "c8_damage_torn_segment",
    "c8_damage_torn_store_tail",
)


@pytest.fixture
def place() -> Iterator[Path]:
    with reachable() as place:
        yield place


@pytest.mark.parametrize("name", DAMAGED)
def test_a_broker_delivers_every_message_of_a_repaired_node(
    request: pytest.FixtureRequest, place: Path, name: str
) -> None:
    program = obtain(request)
    source, out, home = unpacked(name, place / "damaged"), place / "repaired", place / "home"
    penstock("repair", source, "--out", out)
    expected: dict[tuple[str, str], list[bytes]] = defaultdict(list)
    for row in penstock("tasks", out).rows:
        expected[row["vhost"], row["queue"]].append(b64decode(row["payload"]))
    assert expected
    node = scan_log((out / "LATEST.LOG").read_bytes()).node
    assert node is not None
    home.mkdir()
    vhosts = {vhost for vhost, _ in expected}
    with running(program, home, out, node=node, vhost=min(vhosts)) as port:
        for (vhost, queue), bodies in expected.items():
            with closing(Connection("127.0.0.1", port, vhost.encode())) as connection:
                assert list(connection.drain(queue.encode())) == bodies, (vhost, queue)
