"""The asyncio client with a spool: the same as ``client``, each method to be awaited. The page is docs/spool.md.

Writing and syncing happen in a thread, one write at a time; what is enqueued meanwhile is the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Self

from penstock.client import failures
from penstock.client.asynchronous import AsyncClient
from penstock.client.batches import BATCH_COUNT_MAX, BATCH_SIZE_MAX, cut
from penstock.client.values import checked_key, checked_payload
from penstock.errors import PenstockError
from penstock.spooling.client import SpoolClient, fitting
from penstock.storage.spool import SpoolStat

WAITERS_MAX: Final = 8
"""Calls of ``flush`` that wait at once, each in a thread of its own."""


class _Waiting(NamedTuple):
    events: list[bytes]
    done: asyncio.Future[None]

    @property
    def size(self) -> int:
        return sum(map(len, self.events))


class AsyncSpoolClient:
    """A client that stores tasks in a spool directory and sends them to the node in the background.

    ``enqueue`` and ``enqueue_many`` need no node. Every other method of ``AsyncClient`` is available too and needs a
    node; the first call connects. Any number of tasks of one event loop can use the client at once.
    """

    def __init__(self, open_spool: Callable[[], SpoolClient], node: AsyncClient) -> None:
        self._open_spool = open_spool
        self._node = node
        self._spool: SpoolClient | None = None
        self._waiting: deque[_Waiting] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._writer = ThreadPoolExecutor(1, "spool")
        self._waiters = ThreadPoolExecutor(WAITERS_MAX, "spool-wait")

    async def open(self) -> None:
        """Internal: open the spool and start to forward."""
        loop = asyncio.get_running_loop()
        self._spool = await loop.run_in_executor(self._writer, self._open_spool)

    # --- tasks in ---

    async def enqueue(
        self,
        queue: str,
        payload: bytes,
        *,
        key: int = 0,
        delay: float | None = None,
        ttl: float | None = None,
    ) -> None:
        """Add a task to the spool. Return when it is durable there.

        The task has no id until the node accepts it. ``delay`` and ``ttl`` count from this call. Errors that only the
        node can detect, such as a missing queue, are not raised here. Raises ``SpoolFull``, ``PayloadTooLarge``,
        ``InvalidValue``, ``StorageFailed`` if the disk failed, and the error that stopped the forwarding, if one did.
        """
        batch = [checked_key(key)], [checked_payload(payload)]
        await self._publish(self._opened.encode(queue, batch, delay=delay, ttl=ttl))

    async def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[bytes],
        *,
        key: int = 0,
        keys: Iterable[int] | None = None,
        delay: float | None = None,
        ttl: float | None = None,
    ) -> None:
        """Add many tasks to the spool, in order. Return when all are durable there.

        The call is not atomic: an exception in the middle carries ``spooled``, the number of tasks that were stored.
        Raises as ``enqueue``.
        """
        spooled = 0
        try:
            for batch in cut(payloads, key=key, keys=keys):
                events = self._opened.encode(queue, batch, delay=delay, ttl=ttl)
                for part in fitting(events, self._opened.size_max):
                    await self._publish(part)
                    spooled += len(part)
        except PenstockError as error:
            failures.carry(error, spooled=spooled)
            raise

    async def _publish(self, events: list[bytes]) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append(_Waiting(events, done))
        if self._writing is None:
            self._writing = loop.create_task(self._write())
        await done

    async def _write(self) -> None:
        """Write what waits, in order, until nothing does."""
        while self._waiting:
            together = [self._waiting.popleft()]
            count, size = len(together[0].events), together[0].size
            while self._waiting and count < BATCH_COUNT_MAX and size < BATCH_SIZE_MAX:
                together.append(self._waiting.popleft())
                count += len(together[-1].events)
                size += together[-1].size
            if len(together) == 1 or not await self._try_together(together):
                for one in together:
                    await self._write_one(one)
        self._writing = None

    async def _try_together(self, together: list[_Waiting]) -> bool:
        """Return whether all were written; if not, none was, and each has to hear why on its own."""
        try:
            await self._in_thread([event for one in together for event in one.events])
        except PenstockError:
            return False
        for one in together:
            _settle(one.done, None)
        return True

    async def _write_one(self, one: _Waiting) -> None:
        try:
            await self._in_thread(one.events)
        except (PenstockError, OSError) as error:
            _settle(one.done, error)
        else:
            _settle(one.done, None)

    async def _in_thread(self, events: list[bytes]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer, self._opened.publish, events)

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until the node has accepted everything that is in the spool now. Return whether it has.

        ``timeout``: seconds to wait; ``None`` waits without limit. Raises the error that stopped the forwarding, if one
        did.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._waiters, self._opened.flush, timeout)

    def spool_stat(self) -> SpoolStat:
        """Return the size and the counters of the spool."""
        return self._opened.spool_stat()

    @property
    def _opened(self) -> SpoolClient:
        if self._spool is None:
            raise failures.closed()
        return self._spool

    # --- the node ---

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(AsyncClient, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._node, name)

    # --- end ---

    async def close(self) -> None:
        """Stop after the batch that is being sent. Unsent tasks stay in the spool. A second call does nothing."""
        await self._node.close()
        spool = self._spool
        if spool is None:
            return
        # In a thread of its own: the writer's may be waiting for room, and ends only by this.
        await asyncio.get_running_loop().run_in_executor(self._waiters, spool.close)
        if self._writing is not None:
            await self._writing
        self._spool = None
        self._writer.shutdown(wait=False)
        self._waiters.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    """Give an answer to whoever still waits for it."""
    if done.cancelled():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
