"""Clients of a group that breaks: producers and consumers that note every request, and how it ended, as a history.

Each payload begins with the name of its task, which is unlike all others. What got no answer is noted as unknown and
never guessed. Three kinds of producers: the client's own repetition, none, and numbers of our own that are sent again
over new connections until they are answered.
"""

from __future__ import annotations

import faulthandler
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from penstock.client.blocking import Client
from penstock.client.values import Delivery
from penstock.errors import (
    ConnectionFailed,
    LeaseLost,
    PenstockError,
    SequenceForgotten,
    Unreachable,
)
from penstock.model import QueueName
from penstock.protocol.version2 import Enqueue, Producer
from rigs.cluster.processes import Cluster
from simulation.checking.history import Op, Operation, Outcome
from support.group_processes import wait_until
from support.node_process import PATIENCE_SECONDS

KEYS: Final = range(-2, 3)
QUEUES: Final[dict[str, dict[str, Any]]] = {
    "jobs": {"implementation": "heap"},
    "mail": {"implementation": "array", "keys": (KEYS[0], KEYS[-1])},
}
LEASE_SECONDS: Final = 2.0
TAKEN_MAX: Final = 40
RETRY_PAUSE_SECONDS: Final = 0.05
"""Between attempts of those who repeat by themselves: a group without a leader is not to be flooded."""

FIND_SECONDS: Final = 0.5
"""How long those have to find the leader each time."""

LEVEL_LOW: Final = 150
"""Tasks below which nothing is taken: a group that holds nothing can lose nothing."""

LEVEL_HIGH: Final = 20_000
"""Tasks above which nothing is added: the drain at the end must stay short."""


class Book:
    """The history of all clients, and about how many tasks are in."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.level = 0
        self.answered_enqueues = 0  # requests, whatever they held
        self._lock = threading.Lock()

    def note(self, operation: Operation) -> None:
        with self._lock:
            self.operations.append(operation)
            if operation.outcome is Outcome.OK:
                if operation.op is Op.ENQUEUE:
                    self.answered_enqueues += 1
                    self.level += len(operation.ids)
                elif operation.op is Op.ACK:
                    self.level -= len(operation.ids)


class _Worker(ABC):
    """One client in a thread of its own."""

    def __init__(self, load: Load, name: str, seed: int) -> None:
        self.load = load
        self.book = load.book
        self.name = name
        self.random = Random(seed)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the end
            self.error = error

    @abstractmethod
    def run(self) -> None: ...

    def open(self, *, retry: float = 0.0) -> Client:
        """Return a client as soon as any node answers.

        The first one that it asks is drawn: one that repeats nothing would else come back to a node that is cut off as
        long as that lasts, and where consumers take nothing, producers are soon held.
        """
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self.load.cluster.client(retry=retry, by=self.random)
            except ConnectionFailed:
                assert time.monotonic() < end, "no node can be reached"
                self.load.stopping.wait(RETRY_PAUSE_SECONDS)


class _Adder(_Worker):
    """What both kinds of producers share."""

    serial = 0

    def new_tasks(self, count: int) -> tuple[list[str], list[int], list[bytes]]:
        names = [f"{self.name}-{self.serial + n}" for n in range(count)]
        self.serial += count
        keys = [self.random.choice(KEYS) for _ in names]
        size_max = self.load.payload_size_max
        padding = [self.random.randbytes(self.random.randrange(size_max)) for _ in names]
        payloads = [name.encode() + b" " + rest for name, rest in zip(names, padding, strict=True)]
        return names, keys, payloads

    def is_held(self) -> bool:
        """Whether to wait a little, since the queues hold enough."""
        if self.book.level > LEVEL_HIGH:
            self.load.stopping.wait(0.01)
            return True
        return False


class PlainProducer(_Adder):
    """Enqueues one after the other, and leaves repetitions to the client; every second one wants none."""

    def run(self) -> None:
        is_patient = self.name.endswith("0")
        with self.open(retry=PATIENCE_SECONDS if is_patient else 0.0) as client:
            while not self.load.stopping.is_set():
                if not self.is_held():
                    self._add(client)

    def _add(self, client: Client) -> None:
        queue = self.random.choice(list(QUEUES))
        (name,), (key,), (payload,) = self.new_tasks(1)
        called = time.monotonic()
        outcome, reason = Outcome.OK, ""
        try:
            client.enqueue(queue, payload, key=key)
        except PenstockError as error:
            outcome, reason = judged(error), words(error)
        self.book.note(
            Operation(
                process=self.name,
                op=Op.ENQUEUE,
                queue=queue,
                ids=(name,),
                keys=(key,),
                t0=called,
                t1=time.monotonic(),
                outcome=outcome,
                reason=reason,
            )
        )
        if outcome is Outcome.FAIL:
            self.load.stopping.wait(RETRY_PAUSE_SECONDS)


class NumberedProducer(_Adder):
    """Enqueues small batches under its own numbers, each again over a new connection until it is answered."""

    def run(self) -> None:
        identity = self.random.randbytes(16)
        sequence = 0
        client = self.open(retry=FIND_SECONDS)
        try:
            while not self.load.stopping.is_set():
                if self.is_held():
                    continue
                sequence += 1
                queue = self.random.choice(list(QUEUES))
                names, keys, payloads = self.new_tasks(self.random.choice((1, 1, 5, 20)))
                producer = Producer(identity, sequence)
                request = Enqueue(QueueName(queue), keys, payloads, producer=producer)
                while not self._is_answered(client, request, names):
                    client.close()
                    self.load.stopping.wait(RETRY_PAUSE_SECONDS)
                    client = self.open(retry=FIND_SECONDS)
        finally:
            client.close()

    def _is_answered(self, client: Client, request: Enqueue, names: list[str]) -> bool:
        assert request.producer is not None
        called = time.monotonic()
        outcome, reason = Outcome.OK, ""
        try:
            client.enqueue_numbered([request])
        except PenstockError as error:
            outcome, reason = judged(error), words(error)
        self.book.note(
            Operation(
                process=self.name,
                op=Op.ENQUEUE,
                queue=request.queue,
                ids=tuple(names),
                keys=tuple(request.keys),
                t0=called,
                t1=time.monotonic(),
                outcome=outcome,
                reason=reason,
                producer=self.name,
                sequence=request.producer.sequence,
            )
        )
        return outcome is Outcome.OK


class Consumer(_Worker):
    """Takes tasks on lease; acks most, gives some back, and lets the leases of a few end."""

    def run(self) -> None:
        number = 0
        while not self.load.stopping.is_set():
            number += 1
            process = f"{self.name}.{number}"
            client = self.open()
            try:
                while not self.load.stopping.is_set() and self._take(client, process):
                    pass
            finally:
                called = time.monotonic()
                client.close()
                self.book.note(
                    Operation(process=process, op=Op.DISCONNECT, t0=called, t1=time.monotonic())
                )
            self.load.stopping.wait(RETRY_PAUSE_SECONDS)

    def _take(self, client: Client, process: str) -> bool:
        """Take some and settle them; return whether the connection is still of use."""
        if self.book.level < LEVEL_LOW:
            self.load.stopping.wait(0.005)
            return True
        queue = self.random.choice(list(QUEUES))
        found = take(self.book, client, process, queue, self.random.randint(1, TAKEN_MAX), 0.05)
        if found is None:
            return False
        done: list[Delivery] = []
        back: list[Delivery] = []
        for delivery in found:
            chance = self.random.random()
            if chance < 0.85:
                done.append(delivery)
            elif chance < 0.97:
                back.append(delivery)
        is_well = settle(self.book, client, process, Op.ACK, done)
        return settle(self.book, client, process, Op.NACK, back) and is_well


def take(
    book: Book, client: Client, process: str, queue: str, count: int, wait: float
) -> list[Delivery] | None:
    """Take tasks on lease and note it; ``None`` if there was no answer, or a refusal."""
    called = time.monotonic()
    outcome, reason = Outcome.OK, ""
    found: list[Delivery] = []
    try:
        found = client.dequeue_many(queue, count, wait=wait, lease=LEASE_SECONDS)
    except PenstockError as error:
        outcome, reason = judged(error), words(error)
    book.note(
        Operation(
            process=process,
            op=Op.DEQUEUE,
            queue=queue,
            ids=tuple(task_name(delivery) for delivery in found),
            keys=tuple(delivery.key for delivery in found),
            tokens=_tokens(found),
            t0=called,
            t1=time.monotonic(),
            outcome=outcome,
            reason=reason,
            asked=count,
        )
    )
    return found if outcome is Outcome.OK else None


def settle(book: Book, client: Client, process: str, op: Op, given: list[Delivery]) -> bool:
    """Ack or nack and note it; return whether there was an answer."""
    if not given:
        return True
    called = time.monotonic()
    outcome, reason = Outcome.OK, ""
    lost: list[Delivery] = []
    try:
        client.ack(given) if op is Op.ACK else client.nack(given)
    except LeaseLost as error:
        lost = list(error.deliveries)
    except PenstockError as error:
        outcome, reason = judged(error), words(error)
    returned = time.monotonic()
    parts = [
        ([each for each in given if each not in lost], outcome, reason),
        (lost, Outcome.FAIL, "lease-lost"),
    ]
    for part, how, why in parts:
        if part:
            book.note(
                Operation(
                    process=process,
                    op=op,
                    queue=part[0].queue,
                    ids=tuple(task_name(delivery) for delivery in part),
                    tokens=_tokens(part),
                    t0=called,
                    t1=returned,
                    outcome=how,
                    reason=why,
                )
            )
    return outcome is Outcome.OK and not lost


def task_name(delivery: Delivery) -> str:
    return delivery.payload.partition(b" ")[0].decode()


def _tokens(given: Iterable[Delivery]) -> tuple[str, ...]:
    return tuple(f"{delivery.connection}:{delivery.token}" for delivery in given)


def judged(error: PenstockError) -> Outcome:
    """Say whether a request that ended with an error may have taken effect."""
    if isinstance(error, ConnectionFailed) and not isinstance(error, Unreachable):
        return Outcome.UNKNOWN
    return Outcome.UNKNOWN if isinstance(error, SequenceForgotten) else Outcome.FAIL


def words(error: PenstockError) -> str:
    return f"{type(error).__name__}: {error}"[:200]


class Load:
    """Producers and consumers that work until they are stopped, and the drain behind them."""

    def __init__(
        self, cluster: Cluster, seed: int, *, payload_size_max: int = 200, workers: int = 2
    ) -> None:
        """``workers`` of each kind: plain producers, numbered ones, consumers."""
        self.cluster = cluster
        self.payload_size_max = payload_size_max
        self.book = Book()
        self.stopping = threading.Event()
        self.started = time.monotonic()
        kinds: tuple[type[PlainProducer | NumberedProducer | Consumer], ...] = (
            PlainProducer,
            NumberedProducer,
            Consumer,
        )
        self._workers: list[_Worker] = [
            kind(self, f"{kind.__name__[0].lower()}{number}", seed * 100 + 10 * place + number)
            for place, kind in enumerate(kinds)
            for number in range(workers)
        ]

    def make_queues(self) -> None:
        """Make the queues that are not there."""
        with self.cluster.client(retry=PATIENCE_SECONDS) as client:
            for queue, policy in QUEUES.items():
                client.create_queue(queue, **policy, exist_ok=True)

    def start(self) -> None:
        self.make_queues()
        self.started = time.monotonic()
        for worker in self._workers:
            worker.thread.start()

    def wait_for_more(self, count: int) -> None:
        """Wait until that many more enqueues were answered from now on."""
        goal = self.book.answered_enqueues + count
        wait_until(lambda: self.is_broken or self.book.answered_enqueues >= goal, "answers")
        self.raise_error()

    @property
    def is_broken(self) -> bool:
        return any(worker.error is not None for worker in self._workers)

    def raise_error(self) -> None:
        for worker in self._workers:
            if worker.error is not None:
                raise worker.error

    def stop(self) -> None:
        """Let everybody finish what was begun."""
        self.stopping.set()
        for worker in self._workers:
            if worker.thread.ident is not None:
                worker.thread.join(2 * PATIENCE_SECONDS)
                if worker.thread.is_alive():
                    faulthandler.dump_traceback()  # where it hangs
                    raise AssertionError(f"{worker.name} does not end")
        self.raise_error()

    def drain(self) -> None:
        """Take everything out until each queue is empty and no lease is left."""
        with self.cluster.client(retry=PATIENCE_SECONDS, timeout=10.0) as client:
            for queue in QUEUES:
                self._drain(client, queue)

    def _drain(self, client: Client, queue: str) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            found = take(self.book, client, "drain", queue, 500, 0.1)
            if found is not None:
                settle(self.book, client, "drain", Op.ACK, found)
                stat = client.stat(queue)
                if not found and not stat.count and not stat.leased:
                    break
            assert time.monotonic() < end, (
                f"queue {queue} does not become empty: {client.stat(queue)}"
            )
        take(self.book, client, "drain", queue, 1, 0.0)


@contextmanager
def under_load(load: Load) -> Iterator[Load]:
    """Work while the body breaks things; the workers end whatever happens in it."""
    load.start()
    try:
        yield load
    finally:
        load.stopping.set()
    load.stop()


def is_lost_answer(operation: Operation) -> bool:
    return operation.op is Op.DEQUEUE and operation.outcome is Outcome.UNKNOWN
