"""``penstock serve``: a node on a socket until it is told to stop or its disk fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from penstock import __version__
from penstock.errors import LimitReached, PenstockError, StorageFailed, Unreachable
from penstock.server.disk import ThreadDisk
from penstock.server.exposition import Exposition, check_installed, expose
from penstock.server.group_service import GroupService
from penstock.server.health import Health
from penstock.server.listener import Listener
from penstock.server.node import Node
from penstock.server.paging import IdleFlush
from penstock.server.settings import Settings
from penstock.server.shortage import free_bytes
from penstock.server.snapshots import Snapshots, Spares

DRAIN_SECONDS: Final = 10.0
CHEAP_SNAPSHOT_BYTES: Final = 32 * 2**20
"""A state up to this is written when the node stops, if there is log to replace: about a second."""

SWITCH_SECONDS: Final = 0.0005
"""How long a thread may keep another waiting: the disk's thread has an answer in its hands."""

BACKLOG: Final = 512
"""Connections that the system keeps for us until we have time for them."""

FILES_RESERVED: Final = 128
"""Open files beyond one for each connection: the log, a snapshot, metrics, what Python itself has open."""

_STDERR: Final = 2

Say = Callable[[str, dict[str, object]], None]


def log_line(event: str, fields: dict[str, object]) -> None:
    """Write one line of the node's log: JSON on stderr."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    line = json.dumps({"time": stamp, "event": event, **fields})
    # A log that nobody reads any more must not end the node; and Python would try again at its own end to
    # write what it holds for such a reader, and fail there.
    with contextlib.suppress(OSError):
        os.write(_STDERR, f"{line}\n".encode())


def serve(settings: Settings, say: Say = log_line) -> PenstockError | None:
    """Serve until SIGTERM or SIGINT; return what stopped the node, if that was not asked for.

    Raises ``PenstockError`` if it cannot start.
    """
    settings.refuse_reachable()
    if settings.metrics_port is not None:
        check_installed()
    _allow_files(settings.limits.connections_max + FILES_RESERVED)
    # The command line lets a broken pipe end it; here each connection is one, and its end is that of a caller.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_serve(settings, say))
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, say))


async def _serve(settings: Settings, say: Say) -> PenstockError | None:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[PenstockError | None] = loop.create_future()

    def stop(cause: PenstockError | None) -> None:
        if not stopped.done():
            stopped.set_result(cause)

    listening = _bind(settings)
    settings = replace(settings, port=listening.getsockname()[1])
    disk, snapshot_disk = (
        ThreadDisk(loop.call_soon_threadsafe),
        ThreadDisk(loop.call_soon_threadsafe),
    )
    node, metrics, group = None, None, None
    try:
        node = Node(_with_address(settings), disk, on_failure=stop)
        listener = Listener(node, loop)
        if node.group is not None:
            group = GroupService(node.group, loop, say)
        if settings.metrics_port is not None:
            health = Health(loop, disk, lambda: listener.node.replica.failure)
            metrics = expose(listener, loop, health, settings.metrics_host, settings.metrics_port)
        _listen(listening, settings)
    except BaseException:
        listening.close()
        disk.close()
        snapshot_disk.close()
        if metrics is not None:
            metrics.close()
        if group is not None:
            group.close()
        if node is not None:
            node.close()
        raise
    Spares(
        node,
        snapshot_disk,
        lambda text: say("spare", {"text": text}),
        room=lambda: free_bytes(settings.data),
    )
    IdleFlush(node, loop.call_later)
    loop.set_exception_handler(lambda _, context: _note_bug(context, node, say, stop))
    snapshots = Snapshots(
        node,
        snapshot_disk,
        loop.call_later,
        lambda text: say("snapshot", {"text": text}),
        room=lambda: free_bytes(settings.data),
    )
    server = await loop.create_server(listener.accept, sock=listening, backlog=BACKLOG)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, None)
    if group is not None:
        await group.start()
    _say_started(node, listening.getsockname(), metrics, say)
    cause = await stopped
    if cause is None and group is not None:
        await group.hand_over()  # while clients are still heard: they are sent to the new leader
    server.close()
    if cause is None:
        await _stop(listener, snapshots)
    else:
        say("failed", {"text": str(cause)})
        listener.abort()
    await asyncio.sleep(0)  # lets the transports hand over what they hold
    if metrics is not None:
        metrics.close()
    if group is not None:
        group.close()
    disk.close()
    snapshot_disk.close()
    if cause is None:
        cause = node.replica.failure
    if cause is None:
        node.close()
    say("stopped", {"text": "as asked" if cause is None else str(cause)})
    return cause


def _with_address(settings: Settings) -> Settings:
    """Return settings of a group with the address that clients are told, unless another was given."""
    group = settings.group
    if group is None or group.client_address:
        return settings
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return replace(settings, group=replace(group, client_address=f"{host}:{settings.port}"))


def _bind(settings: Settings) -> socket.socket:
    """Take the address before the directory is opened: a second node must fail before it does anything."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise _taken(settings, error) from None
    listening.setblocking(False)
    return listening


def _listen(listening: socket.socket, settings: Settings) -> None:
    """Begin to listen: two may have bound an address, and uvloop would not say that the other was first."""
    try:
        listening.listen(BACKLOG)
    except OSError as error:
        raise _taken(settings, error) from None


def _taken(settings: Settings, error: Exception) -> Unreachable:
    return Unreachable(
        f"cannot listen on {settings.host}:{settings.port}: {error}; choose another --listen"
    )


def _allow_files(wanted: int) -> None:
    """Have as many files open as connections need: without one for its log, a node cannot go on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    if wanted > hard != resource.RLIM_INFINITY:
        raise LimitReached(
            f"{wanted} files may have to be open, and the system allows {hard}:"
            " lower --max-connections, or raise the limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _note_bug(
    context: dict[str, Any], node: Node, say: Say, stop: Callable[[PenstockError | None], None]
) -> None:
    """Say what escaped into the loop, which is a mistake of ours.

    Where it met a caller's bytes, it costs that connection; anywhere else things may be half done, and the
    node must not go on from there.
    """
    error = context.get("exception")
    if isinstance(error, StorageFailed):
        node.replica.fail(error)  # pages are read and written where their tasks are
        return
    text = f"{context.get('message')}: {error!r}"
    lines = [] if error is None else traceback.format_exception(error)
    say("bug", {"text": text, "traceback": "".join(lines)})
    is_callers = "transport" in context and not node.replica.is_applying
    if error is not None and not isinstance(error, OSError) and not is_callers:
        stop(PenstockError(f"stopped by a bug, please report it: {error!r}"))


def _say_started(
    node: Node, address: tuple[object, ...], metrics: Exposition | None, say: Say
) -> None:
    recovered = node.recovered
    for cut in recovered.cuts:
        say("cut", {"text": str(cut)})
    if recovered.notice is not None:
        say("files", {"text": recovered.notice})
    if recovered.upgraded is not None:
        say("upgraded", {"text": f"from generation 1; its files are kept in {recovered.upgraded}"})
    host, port = address[0], address[1]
    host = f"[{host}]" if ":" in str(host) else host
    say(
        "listening",
        {
            "address": f"{host}:{port}",
            "data": str(node.settings.data),
            "generation": int(node.replica.generation),
            "version": __version__,
            "queues": recovered.queues,
            "tasks": recovered.tasks,
            "entries": recovered.entries,
            "recovery_seconds": round(recovered.seconds, 3),
            **({} if metrics is None else {"metrics": metrics.address}),
        },
    )


async def _stop(listener: Listener, snapshots: Snapshots) -> None:
    """Answer what was read, leave a short log behind if that is cheap, and say goodbye."""
    await listener.drain(DRAIN_SECONDS)
    node = listener.node
    if (
        node.replica.is_idle
        and not snapshots.is_under_way
        and snapshots.state_size() <= CHEAP_SNAPSHOT_BYTES
        and snapshots.behind > max(2**20, snapshots.state_size())
    ):
        ended = asyncio.Event()
        snapshots.when_ended = ended.set
        snapshots.begin()
        if snapshots.is_under_way:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), DRAIN_SECONDS)
    listener.close()
