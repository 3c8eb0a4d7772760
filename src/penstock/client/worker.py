"""A function as a worker: ``@worker("mail", concurrency=4)``, then ``.run("host:port")``.

The function is given the ``Delivery``. Its return acks the task, its exception nacks it and is logged as a
warning of the logger ``penstock.worker``. An ``async`` function runs in an event loop (``async_worker``).
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.client.blocking import Client, connect
from penstock.client.running import Running, Settings
from penstock.client.subscription import Subscription
from penstock.client.values import Delivery
from penstock.errors import ConnectionFailed, InvalidValue, LeaseLost, RequestRefused

if TYPE_CHECKING:
    import asyncio

    from penstock.client.asynchronous import AsyncClient

log: Final = logging.getLogger("penstock.worker")


def worker(
    queue: str,
    *,
    concurrency: int = 1,
    prefetch: int | None = None,
    lease: float | None = None,
    backoff: float | None = None,
) -> Callable[[Callable[[Delivery], Any]], Worker]:
    """Return a decorator that turns a function of one ``Delivery`` into a ``Worker`` on a queue.

    ``concurrency``: the number of tasks that run at once. ``prefetch``: the number of tasks that are leased at once,
    by default ``concurrency``; raise it for tasks that are much shorter than the lease. ``lease``: seconds, by default
    the lease of the queue; the worker extends it while a task runs. ``backoff``: seconds before a failed task is
    delivered again, doubled with each attempt up to an hour. Raises ``InvalidValue``.
    """
    settings = Settings(
        queue=queue, concurrency=concurrency, prefetch=prefetch, lease=lease, backoff=backoff
    )
    return lambda handler: Worker(handler, settings)


class Worker:
    """A function and the queue whose tasks it handles. Calling the worker calls the function.

    The return of the function acknowledges the task. An exception returns the task to the queue and is logged as a
    warning by the logger ``penstock.worker``.
    """

    def __init__(self, handler: Callable[[Delivery], Any], settings: Settings) -> None:
        self.handler = handler
        self.settings = settings
        self.is_async = inspect.iscoroutinefunction(handler)

    def __call__(self, delivery: Delivery) -> Any:
        return self.handler(delivery)

    def run(self, target: Client | str, stop: threading.Event | None = None) -> None:
        """Handle tasks until ``stop`` is set, or until SIGTERM or SIGINT arrives if this is the main thread.

        ``target``: a client or an address; a worker of an ``async`` function needs an address. Running tasks finish
        first; a second signal does not wait for them. Raises the error that ended the subscription, after the running
        tasks have finished.
        """
        stop = threading.Event() if stop is None else stop
        if self.is_async:
            from penstock.client.async_worker import run_in_new_loop

            if not isinstance(target, str):
                raise InvalidValue("an async worker's run() takes an address; else use run_async()")
            with stopped_by_signals(stop):
                run_in_new_loop(self, target, stop)
            return
        with contextlib.ExitStack() as stack:
            if isinstance(target, str):
                target = stack.enter_context(connect(target))
            stack.enter_context(stopped_by_signals(stop))
            _Crew(self, target, stop).work()

    async def run_async(self, target: AsyncClient | str, stop: asyncio.Event | None = None) -> None:
        """Handle tasks in the running event loop until ``stop`` is set. The function must be ``async``.

        ``target``: an ``AsyncClient`` or an address.
        """
        from penstock.client.async_worker import run_async

        await run_async(self, target, stop)


@contextlib.contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set ``stop`` at the first SIGTERM or SIGINT; from then on, and behind the ``with``, all is as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def handle(_number: int, _frame: object) -> None:
        restore()
        # From a thread: this one may be inside ``stop`` at this moment, and hold its lock.
        threading.Thread(target=stop.set).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.getsignal(number)
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


class _Crew:
    """The threads of one ``run``."""

    def __init__(self, worker: Worker, client: Client, stop: threading.Event) -> None:
        self._worker = worker
        self._client = client
        self._stop = stop
        self._failure: BaseException | None = None  # what ended a thread that should have gone on
        settings = worker.settings
        lease = settings.lease or client.stat(settings.queue).options.lease_ms / 1000
        self._running = Running(lease)

    def work(self) -> None:
        settings = self._worker.settings
        subscription = self._client.subscribe(
            settings.queue, prefetch=settings.window, lease=settings.lease
        )
        threads = [
            threading.Thread(
                target=self._loop,
                args=(subscription,),
                name=f"penstock-worker-{n}",
                daemon=True,  # so that a second signal ends the process
            )
            for n in range(settings.concurrency)
        ]
        for thread in threads:
            thread.start()
        try:
            while not self._stop.wait(self._running.tick):
                self._extend()
        finally:
            self._finish(subscription, threads)
        if self._failure is not None:
            raise self._failure

    def _finish(self, subscription: Subscription, threads: list[threading.Thread]) -> None:
        """Take no more tasks, finish those at work, and see their acks home."""
        self._stop.set()
        with contextlib.suppress(ConnectionFailed, LeaseLost):
            subscription.close()
        for thread in threads:
            while thread.is_alive():
                thread.join(self._running.tick)
                self._extend()
        with contextlib.suppress(ConnectionFailed, LeaseLost):  # what was lost comes again
            subscription.flush()

    def _loop(self, subscription: Subscription) -> None:
        try:
            for delivery in subscription:
                self._running.begin(delivery)
                try:
                    self._handle(subscription, delivery)
                finally:
                    self._running.end(delivery)
        except BaseException as error:  # noqa: BLE001 - the outermost loop: run() raises it
            self._failure = error
        finally:
            self._stop.set()

    def _handle(self, subscription: Subscription, delivery: Delivery) -> None:
        settings = self._worker.settings
        is_done = False
        try:
            self._worker.handler(delivery)
            is_done = True
        except Exception:
            log.warning("task %d of queue %r failed", delivery.id, delivery.queue, exc_info=True)
        except BaseException:
            # Before the nack: else this run would be given the task once more.
            with contextlib.suppress(ConnectionFailed, LeaseLost):
                subscription.close()
            raise
        finally:
            if is_done:
                subscription.ack(delivery)
            else:
                with contextlib.suppress(ConnectionFailed, LeaseLost):  # it comes again by itself
                    self._client.nack(delivery, delay=settings.delay(delivery.attempt))

    def _extend(self) -> None:
        due = self._running.due(time.monotonic())
        if not due:
            return
        try:
            self._client.extend(due, lease=self._running.lease)
        except LeaseLost as error:
            self._running.lost(getattr(error, "deliveries", due))
        except (ConnectionFailed, RequestRefused):
            self._running.lost(due)
        self._running.extended(due, time.monotonic())
