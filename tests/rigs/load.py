"""One connection's worth of load on a node, with an account of what was answered."""

from __future__ import annotations

from random import Random
from struct import pack
from threading import Lock

from penstock.model import KeyRange, Policy, QueueName
from penstock.protocol import version2 as v2
from rigs.account import Account
from support.wire import Wire, Wire2

QUEUES = {
    "orders": Policy(),
    "mail": Policy(keys=KeyRange(lowest=-5, highest=5)),
    "archive": Policy(),  # paged, where there are pages
    "": Policy(),
}
KEYS = range(-3, 4)
WAITING_MAX = 3000
"""Tasks in all queues above which nothing is added: taking all of them out must stay quick."""

WAITING_MIN = 1500
"""Tasks below which nothing is taken: a node that holds nothing can lose nothing."""

PAYLOAD_SIZE_MAX = 5500
"""Large enough that a megabyte of log comes soon, and that some are too large for the index of a paged queue."""


class Load:
    """A client that does one thing after the other until its connection breaks."""

    def __init__(self, account: Account, lock: Lock, seed: int, number: int) -> None:
        """``number`` decides what it does: two add, two take, one of each kind in version 1."""
        self._account = account
        self._lock = lock  # guards the account
        self._random = Random(seed)
        self._name = f"{seed}-{number}"
        self._number = number
        self._serial = 0
        self._producer = self._random.randbytes(16)
        self._sequence = 0
        self._unanswered: v2.Enqueue | None = None  # to be sent again, by a producer
        self.open_tokens: list[int] = []  # of deliveries that were not settled
        self.problems: list[str] = []
        self.enqueued = self.acked = self.retried = 0

    def run(self, port: int) -> None:
        """Work until the node is gone."""
        self.problems = []
        self.open_tokens = []
        try:
            match self._number:
                case 0 | 1 | 2:
                    self._add(port)
                case 3 | 4:
                    self._take(port)
                case _:
                    self._old(port)
        except (ConnectionError, EOFError):
            pass
        except (AssertionError, TimeoutError) as error:
            self.problems.append(f"answers: {error!r}")

    def _new_task(self, queue: str, *, is_retried: bool = False) -> tuple[int, bytes]:
        self._serial += 1
        head = f"{self._name}.{self._serial}.".encode()
        payload = head + bytes(self._random.randrange(PAYLOAD_SIZE_MAX))
        key = self._random.choice(KEYS)
        with self._lock:
            self._account.send(queue, key, payload, is_retried=is_retried)
        return key, payload

    @property
    def _is_full(self) -> bool:
        with self._lock:
            return self._account.waiting_count > WAITING_MAX

    @property
    def _is_low(self) -> bool:
        with self._lock:
            return self._account.waiting_count < WAITING_MIN

    # Adding: one, or many, or several requests at a time, or with a producer.

    def _add(self, port: int) -> None:
        with Wire2(port) as wire:
            wire.greet(2)
            if self._unanswered is not None:
                self.retried += 1
                self._finish(wire, self._unanswered)
            while True:
                if self._is_full:
                    wire.ask(v2.Ping(), v2.Ok)
                elif self._number == 0:
                    self._add_several(wire)
                else:
                    self._add_once(wire, with_producer=self._number == 1)

    def _request(self, count: int, *, is_retried: bool = False) -> v2.Enqueue:
        queue = self._random.choice(list(QUEUES))
        tasks = [self._new_task(queue, is_retried=is_retried) for _ in range(count)]
        keys, payloads = [key for key, _ in tasks], [payload for _, payload in tasks]
        producer = None
        if is_retried:
            self._sequence += 1
            producer = v2.Producer(self._producer, self._sequence)
        return v2.Enqueue(QueueName(queue), keys, payloads, producer=producer)

    def _add_once(self, wire: Wire2, *, with_producer: bool) -> None:
        request = self._request(self._random.choice((1, 1, 5, 40)), is_retried=with_producer)
        self._unanswered = request if with_producer else None
        self._finish(wire, request)

    def _finish(self, wire: Wire2, request: v2.Enqueue) -> None:
        self._note_enqueued(request, wire.ask(request, v2.Enqueued))
        self._unanswered = None

    def _add_several(self, wire: Wire2) -> None:
        """Send several requests at once and take their answers as they come."""
        sent = [self._request(self._random.choice((1, 1, 3))) for _ in range(8)]
        by_number = {wire.request(request): request for request in sent}
        last: dict[str, int] = {}
        for _ in sent:
            number, answer = wire.answer()
            assert isinstance(answer, v2.Enqueued), answer
            request = by_number.pop(number)
            first = answer.runs[0].first
            if first <= last.get(request.queue, 0):
                self.problems.append(f"order: {request.queue} gave {first} after {last}")
            last[request.queue] = first
            self._note_enqueued(request, answer)

    def _note_enqueued(self, request: v2.Enqueue, answer: v2.Enqueued) -> None:
        ids = [run.first + n for run in answer.runs for n in range(run.count)]
        assert all(run.outcome == v2.Outcome.ACCEPTED for run in answer.runs)
        with self._lock:
            for payload, task_id in zip(request.payloads, ids, strict=True):
                self._account.keep(payload, task_id)
        self.enqueued += len(ids)

    # Taking: some are acked, some given back, some kept until the end.

    def _take(self, port: int) -> None:
        with Wire2(port) as wire:
            wire.greet(2)
            while True:
                if self._is_low:
                    wire.ask(v2.Ping(), v2.Ok)
                    continue
                queue = QueueName(self._random.choice(list(QUEUES)))
                count = self._random.choice((1, 20, 200))
                delivered = wire.ask(v2.Dequeue(queue, count, 0, 20), v2.Delivered)
                if delivered.ids:
                    self._settle(wire, delivered)

    def _settle(self, wire: Wire2, delivered: v2.Delivered) -> None:
        tokens = range(delivered.token, delivered.token + len(delivered.ids))
        done: list[tuple[int, bytes]] = []
        back: list[int] = []
        with self._lock:
            rows = zip(tokens, delivered.ids, delivered.keys, delivered.payloads, strict=True)
            for token, task_id, key, payload in rows:
                self._account.deliver(payload, task_id, key)
                chance = self._random.random()
                if chance < 0.7:
                    done.append((token, payload))
                    self._account.leave(payload)
                elif chance < 0.95:
                    back.append(token)
        self.open_tokens += tokens
        self._expect_settled(wire, v2.Ack([token for token, _ in done]))
        with self._lock:
            for _, payload in done:
                self._account.forget(payload)
        self.acked += len(done)
        self._expect_settled(wire, v2.Nack(back))

    def _expect_settled(self, wire: Wire2, request: v2.Ack | v2.Nack) -> None:
        lost = wire.ask(request, v2.Settled).lost
        if lost:
            self.problems.append(f"leases lost: {lost}")
        self.open_tokens = [t for t in self.open_tokens if t not in set(request.tokens)]

    # Version 1: one after the other.

    def _old(self, port: int) -> None:
        with Wire(port) as wire:
            wire.greet(1)
            while True:
                queue = self._random.choice(list(QUEUES))
                name = bytes([len(queue)]) + queue.encode()
                if self._is_low or (self._random.random() < 0.5 and not self._is_full):
                    key, payload = self._new_task(queue)
                    wire.send(b"CE" + name + pack(">qi", key, len(payload)) + payload + b"K")
                    wire.expect_or_end(b"kk")
                    with self._lock:
                        self._account.keep(payload, None)
                    self.enqueued += 1
                else:
                    self._take_old(wire, name)

    def _take_old(self, wire: Wire, name: bytes) -> None:
        wire.send(b"CD" + name + pack(">I", 20))
        if wire.receive(3) != b"cd\x01":
            return
        task_id = int.from_bytes(wire.receive(8), "big")
        key = int.from_bytes(wire.receive(8), "big", signed=True)
        payload = wire.receive(int.from_bytes(wire.receive(4), "big"))
        is_done = self._random.random() < 0.7
        with self._lock:
            self._account.deliver(payload, task_id, key)
            if is_done:
                self._account.leave(payload)
        wire.send(b"K" if is_done else b"N")
        wire.expect_or_end(b"k")
        if is_done:
            with self._lock:
                self._account.forget(payload)
            self.acked += 1
