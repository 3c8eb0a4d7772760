"""The client with a spool: a task is durable on this machine before the node has it. The page is docs/spool.md."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Self

from penstock.client import failures
from penstock.client.batches import Batch, cut
from penstock.client.blocking import Client
from penstock.client.retries import checked_seconds
from penstock.client.values import checked_key, checked_payload, checked_queue, optional_ms
from penstock.errors import InvalidValue, PenstockError, StorageError
from penstock.formats.beats.frame import FRAMING
from penstock.formats.beats.segment import PayloadFormat
from penstock.formats.beats.task_event import encode_tasks
from penstock.model import QueueName
from penstock.spooling.forwarder import Forwarder
from penstock.spooling.pump import Pump
from penstock.spooling.rounds import checked_target
from penstock.storage.files import Files
from penstock.storage.spool import Spool, SpoolSettings, SpoolStat

log: Final = logging.getLogger("penstock.spool")

Connect = Callable[[], Client]
"""Makes a client of the node. Raises ``ConnectionFailed``."""


class SpoolClient:
    """A client that stores tasks in a spool directory and sends them to the node in the background.

    ``enqueue`` and ``enqueue_many`` need no node. Every other method of ``Client`` is available too and needs a
    node; the first call connects. Any number of threads can use the client at once.
    """

    def __init__(
        self,
        path: Path,
        settings: SpoolSettings,
        *,
        forward: Connect,
        connect: Connect,
        others: QueueName | None = None,
        patience: float | None = None,
        files: Files | None = None,
    ) -> None:
        """Internal: open the spool and start to forward, with clients of ``forward`` that do not retry.

        ``others``: the queue for events that Penstock did not write. ``patience``: seconds that ``enqueue`` waits for
        room; ``None`` waits without limit. Raises ``DirectoryLocked``, ``BadData`` and ``InvalidValue``.
        """
        self._patience = (
            None if patience is None else checked_seconds(patience, "patience", positive=False)
        )
        self._connect = connect
        self._client: Client | None = None
        self._connecting = threading.Lock()  # held while the client of the node is made, or closed
        self._is_closed = False
        self._spool = Spool(path, settings, files=files, tell=log.warning)
        self._forwarder = Forwarder(
            self._spool, forward, others=others, files=files, tell=log.warning
        )
        self._pump = Pump(self._forwarder, tell=log.warning)
        self._thread = threading.Thread(target=self._run, name=f"spool {path}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._pump.run()
        except (PenstockError, OSError) as error:
            log.error("%s: what is spooled stays there: %s", self._spool.path, error)  # noqa: TRY400 — one line

    # --- tasks in ---

    def enqueue(
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
        self.publish(self.encode(queue, batch, delay=delay, ttl=ttl))

    def enqueue_many(
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
                events = self.encode(queue, batch, delay=delay, ttl=ttl)
                for part in fitting(events, self.size_max):
                    self.publish(part)
                    spooled += len(part)
        except PenstockError as error:
            failures.carry(error, spooled=spooled)
            raise

    def encode(
        self, queue: str, batch: Batch, *, delay: float | None, ttl: float | None
    ) -> list[bytes]:
        """Internal: return tasks as events of this spool. Raises ``InvalidValue``."""
        payload_format = self._spool.settings.payload_format
        return encode_batch(queue, batch, delay=delay, ttl=ttl, payload_format=payload_format)

    def publish(self, events: list[bytes]) -> None:
        """Internal: return when encoded events are durable."""
        if self._is_closed:
            raise failures.closed()
        self._pump.check()
        try:
            self._spool.publish(events, timeout=self._patience)
        except InvalidValue:
            if self._is_closed:  # meanwhile
                raise failures.closed() from None
            raise
        self._pump.wake()

    @property
    def size_max(self) -> int:
        """Internal: the maximum bytes of one ``publish``, framing included."""
        return self._spool.settings.publication_max

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the node has accepted everything that is in the spool now. Return whether it has.

        ``timeout``: seconds to wait; ``None`` waits without limit. Raises the error that stopped the forwarding, if one
        did.
        """
        if self._is_closed:
            raise failures.closed()
        return self._pump.wait_arrived(self._spool.stat().published, timeout)

    def spool_stat(self) -> SpoolStat:
        """Return the size and the counters of the spool."""
        return self._spool.stat()

    # --- the node ---

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Client, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._connected(), name)

    def _connected(self) -> Client:
        with self._connecting:
            if self._is_closed:
                raise failures.closed()
            if self._client is None:
                self._client = self._connect()
            return self._client

    # --- end ---

    def close(self) -> None:
        """Stop after the batch that is being sent. Unsent tasks stay in the spool. A second call does nothing."""
        with self._connecting:
            if self._is_closed:
                return
            self._is_closed = True
            if self._client is not None:
                self._client.close()
        self._pump.stop()
        self._thread.join()
        self._forwarder.close()
        with contextlib.suppress(StorageError):  # has been raised to those whom it concerns
            self._forwarder.rest()
        self._spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encode_batch(
    queue: str,
    batch: Batch,
    *,
    delay: float | None,
    ttl: float | None,
    payload_format: PayloadFormat,
) -> list[bytes]:
    """Return tasks as events of now. Raises ``InvalidValue``."""
    keys, payloads = batch
    return encode_tasks(
        checked_target(checked_queue(queue)),
        payloads,
        keys,
        timestamp=time.time_ns(),
        delay_ms=optional_ms(delay, "delay"),
        ttl_ms=optional_ms(ttl, "ttl"),
        payload_format=payload_format,
    )


def fitting(events: list[bytes], size_max: int) -> Iterator[list[bytes]]:
    """Yield the events in parts that a spool takes at once."""
    part: list[bytes] = []
    size = 0
    for event in events:
        size += len(event) + FRAMING
        if part and size > size_max:
            yield part
            part, size = [], len(event) + FRAMING
        part.append(event)
    if part:
        yield part
