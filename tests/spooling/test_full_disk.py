"""A disk that is full: a clear refusal, nothing torn, and it goes on when there is room again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.errors import SpoolFull
from penstock.storage.spool import Spool
from support.command import penstock as penstock_command
from support.node_process import NodeProcess, start
from support.small_disk import small_disk as mounted

PATIENCE = 60.0
DISK_SIZE = 1_000_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    with mounted(tmp_path / "disk", DISK_SIZE) as path:
        yield path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with start(tmp_path_factory.mktemp("node") / "data") as node:
        yield node


def fill(client: penstock.SpoolClient, queue: str, kept: list[bytes]) -> None:
    """Enqueue until there is no room; what ``enqueue`` returned for is kept."""
    for number in range(len(kept), 10_000):
        payload = b"%d " % number + bytes(number % 3000)
        try:
            client.enqueue(queue, payload)
        except SpoolFull as error:
            assert "No space left on device" in str(error)  # noqa: PT017 - others end the test
            return
        kept.append(payload)
    raise AssertionError("the disk is never full")


def payloads_in(node: NodeProcess, queue: str) -> list[bytes]:
    with node.client() as client:
        taken: list[bytes] = []
        while deliveries := client.dequeue_many(queue, 1024):
            taken += [delivery.payload for delivery in deliveries]
        return taken


@pytest.mark.parametrize("compress", [False, True])
def test_it_refuses_while_the_disk_is_full_and_goes_on_when_it_is_not(
    small_disk: Path, node: NodeProcess, tmp_path: Path, compress: bool
) -> None:
    queue = f"full-{compress}"
    kept: list[bytes] = []
    ballast = small_disk / "ballast"
    ballast.write_bytes(os.urandom(DISK_SIZE // 2))
    with penstock.connect(
        node.address, spool=small_disk / "spool", spool_compress=compress
    ) as client:
        fill(client, queue, kept)  # there is no such queue yet, so nothing is sent
        assert kept
        with pytest.raises(SpoolFull, match="No space left on device"):
            client.enqueue_many(queue, [os.urandom(50_000)] * 20)
        ballast.unlink()
        fill(client, queue, kept)
        # Nothing but what is spooled fills the disk now: only sending makes room.
        client.create_queue(queue)
        assert client.flush(PATIENCE)
        client.enqueue(queue, b"the last")
        assert client.flush(PATIENCE)
    assert payloads_in(node, queue) == [*kept, b"the last"]


def test_what_a_full_disk_left_is_whole_and_goes_on_after_a_restart(
    small_disk: Path, node: NodeProcess, tmp_path: Path
) -> None:
    kept: list[bytes] = []
    with penstock.connect(node.address, spool=small_disk / "spool") as client:
        fill(client, "left", kept)
    told: list[str] = []
    with Spool(small_disk / "spool", tell=told.append):
        assert told == []
    outcome = penstock_command("verify", str(small_disk / "spool"))
    assert (outcome.code, outcome.rows) == (0, []), outcome.err
    with node.client() as plain:
        plain.create_queue("left")
    with penstock.connect(node.address, spool=small_disk / "spool") as client:
        assert client.flush(PATIENCE)
    assert payloads_in(node, "left") == kept
