"""Bare connections to a node: bytes out, bytes in, and nothing that would hide what was sent."""

from __future__ import annotations

import contextlib
import socket
from itertools import count
from struct import pack
from typing import Final, Self, TypeVar

from penstock.model import QueueName
from penstock.protocol.frames import HEADER, HEADER_SIZE, encode_frame
from penstock.protocol.version2 import (
    Answer,
    Delivered,
    Enqueue,
    Enqueued,
    Failed,
    Request,
    decode_answer,
    encode_request,
)

PATIENCE_SECONDS: Final = 60.0
AUTHORIZE: Final = b"AN"

A = TypeVar("A")


def bootstrap(major: int, minor: int = 0, patch: int = 0) -> bytes:
    return b"B" + pack(">iii", major, minor, patch)


class Wire:
    """A socket to a node, read exactly."""

    def __init__(self, port: int, *, receive_size: int | None = None) -> None:
        """``receive_size``: how much the system takes in for us before we read it."""
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_SECONDS)
        if receive_size is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_size)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def greet(self, major: int) -> None:
        self.send(AUTHORIZE + bootstrap(major))
        self.expect_or_end(b"a\x01b\x01")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_while_possible(self, data: bytes) -> int:
        """Send until the node takes no more for a while, or ends the connection; return how much it took."""
        sent = 0
        self.socket.settimeout(0.5)
        with contextlib.suppress(OSError):
            while sent < len(data):
                sent += self.socket.send(memoryview(data)[sent:])
        self.socket.settimeout(PATIENCE_SECONDS)
        return sent

    def receive(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = self.socket.recv(min(size, 2**20))
            if not part:
                raise EOFError(b"".join(parts))
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def expect(self, expected: bytes) -> None:
        """Receive as many bytes as expected; they must be these."""
        try:
            found = self.receive(len(expected))
        except EOFError as error:
            found = error.args[0]
        assert found == expected, f"expected {expected.hex(' ')}, found {found.hex(' ')}"

    def expect_or_end(self, expected: bytes) -> None:
        """The same of a node that may go away in between. Raises ``EOFError``."""
        found = self.receive(len(expected))
        assert found == expected, f"expected {expected.hex(' ')}, found {found.hex(' ')}"

    def exchange(self, sent: bytes, expected: bytes) -> None:
        self.send(sent)
        self.expect(expected)

    def expect_end(self) -> None:
        """The node closes, and says nothing more before."""
        assert self.rest() == b""

    def rest(self) -> bytes:
        """Return what comes until the node closes."""
        parts: list[bytes] = []
        with contextlib.suppress(ConnectionResetError):
            while part := self.socket.recv(2**16):
                parts.append(part)
        return b"".join(parts)

    def end_of_sending(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """End the connection without a goodbye."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Wire2(Wire):
    """A connection that speaks version 2."""

    def __init__(self, port: int, *, receive_size: int | None = None) -> None:
        super().__init__(port, receive_size=receive_size)
        self._numbers = count(1)

    def request(self, request: Request, number: int | None = None) -> int:
        """Send a request and return its id."""
        number = next(self._numbers) if number is None else number
        self.send(encode_request(request, number))
        return number

    def answer(self) -> tuple[int, Answer]:
        """Return the next answer and whose it is."""
        size, kind, number = HEADER.unpack(self.receive(HEADER_SIZE))
        return number, decode_answer(kind, self.receive(size - 5))

    def ask(self, request: Request, kind: type[A]) -> A:
        """Send a request and return its answer, which must be of a kind and come next."""
        number = self.request(request)
        found, answer = self.answer()
        assert found == number
        assert isinstance(answer, kind), answer
        return answer

    def enqueue(self, queue: str, *payloads: bytes, key: int = 0) -> Enqueued:
        keys = (key,) * len(payloads)
        return self.ask(Enqueue(QueueName(queue), keys, payloads), Enqueued)

    def expect_broken(self) -> Failed:
        """The node says that the protocol was broken, and closes."""
        number, answer = self.answer()
        assert number == 0
        assert isinstance(answer, Failed)
        self.expect_end()
        return answer

    def expect_delivered(self, number: int) -> Delivered:
        found, answer = self.answer()
        assert found == number
        assert isinstance(answer, Delivered)
        return answer


def frame(kind: str, number: int, body: bytes = b"") -> bytes:
    """Return any frame, also one that means nothing."""
    return encode_frame(ord(kind), number, body)
