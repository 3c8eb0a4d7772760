"""A node in the process of a test, on a clock and a disk that the test controls."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from penstock.client.blocking import Client
from penstock.client.transport import Transport
from penstock.errors import ConnectionLost
from penstock.server.embedded import EmbeddedNode
from penstock.server.settings import Settings
from penstock.storage.log import LogLimits
from penstock.testing.clock import ManualClock
from penstock.testing.disk import MemoryFiles

_DIRECTORY: Final = Path("/penstock")  # on the disk in memory
# Small files: a node starts by writing zeros for its first one, and a test writes little.
_LOG_LIMITS: Final = LogLimits(soft=2**18, growth=2**16)


class InProcessNode:
    """The production node without a port and without a thread: calls of its clients run it.

    Leases, delays and expiry follow ``clock``, which stands still until the test advances it. Timeouts of clients and
    the ``wait`` of ``dequeue`` are real seconds: they belong to the caller, who has a clock of its own.
    """

    def __init__(
        self, *, clock: ManualClock | None = None, disk: MemoryFiles | None = None
    ) -> None:
        """Start a node, on an empty disk unless ``disk`` has one. Raises ``PenstockError``."""
        self.clock = ManualClock() if clock is None else clock
        self.disk = MemoryFiles(is_recording=False) if disk is None else disk
        self._node = self._start()
        self.client = self.connect()

    def _start(self) -> EmbeddedNode:
        node = EmbeddedNode(
            Settings(data=_DIRECTORY),
            files=self.disk,
            clock=self._now_ms,
            steady=self._now_ms,
            log_limits=_LOG_LIMITS,
            closes_with_last=False,
        )
        self.clock.attach(self._keep_time)
        return node

    def _now_ms(self) -> int:
        return self.clock.now_ms

    def _keep_time(self) -> None:
        with suppress(ConnectionLost):  # the disk failed: the next call of a client reports it
            self._node.keep_time()

    def connect(self, *, retry: float = 0.0) -> Client:
        """Return another client of this node. ``retry`` is that of ``penstock.connect``."""
        return Client(self._transport, retry=retry)

    def _transport(self) -> Transport:
        return (
            self._node.connect()
        )  # of the node that runs now, also for a client from before a restart

    def restart(self) -> None:
        """Stop the node and start it again on the same disk and clock. Raises ``PenstockError``.

        Everything that was acknowledged is still there, and tasks that were leased are ready again. ``client`` is a new
        client. The others lose their connection, as in production: a call that is not retried raises
        ``ConnectionLost``, and the next one reconnects. After a failure of the disk, call ``disk.mend()`` first.
        """
        self._stop()
        self._node = self._start()
        self.client = self.connect()

    def close(self) -> None:
        """Close the client and stop the node. Harmless when repeated."""
        self.client.close()
        self._stop()

    def _stop(self) -> None:
        if not self._node.is_closed:
            self.clock.detach(self._keep_time)
            self._node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
