"""The least that a durable server in Python does: what arrives in a turn of the loop, one sync, an answer each.

No queue, no protocol, no log that could be read again. What it reaches is what a node could at best, on the same loop
and disk; asked for by name (``--only bare``), it shows which goals this machine leaves room for.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from pathlib import Path
from typing import cast

from peers.base import Conversation, Peer, Refused, Server, Wire
from peers.yardsticks import PREALLOCATED_SIZE

LENGTH = struct.Struct(">I")
ANSWER = b"\x00" * 26  # as long as the node's to one task


class BareWire(Wire):
    def greet(self) -> None:
        self._rest = 0

    def put(self, payload: bytes) -> bytes:
        return LENGTH.pack(len(payload)) + payload

    def put_many(self, payloads: list[bytes]) -> tuple[bytes, int]:
        return self.put(b"".join(payloads)), 1

    def answers(self, data: bytes) -> int:
        count, self._rest = divmod(self._rest + len(data), len(ANSWER))
        return count

    def take(self, count: int, *, wait: bool) -> Conversation:
        del count, wait
        raise Refused("it holds nothing")


class Bare(Peer):
    name = "Bare server"
    promise = "no queue at all: what a turn of the loop brings, one write, one sync, an answer each"

    def obtain(self) -> str:
        return "uvloop"

    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        del sync
        command = [sys.executable, "-m", "peers.bare", str(server.port), str(home / "bare")]
        server.run(command, cwd=Path(__file__).parent.parent, env=None, ours=True)

    def connect(self, queue: str) -> Wire:
        return BareWire(self.port, queue)


class _Connection(asyncio.Protocol):
    def __init__(self, turn: _Turn) -> None:
        self._turn = turn
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        data = self._held + data if self._held else data
        position = 0
        while position + LENGTH.size <= len(data):
            end = position + LENGTH.size + LENGTH.unpack_from(data, position)[0]
            if end > len(data):
                break
            self._turn.add(self, data[position:end])
            position = end
        self._held = data[position:]


class _Turn:
    """What has come since the last sync."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self._loop = loop
        self._waiting: list[tuple[_Connection, bytes]] = []
        self._file = os.open(path, os.O_CREAT | os.O_RDWR)
        os.write(self._file, bytes(PREALLOCATED_SIZE))
        os.fsync(self._file)
        self._offset = 0

    def add(self, connection: _Connection, request: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self._end)
        self._waiting.append((connection, request))

    def _end(self) -> None:
        waiting, self._waiting = self._waiting, []
        data = b"".join([request for _, request in waiting])
        if self._offset + len(data) > PREALLOCATED_SIZE:
            self._offset = 0
        os.pwrite(self._file, data, self._offset)
        self._offset += len(data)
        os.fdatasync(self._file)
        for connection, _ in waiting:
            if not connection.transport.is_closing():
                connection.transport.write(ANSWER)


async def _serve(port: int, path: Path) -> None:
    loop = asyncio.get_running_loop()
    turn = _Turn(loop, path)
    server = await loop.create_server(lambda: _Connection(turn), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(int(sys.argv[1]), Path(sys.argv[2])))
