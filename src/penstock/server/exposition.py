"""Prometheus metrics over HTTP, on a port of their own (docs/operations.md lists them)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Thread
from typing import TYPE_CHECKING, Any

from penstock.errors import Unreachable
from penstock.server.group_status import GroupStatus
from penstock.server.listener import Listener
from penstock.server.metrics import Histogram

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.core import Metric

ANSWER_SECONDS = 5.0


class Exposition:
    """The HTTP server; ``close`` ends it."""

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self._server = server
        self._thread = thread

    @property
    def address(self) -> str:
        host, port = str(self._server.server_address[0]), self._server.server_port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def expose(listener: Listener, loop: asyncio.AbstractEventLoop, host: str, port: int) -> Exposition:
    """Serve the node's metrics. Raises ``Unreachable`` if the port is taken."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(_Collector(listener, loop))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise Unreachable(
            f"cannot serve metrics on {host}:{port}: {error}; choose another --metrics"
        ) from None
    return Exposition(server, thread)


class _Collector:
    """Asks the loop for the numbers: the HTTP server's thread must not look at them itself."""

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Metric]:
        async def gather() -> list[Metric]:
            return list(_metrics(self._listener))

        future = asyncio.run_coroutine_threadsafe(gather(), self._loop)
        return iter(future.result(ANSWER_SECONDS))


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
    if node.group is not None:
        yield from _members(node.group.status())
    yield _histogram("sync_seconds", "Writing and syncing one batch.", meter.sync_seconds)
    yield _histogram("commit_seconds", "From a proposal to its answer.", meter.commit_seconds)
    yield _histogram("batch_entries", "Entries in one batch.", meter.batch_entries)
    yield from _queues(listener)


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
