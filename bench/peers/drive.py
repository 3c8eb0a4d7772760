"""The loads, the same for every system: what to send when, and what to count."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass

from peers.base import ANSWER_SECONDS_MAX, READ_SIZE, Conversation, Refused, Wire

# Requests under way on a pipelined connection. Enough for every system's largest group: Redis takes
# 16 KiB from a socket before it syncs, RabbitMQ gives a channel credit for some hundreds.
WINDOW = 4096
# Tasks in one pre-built piece of a pipelined load; one send carries it.
BLOCK = 256
# Nothing has come for so long: the queue is empty, for a system that does not say so.
DRY_SECONDS = 0.5
# A server that takes connections after a restart has its tasks by then, or has lost them.
FIRST_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """So many tasks in so many seconds."""

    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.count / self.seconds if self.seconds else 0.0


def latencies(wire: Wire, requests: list[bytes], seconds: float) -> list[float]:
    """Enqueue one at a time and return how long each took, until its durable answer."""
    taken: list[float] = []
    clock, send, receive, answers = (
        time.perf_counter,
        wire.socket.sendall,
        wire.receive,
        wire.answers,
    )
    deadline = clock() + seconds
    while clock() < deadline:
        for request in requests:
            begin = clock()
            send(request)
            while not answers(receive()):
                pass
            taken.append(clock() - begin)
    return taken


def requests_under_way(tasks: int) -> int:
    """Return how many requests of so many tasks each may be under way."""
    return max(1, WINDOW // tasks)


def pipelined(
    wire: Wire, requests: list[bytes], *, answers: int, tasks: int, more: Callable[[int], bool]
) -> Rate:
    """Send pre-built requests round and round, many under way, while ``more(tasks sent)``.

    ``answers`` and ``tasks`` are those of one request. There are more requests than are ever under
    way, so that one with an id of its own never meets itself. Every answer is waited for.
    """
    window = requests_under_way(tasks) * answers
    assert len(requests) * answers > window, "one more than are under way"
    sent = answered = 0  # in requests, and in answers
    rest = memoryview(b"")
    sock = wire.socket
    sock.setblocking(False)
    poll = select.poll()
    begin = time.perf_counter()
    going = True
    while going or rest or answered < sent * answers:
        if going and not rest and sent * answers - answered + answers <= window:
            going = more(sent * tasks)
            if not going:
                continue  # All may be answered already; nothing would come to wake us.
            rest = memoryview(requests[sent % len(requests)])
            sent += 1
        poll.register(sock, select.POLLIN | (select.POLLOUT if rest else 0))
        events = poll.poll(ANSWER_SECONDS_MAX * 1000)
        if not events:
            raise Refused("an answer does not come")
        _, event = events[0]
        if event & ~select.POLLOUT:
            answered += wire.answers(wire.receive())
        if rest and event & select.POLLOUT:
            rest = rest[sock.send(rest) :]
    seconds = time.perf_counter() - begin
    sock.settimeout(ANSWER_SECONDS_MAX)
    return Rate(count=sent * tasks, seconds=seconds)


def batches(wire: Wire, request: bytes, *, answers: int, tasks: int, seconds: float) -> Rate:
    """Send a batch, wait for all its answers, send the next."""
    count = 0
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        wire.socket.sendall(request)
        left = answers
        while left > 0:
            left -= wire.answers(wire.receive())
        count += tasks
    return Rate(count=count, seconds=time.perf_counter() - begin)


def drain(wire: Wire, *, batch: int, seconds: float) -> Rate:
    """Take and remove batches, one after another, until the time or the queue is at its end."""
    count = 0
    begin = last = time.perf_counter()
    wire.socket.settimeout(DRY_SECONDS)
    while last < begin + seconds:
        try:
            removed = converse(wire, wire.take(batch, wait=False))
        except TimeoutError:
            break
        if removed < batch and count:
            break
        count += removed
        last = time.perf_counter()
    wire.socket.settimeout(ANSWER_SECONDS_MAX)
    return Rate(count=count, seconds=last - begin)


def first(wire: Wire) -> None:
    """Return when one task has been taken. Raises ``Refused`` if none comes."""
    deadline = time.perf_counter() + FIRST_SECONDS_MAX
    while not converse(wire, wire.take(1, wait=True)):
        if time.perf_counter() > deadline:
            raise Refused("no task is left after the restart")


def converse(wire: Wire, conversation: Conversation) -> int:
    """Have a conversation on a blocking connection."""
    words = next(conversation)
    while True:
        if words:
            wire.socket.sendall(words)
        try:
            words = conversation.send(wire.receive())
        except StopIteration as end:
            return int(end.value)


class Producer:
    """Enqueues one task at a time."""

    def __init__(self, wire: Wire, requests: list[bytes]) -> None:
        self.wire, self.requests, self.count = wire, requests, 0

    def begin(self) -> bytes:
        return self.requests[0]

    def hear(self, data: bytes) -> bytes:
        if not self.wire.answers(data):
            return b""
        self.count += 1
        return self.requests[self.count % len(self.requests)]


class Consumer:
    """Takes and removes one task at a time, waiting where there is none."""

    def __init__(self, wire: Wire) -> None:
        self.wire, self.count = wire, 0
        self._conversation = wire.take(1, wait=True)

    def begin(self) -> bytes:
        return next(self._conversation)

    def hear(self, data: bytes) -> bytes:
        try:
            return self._conversation.send(data)
        except StopIteration as end:
            self.count += end.value
            self._conversation = self.wire.take(1, wait=True)
            return next(self._conversation)


def together(actors: list[Producer | Consumer], seconds: float) -> float:
    """Let all act at once, each on its own connection; return the seconds. They count for themselves."""
    poll = select.epoll()
    by_descriptor = {actor.wire.socket.fileno(): actor for actor in actors}
    for descriptor, actor in by_descriptor.items():
        poll.register(descriptor, select.EPOLLIN)
        words = actor.begin()
        if words:
            actor.wire.socket.sendall(words)
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds:
        for descriptor, _ in poll.poll(DRY_SECONDS):
            actor = by_descriptor[descriptor]
            data = actor.wire.socket.recv(READ_SIZE)
            if not data:
                raise Refused("the server closed the connection")
            words = actor.hear(data)
            if words:
                actor.wire.socket.sendall(words)
    poll.close()
    return time.perf_counter() - begin
