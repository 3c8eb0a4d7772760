"""What no durable server can beat: the disk alone, and the way to another process and back."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

from peers.base import free_port

PREALLOCATED = "pwrite + fdatasync, preallocated file"
GROWING = "pwrite + fdatasync, growing file"
ECHO = "loopback TCP echo (uvloop)"

# More than a second of the fastest disks' syncs; the file is zero-filled, not merely reserved.
PREALLOCATED_SIZE = 64 * 2**20


def bare_write(
    directory: Path, payload: bytes, seconds: float, *, preallocate: bool
) -> list[float]:
    """Write and sync the same bytes again and again, one behind the other; return how long each took."""
    path = directory / "yardstick"
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR)
    try:
        if preallocate:
            os.write(descriptor, bytes(PREALLOCATED_SIZE))
        os.fsync(descriptor)
        return _write_and_sync(descriptor, payload, seconds)
    finally:
        os.close(descriptor)
        path.unlink()


def _write_and_sync(descriptor: int, payload: bytes, seconds: float) -> list[float]:
    taken: list[float] = []
    clock = time.perf_counter
    deadline, offset = clock() + seconds, 0
    while clock() < deadline and offset + len(payload) <= PREALLOCATED_SIZE:
        begin = clock()
        os.pwrite(descriptor, payload, offset)
        os.fdatasync(descriptor)
        taken.append(clock() - begin)
        offset += len(payload)
    return taken


def echo(payload: bytes, seconds: float) -> list[float]:
    """Send bytes to an echo server in another process and wait for them to come back."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, str(port)], cwd=Path(__file__).parent.parent
    )
    try:
        with _connect(port) as sock:
            return _round_trips(sock, payload, seconds)
    finally:
        server.kill()
        server.wait()


def _connect(port: int) -> socket.socket:
    deadline = time.monotonic() + 10
    sock = None
    while sock is None:
        try:
            sock = socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _round_trips(sock: socket.socket, payload: bytes, seconds: float) -> list[float]:
    taken: list[float] = []
    clock = time.perf_counter
    deadline = clock() + seconds
    while clock() < deadline:
        begin = clock()
        sock.sendall(payload)
        left = len(payload)
        while left:
            left -= len(sock.recv(left))
        taken.append(clock() - begin)
    return taken


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1])))
