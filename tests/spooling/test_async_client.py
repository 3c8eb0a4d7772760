"""The asyncio client with a spool."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock.aio
from penstock.errors import ConnectionFailed, InvalidValue, SpoolFull
from support.node_process import NodeProcess, start

PATIENCE = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with start(tmp_path_factory.mktemp("node") / "data") as node:
        yield node


def payloads_in(node: NodeProcess, queue: str) -> list[bytes]:
    with node.client() as client:
        return [task.payload for task in client.peek(queue, max(client.stat(queue).count, 1))]


def test_tasks_arrive_in_order_and_other_methods_go_to_the_node(
    node: NodeProcess, tmp_path: Path
) -> None:
    async def work() -> None:
        async with penstock.aio.connect(node.address, spool=tmp_path / "spool") as client:
            await client.create_queue("orders")
            await client.enqueue("orders", b"first")
            await asyncio.gather(*(client.enqueue("orders", b"%d" % n) for n in range(300)))
            await client.enqueue_many("orders", [b"a", b"b"], keys=[-2, -1])
            assert await client.flush(PATIENCE)
            assert (await client.stat("orders")).count == 303
            assert client.spool_stat().acknowledged == 303

    asyncio.run(work())
    assert payloads_in(node, "orders") == [b"a", b"b", b"first", *(b"%d" % n for n in range(300))]


def test_the_loop_goes_on_while_a_full_spool_waits(tmp_path: Path) -> None:
    async def work(address: str) -> None:
        client = await penstock.aio.connect(
            address, spool=tmp_path / "spool", spool_size=40_960, spool_patience=PATIENCE
        )
        waiting = asyncio.create_task(client.enqueue_many("", [bytes(1000)] * 60))
        turns = 0
        while client.spool_stat().published < 20:
            turns += 1
            await asyncio.sleep(0.001)
        assert turns > 0
        assert not waiting.done()
        assert not await client.flush(0.01)
        await client.close()
        with pytest.raises(ConnectionFailed, match="this client is closed"):
            await waiting
        with pytest.raises(ConnectionFailed, match="this client is closed"):
            await client.enqueue("", b"")
        await client.close()

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    asyncio.run(work(address))


def test_one_that_is_refused_does_not_take_others_with_it(
    tmp_path: Path, node: NodeProcess
) -> None:
    async def work() -> list[object]:
        async with penstock.aio.connect(
            node.address, spool=tmp_path / "spool", spool_size=40_960, spool_when_full="refuse"
        ) as client:
            outcomes = await asyncio.gather(
                client.enqueue("lone", b"a"),
                client.enqueue("lone", bytes(10_000)),
                client.enqueue("lone", b"b"),
                return_exceptions=True,
            )
            await client.flush(PATIENCE)
            return list(outcomes)

    with node.client() as client:
        client.create_queue("lone")
    first, second, third = asyncio.run(work())
    assert first is third is None
    assert isinstance(second, penstock.PayloadTooLarge | SpoolFull)
    assert payloads_in(node, "lone") == [b"a", b"b"]


def test_mistakes_are_told_when_it_is_opened(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(InvalidValue, match="spool_when_full is one of"):
            await penstock.aio.connect("h:1", spool=tmp_path / "spool", spool_when_full="x")
        with pytest.raises(InvalidValue, match="spool_size needs a spool"):
            penstock.aio.connect("h:1", spool_size=5)  # type: ignore[call-overload]

    asyncio.run(work())
