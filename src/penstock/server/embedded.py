"""A node in the caller's own process: no port, no loop, the same code and the same guarantees.

The client talks to a session of version 2 through memory. A call returns when the disk has what it asked for,
as over a socket: the caller itself waits for the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Condition
from typing import Final

from penstock.client.blocking import Client
from penstock.errors import ConnectionLost, PenstockError, StorageFailed, Unreachable
from penstock.protocol import version1 as v1
from penstock.server.disk import InlineDisk
from penstock.server.node import Node, wall_clock_ms
from penstock.server.session2 import Session2
from penstock.server.settings import Settings
from penstock.server.shortage import free_bytes
from penstock.server.snapshots import Snapshots
from penstock.storage.files import Files, checked_directory
from penstock.storage.log import DEFAULT_LIMITS, LogLimits
from penstock.storage.paged.flush_rules import steady_clock_ms

_SLICES_PER_CALL: Final = 4  # of a snapshot under way: each call does its part
_WAIT_SECONDS_MAX: Final = 1.0  # a wait looks at the clock at least this often


class EmbeddedNode:
    """A node that whoever calls drives. Threads take turns."""

    def __init__(
        self,
        settings: Settings,
        *,
        files: Files | None = None,
        clock: Callable[[], int] = wall_clock_ms,
        steady: Callable[[], int] = steady_clock_ms,
        log_limits: LogLimits = DEFAULT_LIMITS,
        closes_with_last: bool = True,
    ) -> None:
        """Open and recover the directory. ``penstock.testing`` replaces the disk and the clocks.

        ``closes_with_last``: whether the node closes when its last client does, else only by ``close``.
        """
        self._changed = Condition()
        self._node = Node(
            settings,
            InlineDisk(),
            on_failure=lambda _: None,
            clock=clock,
            steady=steady,
            patience=steady_clock_ms,
            files=files,
            log_limits=log_limits,
        )
        self._closes_with_last = closes_with_last
        self._open_count = 0
        self._is_closed = False
        self._slices: list[Callable[[], None]] = []
        Snapshots(
            self._node,
            InlineDisk(),
            lambda _, call: self._slices.append(call),
            lambda _: None,
            room=lambda: free_bytes(settings.data),
        )

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def connect(self) -> _MemoryTransport:
        """Return a transport that leads to this node."""
        with self._changed:
            self._refuse_failed()
            if self._is_closed:
                raise Unreachable("the node in this process was closed; open its directory again")
            self._open_count += 1
            return _MemoryTransport(self)

    def session(self, write: Callable[[bytes], None]) -> Session2:
        return Session2(self._node.broker, write)

    def handle(self, session: Session2, data: bytes) -> None:
        """Take bytes from a caller and do all that they ask for."""
        with self._changed, self._failing():
            self._refuse_stopped()
            if not session.receive(data) and not session.is_broken:
                return  # a report of started tasks: nothing is to be done for it
            self._go_on()
            while session.has_backlog:
                session.go_on()
                self._go_on()

    def wait(self, is_done: Callable[[], bool], seconds: float | None) -> None:
        """Wait until ``is_done``, letting leases and delays end meanwhile, or until the time is over."""
        end_ms = None if seconds is None else steady_clock_ms() + seconds * 1000
        with self._changed, self._failing():
            while not is_done():
                self._refuse_stopped()  # a failure of the disk brings no answer to wait for
                now = steady_clock_ms()
                if end_ms is not None and now >= end_ms:
                    return
                waits = [_WAIT_SECONDS_MAX * 1000, self._node.broker.wakeup_in_ms()]
                waits.append(None if end_ms is None else end_ms - now)
                shortest = min(wait for wait in waits if wait is not None)
                self._changed.wait(max(0.001, shortest / 1000))
                self._refuse_stopped()
                self._go_on()

    def keep_time(self) -> None:
        """Do what is due now: the clock was moved by hand."""
        with self._changed, self._failing():
            if self._node.replica.failure is None and not self._is_closed:
                self._go_on()

    def close_session(self, session: Session2) -> None:
        with self._changed:
            if self._is_closed:
                return
            if self._node.replica.failure is None:
                session.close()
                self._go_on()
            self._open_count -= 1
            if not self._open_count and self._closes_with_last:
                self.close()

    def close(self) -> None:
        """Stop the node and release its directory; clients that are still open lose their connection.

        Harmless when repeated, and after a failure of the disk.
        """
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
            if self._node.replica.failure is None:
                self._node.close()
                return
            with suppress(StorageFailed):  # callers were told when the disk failed
                self._node.close()

    def _go_on(self) -> None:
        node = self._node
        node.broker.tick()
        node.broker.serve()
        node.replica.advance()
        if node.shelf is not None:
            node.shelf.flush_idle()
        for _ in range(_SLICES_PER_CALL):
            if self._slices:
                self._slices.pop()()
        node.broker.flush()
        while node.broker.is_hungry:  # what was handed over makes room for more
            node.broker.serve()
            node.replica.advance()
            node.broker.flush()
        self._changed.notify_all()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Stop the node if the disk fails where its pages are read and written."""
        try:
            yield
        except StorageFailed as error:
            self._node.replica.fail(error)
            self._refuse_failed()

    def _refuse_failed(self) -> None:
        failure = self._node.replica.failure
        if failure is not None:
            raise ConnectionLost(str(failure))

    def _refuse_stopped(self) -> None:
        self._refuse_failed()
        if self._is_closed:
            raise ConnectionLost("the node in this process was closed")


class _MemoryTransport:
    """A client's way to a node in the same process."""

    def __init__(self, node: EmbeddedNode) -> None:
        self._node = node
        self._received: list[bytes] = [
            v1.encode_response(v1.Authorized(reason=None)),
            v1.encode_response(v1.Bootstrapped(reason=None)),
        ]
        self._session = node.session(self._received.append)
        self._greeting = _GREETING_SIZE
        self._is_closed = False

    def send(self, data: bytes) -> None:
        if self._is_closed:
            raise ConnectionLost("the node in this process was closed")
        skipped = min(self._greeting, len(data))
        self._greeting -= skipped
        if len(data) > skipped:
            self._node.handle(self._session, data[skipped:])

    def receive(self, timeout: float | None) -> bytes:
        self._node.wait(lambda: bool(self._received) or self._is_closed, timeout)
        # Taken one by one: another thread may be adding at this moment.
        pieces: list[bytes] = []
        while self._received:
            pieces.append(self._received.pop(0))
        if pieces:
            return b"".join(pieces)
        if self._is_closed:
            return b""
        raise TimeoutError

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._node.close_session(self._session)


_GREETING_SIZE: Final = sum(
    len(v1.encode_request(packet))
    for packet in (v1.Authorize(), v1.Bootstrap(major=2, minor=0, patch=0))
)


def open_directory(
    path: str | os.PathLike[str], *, generation: int | None = None, retry: float = 0.0
) -> Client:
    """Start a node in this process on the directory ``path`` and return its client.

    The node needs no port and has the guarantees of a server: a call returns when its change is durable. Closing the
    client stops the node. A missing directory is created. ``generation``: the file format of a new directory, 3 by
    default, and which files to open if the directory holds both (docs/formats). ``retry``: as for ``connect``. Raises ``DirectoryLocked`` if another process has the directory
    open, ``PathRefused`` if it cannot be used, and ``BadData`` if its files are damaged.
    """
    settings = Settings(data=checked_directory(path, "path"), generation=generation)
    node = EmbeddedNode(settings)
    try:
        return Client(node.connect, retry=retry)
    except PenstockError:
        node.close()
        raise
