"""Decisions of the broker that a random life seldom meets: full queues, late retries, queues that go away."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.formats.taskflux.generation import Generation
from penstock.model import DEFAULT_QUEUE, KeyRange, Policy, QueueName
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import Failure, Outcome
from penstock.queues.producers import REQUESTS_MAX
from penstock.server.disk import LaterDisk
from penstock.testing.disk import MemoryFiles
from support.lives import Entries
from support.node_rig import RecordingCaller, Rig

GENERATIONS = [Generation.TWO, Generation.THREE]
Q, DEAD = QueueName("q"), QueueName("dead")
PRODUCER = b"p" * 16


@pytest.fixture(params=GENERATIONS)
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param)


@pytest.fixture(params=GENERATIONS)
def slow(request: pytest.FixtureRequest) -> Rig:
    """A node whose disk is done when ``sync`` is called."""
    rig = Rig(request.param, later=LaterDisk())
    rig.sync()
    return rig


def create(rig: Rig, policy: Policy | None = None, **options: object) -> None:
    caller = rig.caller()
    answer = rig.ask(caller, v2.Create(Q, policy or Policy(), **options))  # type: ignore[arg-type]
    assert answer == v2.Ok()


def take(rig: Rig, caller: RecordingCaller, count: int = 1, name: QueueName = Q) -> v2.Delivered:
    answer = rig.ask(caller, v2.Dequeue(name, count))
    assert isinstance(answer, v2.Delivered)
    return answer


def tokens(got: v2.Delivered) -> list[int]:
    return list(range(got.token, got.token + len(got.ids)))


def held(rig: Rig, name: str) -> list[bytes]:
    return [payload for _, _, payload in rig.queue(name).tasks]


def runs_of(answer: v2.Answer) -> list[v2.Run]:
    assert isinstance(answer, v2.Enqueued)
    return list(answer.runs)


def code_of(answer: v2.Answer) -> int:
    assert isinstance(answer, v2.Failed)
    return answer.code


# --- dead letters --------------------------------------------------------------------------------


def test_a_worn_out_task_that_the_dead_letter_queue_refuses_comes_back(rig: Rig) -> None:
    caller = rig.caller()
    rig.ask(caller, v2.Create(DEAD, Policy(size_max=1)))
    create(rig, attempts_max=1, dead_letter=DEAD)
    rig.ask(caller, v2.Enqueue(Q, [0, 0, 0], [b"a", b"b", b"c"]))
    rig.ask(caller, v2.Nack(tokens(take(rig, caller, 3))))
    assert (held(rig, "dead"), held(rig, "q")) == ([b"a"], [b"b", b"c"])
    # It is delivered again, and goes when there is room.
    got = take(rig, caller, 2)
    assert list(got.attempts) == [2, 2]
    rig.ask(caller, v2.Ack(tokens(take(rig, caller, 1, DEAD))))
    rig.ask(caller, v2.Nack(tokens(got)))
    assert (held(rig, "dead"), held(rig, "q")) == ([b"b"], [b"c"])
    assert rig.dump() == rig.rebuilt()


def test_a_dead_letter_that_does_not_fit_does_not_keep_the_others_out(rig: Rig) -> None:
    caller = rig.caller()
    rig.ask(caller, v2.Create(DEAD, Policy(payload_size_max=2)))
    create(rig, dead_letter=DEAD)
    rig.ask(caller, v2.Enqueue(Q, [0, 0, 0], [b"a", b"long", b"c"], None, 100))
    rig.clock.now += 100
    rig.go_on()
    assert (held(rig, "dead"), held(rig, "q")) == ([b"a", b"c"], [])
    assert rig.dump() == rig.rebuilt()


def test_a_task_that_expires_while_it_is_out_is_the_bearers_until_it_comes_back(rig: Rig) -> None:
    caller = rig.caller()
    rig.ask(caller, v2.Create(DEAD, Policy()))
    create(rig, dead_letter=DEAD)
    rig.ask(caller, v2.Enqueue(Q, [0, 0], [b"acked", b"nacked"], None, 100))
    first, second = tokens(take(rig, caller, 2))
    rig.clock.now += 200
    rig.go_on()
    assert len(rig.queue("q")) == 2
    assert rig.ask(caller, v2.Ack([first])) == v2.Settled()
    rig.ask(caller, v2.Nack([second]))
    rig.go_on()
    assert (held(rig, "dead"), held(rig, "q")) == ([b"nacked"], [])


def test_a_dead_letter_queue_outlives_the_queues_that_need_it(slow: Rig) -> None:
    caller = slow.caller()
    slow.send(caller, v2.Create(DEAD, Policy()))
    slow.sync()
    slow.send(caller, v2.Create(Q, Policy(), 0, None, DEAD))
    refused = slow.send(caller, v2.Delete(DEAD))  # the creation is still on its way
    slow.sync()
    assert code_of(caller.answers[refused][0]) == Failure.QUEUE_IN_USE
    slow.send(caller, v2.Delete(Q))
    allowed = slow.send(caller, v2.Delete(DEAD))
    slow.sync()
    assert caller.answers[allowed] == [v2.Ok()]
    assert slow.dump() == slow.rebuilt()


# --- queues that go away -------------------------------------------------------------------------


def test_a_deleted_queue_takes_leases_waiting_and_requests_with_it(slow: Rig) -> None:
    caller, other = slow.caller(), slow.caller()
    slow.send(caller, v2.Create(DEAD, Policy()))
    slow.sync()
    slow.send(caller, v2.Create(Q, Policy(), 0, 1, DEAD))
    slow.sync()
    slow.send(caller, v2.Enqueue(Q, [0, 0], [b"a", b"b"], None, 50))
    slow.sync()
    got_at = slow.send(caller, v2.Dequeue(Q, 2))
    (got,) = caller.answers[got_at]
    assert isinstance(got, v2.Delivered)
    waiting = slow.send(other, v2.Dequeue(Q, 1, 0, 10_000))
    subscribed = slow.send(other, v2.Subscribe(Q, 3))
    added = slow.send(other, v2.Enqueue(Q, [0], [b"c"], 10))  # before the deletion in the log
    deleted = slow.send(other, v2.Delete(Q))
    late = [
        slow.send(other, v2.Enqueue(Q, [0], [b"d"])),
        slow.send(other, v2.Dequeue(Q)),
        slow.send(other, v2.Purge(Q)),
        slow.send(other, v2.Delete(Q)),
    ]
    acked = slow.send(caller, v2.Ack([got.token]))
    extended = slow.send(caller, v2.Extend([got.token + 1], 10))
    slow.clock.now += 100_000  # leases, delays and expiries end behind the deletion
    slow.go_on()
    slow.broker.leave(caller)
    slow.sync()
    slow.go_on()
    slow.sync()
    assert other.answers[deleted] == [v2.Ok()]
    assert isinstance(other.answers[added][0], v2.Enqueued)
    assert [code_of(other.answers[n][0]) for n in late] == [Failure.QUEUE_MISSING] * 4
    assert caller.answers[acked] == [v2.Settled([got.token])]
    assert caller.answers[extended] == [v2.Settled([got.token + 1])]
    assert [type(answer) for answer in other.answers[subscribed]] == [v2.Ok, v2.Failed]
    assert len(other.answers[waiting]) == 1
    assert slow.dump() == slow.rebuilt()
    assert not len(slow.queue("dead"))
    assert slow.broker.wakeup_in_ms() is None
    assert not len(slow.broker.leases)


def test_a_name_can_be_used_again_and_nothing_old_comes_with_it(rig: Rig) -> None:
    caller = rig.caller()
    create(rig, lease_ms=5)
    request = v2.Enqueue(Q, [0], [b"a"], None, None, v2.Producer(PRODUCER, 1))
    first = rig.ask(caller, request)
    got = take(rig, caller)
    rig.ask(caller, v2.Delete(Q))
    assert code_of(rig.ask(caller, request)) == Failure.QUEUE_MISSING
    create(rig)
    # The number was used for another queue: to take it for a retry would lose the task, unseen.
    assert code_of(rig.ask(caller, request)) == Failure.INVALID
    assert rig.ask(caller, v2.Ack([got.token])) == v2.Settled([got.token])
    rig.restart()
    assert code_of(rig.ask(rig.caller(), request)) == Failure.INVALID
    assert rig.queue("q").options.lease_ms == 60_000
    assert isinstance(first, v2.Enqueued)


def test_what_is_enqueued_right_behind_a_creation_waits_for_it(slow: Rig) -> None:
    caller = slow.caller()
    numbers = [slow.send(caller, v2.Create(Q, Policy()))]
    numbers += [slow.send(caller, v2.Enqueue(Q, [0], [b"%d" % n])) for n in range(3)]
    slow.sync()
    assert [len(caller.answers[n]) for n in numbers] == [1, 1, 1, 1]
    assert held(slow, "q") == [b"0", b"1", b"2"]
    assert slow.dump() == slow.rebuilt()


# --- producers -----------------------------------------------------------------------------------


def enqueue(sequence: int, payloads: Sequence[bytes] = (b"a",), name: QueueName = Q) -> v2.Enqueue:
    return v2.Enqueue(
        name, [0] * len(payloads), payloads, None, None, v2.Producer(PRODUCER, sequence)
    )


def test_a_retry_on_another_connection_meets_the_first_in_flight(slow: Rig) -> None:
    one, two = slow.caller(), slow.caller()
    slow.send(one, v2.Create(Q, Policy()))
    slow.sync()
    first = slow.send(one, enqueue(1, [b"a", b"b"]))
    slow.replica.advance()
    second = slow.send(two, enqueue(1, [b"a", b"b"]))
    slow.broker.leave(one)
    slow.sync()
    assert first not in one.answers
    assert runs_of(two.answers[second][0]) == [v2.Run(0, 2, 1)]
    assert held(slow, "q") == [b"a", b"b"]


def test_a_sequence_in_flight_is_not_lent_to_another_request(slow: Rig) -> None:
    caller = slow.caller()
    slow.send(caller, v2.Create(Q, Policy()))
    slow.sync()
    slow.send(caller, enqueue(1, [b"a", b"b"]))
    other = slow.send(caller, enqueue(1, [b"c"]))
    elsewhere = slow.send(caller, enqueue(1, [b"a", b"b"], DEFAULT_QUEUE))
    slow.sync()
    assert code_of(caller.answers[other][0]) == Failure.INVALID
    assert code_of(caller.answers[elsewhere][0]) == Failure.INVALID
    assert held(slow, "q") == [b"a", b"b"]


def test_more_requests_in_one_batch_than_are_remembered_are_all_answered(slow: Rig) -> None:
    caller = slow.caller()
    slow.send(caller, v2.Create(Q, Policy()))
    slow.sync()
    numbers = [slow.send(caller, enqueue(n)) for n in range(REQUESTS_MAX + 200)]
    slow.sync()
    firsts = []
    for number in numbers:
        (answer,) = caller.answers[number]
        firsts.append(runs_of(answer)[0].first)
    assert firsts == list(range(1, len(numbers) + 1))
    forgotten = slow.send(caller, enqueue(100))
    known = slow.send(caller, enqueue(REQUESTS_MAX))
    slow.sync()
    assert code_of(caller.answers[forgotten][0]) == Failure.SEQUENCE_FORGOTTEN
    assert runs_of(caller.answers[known][0]) == [v2.Run(0, 1, REQUESTS_MAX + 1)]
    assert slow.dump() == slow.rebuilt()


def test_the_largest_sequence_can_be_forgotten_and_stands_in_a_snapshot(rig: Rig) -> None:
    caller = rig.caller()
    create(rig)
    rig.ask(caller, enqueue(2**64 - 1))
    for number in range(REQUESTS_MAX):
        rig.send(caller, enqueue(number))
    rig.go_on()
    rig.snapshot()
    assert rig.dump() == rig.rebuilt()
    rig.restart()
    assert code_of(rig.ask(rig.caller(), enqueue(2**64 - 1))) == Failure.SEQUENCE_FORGOTTEN


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_request_that_a_crash_cut_is_completed_when_the_queue_has_room_and_not_before(
    generation: Generation,
) -> None:
    rig = Rig(generation)
    caller = rig.caller()
    create(rig, Policy(size_max=3))
    rig.ask(caller, enqueue(1, [b"a", b"b", b"c"]))
    log = Entries.of(rig.directory)
    files = MemoryFiles()
    log.directory(files, len(log.entries) - 1)
    again = Rig(generation, files)
    other = again.caller()
    full = again.ask(other, v2.Enqueue(Q, [0, 0], [b"x", b"y"]))
    assert runs_of(full) == [v2.Run(Outcome.QUEUE_FULL, 2, 0)]
    again.ask(other, v2.Enqueue(Q, [0], [b"x"]))
    answer = again.ask(other, enqueue(1, [b"a", b"b", b"c"]))
    assert runs_of(answer) == [v2.Run(0, 2, 1), v2.Run(Outcome.QUEUE_FULL, 1, 0)]
    assert held(again, "q") == [b"a", b"b", b"x"]
    again.ask(other, v2.Ack(tokens(take(again, other))))
    answer = again.ask(other, enqueue(1, [b"a", b"b", b"c"]))
    assert runs_of(answer) == [v2.Run(0, 2, 1), v2.Run(0, 1, 4)]
    assert held(again, "q") == [b"b", b"x", b"c"]


# --- policies and leases -------------------------------------------------------------------------


def test_tasks_on_their_way_count_for_the_size_and_leased_ones_but_with_taskflux(
    slow: Rig,
) -> None:
    """A client of TaskFlux may enqueue while a task of a full queue is out; it was refused in its directory."""
    caller = slow.caller()
    slow.send(caller, v2.Create(Q, Policy(size_max=2)))
    slow.sync()
    numbers = [slow.send(caller, v2.Enqueue(Q, [0], [b"x"])) for _ in range(3)]
    slow.sync()
    outcomes = [runs_of(caller.answers[n][0])[0].outcome for n in numbers]
    assert sorted(outcomes) == [0, 0, Outcome.QUEUE_FULL]
    slow.send(caller, v2.Dequeue(Q, 2))
    last = [slow.send(caller, v2.Enqueue(Q, [0], [b"x"])) for _ in range(3)]
    slow.sync()
    is_taskflux = slow.generation is Generation.TWO
    assert [runs_of(caller.answers[n][0])[0].outcome for n in last] == (
        [0, 0, Outcome.QUEUE_FULL] if is_taskflux else [Outcome.QUEUE_FULL] * 3
    )


def test_a_task_gets_a_new_key_though_the_queue_is_full(rig: Rig) -> None:
    caller = rig.caller()
    create(rig, Policy(size_max=2, keys=KeyRange(lowest=0, highest=9)))
    rig.ask(caller, v2.Enqueue(Q, [1, 1], [b"a", b"b"], None, 10**6))
    got = take(rig, caller)
    assert code_of(rig.ask(caller, v2.Nack([got.token], None, 10))) == Failure.INVALID
    assert rig.ask(caller, v2.Nack([got.token], None, 9)) == v2.Settled()
    assert [(i, key) for i, key, _ in rig.queue("q").tasks] == [(2, 1), (3, 9)]
    assert rig.queue("q").attempts == {3: 1}
    assert rig.queue("q").expiring.get(3) == rig.clock.now + 10**6
    assert rig.dump() == rig.rebuilt()


def test_a_lease_is_its_owners_and_a_token_counts_once(rig: Rig) -> None:
    owner, other = rig.caller(), rig.caller()
    create(rig)
    rig.ask(owner, v2.Enqueue(Q, [0, 0], [b"a", b"b"]))
    got = take(rig, owner, 2)
    assert rig.ask(other, v2.Ack(tokens(got))) == v2.Settled(tokens(got))
    assert rig.ask(other, v2.Nack(tokens(got))) == v2.Settled(tokens(got))
    assert rig.ask(owner, v2.Ack([got.token, got.token])) == v2.Settled([got.token])
    assert held(rig, "q") == [b"b"]
    assert rig.dump() == rig.rebuilt()


def test_leases_of_part_of_a_batch_and_of_the_next_end_no_other(rig: Rig) -> None:
    # Tokens are consecutive over batches; three of them in a row need not be one batch of three.
    caller = rig.caller()
    create(rig)
    rig.ask(caller, v2.Enqueue(Q, [0] * 6, [b"%d" % n for n in range(6)]))
    first, second = take(rig, caller, 3), take(rig, caller, 3)
    rig.ask(caller, v2.Ack([first.token + 1, first.token + 2, second.token]))
    assert held(rig, "q") == [b"0", b"4", b"5"]
    assert rig.ask(caller, v2.Ack([first.token])) == v2.Settled()


def test_whoever_waits_is_served_when_somebody_else_lets_a_delay_end(rig: Rig) -> None:
    waiting, other = rig.caller(), rig.caller()
    create(rig)
    number = rig.send(waiting, v2.Dequeue(Q, 1, 0, 10_000))
    rig.ask(other, v2.Enqueue(Q, [0, 0], [b"a", b"b"], 100))
    rig.clock.now += 100
    rig.send(other, v2.Dequeue(Q, 1))  # before the node's own clock has rung
    rig.go_on()
    (answer,) = waiting.answers[number]
    assert isinstance(answer, v2.Delivered)
    assert list(answer.payloads) == [b"b"]


def test_a_purge_takes_delayed_tasks_and_leaves_what_is_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.broker.PURGE_COUNT_MAX", 3)
    caller = rig.caller()
    create(rig)
    rig.ask(caller, v2.Enqueue(Q, [0] * 4, [b"ready"] * 4))
    rig.ask(caller, v2.Enqueue(Q, [0] * 5, [b"later"] * 5, 1000))
    got = take(rig, caller)
    assert rig.ask(caller, v2.Purge(Q)) == v2.Purged(8)
    assert rig.ask(caller, v2.Purge(Q)) == v2.Purged(0)
    assert len(rig.queue("q")) == 1
    rig.clock.now += 1000
    rig.go_on()
    assert rig.ask(caller, v2.Ack([got.token])) == v2.Settled()
    assert rig.dump() == rig.rebuilt()


def test_a_subscription_gets_no_more_than_its_window(rig: Rig) -> None:
    caller = rig.caller()
    create(rig)
    number = rig.send(caller, v2.Subscribe(Q, 2))
    rig.ask(rig.caller(), v2.Enqueue(Q, [3, 2, 1], [b"c", b"b", b"a"]))
    ok, got = caller.answers[number]
    assert ok == v2.Ok()
    assert isinstance(got, v2.Delivered)
    assert list(got.payloads) == [b"a", b"b"]
    rig.ask(caller, v2.Ack([got.token]))
    more = caller.answers[number][2]
    assert isinstance(more, v2.Delivered)
    assert list(more.payloads) == [b"c"]
    rig.send(caller, v2.Start([got.token + 1]))
    rig.broker.leave(caller)
    rig.go_on()
    assert rig.queue("q").attempts == {2: 1}
    assert rig.queue("q").ready_count == 2


def prefetched(rig: Rig, caller: RecordingCaller, count: int) -> tuple[int, int]:
    """Let a subscription have tasks 1 to ``count``; return its number and the first token."""
    create(rig)
    rig.ask(rig.caller(), v2.Enqueue(Q, [0] * count, [b"%d" % n for n in range(count)]))
    number = rig.send(caller, v2.Subscribe(Q, count, 1000))
    rig.go_on()
    got = caller.answers[number][1]
    assert isinstance(got, v2.Delivered)
    return number, got.token


def ready(rig: Rig) -> list[int]:
    answer = rig.ask(rig.caller(), v2.Peek(Q, 100))
    assert isinstance(answer, v2.Peeked)
    return list(answer.ids)


def test_a_lease_that_ends_counts_an_attempt_of_started_tasks_only(rig: Rig) -> None:
    caller = rig.caller()
    number, token = prefetched(rig, caller, 5)
    rig.send(caller, v2.Start([token, token + 2]))
    before = rig.directory.log.end
    rig.send(caller, v2.Unsubscribe(number))
    rig.go_on()
    assert ready(rig) == [2, 4, 5]
    assert rig.directory.log.end == before  # what is released was never logged
    rig.clock.now += 1000
    rig.go_on()
    assert ready(rig) == [1, 2, 3, 4, 5]
    assert rig.queue("q").attempts == {1: 1, 3: 1}


def test_prefetched_tasks_whose_lease_ended_are_delivered_again_as_the_same_attempt(
    rig: Rig,
) -> None:
    caller = rig.caller()
    number, token = prefetched(rig, caller, 3)
    for _ in range(5):
        rig.clock.now += 1000
        rig.go_on()
    last = caller.answers[number][-1]
    assert isinstance(last, v2.Delivered)
    assert (list(last.ids), list(last.attempts)) == ([1, 2, 3], [1, 1, 1])
    assert last.token > token
    assert not rig.queue("q").attempts


def test_an_announced_ack_is_an_ack_when_the_connection_breaks(rig: Rig) -> None:
    caller = rig.caller()
    _, token = prefetched(rig, caller, 4)
    rig.send(caller, v2.Start([token]))
    rig.send(caller, v2.Start([token + 1], [token]))
    rig.broker.leave(caller)
    rig.go_on()
    assert ready(rig) == [2, 3, 4]
    assert rig.queue("q").attempts == {2: 1}
    answer = rig.ask(rig.caller(), v2.Stat(Q))
    assert isinstance(answer, v2.Stats)
    assert (answer.queues[0].acked, answer.queues[0].returned) == (1, 1)


def test_an_announced_ack_outlives_the_lease_and_is_answered(rig: Rig) -> None:
    caller = rig.caller()
    _, token = prefetched(rig, caller, 2)
    rig.send(caller, v2.Start([token, token + 1], [token]))
    rig.ask(caller, v2.Extend([token], 500))
    rig.clock.now += 5000
    rig.go_on()
    assert rig.queue("q").attempts == {2: 1}
    assert rig.ask(caller, v2.Ack([token])) == v2.Settled()
    assert len(rig.queue("q")) == 1


def test_a_report_reaches_no_lease_of_another_caller_and_none_that_ended(rig: Rig) -> None:
    caller, other = rig.caller(), rig.caller()
    _, token = prefetched(rig, caller, 2)
    rig.send(other, v2.Start([token], [token + 1]))
    rig.ask(caller, v2.Nack([token]))
    rig.send(caller, v2.Start([token, 7, 2**64 - 1], [token, 7]))
    rig.broker.leave(caller)
    rig.go_on()
    assert ready(rig) == [1, 2]
    assert rig.queue("q").attempts == {1: 1}


def test_a_released_task_is_back_in_its_place_without_an_attempt(rig: Rig) -> None:
    caller = rig.caller()
    create(rig)
    rig.ask(caller, v2.Enqueue(Q, [2, 1, 1], [b"c", b"a", b"b"]))
    got = rig.ask(caller, v2.Dequeue(Q, 3))
    assert isinstance(got, v2.Delivered)
    assert rig.ask(caller, v2.Release([got.token + 1, got.token, 7])) == v2.Settled([7])
    assert ready(rig) == [2, 3]
    rig.broker.leave(caller)
    rig.go_on()
    assert ready(rig) == [2, 3, 1]
    assert rig.queue("q").attempts == {1: 1}  # a dequeue that nobody prefetched counts


def test_a_released_task_expires_in_time(rig: Rig) -> None:
    caller = rig.caller()
    create(rig)
    rig.ask(caller, v2.Enqueue(Q, [0], [b"x"], None, 500))
    number = rig.send(caller, v2.Subscribe(Q, 1, 60_000))
    rig.go_on()
    rig.clock.now += 1000
    rig.go_on()
    assert len(rig.queue("q")) == 1  # what is out is looked at again when it comes back
    rig.send(caller, v2.Unsubscribe(number))
    rig.go_on()
    assert len(rig.queue("q")) == 0
