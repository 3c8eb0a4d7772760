"""The metrics port: Prometheus metrics and the health of a node over HTTP (docs/operations.md).

``/metrics`` and ``/healthz``, to GET and HEAD; anything else is refused. The port is served by a thread with
a loop of its own, so that it can report a node whose own loop hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from threading import Thread
from typing import TYPE_CHECKING, Final

from penstock.errors import Unreachable, needing
from penstock.server.group_status import GroupStatus
from penstock.server.health import Health
from penstock.server.listener import Listener
from penstock.server.metrics import Histogram
from penstock.storage.paged.flush_rules import FlushReason

if TYPE_CHECKING:
    from prometheus_client.core import Metric

HEAD_BYTES_MAX: Final = 8192
"""Of a request with its headers: those of Prometheus and of probes take less than a tenth of it."""

HEAD_SECONDS: Final = 5.0
"""For a request to arrive."""

ANSWER_SECONDS: Final = 10.0
"""For an answer to be made and read: the scrape timeout that Prometheus has unless told otherwise."""

CONNECTIONS_MAX: Final = 64
"""Beyond this the connection that has waited longest for its request is closed: callers that send theirs
at once are served, whatever others hold open."""

SCRAPES_MAX: Final = 2
"""Answers of ``/metrics`` at a time: with thousands of queues each takes megabytes."""

_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    kind: str = _TEXT

    def encode(self, *, with_body: bool) -> bytes:
        allow = "Allow: GET, HEAD\r\n" if self.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
        head = (
            f"HTTP/1.1 {self.status} {self.status.phrase}\r\nContent-Type: {self.kind}\r\n"
            f"Content-Length: {len(self.body)}\r\n{allow}Connection: close\r\n\r\n"
        )
        return head.encode() + (self.body if with_body else b"")


def _refusal(status: HTTPStatus, words: str) -> _Answer:
    return _Answer(status, f"{words}\n".encode())


def check_installed() -> None:
    """Raise ``DependencyMissing`` if metrics cannot be served."""
    with needing("server", "serve --metrics"):
        import prometheus_client  # noqa: F401


class Exposition:
    """The HTTP server of a node's metrics port; ``close`` ends it."""

    def __init__(
        self,
        listening: socket.socket,
        listener: Listener,
        loop: asyncio.AbstractEventLoop,
        health: Health,
    ) -> None:
        self._listening = listening
        self._listener = listener
        self._node_loop = loop
        self._health = health
        host, port = listening.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # Connections whose request has not arrived, oldest first.
        self._silent: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = Thread(target=self._run, name="penstock-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        self._loop.close()
        self._health.close()

    # --- in the thread ---

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._scrapes = asyncio.Semaphore(SCRAPES_MAX)
        server = await asyncio.start_server(
            self._converse, sock=self._listening, limit=HEAD_BYTES_MAX
        )
        await self._closing.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        writer.transport.set_write_buffer_limits(0)  # a drain waits until all is sent
        try:
            head = await self._read_head(reader)
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._answer(head, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the caller is gone or too slow, or the node stops
        finally:
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # else the system would wait for a caller that reads nothing
            writer.close()

    async def _read_head(self, reader: asyncio.StreamReader) -> bytes:
        """Return the request with its headers, nothing of one that is too long."""
        task = asyncio.current_task()
        assert task is not None
        self._silent[task] = None
        if len(self._silent) > CONNECTIONS_MAX:
            next(iter(self._silent)).cancel()
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                return await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return b""
        finally:
            self._silent.pop(task, None)

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target, _, version = rest.partition(" ")
        if not target.startswith("/") or not version.startswith("HTTP/1."):
            method, target = "GET", ""  # not HTTP, or not a request to this server
        path = target.partition("?")[0]
        async with self._scrapes if path == "/metrics" else contextlib.nullcontext():
            answer = await self._answer_to(method, path)
            writer.write(answer.encode(with_body=method != "HEAD"))
            await writer.drain()

    async def _answer_to(self, method: str, path: str) -> _Answer:
        if not path:
            return _refusal(HTTPStatus.BAD_REQUEST, "not a request of HTTP/1.1")
        if path not in ("/metrics", "/healthz"):
            return _refusal(HTTPStatus.NOT_FOUND, "there are /metrics and /healthz")
        if method not in ("GET", "HEAD"):
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        if path == "/healthz":
            problem = self._health.problem()
            if problem is not None:
                return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, problem)
            return _Answer(HTTPStatus.OK, b"ok\n")
        return await self._metrics()

    async def _metrics(self) -> _Answer:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        async def gather() -> list[Metric]:
            return list(_metrics(self._listener))

        # The node's loop collects the numbers: this thread must not look at them itself.
        asked = asyncio.run_coroutine_threadsafe(gather(), self._node_loop)
        try:
            found = await asyncio.wait_for(asyncio.wrap_future(asked), HEAD_SECONDS)
        except TimeoutError:
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the node's loop does not answer")
        registry = CollectorRegistry()
        registry.register(_Collected(found))
        return _Answer(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_LATEST)


def expose(
    listener: Listener, loop: asyncio.AbstractEventLoop, health: Health, host: str, port: int
) -> Exposition:
    """Serve the node's metrics and health. Raises ``Unreachable`` if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise Unreachable(
            f"cannot serve metrics on {host}:{port}: {error}; choose another --metrics"
        ) from None
    return Exposition(listening, listener, loop, health)


class _Collected:
    """Numbers for a registry of Prometheus' library."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        return self._found


def _metrics(listener: Listener) -> Iterator[Metric]:
    node, meter = listener.node, listener.meter
    log = node.directory.log
    yield from _gauges(
        ("connections", "Connections that are open.", len(listener.connections)),
        ("leases", "Tasks that are out on lease.", len(node.broker.leases)),
        ("log_bytes", "Bytes of the log's records.", log.size),
        ("log_first_index", "The first index that the log holds.", log.first),
        ("committed_index", "The last committed index.", node.replica.committed),
        ("term", "The current term.", node.replica.group.term),
        ("start_time_seconds", "When the node started.", meter.started),
    )
    yield from _counters(
        ("connections_accepted", "Connections taken in.", meter.connections_accepted),
        ("connections_refused", "Connections turned away or cut off.", meter.connections_refused),
        ("protocol_errors", "Connections that broke the protocol.", meter.protocol_errors),
        ("received_bytes", "Bytes read from callers.", meter.bytes_received),
        ("sent_bytes", "Bytes written to callers.", meter.bytes_sent),
        ("snapshots", "Snapshots taken.", meter.snapshots),
    )
    yield _flushes({} if node.shelf is None else node.shelf.flushes)
    if node.group is not None:
        yield from _members(node.group.status())
    yield _histogram("sync_seconds", "Writing and syncing one batch.", meter.sync_seconds)
    yield _histogram("commit_seconds", "From a proposal to its answer.", meter.commit_seconds)
    yield _histogram("batch_entries", "Entries in one batch.", meter.batch_entries)
    yield from _queues(listener)


def _flushes(counts: Mapping[FlushReason, int]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(
        "penstock_paged_flushes", "Flushes of paged queues.", labels=["reason"]
    )
    for reason in FlushReason:
        family.add_metric([reason], counts.get(reason, 0))
    return family


def _members(status: GroupStatus) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    yield from _gauges(
        ("is_leading", "Whether this node leads and serves.", status.is_leading),
        ("leader", "The node that leads, 0 if none is known.", status.leader),
        ("applied_index", "The last applied index.", status.applied),
        ("last_index", "The last index of the log.", status.last),
    )
    gauges = {
        "match_index": ("The last entry that a member is known to have.", "match"),
        "lag_entries": ("Entries that a member lacks.", "lag"),
        "window_appends": ("Appends under way to a member.", "window"),
    }
    for name, (text, field) in gauges.items():
        family = GaugeMetricFamily(f"penstock_peer_{name}", text, labels=["peer"])
        for member in status.members:
            if getattr(member, field) is not None:
                family.add_metric([str(member.id)], getattr(member, field))
        yield family
    state = GaugeMetricFamily(
        "penstock_peer_state", "How a leader sends to a member.", labels=["peer", "state"]
    )
    for member in status.members:
        if member.pace is not None:
            state.add_metric([str(member.id), member.pace], 1)
    yield state


def _gauges(*values: tuple[str, str, float]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for name, text, value in values:
        yield GaugeMetricFamily(f"penstock_{name}", text, value=value)


def _counters(*values: tuple[str, str, float]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    for name, text, value in values:
        yield CounterMetricFamily(f"penstock_{name}", text, value=value)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound is None else str(bound), total))
    return HistogramMetricFamily(f"penstock_{name}", text, buckets=buckets, sum_value=histogram.sum)


def _queues(listener: Listener) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    stats = [listener.broker.stat_of(queue) for queue in listener.node.replica.state.queues()]
    gauges = {
        "tasks": ("Tasks in the queue, those out on lease and delayed counted.", "count"),
        "leased": ("Tasks of the queue that are out.", "leased"),
        "delayed": ("Tasks of the queue that are not due yet.", "delayed"),
        "payload_bytes": ("Bytes of payload in the queue.", "size"),
    }
    for name, (text, field) in gauges.items():
        family = GaugeMetricFamily(f"penstock_queue_{name}", text, labels=["queue"])
        for stat in stats:
            family.add_metric([stat.name], getattr(stat, field))
        yield family
    for name in ("enqueued", "delivered", "acked", "returned", "expired", "dead_lettered"):
        counter = CounterMetricFamily(
            f"penstock_queue_{name}", f"Tasks {name.replace('_', '-')}.", labels=["queue"]
        )
        for stat in stats:
            counter.add_metric([stat.name], getattr(stat, name))
        yield counter
