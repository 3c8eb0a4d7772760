"""Clients of a simulated group: producers that try again elsewhere, consumers that ack, give back, vanish or forget.

They speak version 2 of the protocol over the simulated network. An attempt without an answer is recorded as unknown; a
task is known by the name that travels in its payload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

from penstock.model import Policy, QueueName
from penstock.protocol import version2 as v2
from penstock.protocol.frames import FrameReader
from penstock.protocol.version2 import Failure, decode_answer, encode_request
from simulation.checking.history import Op, Outcome, Refusal
from simulation.clock import MILLISECOND, SECOND, Timeline
from simulation.network import End, Network
from simulation.recording import Recorder

TIMEOUT: Final = 3 * SECOND
"""How long a client waits for an answer before it tries its luck elsewhere."""

BACKOFF: Final = 250 * MILLISECOND
PATIENCE: Final = 20 * SECOND
"""After this a producer gives a task up; its outcome stays unknown."""

LEASE_MS: Final = 2_000

Done = Callable[[v2.Answer | None], None]
"""Told the answer, or ``None`` if the connection broke or the time was over."""

_REFUSALS: Final = {
    Failure.QUEUE_MISSING: Refusal.QUEUE_MISSING,
    Failure.QUEUE_EXISTS: Refusal.QUEUE_EXISTS,
}

_POLICY_REFUSALS: Final = {
    v2.Outcome.QUEUE_FULL: Refusal.QUEUE_FULL,
    v2.Outcome.KEY_OUT_OF_RANGE: Refusal.KEY_OUT_OF_RANGE,
    v2.Outcome.PAYLOAD_TOO_LARGE: Refusal.PAYLOAD_TOO_LARGE,
}


@dataclass(slots=True)
class Town:
    """What all clients share."""

    timeline: Timeline
    network: Network
    recorder: Recorder
    addresses: dict[int, str]  # of the nodes, for clients
    is_draining: bool = False  # producers stop, consumers take everything and keep nothing


class Client:
    """A connection to one node at a time."""

    def __init__(self, town: Town, name: str, random: Random) -> None:
        self.town = town
        self.name = name
        self.random = random
        self._target = random.choice(sorted(town.addresses))
        self._end: End | None = None
        self._is_connecting = False
        self._reader = FrameReader()
        self._pending: dict[int, Done] = {}
        self._next = 1
        self._connections = 0

    @property
    def process(self) -> str:
        """Who it is in the history: somebody else with each connection."""
        return f"{self.name}.{self._connections}"

    @property
    def is_connected(self) -> bool:
        return self._end is not None

    @property
    def upcoming(self) -> tuple[int, int]:
        """The connection, and the number that the next request on it gets."""
        assert self._end is not None
        return self._end.number, self._next

    def connect(self) -> None:
        """Begin to connect, unless that is under way or done; ``connected`` is called then."""
        if self._end is None and not self._is_connecting:
            self._is_connecting = True
            if self._target not in self.town.addresses:
                self.go_elsewhere()
            address = self.town.addresses[self._target]
            self.town.network.connect(self.name, address, self._opened, self._failed)

    def _opened(self, end: End) -> None:
        self._is_connecting = False
        self._end = end
        self._connections += 1
        self._reader = FrameReader()
        end.on_data = partial(self._receive, end)
        end.on_lost = partial(self._lost, end)
        self.connected()

    def _failed(self) -> None:
        self._is_connecting = False
        self.go_elsewhere()
        self.town.timeline.after(self._backoff(), self.connect)

    def _backoff(self) -> int:
        return self.random.randrange(BACKOFF // 2, 2 * BACKOFF)

    def go_elsewhere(self, leader: int = 0) -> None:
        """Choose the node to connect to next: the leader, if somebody named one."""
        others = [node for node in sorted(self.town.addresses) if node != self._target]
        if leader in self.town.addresses:
            self._target = leader
        elif others:
            self._target = self.random.choice(others)

    def hang_up(self) -> None:
        """Close the connection, if there is one; what was asked on it has an unknown outcome."""
        end, self._end = self._end, None
        if end is not None:
            end.on_data, end.on_lost = _ignore, _nothing
            end.close()
            self._drop_pending(end)

    def _lost(self, end: End) -> None:
        if end is self._end:
            self._end = None
            self.go_elsewhere()
            self._drop_pending(end)

    def _drop_pending(self, end: End) -> None:
        # The node may have known before us, and have lent our tasks to others since.
        self.town.recorder.happen(self.process, Op.DISCONNECT, since=end.broken_at)
        pending, self._pending = self._pending, {}
        for done in pending.values():
            done(None)
        self.disconnected()

    def connected(self) -> None:
        """A connection is there."""

    def disconnected(self) -> None:
        """The connection is gone, and everything asked on it was answered with nothing."""

    def ask(self, request: v2.Request, done: Done, *, timeout: int = TIMEOUT) -> None:
        """Send a request on the connection that is there."""
        assert self._end is not None
        number = self._next
        self._next += 1
        self._pending[number] = done
        self._end.write(encode_request(request, number))
        self.town.timeline.after(timeout, partial(self._expire, self._end, number))

    def _expire(self, end: End, number: int) -> None:
        # Whoever does not answer is left for somebody else: the tasks it lent us go back by that.
        if end is self._end and number in self._pending:
            self.go_elsewhere()
            self.hang_up()

    def _receive(self, end: End, data: bytes) -> None:
        if end is not self._end:
            return
        for kind, number, body in self._reader.receive(data):
            answer = decode_answer(kind, body)
            done = self._pending.pop(number, None)
            if done is not None:
                done(answer)
            if end is not self._end:
                return  # the answer made us leave

    def leave_for(self, failed: v2.Failed) -> None:
        """Go where the leader is said to be."""
        self.go_elsewhere(failed.detail if failed.code == Failure.NOT_LEADER else 0)
        self.hang_up()

    def leave_unless_lost(self, answer: v2.Answer | None) -> None:
        """Go elsewhere if a node that is there cannot tell what became of a request."""
        if answer is not None:
            self.go_elsewhere()
            self.hang_up()


@dataclass(slots=True)
class _Task:
    """A request of a producer, with all that its retries repeat."""

    names: tuple[str, ...]
    queue: str
    keys: tuple[int, ...]
    sequence: int
    since: int


class Producer(Client):
    """Enqueues at its own pace, whether answers come or not."""

    def __init__(
        self,
        town: Town,
        name: str,
        random: Random,
        *,
        queues: Sequence[str],
        keys: int,
        gap: int,
        is_counted: bool,
    ) -> None:
        """``is_counted``: requests carry a producer and a sequence, and are repeated until answered."""
        super().__init__(town, name, random)
        self._queues = queues
        self._keys = keys
        self._gap = gap
        self._id = random.randbytes(16) if is_counted else None
        self._sequence = 0
        self._waiting: list[_Task] = []  # not sent, or to be sent again
        self._under_way = 0
        # Whether this node has taken something: until then one request at a time finds out whether it leads.
        self._is_proven = False
        town.timeline.after(random.randrange(gap), self._produce)
        self.connect()

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._under_way

    def _produce(self) -> None:
        if self.town.is_draining:
            return
        random = self.random
        self._sequence += 1
        count = 1 if random.random() < 0.8 else random.randint(2, 4)
        names = tuple(f"{self.name}-{self._sequence}-{place}" for place in range(count))
        keys = tuple(random.randrange(self._keys) for _ in range(count))
        queue = random.choice(self._queues)
        self._waiting.append(_Task(names, queue, keys, self._sequence, self.town.timeline.now))
        self._send_waiting()
        self.town.timeline.after(1 + int(random.expovariate(1 / self._gap)), self._produce)

    def connected(self) -> None:
        self._is_proven = False
        self._send_waiting()

    def disconnected(self) -> None:
        self.town.timeline.after(self._backoff(), self.connect)

    def _send_waiting(self) -> None:
        if not self.is_connected:
            self.connect()
        while self._waiting and self.is_connected and (self._is_proven or not self._under_way):
            self._send(self._waiting.pop(0))

    def _send(self, task: _Task) -> None:
        payloads = tuple(name.encode().ljust(24, b".") for name in task.names)
        numbering: dict[str, Any] = (
            {} if self._id is None else {"producer": self._id.hex(), "sequence": task.sequence}
        )
        call = self.town.recorder.call(
            self.process,
            Op.ENQUEUE,
            task.queue,
            ids=task.names,
            keys=task.keys,
            sizes=tuple(map(len, payloads)),
            **numbering,
        )
        producer = None if self._id is None else v2.Producer(self._id, task.sequence)
        request = v2.Enqueue(QueueName(task.queue), task.keys, payloads, producer=producer)
        self._under_way += 1
        self.ask(request, partial(self._answered, task, call))

    def _answered(self, task: _Task, call: int, answer: v2.Answer | None) -> None:
        self._under_way -= 1
        recorder = self.town.recorder
        if isinstance(answer, v2.Enqueued):
            self._is_proven = True
            self.town.timeline.after(1, self._send_waiting)
        match answer:
            case v2.Enqueued(runs) if all(run.outcome == v2.Outcome.ACCEPTED for run in runs):
                numbers = [n for run in runs for n in range(run.first, run.first + run.count)]
                recorder.settle(call, Outcome.OK, numbers=tuple(numbers))
            case v2.Enqueued([run]):
                recorder.settle(
                    call, Outcome.FAIL, reason=_POLICY_REFUSALS[v2.Outcome(run.outcome)]
                )
            case v2.Enqueued():  # a crash cut it in two, and there was no room for the rest
                recorder.settle(call, Outcome.UNKNOWN)
            case v2.Failed(code) if code in _REFUSALS:
                recorder.settle(call, Outcome.FAIL, reason=_REFUSALS[Failure(code)])
                self.town.timeline.after(1, self._send_waiting)
            case v2.Failed(code) if code != Failure.OUTCOME_UNKNOWN:
                recorder.settle(call, Outcome.FAIL, reason=Failure(code).name.lower())
                self._again(task, is_harmless=True)
                self.leave_for(answer)
            case _:
                recorder.settle(call, Outcome.UNKNOWN)
                self._again(task, is_harmless=False)
                self.leave_unless_lost(answer)

    def _again(self, task: _Task, *, is_harmless: bool) -> None:
        """Try again: what is counted as often as it takes, anything else only if it certainly was not done."""
        is_late = self.town.timeline.now - task.since > PATIENCE
        if (self._id is not None or is_harmless) and not is_late:
            self._waiting.append(task)
            self.town.timeline.after(self._backoff(), self._send_waiting)


class Consumer(Client):
    """Takes tasks on lease and decides what becomes of them."""

    def __init__(
        self, town: Town, name: str, random: Random, *, queues: Sequence[str], gap: int
    ) -> None:
        super().__init__(town, name, random)
        self._queues = queues
        self._gap = gap
        self._is_asking = False
        self._held = 0
        town.timeline.after(random.randrange(gap), self._take)
        self.connect()

    def connected(self) -> None:
        self._is_asking = False
        self.town.timeline.after(1, self._take)

    def disconnected(self) -> None:
        self._is_asking = False
        self._held = 0
        self.town.timeline.after(self._backoff(), self.connect)

    def _take(self) -> None:
        if self._is_asking:
            return
        if not self.is_connected:
            self.connect()
            return
        random, is_draining = self.random, self.town.is_draining
        queue = random.choice(self._queues)
        count = 16 if is_draining else random.choice((1, 1, 1, 3))
        wait_ms = 200 if is_draining else random.choice((0, 300, 1500))
        self._is_asking = True
        call = self.town.recorder.call(
            self.process, Op.DEQUEUE, queue, request=self.upcoming, asked=count
        )
        request = v2.Dequeue(QueueName(queue), count, wait_ms=wait_ms, lease_ms=LEASE_MS)
        timeout = TIMEOUT + wait_ms * MILLISECOND
        self.ask(request, partial(self._taken, queue, call), timeout=timeout)

    def _taken(self, queue: str, call: int, answer: v2.Answer | None) -> None:
        self._is_asking = False
        recorder = self.town.recorder
        match answer:
            case v2.Delivered():
                names = tuple(payload.rstrip(b".").decode() for payload in answer.payloads)
                tokens = tuple(range(answer.token, answer.token + len(names)))
                recorder.settle(
                    call,
                    Outcome.OK,
                    ids=names,
                    keys=tuple(answer.keys),
                    numbers=tuple(answer.ids),
                    tokens=tokens,
                )
                for name, token in zip(names, tokens, strict=True):
                    self._hold(queue, name, token)
                self._take_later()
            case v2.Failed(code) if code in _REFUSALS:
                recorder.settle(call, Outcome.FAIL, reason=_REFUSALS[Failure(code)])
                self._take_later()
            case v2.Failed(code) if code != Failure.OUTCOME_UNKNOWN:
                recorder.settle(call, Outcome.FAIL, reason=Failure(code).name.lower())
                self.leave_for(answer)
            case _:
                recorder.settle(call, Outcome.UNKNOWN)
                self.leave_unless_lost(answer)

    def _take_later(self) -> None:
        gap = self._gap if not self.town.is_draining else 20 * MILLISECOND
        self.town.timeline.after(1 + int(self.random.expovariate(1 / gap)), self._take)

    def _hold(self, queue: str, name: str, token: int) -> None:
        random, process = self.random, self.process
        fate = 0.0 if self.town.is_draining else random.random()
        delay = random.randrange(1, 100) * MILLISECOND
        if fate < 0.86:
            act = partial(self._settle, Op.ACK, process, queue, name, token)
        elif fate < 0.94:
            act = partial(self._settle, Op.NACK, process, queue, name, token)
        elif fate < 0.97:
            act = partial(self._vanish, process)
        else:
            return  # forgotten: the lease ends by itself
        self.town.timeline.after(delay, act)

    def _vanish(self, process: str) -> None:
        if self.is_connected and self.process == process:
            self.hang_up()

    def _settle(self, op: Op, process: str, queue: str, name: str, token: int) -> None:
        if not self.is_connected or self.process != process:
            return  # the lease ended with its connection
        call = self.town.recorder.call(
            process, op, queue, request=self.upcoming, ids=(name,), tokens=(token,)
        )
        request = v2.Ack((token,)) if op is Op.ACK else v2.Nack((token,))
        self.ask(request, partial(self._settled, call, token))

    def _settled(self, call: int, token: int, answer: v2.Answer | None) -> None:
        recorder = self.town.recorder
        match answer:
            case v2.Settled(lost) if token in lost:
                recorder.settle(call, Outcome.FAIL, reason=Refusal.LEASE_LOST)
            case v2.Settled():
                recorder.settle(call, Outcome.OK)
            case v2.Failed(code) if code != Failure.OUTCOME_UNKNOWN:
                recorder.settle(call, Outcome.FAIL, reason=Failure(code).name.lower())
                self.leave_for(answer)
            case _:
                recorder.settle(call, Outcome.UNKNOWN)
                self.leave_unless_lost(answer)


class Founder(Client):
    """Creates the queues, one after the other, as often as it takes."""

    def __init__(
        self, town: Town, name: str, random: Random, *, policies: dict[str, Policy]
    ) -> None:
        super().__init__(town, name, random)
        self._policies = dict(policies)
        self.connect()

    def connected(self) -> None:
        self._create()

    def disconnected(self) -> None:
        if self._policies:
            self.town.timeline.after(self._backoff(), self.connect)

    def _create(self) -> None:
        if not self._policies:
            self.hang_up()
            return
        queue, policy = next(iter(self._policies.items()))
        call = self.town.recorder.call(self.process, Op.CREATE, queue, policy=policy)
        self.ask(v2.Create(QueueName(queue), policy), partial(self._created, queue, call))

    def _created(self, queue: str, call: int, answer: v2.Answer | None) -> None:
        recorder = self.town.recorder
        match answer:
            case v2.Ok():
                recorder.settle(call, Outcome.OK)
            case v2.Failed(code) if code in _REFUSALS:
                recorder.settle(call, Outcome.FAIL, reason=_REFUSALS[Failure(code)])
            case v2.Failed(code) if code != Failure.OUTCOME_UNKNOWN:
                recorder.settle(call, Outcome.FAIL, reason=Failure(code).name.lower())
                self.leave_for(answer)
                return
            case _:
                recorder.settle(call, Outcome.UNKNOWN)
                self.leave_unless_lost(answer)
                return
        del self._policies[queue]
        self._create()


class Closer(Client):
    """Asks every queue for a task until each has none, after all others are done: nothing can be lost unseen then."""

    def __init__(self, town: Town, name: str, random: Random, *, queues: Sequence[str]) -> None:
        super().__init__(town, name, random)
        self._queues = list(queues)
        self.connect()

    @property
    def is_done(self) -> bool:
        return not self._queues

    def connected(self) -> None:
        self._look()

    def disconnected(self) -> None:
        if self._queues:
            self.town.timeline.after(self._backoff(), self.connect)

    def _look(self) -> None:
        if not self._queues:
            self.hang_up()
            return
        queue = self._queues[0]
        call = self.town.recorder.call(self.process, Op.DEQUEUE, queue, request=self.upcoming)
        self.ask(v2.Dequeue(QueueName(queue), 1), partial(self._looked, call))

    def _looked(self, call: int, answer: v2.Answer | None) -> None:
        recorder = self.town.recorder
        match answer:
            case v2.Delivered(ids=()) | v2.Delivered(ids=[]):
                recorder.settle(call, Outcome.OK)
                del self._queues[0]
                self._look()
            case v2.Delivered():
                names = tuple(payload.rstrip(b".").decode() for payload in answer.payloads)
                recorder.settle(call, Outcome.OK, ids=names, keys=tuple(answer.keys))
                self.hang_up()  # which gives it back, to whoever is quicker
            case v2.Failed(code) if code in _REFUSALS:
                recorder.settle(call, Outcome.FAIL, reason=_REFUSALS[Failure(code)])
                del self._queues[0]  # it was never created
                self._look()
            case _:
                recorder.settle(call, Outcome.UNKNOWN)
                self.leave_unless_lost(answer)


def _ignore(data: bytes) -> None:
    pass


def _nothing() -> None:
    pass
