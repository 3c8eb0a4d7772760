"""Workers whose function is ``async``: tasks of an event loop in place of threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

from penstock.client.async_subscription import AsyncSubscription
from penstock.client.asynchronous import AsyncClient, connect
from penstock.client.running import Running
from penstock.client.values import Delivery
from penstock.errors import ConnectionFailed, InvalidValue, LeaseLost, RequestRefused

if TYPE_CHECKING:
    from penstock.client.worker import Worker

_LOOK_AGAIN: Final = 0.2
"""Seconds after which the thread that watches a ``threading.Event`` looks whether it is still needed."""


def run_in_new_loop(worker: Worker, address: str, stop: threading.Event) -> None:
    """Work in an event loop of its own until ``stop`` is set."""

    async def main() -> None:
        loop, stopped, is_over = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def watch() -> None:
            while not is_over.is_set():
                if stop.wait(_LOOK_AGAIN):
                    with contextlib.suppress(RuntimeError):  # the loop was faster
                        loop.call_soon_threadsafe(stopped.set)
                    return

        threading.Thread(target=watch, name="penstock-worker-stop", daemon=True).start()
        try:
            await run_async(worker, address, stopped)
        finally:
            is_over.set()

    asyncio.run(main())


async def run_async(worker: Worker, target: AsyncClient | str, stop: asyncio.Event | None) -> None:
    """Work in the running loop until ``stop`` is set."""
    if not worker.is_async:
        raise InvalidValue("this worker's function is not async; use run()")
    stop = asyncio.Event() if stop is None else stop
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(target, str):
            target = await stack.enter_async_context(connect(target))
        settings = worker.settings
        lease = settings.lease or (await target.stat(settings.queue)).options.lease_ms / 1000
        await _AsyncCrew(worker, target, stop, lease).work()


class _AsyncCrew:
    """The tasks of one ``run_async``."""

    def __init__(
        self, worker: Worker, client: AsyncClient, stop: asyncio.Event, lease: float
    ) -> None:
        self._worker = worker
        self._client = client
        self._stop = stop
        self._running = Running(lease)

    async def work(self) -> None:
        settings = self._worker.settings
        subscription = self._client.subscribe(
            settings.queue, prefetch=settings.window, lease=settings.lease
        )
        loops = [asyncio.create_task(self._loop(subscription)) for _ in range(settings.concurrency)]
        keeper = asyncio.create_task(self._keep())
        try:
            await self._stop.wait()
            with contextlib.suppress(ConnectionFailed, LeaseLost):
                await subscription.close()
            await asyncio.gather(*loops)
        finally:
            for task in (keeper, *loops):
                task.cancel()
            await asyncio.gather(keeper, *loops, return_exceptions=True)
            with contextlib.suppress(ConnectionFailed, LeaseLost):  # what was lost comes again
                await subscription.flush()

    async def _loop(self, subscription: AsyncSubscription) -> None:
        try:
            async for delivery in subscription:
                self._running.begin(delivery)
                try:
                    await self._handle(subscription, delivery)
                finally:
                    self._running.end(delivery)
        finally:
            self._stop.set()

    async def _handle(self, subscription: AsyncSubscription, delivery: Delivery) -> None:
        from penstock.client.worker import log

        settings = self._worker.settings
        is_done = False
        try:
            await self._worker.handler(delivery)
            is_done = True
        except Exception:  # noqa: BLE001 - whatever a task does, the next one gets its turn
            log.warning("task %d of queue %r failed", delivery.id, delivery.queue, exc_info=True)
        except BaseException:
            # Before the nack: else this run would be given the task once more.
            with contextlib.suppress(ConnectionFailed, LeaseLost):
                await subscription.close()
            raise
        finally:
            if is_done:
                await subscription.ack(delivery)
            else:
                with contextlib.suppress(ConnectionFailed, LeaseLost):  # it comes again by itself
                    await self._client.nack(delivery, delay=settings.delay(delivery.attempt))

    async def _keep(self) -> None:
        """Extend leases until cancelled."""
        while True:
            await asyncio.sleep(self._running.tick)
            due = self._running.due(time.monotonic())
            if not due:
                continue
            try:
                await self._client.extend(due, lease=self._running.lease)
            except LeaseLost as error:
                self._running.lost(getattr(error, "deliveries", due))
            except (ConnectionFailed, RequestRefused):
                self._running.lost(due)
            self._running.extended(due, time.monotonic())
