"""A real broker, started on repaired directories: it must deliver every message (docs/testing.md)."""

from __future__ import annotations

from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from peers.rabbitmq import Rabbitmq
from penstock.formats.rabbitmq.metadata import scan_log
from support.amqp import Connection
from support.broker import obtain, reachable, running
from support.command import penstock
from support.damage import flipped
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
    "c9_quorum_and_stream_kill9",  # only its classic queue is read
)
EXPIRY = 24  # offset in a publish record of a journal


@pytest.fixture
def place() -> Iterator[Path]:
    with reachable() as place:
        yield place


@pytest.mark.parametrize("name", DAMAGED)
def test_a_broker_delivers_every_message_of_a_repaired_node(
    request: pytest.FixtureRequest, place: Path, name: str
) -> None:
    program = obtain(request)
    assert_delivered(program, place, unpacked(name, place / "damaged"))


def test_an_impossible_expiry_killed_the_queue_process_of_a_broker(
    request: pytest.FixtureRequest, place: Path
) -> None:
    program = obtain(request)
    source = unpacked("c1_small_embedded_kill9_ack_race", place / "damaged")
    last = penstock("tasks", source).rows[-1]
    (journal,) = (path for path in source.rglob("journal.jif") if path.stat().st_size)
    data = journal.read_bytes()
    record = data.rindex(last["seq"].to_bytes(8, "big"))  # a persistent publish begins so
    journal.write_bytes(flipped(data, 8 * (record + EXPIRY) + 2))  # 2**58 microseconds
    damage = [(row["status"], row["seq"]) for row in penstock("verify", source).rows]
    assert damage == [("bad-expiry", last["seq"])]
    assert_delivered(program, place, source)


def assert_delivered(program: Rabbitmq, place: Path, source: Path) -> None:
    """Repair a node, start a broker on the result, and take out everything that the command line lists."""
    out, home = place / "repaired", place / "home"
    penstock("repair", source, "--out", out)
    expected: dict[tuple[str, str], list[bytes]] = defaultdict(list)
    for row in penstock("tasks", out, "--classic-only").rows:
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
