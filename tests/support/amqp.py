"""The least of AMQP 0-9-1 that makes a queue and takes everything out of it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

METHOD, HEADER, BODY = 1, 2, 3
END = b"\xce"
FRAME_MAX = 131_072
PATIENCE_SECONDS = 60.0


def _short(words: bytes) -> bytes:
    return bytes((len(words),)) + words


def _long(words: bytes) -> bytes:
    return struct.pack(">I", len(words)) + words


class Connection:
    """A connection of the user guest to one vhost, with one channel."""

    def __init__(self, host: str, port: int, vhost: bytes) -> None:
        self._socket = socket.create_connection((host, port), timeout=PATIENCE_SECONDS)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(b"AMQP\0\0\x09\x01")
        self._expect((10, 10))
        login = _short(b"PLAIN") + _long(b"\0guest\0guest") + _short(b"en_US")
        self._send(0, (10, 11), _long(b"") + login)
        self._expect((10, 30))
        self._send(0, (10, 31), struct.pack(">HIH", 1, FRAME_MAX, 0))
        self._send(0, (10, 40), _short(vhost) + _short(b"") + b"\0")
        self._expect((10, 41))
        self._send(1, (20, 10), _short(b""))
        self._expect((20, 11))

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def declare(self, queue: bytes) -> None:
        """Make a durable queue."""
        self._send(1, (50, 10), struct.pack(">H", 0) + _short(queue) + b"\2" + _long(b""))
        self._expect((50, 11))

    def drain(self, queue: bytes) -> Iterator[bytes]:
        """Yield the bodies of a queue in order; each is acknowledged as it is taken."""
        while True:
            self._send(1, (60, 70), struct.pack(">H", 0) + _short(queue) + b"\1")
            answer, _ = self._expect((60, 71), (60, 72))
            if answer == (60, 72):
                return
            _, _, header = self._frame()
            size = struct.unpack_from(">Q", header, 4)[0]
            parts: list[bytes] = []
            while sum(map(len, parts)) < size:
                parts.append(self._frame()[2])
            yield b"".join(parts)

    def _send(self, channel: int, method: tuple[int, int], arguments: bytes) -> None:
        payload = struct.pack(">HH", *method) + arguments
        head = struct.pack(">BHI", METHOD, channel, len(payload))
        self._socket.sendall(head + payload + END)

    def _expect(self, *wanted: tuple[int, int]) -> tuple[tuple[int, int], bytes]:
        while True:
            kind, _, payload = self._frame()
            if kind != METHOD:
                continue  # a heartbeat
            found = struct.unpack_from(">HH", payload)
            assert found not in ((10, 50), (20, 40)), f"the broker closes: {payload!r}"
            if found in wanted:
                return (found[0], found[1]), payload[4:]

    def _frame(self) -> tuple[int, int, bytes]:
        kind, channel, size = struct.unpack(">BHI", self._exactly(7))
        payload = self._exactly(size)
        assert self._exactly(1) == END
        return kind, channel, payload

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        assert len(data) == size, "the broker closed the connection"
        return bytes(data)
