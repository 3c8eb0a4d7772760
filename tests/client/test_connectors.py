"""What connectors use, on both faces, against a real node: numbers of their own, and entries by the page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock.aio
from penstock.client.blocking import Client
from penstock.errors import InvalidValue, QueueMissing
from penstock.model import QueueName
from penstock.protocol.version2 import Enqueue, Producer
from support.node_process import NodeProcess, start

FRAMES = 20


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with start(tmp_path / "node") as process:
        yield process


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    with node.client() as client:
        client.create_queue("q")
        yield client


def frames(queue: str = "q", *, first: int = 1) -> Iterator[Enqueue]:
    for number in range(first, FRAMES + 1):
        payloads = [b"%d.%d" % (number, n) for n in range(3)]
        yield Enqueue(QueueName(queue), [0] * 3, payloads, None, None, Producer(bytes(16), number))


def held(client: Client) -> list[bytes]:
    return [task.payload for task in client.peek("q", 1000)]


EXPECTED = [payload for frame in frames() for payload in frame.payloads]


def test_numbered_requests_count_once_whoever_repeats_them(
    node: NodeProcess, client: Client
) -> None:
    assert client.enqueue_numbered(list(frames())[:7]) == 21
    assert client.enqueue_numbered(frames()) == 3 * FRAMES
    assert client.enqueue_numbered(frames(first=5)) == 3 * (FRAMES - 4)
    assert client.enqueue_numbered(()) == 0
    assert held(client) == EXPECTED

    async def again() -> int:
        async with penstock.aio.connect(node.address) as other:
            return await other.enqueue_numbered(frames())

    assert asyncio.run(again()) == 3 * FRAMES
    assert held(client) == EXPECTED


def test_a_refusal_ends_numbered_requests_and_the_client_goes_on(client: Client) -> None:
    with pytest.raises(QueueMissing):
        client.enqueue_numbered(frames("nowhere"))
    assert client.enqueue_numbered(frames()) == 3 * FRAMES


def test_an_iterator_that_fails_ends_them_too(client: Client) -> None:
    def failing() -> Iterator[Enqueue]:
        yield from list(frames())[:10]
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        client.enqueue_numbered(failing())
    assert client.enqueue_numbered(frames()) == 3 * FRAMES
    assert held(client) == EXPECTED


def test_pages_hold_what_entries_yields(node: NodeProcess, client: Client) -> None:
    client.enqueue_numbered(frames())
    expected = list(client.entries())
    found: list[tuple[int, int, bytes]] = []
    while True:
        page = client.entries_page(len(found), size_max=500)
        assert page.first == len(found)
        assert page.generation == 3
        assert page.committed == expected[-1][0]
        if not page.terms:
            break
        found += zip(range(page.first, 2**62), page.terms, page.payloads, strict=False)
    assert found == expected
    assert len(client.entries_page(0, size_max=1).terms) == 1
    with pytest.raises(InvalidValue):
        client.entries_page(-1)

    async def whole() -> int:
        async with penstock.aio.connect(node.address) as other:
            return len((await other.entries_page()).terms)

    assert asyncio.run(whole()) == len(expected)
