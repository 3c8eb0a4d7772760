"""Our own node, spoken to like all others: frames of protocol version 2, pre-built, on a raw socket."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import penstock
from peers.base import Conversation, Peer, Refused, Server, Unavailable, Wire
from penstock.model import Implementation, Policy, QueueName
from penstock.protocol import version1
from penstock.protocol.frames import HEADER_SIZE, FrameReader
from penstock.protocol.version2 import (
    MAJOR,
    MINOR,
    Ack,
    Answer,
    Create,
    Delivered,
    Dequeue,
    Enqueue,
    Enqueued,
    Failed,
    Failure,
    Outcome,
    Request,
    Run,
    Settled,
    decode_answer,
    encode_answer,
    encode_request,
)

# The answer to an enqueue of one task: all are of one size and differ only in the numbers.
ONE_ACCEPTED = encode_answer(Enqueued([Run(Outcome.ACCEPTED, 1, 0)]), 0)
ONE_SIZE = len(ONE_ACCEPTED)
WAIT_MS = 1000


class PenstockWire(Wire):
    policy = Policy()

    def greet(self) -> None:
        self._number = 0
        self._rest = b""
        self._name = QueueName(self.queue)
        bootstrap = version1.Bootstrap(major=MAJOR, minor=MINOR, patch=0)
        self.socket.sendall(
            version1.encode_request(version1.Authorize()) + version1.encode_request(bootstrap)
        )
        heard = self.receive()
        for _ in range(2):
            while (packet := version1.decode_response(heard)) is None:
                heard += self.receive()
            heard = heard[packet[1] :]
        self.prepare()

    def prepare(self) -> None:
        """Make the queue if it is missing."""
        self.socket.sendall(self._request(Create(self._name, self.policy)))
        reader = FrameReader()
        while not (frames := reader.receive(self.receive())):
            pass
        answer = decode_answer(frames[0][0], frames[0][2])
        if isinstance(answer, Failed) and answer.code != Failure.QUEUE_EXISTS:
            raise Refused(answer.text)

    def _request(self, request: Request) -> bytes:
        self._number = self._number % 2**31 + 1
        return encode_request(request, self._number)

    def put(self, payload: bytes) -> bytes:
        return self._request(Enqueue(self._name, [0], [payload]))

    def put_many(self, payloads: list[bytes]) -> tuple[bytes, int]:
        return self._request(Enqueue(self._name, [0] * len(payloads), payloads)), 1

    def put_stream(self, payloads: list[bytes]) -> tuple[bytes, int]:
        """Pack what is pipelined into frames, as our client does without being asked."""
        return self.put_many(payloads)

    def answers(self, data: bytes) -> int:
        data = self._rest + data if self._rest else data
        count, rest = divmod(len(data), ONE_SIZE)
        if count and _all_accepted(data, count):
            self._rest = data[len(data) - rest :]
            return count
        return self._count(data)

    def _count(self, data: bytes) -> int:
        """Count answers one by one: of batches, or in pieces."""
        position = count = 0
        while position + HEADER_SIZE <= len(data):
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if end > len(data):
                break
            answer = decode_answer(data[position + 4], data[position + HEADER_SIZE : end])
            if not isinstance(answer, Enqueued) or any(run.outcome for run in answer.runs):
                raise Refused(f"not accepted: {answer}")
            position, count = end, count + 1
        self._rest = data[position:]
        return count

    def take(self, count: int, *, wait: bool) -> Conversation:
        request = Dequeue(self._name, count_max=count, wait_ms=WAIT_MS if wait else 0)
        heard = yield self._request(request)
        while (answer := _whole_answer(heard)) is None:
            heard += yield b""
        if not isinstance(answer, Delivered):
            raise Refused(f"not delivered: {answer}")
        found = len(answer.ids)
        if found:
            heard = yield self._request(Ack(range(answer.token, answer.token + found)))
            while (answer := _whole_answer(heard)) is None:
                heard += yield b""
            if answer != Settled():
                raise Refused(f"not settled: {answer}")
        return found


class PenstockSinglesWire(PenstockWire):
    def put_stream(self, payloads: list[bytes]) -> tuple[bytes, int]:
        return b"".join(map(self.put, payloads)), len(payloads)


def _all_accepted(data: bytes, count: int) -> bool:
    """Whether the first ``count`` answers all accept one task, judged by a column of bytes at a time."""
    end = count * ONE_SIZE
    columns = (3, 4, HEADER_SIZE + 3, HEADER_SIZE + 4)  # length, type, number of runs, outcome
    return all(data[at:end:ONE_SIZE] == ONE_ACCEPTED[at : at + 1] * count for at in columns)


def _whole_answer(data: bytes) -> Answer | None:
    if len(data) < HEADER_SIZE or len(data) < 4 + int.from_bytes(data[:4], "big"):
        return None
    return decode_answer(data[4], data[HEADER_SIZE:])


class Penstock(Peer):
    name = "Penstock"
    promise = "synced before the answer; dequeue on lease, then acknowledge, a batch in one request"

    def obtain(self) -> str:
        self._program = Path(sys.executable).with_name("penstock")
        asked = [str(self._program), "serve", "--help"]
        if subprocess.run(asked, capture_output=True, check=False).returncode:
            raise Unavailable("this tree has no node yet")
        return penstock.__version__

    def launch(self, server: Server, home: Path, *, sync: bool) -> None:
        del sync  # It cannot be told not to.
        address = f"127.0.0.1:{server.port}"
        command = [str(self._program), "serve", "--data", str(home / "data")]
        server.run([*command, "--listen", address], cwd=home, env=None, ours=True)

    def connect(self, queue: str) -> Wire:
        return PenstockWire(self.port, queue)


class PagedWire(PenstockWire):
    policy = Policy(implementation=Implementation.PAGED)


class PenstockPaged(Penstock):
    """The same node with a paged queue."""

    name = "Penstock, paged"
    promise = "the same; payloads on pages"

    def connect(self, queue: str) -> Wire:
        return PagedWire(self.port, queue)


class PenstockSingles(Penstock):
    """The same node, asked the way that Redis is: a request and an answer for each pipelined task."""

    name = "Penstock, a frame a task"
    promise = "the same; pipelined tasks each in a frame of their own"

    def connect(self, queue: str) -> Wire:
        return PenstockSinglesWire(self.port, queue)
