"""A node against the obvious model, over random lives: every request, the clock, restarts, snapshots.

After every step the state is the model's, to the last id and delay, and so is what the files alone say. Each
life is drawn from a seed, which a failure names.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from penstock.formats.taskflux.generation import Generation
from penstock.model import (
    DEFAULT_QUEUE,
    Implementation,
    KeyRange,
    Policy,
    QueueName,
    QueueOptions,
)
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import Failure
from support.naive_broker import NaiveBroker, NaiveQueue, NaiveTask, Request
from support.node_rig import (
    RecordingCaller,
    Rig,
    delivered_order,
    dump,
    expected_order,
    rebuilt,
)
from support.report import report

DEAD = QueueName("dead")
NAMES = [DEFAULT_QUEUE, DEAD, *map(QueueName, ("a", "b", "c", "d"))]
PRODUCERS = [bytes([n]) * 16 for n in range(3)]
POLICIES = [
    Policy(),
    Policy(size_max=6),
    Policy(payload_size_max=4),
    Policy(keys=KeyRange(lowest=-2, highest=2)),
    Policy(implementation=Implementation.ARRAY, keys=KeyRange(lowest=-3, highest=3)),
    Policy(
        implementation=Implementation.ARRAY,
        keys=KeyRange(lowest=-2, highest=4),
        size_max=9,
        payload_size_max=5,
    ),
]
PAGED = Policy(implementation=Implementation.PAGED)
STEPS = 120
SEEDS = range(36)


class Life:
    """One node and its model, and what happens to both."""

    def __init__(self, generation: Generation, seed: int) -> None:
        self.random = Random(seed)
        self.rig = Rig(generation)
        self.model = NaiveBroker(counts_leased=generation is Generation.THREE)
        self.callers = [self.rig.caller() for _ in range(2)]
        self.sequence = 0
        self.old_tokens = [7]
        self.waiting: dict[tuple[RecordingCaller, int], tuple[QueueName, int]] = {}
        self.seen = 0  # answers looked at so far
        self.figures: Counter[str] = Counter()
        for name in (DEAD, *NAMES[2:5]):
            self.create(name)

    @property
    def now(self) -> int:
        return self.rig.clock.now

    def caller(self) -> RecordingCaller:
        return self.random.choice(self.callers)

    def name(self) -> QueueName:
        """Return the name of a queue, one that is not there now and then, few of them more often."""
        if self.random.random() < 0.1:
            return self.random.choice(NAMES)
        return self.random.choice([*self.model.queues, *list(self.model.queues)[-2:]])

    def some_queue(self) -> NaiveQueue | None:
        return self.model.queues.get(self.name())

    def payload(self) -> bytes:
        # Few values, so that generation 2 meets equal tasks; none is ever longer than six bytes.
        return self.random.choice([b"", b"x", b"xy", b"same", b"%d" % self.random.randrange(9999)])

    def ask(self, caller: RecordingCaller, request: v2.Request) -> v2.Answer:
        self.figures[type(request).__name__.lower()] += 1
        return self.rig.ask(caller, request)

    # One step.

    def step(self) -> None:
        steps = [
            (18, self.enqueue),
            (14, self.dequeue),
            (3, self.wait),
            (9, self.ack),
            (7, self.nack),
            (3, self.release),
            (3, self.prefetch),
            (2, self.extend),
            (3, self.create),
            (1, self.delete),
            (1, self.purge),
            (3, self.peek),
            (2, self.stat),
            (7, self.pass_time),
            (1, self.leave),
            (2, self.retry),
            (1, self.restart),
            (1, self.snapshot),
            (8, self.snapshot_slice),
        ]
        (step,) = self.random.choices([s for _, s in steps], [w for w, _ in steps])
        step()
        self.model.tick(self.now)
        self.figures["steps"] += 1
        self.check()

    def enqueue(self) -> None:
        count = self.random.choice([1, 1, 1, 2, 5])
        name = self.name()
        keys = [self.random.choice([0, 0, 1, -1, 2, -3, 4]) for _ in range(count)]
        payloads = [self.payload() for _ in range(count)]
        delay = self.random.choice([None, None, None, 0, 700, 3000])
        ttl = self.random.choice([None, None, None, 1500, 6000])
        producer = None
        if self.random.random() < 0.4:
            self.sequence += 1
            producer = v2.Producer(self.random.choice(PRODUCERS), self.sequence)
        answer = self.ask(self.caller(), v2.Enqueue(name, keys, payloads, delay, ttl, producer))
        queue = self.model.queues.get(name)
        if queue is None:
            assert isinstance(answer, v2.Failed)
            assert answer.code == Failure.QUEUE_MISSING
            return
        assert isinstance(answer, v2.Enqueued)
        (run,) = answer.runs
        outcome = queue.outcome(keys, payloads)
        assert (run.outcome, run.count) == (outcome, count)
        if outcome:
            self.figures["refused"] += 1
            return
        assert run.first == queue.last_id + 1
        for key, payload in zip(keys, payloads, strict=True):
            queue.add(
                key,
                payload,
                not_before=0 if delay is None else self.now + delay,
                expires=None if ttl is None else self.now + ttl,
            )
        if producer is not None:
            self.model.requests[producer.id, producer.sequence] = Request(
                queue, keys, payloads, run.first
            )

    def retry(self) -> None:
        """Repeat a request of a producer, or misuse its number."""
        if not self.model.requests:
            return
        (producer, sequence), taken = self.random.choice(list(self.model.requests.items()))
        is_misused = self.random.random() < 0.3
        keys, payloads = list(taken.keys), list(taken.payloads)
        if is_misused:
            keys, payloads = [*keys, 0], [*payloads, b"more"]
        request = v2.Enqueue(
            taken.queue.name, keys, payloads, None, None, v2.Producer(producer, sequence)
        )
        answer = self.ask(self.caller(), request)
        self.figures["retries"] += 1
        present = self.model.queues.get(taken.queue.name)
        if present is None:
            assert isinstance(answer, v2.Failed)
            assert answer.code == Failure.QUEUE_MISSING
        elif present is not taken.queue or is_misused:
            assert isinstance(answer, v2.Failed)
            assert answer.code == Failure.INVALID
        else:
            assert isinstance(answer, v2.Enqueued)
            assert list(answer.runs) == [v2.Run(0, len(keys), taken.first)]

    def dequeue(self) -> None:
        name, count = self.name(), self.random.choice([1, 1, 2, 4])
        size_max = self.random.choice([0, 0, 0, 5])
        lease_ms = self.random.choice([0, 900, 2500])
        caller = self.caller()
        queue = self.model.queues.get(name)
        before = [] if queue is None else queue.ready(self.now)
        answer = self.ask(caller, v2.Dequeue(name, count, size_max, 0, lease_ms))
        if queue is None:
            assert isinstance(answer, v2.Failed)
            return
        assert isinstance(answer, v2.Delivered)
        expected: list[NaiveTask] = []
        size = 0
        for task in before[:count]:
            size += len(task.payload)
            if size_max and size > size_max and expected:
                break
            expected.append(task)
        assert list(answer.ids) == [task.id for task in expected]
        self.seen = len(self.rig.told)
        self.lease(caller, queue, answer, is_strict=True)

    def lease(
        self, caller: RecordingCaller, queue: NaiveQueue, got: v2.Delivered, *, is_strict: bool
    ) -> None:
        """Note a delivery in the model: the first of what is ready, all of it as it should be."""
        ready = queue.ready(self.now)
        if is_strict:
            assert list(got.ids) == [task.id for task in ready[: len(got.ids)]]
        by_id = {task.id: task for task in ready}
        for place, task_id in enumerate(got.ids):
            task = by_id[task_id]
            assert (got.keys[place], got.payloads[place]) == (task.key, task.payload)
            assert got.attempts[place] == task.attempts + 1
            task.token, task.owner = got.token + place, caller
            task.deadline = self.now + got.lease_ms
            self.old_tokens.append(task.token)
        self.figures["delivered"] += len(got.ids)

    def wait(self) -> None:
        """Dequeue and wait, or subscribe; deliveries are met in ``check``."""
        name, caller = self.name(), self.caller()
        if name not in self.model.queues or len(self.waiting) > 3:
            return
        ready = self.model.queues[name].ready(self.now)
        number = self.rig.send(caller, v2.Dequeue(name, 2, 0, 4000, 1500))
        self.rig.go_on()
        self.waiting[caller, number] = (name, self.now + 4000)
        self.figures["waits"] += not ready

    def tokens(self) -> tuple[RecordingCaller, list[int], list[int]]:
        """Return a caller, tokens that it has of leases that it holds, and one that is not or no more its own."""
        caller = self.caller()
        held = [t for _, task in self.model.leased() if (t := task.token) and task.owner is caller]
        count = min(len(held), self.random.choice([1, 2, 3, 9]))
        held = (
            sorted(held)[:count] if self.random.random() < 0.5 else self.random.sample(held, count)
        )
        lost = []
        if self.random.random() < 0.25:
            token = self.random.choice(self.old_tokens)
            found = self.model.find(token)
            if found is None or found[1].owner is not caller:
                lost.append(token)
        return caller, held, lost

    def ack(self) -> None:
        caller, held, lost = self.tokens()
        answer = self.ask(caller, v2.Ack(held + lost))
        assert isinstance(answer, v2.Settled)
        assert list(answer.lost) == lost
        for token in held:
            found = self.model.find(token)
            assert found is not None
            found[0].tasks.remove(found[1])

    def nack(self) -> None:
        caller, held, lost = self.tokens()
        delay = self.random.choice([None, None, 0, 1200])
        key = self.random.choice([None, None, None, 0, 3, 99])
        found = [f for token in held if (f := self.model.find(token)) is not None]
        if key is not None:
            # New ids in several queues at once: which is first is the node's to decide.
            found = [one for one in found if one[0] is found[0][0]]
            held = [task.token for _, task in found if task.token is not None]
        answer = self.ask(caller, v2.Nack(held + lost, delay, key))
        ranges = [queue.policy.keys for queue, _ in found if queue.policy.keys is not None]
        if key is not None and any(not r.lowest <= key <= r.highest for r in ranges):
            assert isinstance(answer, v2.Failed)
            return
        assert isinstance(answer, v2.Settled)
        assert list(answer.lost) == lost
        not_before = 0 if delay is None else self.now + delay
        # Queue by queue in the order of the leases, as one entry after the other does it.
        for queue, task in found:
            self.model.fail(queue, task, not_before, key)

    def release(self) -> None:
        caller, held, lost = self.tokens()
        answer = self.ask(caller, v2.Release(held + lost))
        assert isinstance(answer, v2.Settled)
        assert list(answer.lost) == lost
        for token in held:
            found = self.model.find(token)
            assert found is not None
            found[1].token = found[1].owner = None

    def prefetch(self) -> None:
        """Subscribe, start some of the tasks that come, and end the subscription."""
        queue = self.some_queue()
        if queue is None or any(name == queue.name for name, _ in self.waiting.values()):
            return
        caller = self.caller()
        number = self.rig.send(caller, v2.Subscribe(queue.name, self.random.choice([1, 3, 6])))
        self.rig.go_on()
        got = [each for each in caller.answers[number] if isinstance(each, v2.Delivered)]
        self.seen = len(self.rig.told)
        for delivered in got:
            self.lease(caller, queue, delivered, is_strict=True)
            tokens = range(delivered.token, delivered.token + len(delivered.ids))
            started = self.random.sample(tokens, self.random.randint(0, len(tokens)))
            self.rig.send(caller, v2.Start(started))
            for token in set(tokens) - set(started):
                found = self.model.find(token)
                assert found is not None
                found[1].token = found[1].owner = None
            self.figures["released"] += len(tokens) - len(started)
        self.rig.send(caller, v2.Unsubscribe(number))
        self.rig.go_on()

    def extend(self) -> None:
        caller, held, lost = self.tokens()
        lease_ms = self.random.choice([0, 100, 5000])
        answer = self.ask(caller, v2.Extend(held + lost, lease_ms))
        assert isinstance(answer, v2.Settled)
        assert list(answer.lost) == lost
        for token in held:
            found = self.model.find(token)
            assert found is not None
            found[1].deadline = self.now + (lease_ms or found[0].options.lease_ms)

    def create(self, name: QueueName | None = None) -> None:
        name = self.random.choice(NAMES) if name is None else name
        can_page = self.rig.generation is Generation.THREE
        policy = self.random.choice([*POLICIES, PAGED, PAGED] if can_page else POLICIES)
        attempts_max, dead_letter = None, None
        lease_ms = self.random.choice([0, 2000])
        if name != DEAD and self.random.random() < 0.6:
            dead_letter = DEAD
            attempts_max = self.random.choice([None, 1, 2, 3])
        if name == DEAD:
            policy = Policy()  # what happens when it is full has tests of its own
        request = v2.Create(name, policy, lease_ms, attempts_max, dead_letter)
        answer = self.ask(self.caller(), request)
        if name in self.model.queues:
            assert isinstance(answer, v2.Failed)
            assert answer.code == Failure.QUEUE_EXISTS
        elif dead_letter is not None and DEAD not in self.model.queues:
            assert isinstance(answer, v2.Failed)
            assert answer.code == Failure.QUEUE_MISSING
        else:
            assert answer == v2.Ok()
            options = QueueOptions(
                lease_ms=lease_ms or 60_000, attempts_max=attempts_max, dead_letter=dead_letter
            )
            self.model.create(name, policy, options)

    def delete(self) -> None:
        name = self.random.choice(NAMES)
        waiting = [place for place, (queue, _) in self.waiting.items() if queue == name]
        answer = self.ask(self.caller(), v2.Delete(name))
        if name not in self.model.queues or name == DEFAULT_QUEUE:
            assert isinstance(answer, v2.Failed)
        elif self.model.users_of(name):
            assert isinstance(answer, v2.Failed)
            assert answer.code == Failure.QUEUE_IN_USE
        else:
            assert answer == v2.Ok()
            del self.model.queues[name]
            for caller, number in waiting:
                (failed,) = caller.answers[number]
                assert isinstance(failed, v2.Failed)
                del self.waiting[caller, number]

    def purge(self) -> None:
        queue = self.some_queue()
        if queue is None:
            return
        answer = self.ask(self.caller(), v2.Purge(queue.name))
        kept = [task for task in queue.tasks if task.token is not None]
        assert answer == v2.Purged(len(queue.tasks) - len(kept))
        queue.tasks = kept

    def peek(self) -> None:
        queue = self.some_queue()
        if queue is None:
            return
        count = self.random.choice([1, 3, 100])
        answer = self.ask(self.caller(), v2.Peek(queue.name, count))
        assert isinstance(answer, v2.Peeked)
        ready = queue.ready(self.now)[:count]
        found = zip(answer.ids, answer.keys, answer.attempts, answer.payloads, strict=True)
        assert list(found) == [(t.id, t.key, t.attempts, t.payload) for t in ready]

    def stat(self) -> None:
        answer = self.ask(self.caller(), v2.Stat())
        assert isinstance(answer, v2.Stats)
        assert {stat.name for stat in answer.queues} == self.model.queues.keys()
        for stat in answer.queues:
            queue = self.model.queues[stat.name]
            assert (stat.count, stat.last_id) == (len(queue.tasks), queue.last_id)
            assert stat.leased == sum(task.token is not None for task in queue.tasks)
            assert stat.delayed == sum(
                task.token is None and task.not_before > self.now for task in queue.tasks
            )
            assert stat.size == sum(len(task.payload) for task in queue.tasks)

    def pass_time(self) -> None:
        self.rig.clock.now += self.random.choice([1, 300, 1000, 2500])
        if self.random.random() < 0.3:
            # Somebody looks before the node's own clock has rung.
            queue = self.some_queue()
            if queue is not None:
                self.rig.send(self.caller(), v2.Peek(queue.name, 3))
        self.rig.go_on()
        self.model.tick(self.now)

    def leave(self) -> None:
        caller = self.caller()
        self.rig.broker.leave(caller)
        self.rig.go_on()
        for queue, task in self.model.leased():
            if task.owner is caller:
                self.model.fail(queue, task)
        self.waiting = {place: w for place, w in self.waiting.items() if place[0] is not caller}
        self.callers[self.callers.index(caller)] = self.rig.caller()
        self.figures["left"] += 1

    def restart(self) -> None:
        self.rig.restart()
        self.model.restart()
        self.waiting.clear()
        self.seen = 0
        self.callers = [self.rig.caller() for _ in range(2)]
        self.rig.go_on()
        self.model.tick(self.now)
        self.figures["restarts"] += 1

    def snapshot(self) -> None:
        self.rig.snapshot()
        self.figures["snapshots"] += 1

    def snapshot_slice(self) -> None:
        """Go on with a snapshot while the state moves beneath it."""
        if self.rig.walk is None:
            self.rig.begin_snapshot()
            return
        for _ in range(self.random.randint(1, 6)):
            if self.rig.snapshot_slice():
                self.figures["sliced snapshots"] += 1
                return

    # What must be true after every step.

    def check(self) -> None:
        for name in {name for name, _, _ in self.model.buried}:
            self.model.adopt(name, list(self.rig.queue(name).tasks))
        self.meet_deliveries()
        assert not self.model.buried
        assert self.rig.dump()["queues"] == self.expected()
        assert self.rig.state.next_number == self.model.next_number
        for name, _ in self.waiting.values():
            assert not self.model.queues[name].ready(self.now), "somebody waits for what is ready"
        if self.figures["steps"] % 4 == 0:
            self.check_files()

    def meet_deliveries(self) -> None:
        told, self.seen = self.rig.told[self.seen :], len(self.rig.told)
        for one in told:
            if (one.caller, one.number) not in self.waiting:
                continue
            name, until = self.waiting.pop((one.caller, one.number))
            assert isinstance(one.answer, v2.Delivered)
            if one.answer.ids:
                self.lease(one.caller, self.model.queues[name], one.answer, is_strict=False)
            else:
                assert until <= self.now
        for _, until in self.waiting.values():
            assert until > self.now

    def expected(self) -> dict[int, object]:
        return {
            queue.number: {
                "name": str(queue.name),
                "policy": queue.policy,
                "options": queue.options,
                "last_id": queue.last_id,
                "count": len(queue.tasks),
                "size": sum(len(task.payload) for task in queue.tasks),
                "tasks": [(task.id, task.key, task.payload) for task in queue.tasks],
                "attempts": {task.id: task.attempts for task in queue.tasks if task.attempts},
                "delayed": {
                    task.id: task.not_before
                    for task in queue.tasks
                    if task.not_before > self.now and task.token is None
                },
                "expiring": {
                    task.id: task.expires for task in queue.tasks if task.expires is not None
                },
            }
            for queue in sorted(self.model.queues.values(), key=lambda queue: queue.number)
        }

    def check_files(self) -> None:
        """What the files alone say is the same, and is delivered in the same order."""
        image = self.rig.files.image()
        state = rebuilt(image, self.rig.generation)
        assert dump(state, self.now) == self.rig.dump()
        order = expected_order(state, self.now)
        assert delivered_order(state, self.now) == order
        self.figures["rebuilds"] += 1


@pytest.mark.parametrize("generation", [Generation.TWO, Generation.THREE])
def test_a_node_is_what_the_model_is_through_restarts_and_snapshots(
    generation: Generation,
) -> None:
    figures: Counter[str] = Counter()
    for seed in SEEDS:
        life = Life(generation, seed)
        try:
            for _ in range(STEPS):
                life.step()
        except Exception as error:
            error.add_note(f"seed {seed}, step {life.figures['steps']}, generation {generation}")
            raise
        figures += life.figures
    shown = ", ".join(f"{count} {what}" for what, count in sorted(figures.items()))
    report(f"state model, generation {generation}, seeds 0-{SEEDS[-1]}: {shown}")
