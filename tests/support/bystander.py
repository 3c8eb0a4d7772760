"""A client that behaves, to be run beside those that do not: it must not notice them."""

from __future__ import annotations

from threading import Condition, Event, Thread
from types import TracebackType
from typing import Self

from support.node_process import PATIENCE_SECONDS, NodeProcess


class Bystander:
    """Enqueues, takes out and acks one task after the other, in a thread, until told to stop."""

    QUEUE = "bystander"

    def __init__(self, node: NodeProcess) -> None:
        self._node = node
        self._client = node.client(timeout=30.0)
        self._client.create_queue(self.QUEUE, exist_ok=True)
        self._changed = Condition()
        self._is_over = Event()
        self._rounds = 0
        self._error: Exception | None = None
        self._thread = Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        client = self._client
        try:
            while not self._is_over.is_set():
                payload = str(self._rounds).encode()
                task = client.enqueue(self.QUEUE, payload)
                (delivery,) = client.dequeue_many(self.QUEUE, 1)
                assert (delivery.id, delivery.payload) == (task, payload)
                client.ack(delivery)
                with self._changed:
                    self._rounds += 1
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def wait_rounds(self, count: int = 3) -> None:
        """Wait until that many more rounds are done: it is not held up."""
        with self._changed:
            goal = self._rounds + count
            is_done = self._changed.wait_for(
                lambda: self._rounds >= goal or self._error is not None, PATIENCE_SECONDS
            )
        if self._error is not None:
            raise self._error
        assert is_done, "somebody else's bad manners held up a client that behaves"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.wait_rounds()
        finally:
            self._is_over.set()
            self._thread.join(PATIENCE_SECONDS)
            self._client.close()
