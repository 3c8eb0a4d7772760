"""Requests that overlap: the disk is slow, and everything else goes on meanwhile.

Random requests of several callers meet a disk that is done when the test says so. Whatever happens: every
request has one answer, the log can always be replayed, and what was told is there after the power is cut.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from penstock.formats.taskflux.generation import Generation
from penstock.model import DEFAULT_QUEUE, Implementation, KeyRange, Policy, QueueName
from penstock.protocol import version2 as v2
from penstock.server import broker as broker_module
from penstock.server.disk import LaterDisk
from support.node_rig import RecordingCaller, Rig, rebuilt
from support.report import report

GENERATIONS = [Generation.TWO, Generation.THREE]
NAMES = [DEFAULT_QUEUE, *map(QueueName, ("dead", "a", "b"))]


class Flight:
    """A node with a slow disk, and an account of what was told."""

    def __init__(self, generation: Generation, seed: int) -> None:
        self.random = Random(seed)
        self.rig = Rig(generation, later=LaterDisk())
        self.rig.sync()
        self.callers = [self.rig.caller() for _ in range(3)]
        self.made = 0
        self.sequence = 0
        self.asked: dict[tuple[RecordingCaller, int], v2.Request] = {}
        self.tokens: list[tuple[RecordingCaller, int, bytes]] = []
        self.added: dict[
            bytes, QueueName
        ] = {}  # told as taken, and nothing asked since that removes it
        self.doubted: set[bytes] = set()  # whose end was asked for, or came by itself
        self.removed: set[bytes] = set()  # told as removed
        self.acking: dict[tuple[RecordingCaller, int], list[tuple[int, bytes]]] = {}
        self.enqueues: list[v2.Enqueue] = []
        self.repeated: list[v2.Enqueue] = []
        self.purges: list[tuple[RecordingCaller, int, QueueName]] = []
        self.seen = 0
        self.figures: Counter[str] = Counter()
        for name in NAMES[1:]:
            self.create(name)
            self.rig.sync()

    def send(self, caller: RecordingCaller, request: v2.Request) -> int:
        number = self.rig.send(caller, request)
        self.asked[caller, number] = request
        if isinstance(request, v2.Enqueue) and self.is_purging(request.queue):
            self.doubted.update(request.payloads)  # a purge in parts may meet them as well
        self.figures["requests"] += 1
        return number

    def is_purging(self, name: QueueName) -> bool:
        return any(queue == name and number not in c.answers for c, number, queue in self.purges)

    def name(self) -> QueueName:
        return self.random.choice(NAMES)

    def step(self) -> None:
        steps = [
            (10, self.enqueue),
            (3, self.repeat),
            (8, self.dequeue),
            (6, self.ack),
            (5, self.nack),
            (3, self.create),
            (1, self.delete),
            (1, self.purge),
            (5, self.pass_time),
            (1, self.leave),
            (9, self.disk),
            (3, self.go_on),
            (1, self.snapshot),
        ]
        (step,) = self.random.choices([s for _, s in steps], [w for w, _ in steps])
        step()
        self.look()

    def enqueue(self) -> None:
        count = self.random.choice([1, 2, 4])
        payloads = []
        for _ in range(count):
            self.made += 1
            payloads.append(self.made.to_bytes(3, "big"))
        keys = [self.random.randint(-1, 2) for _ in range(count)]
        ttl, delay = self.random.choice([None, None, 900]), self.random.choice([None, None, 400])
        producer = None
        if self.random.random() < 0.5:
            self.sequence += 1
            producer = v2.Producer(b"p" * 16, self.sequence)
        request = v2.Enqueue(self.name(), keys, payloads, delay, ttl, producer)
        self.enqueues.append(request)
        if producer is not None:
            self.repeated.append(request)
        self.send(self.random.choice(self.callers), request)

    def repeat(self) -> None:
        """Ask again for what was asked, while the first is perhaps still under way."""
        if self.repeated:
            self.send(self.random.choice(self.callers), self.random.choice(self.repeated[-4:]))

    def dequeue(self) -> None:
        wait_ms = self.random.choice([0, 1500])
        request = v2.Dequeue(self.name(), self.random.choice([1, 3]), 0, wait_ms, 800)
        self.send(self.random.choice(self.callers), request)

    def held(self) -> tuple[RecordingCaller, list[tuple[int, bytes]]]:
        caller = self.random.choice(self.callers)
        own = [(token, payload) for owner, token, payload in self.tokens if owner is caller]
        chosen = self.random.sample(own, min(len(own), 2))
        self.tokens = [row for row in self.tokens if (row[1], row[2]) not in chosen]
        return caller, chosen

    def ack(self) -> None:
        caller, chosen = self.held()
        if chosen:
            self.doubted.update(payload for _, payload in chosen)
            number = self.send(caller, v2.Ack([token for token, _ in chosen]))
            self.acking[caller, number] = chosen

    def nack(self) -> None:
        caller, chosen = self.held()
        key = self.random.choice([None, None, 1])
        delay = self.random.choice([None, 300])
        self.send(caller, v2.Nack([token for token, _ in chosen], delay, key))

    def create(self, name: QueueName | None = None) -> None:
        name = self.name() if name is None else name
        policies = [Policy(), Policy(keys=KeyRange(lowest=-5, highest=5))]
        if self.rig.generation is Generation.THREE:
            policies += [Policy(implementation=Implementation.PAGED)] * 2
        policy = self.random.choice(policies)
        attempts_max, dead = None, None
        if name != "dead":
            attempts_max, dead = self.random.choice([None, 2]), QueueName("dead")
        self.send(self.random.choice(self.callers), v2.Create(name, policy, 0, attempts_max, dead))

    def delete(self) -> None:
        name = self.name()
        self.doubt(name)
        self.send(self.random.choice(self.callers), v2.Delete(name))

    def purge(self) -> None:
        name = self.name()
        self.doubt(name)
        caller = self.random.choice(self.callers)
        self.purges.append((caller, self.send(caller, v2.Purge(name)), name))

    def doubt(self, name: QueueName) -> None:
        """What is in a queue, or may come to be in it, may be gone from now on."""
        moving = {name} if name != "dead" else set(NAMES)
        self.doubted.update(p for p, queue in self.added.items() if queue in moving)
        for request in self.enqueues:
            if request.queue in moving:
                self.doubted.update(request.payloads)

    def pass_time(self) -> None:
        self.wait(self.random.choice([50, 400, 1000]))

    def wait(self, milliseconds: int) -> None:
        self.rig.clock.now += milliseconds
        for request in self.enqueues:
            if request.ttl_ms is not None:
                self.doubted.update(request.payloads)
        self.rig.go_on()

    def leave(self) -> None:
        caller = self.random.choice(self.callers)
        self.rig.broker.leave(caller)
        self.callers[self.callers.index(caller)] = self.rig.caller()
        self.asked = {p: request for p, request in self.asked.items() if p[0] is not caller}
        self.tokens = [row for row in self.tokens if row[0] is not caller]

    def go_on(self) -> None:
        self.rig.go_on()

    def disk(self) -> None:
        assert self.rig.later is not None
        self.rig.replica.advance()
        if self.rig.later.waiting:
            self.rig.later.run_one()
            self.check_told()

    def snapshot(self) -> None:
        if self.rig.is_installing:
            return
        self.rig.snapshot()
        self.figures["snapshots"] += 1

    # The account.

    def look(self) -> None:
        """Note what was told since the last look."""
        told, self.seen = self.rig.told[self.seen :], len(self.rig.told)
        for one in told:
            request = self.asked.get((one.caller, one.number))
            if request is None:
                continue
            assert len(one.caller.answers[one.number]) == 1, request
            answer = one.answer
            if isinstance(request, v2.Enqueue) and isinstance(answer, v2.Enqueued):
                if all(run.outcome == 0 for run in answer.runs):
                    self.added.update(dict.fromkeys(request.payloads, request.queue))
            elif isinstance(answer, v2.Delivered):
                for place, payload in enumerate(answer.payloads):
                    assert payload not in self.removed, "delivered after it was acknowledged"
                    self.tokens.append((one.caller, answer.token + place, payload))
            elif (one.caller, one.number) in self.acking:
                assert isinstance(answer, v2.Settled)
                for token, payload in self.acking[one.caller, one.number]:
                    if token not in answer.lost:
                        self.removed.add(payload)

    def check_told(self) -> None:
        """Cut the power now: the log can be replayed, and what was told is so."""
        self.look()
        state = rebuilt(self.rig.files.image(), self.rig.generation)
        found = Counter(payload for queue in state.queues() for _, _, payload in queue.tasks)
        missing = [p for p in self.added if p not in found and p not in self.doubted]
        assert not missing, missing
        assert not self.removed & found.keys()
        assert not found or max(found.values()) <= 2  # a move that was cut
        self.figures["power cuts"] += 1

    def land(self) -> None:
        """Let the disk finish, and every wait end."""
        self.rig.sync()
        for _ in range(6):
            self.wait(2000)
            self.rig.sync()
        self.check_told()
        for (caller, number), request in self.asked.items():
            assert len(caller.answers.get(number, ())) == 1, request
        assert self.rig.dump() == self.rig.rebuilt()
        assert all(queue.proposed == 0 for queue in self.rig.state.queues())
        assert not any(queue.out for queue in self.rig.state.queues())
        assert self.rig.replica.is_idle
        assert not self.rig.failures


@pytest.mark.parametrize("generation", GENERATIONS)
def test_requests_that_overlap_are_answered_once_and_what_was_told_survives(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "PURGE_COUNT_MAX", 3)
    figures: Counter[str] = Counter()
    for seed in range(50):
        flight = Flight(generation, seed)
        try:
            for _ in range(150):
                flight.step()
            flight.land()
        except Exception as error:
            error.add_note(f"seed {seed}, generation {generation}")
            raise
        figures += flight.figures
    shown = ", ".join(f"{count} {what}" for what, count in sorted(figures.items()))
    report(f"requests in flight, generation {generation}, seeds 0-49: {shown}")
