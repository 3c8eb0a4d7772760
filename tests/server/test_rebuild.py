"""Replay: live, from the log, and from a snapshot with the rest of the log behind it, it is one state.

A log may end after any entry, in the middle of an operation: what it says so far is a state, no task is
lost by it, and a producer's retry completes what was cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from penstock.errors import ReplayConflict
from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.extensions import decode_extension, encode_extension, is_extension
from penstock.formats.taskflux.generation import Generation
from penstock.model import (
    DEFAULT_QUEUE,
    NOTHING,
    Adding,
    AddTask,
    CreateQueue,
    Creating,
    DeleteQueue,
    Delta,
    Entry,
    Index,
    Policy,
    QueueName,
    RemoveEqualTask,
    Removing,
    Returning,
    Term,
    Terms,
)
from penstock.protocol import version2 as v2
from penstock.queues.state import State
from penstock.testing.disk import MemoryFiles
from server.test_state_model import Life
from support.lives import Entries
from support.node_rig import Rig, delivered_order, dump, expected_order, rebuilt
from support.report import report

GENERATIONS = [Generation.TWO, Generation.THREE]
STEPS = 70


class Told(Life):
    """A life whose tasks can all be told apart, without snapshots, and with the log's end after every step."""

    def __init__(self, generation: Generation, seed: int) -> None:
        self.made = 0
        super().__init__(generation, seed)
        self.ends = [0, self.rig.directory.log.end]

    def payload(self) -> bytes:
        self.made += 1
        return self.made.to_bytes(3, "big")

    def snapshot(self) -> None:
        pass

    def snapshot_slice(self) -> None:
        pass

    def check_files(self) -> None:
        pass

    def step(self) -> None:
        super().step()
        self.ends.append(self.rig.directory.log.end)


def live(generation: Generation, seed: int) -> tuple[Told, Entries]:
    life = Told(generation, seed)
    for _ in range(STEPS):
        life.step()
    return life, Entries.of(life.rig.directory)


def payloads(state: State) -> Counter[bytes]:
    return Counter(payload for queue in state.queues() for _, _, payload in queue.tasks)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_log_cut_after_any_entry_is_a_state_that_has_lost_nothing(
    generation: Generation,
) -> None:
    cuts = 0
    for seed in range(6):
        life, log = live(generation, seed)
        now = life.now
        assert dump(log.replayed(len(log.entries)), now) == life.rig.dump()
        ends = sorted(set(life.ends))
        for start, end in pairwise(ends):
            before, after = payloads(log.replayed(start)), payloads(log.replayed(end))
            for cut in range(start + 1, end):
                state = log.replayed(cut)
                found = payloads(state)
                kept = before.keys() & after.keys()
                assert kept <= found.keys(), (seed, cut)  # may stand twice, is never gone
                assert found.keys() <= before.keys() | after.keys()
                order = expected_order(state, now)
                assert delivered_order(state, now) == order
                cuts += 1
    report(f"replay, generation {generation}: {cuts} logs cut inside an operation")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_snapshot_between_any_two_operations_and_the_rest_give_the_same_state(
    generation: Generation,
) -> None:
    count = 0
    for seed in range(20, 22):
        life, log = live(generation, seed)
        for end in sorted(set(life.ends))[1:]:
            files = MemoryFiles()
            log.directory(files, len(log.entries), snapshot_at=end - 1)
            assert dump(rebuilt(files.image(), generation), life.now) == life.rig.dump(), (
                f"seed {seed}, snapshot behind entry {end - 1}"
            )
            count += 1
    report(f"replay, generation {generation}: {count} snapshots in the middle of a log")


def _requests(log: Entries) -> Iterator[tuple[int, Adding]]:
    """Yield where each producer's request begins in the log."""
    for entry in log.entries:
        data = entry.payload
        if is_extension(data, 0, len(data)):
            extension = decode_extension(data, 0, len(data))
            if isinstance(extension, Adding) and extension.terms.producer is not None:
                yield entry.index, extension


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_request_that_a_crash_cut_is_completed_by_its_retry_and_doubles_nothing(
    generation: Generation,
) -> None:
    rig = Rig(generation)
    caller, name = rig.caller(), QueueName("q")
    rig.ask(caller, v2.Create(name, Policy(size_max=9)))
    keys, bodies = [3, 1, 2, 1], [b"a", b"b", b"c", b"d"]
    request = v2.Enqueue(name, keys, bodies, None, 5000, v2.Producer(b"p" * 16, 7))
    rig.ask(caller, request)
    log = Entries.of(rig.directory)
    ((start, adding),) = _requests(log)
    assert adding.count == 4
    for cut in range(start, start + 6):
        for again in range(cut, start + 6):  # and the retry may be cut as well
            files = MemoryFiles()
            log.directory(files, min(cut, len(log.entries)))
            second = Rig(generation, files)
            second.ask(second.caller(), request)
            rest = Entries.of(second.directory)
            files = MemoryFiles()
            rest.directory(files, min(again, len(rest.entries)))
            third = Rig(generation, files)
            if again % 2:
                third.snapshot()
            answer = third.ask(third.caller(), request)
            assert isinstance(answer, v2.Enqueued)
            found = [(i, key, payload) for i, key, payload in third.queue("q").tasks]
            assert sorted((key, payload) for _, key, payload in found) == sorted(
                zip(keys, bodies, strict=True)
            )
            told = [i for run in answer.runs for i in range(run.first, run.first + run.count)]
            assert told == [i for i, _, _ in found]
            assert len(third.queue("q").expiring) == 4
            assert third.ask(third.caller(), request) == answer
            third.restart()
            assert third.ask(third.caller(), request) == answer


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("key", [None, 5], ids=["dead letter", "new key"])
def test_a_move_that_a_crash_cut_doubles_the_task_and_loses_none(
    generation: Generation, key: int | None
) -> None:
    rig = Rig(generation)
    caller, name, dead = rig.caller(), QueueName("q"), QueueName("dead")
    rig.ask(caller, v2.Create(dead, Policy()))
    attempts_max = 1 if key is None else 9
    rig.ask(caller, v2.Create(name, Policy(), 0, attempts_max, dead))
    rig.ask(caller, v2.Enqueue(name, [1, 1], [b"one", b"two"], None, 10**6))
    got = rig.ask(caller, v2.Dequeue(name, 2))
    assert isinstance(got, v2.Delivered)
    start = rig.directory.log.end
    rig.ask(caller, v2.Nack([got.token, got.token + 1], None, key))
    log = Entries.of(rig.directory)
    for cut in range(start, len(log.entries) + 1):
        files = MemoryFiles()
        log.directory(files, cut)
        found = payloads(Rig(generation, files).state)
        assert found.keys() == {b"one", b"two"}
        assert max(found.values()) <= 2
    assert set(payloads(log.replayed(len(log.entries))).values()) == {1}


# --- what the entries say ------------------------------------------------------------------------


def replayed(generation: Generation, *payloads_: bytes) -> State:
    entries = [
        Entry(index=Index(i), term=Term(1), payload=payload) for i, payload in enumerate(payloads_)
    ]
    return Entries(generation, entries).replayed(len(entries))


def delta(change: Delta) -> bytes:
    return encode_delta(change)


def add(payload: bytes, key: int = 0, queue: str = "") -> bytes:
    return delta(AddTask(queue=QueueName(queue), key=key, payload=payload))


def adding(count: int, **terms: int) -> bytes:
    return encode_extension(Adding(count=count, terms=Terms(**terms)))  # type: ignore[arg-type]


LATER = 10**13


@pytest.mark.parametrize("generation", GENERATIONS)
def test_terms_end_with_the_run_that_they_were_given_for(generation: Generation) -> None:
    state = replayed(
        generation, adding(2, expires_ms=LATER), add(b"a"), add(b"b"), add(b"c"), add(b"d")
    )
    assert dict(state.by_name[DEFAULT_QUEUE].expiring) == {1: LATER, 2: LATER}


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    "between",
    [
        delta(NOTHING),
        delta(CreateQueue(queue=QueueName("new"), policy=Policy())),
        delta(DeleteQueue(queue=QueueName("none"))),
        adding(1, attempts=3),
        encode_extension(Removing(ids=(1,))),
        encode_extension(Returning(queue=0, ids=(1,))),
    ],
    ids=["nothing", "create", "delete", "adding", "removing", "returning"],
)
def test_terms_end_where_another_entry_cuts_the_run(generation: Generation, between: bytes) -> None:
    # A new leader's first entry says nothing: what it adds is not under the terms of a request before.
    state = replayed(
        generation, adding(3, expires_ms=LATER), add(b"a"), between, add(b"b"), add(b"c")
    )
    assert dict(state.by_name[DEFAULT_QUEUE].expiring) == {1: LATER}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_an_empty_entry_keeps_an_index_and_changes_nothing(generation: Generation) -> None:
    state = replayed(generation, add(b"a"), b"", add(b"b"))
    assert len(state.by_name[DEFAULT_QUEUE]) == 2


@pytest.mark.parametrize("generation", GENERATIONS)
def test_options_are_for_the_creation_right_behind_them(generation: Generation) -> None:
    options = encode_extension(Creating(lease_ms=5, attempts_max=None, dead_letter=0))
    first = delta(CreateQueue(queue=QueueName("a"), policy=Policy()))
    second = delta(CreateQueue(queue=QueueName("b"), policy=Policy()))
    state = replayed(generation, options, first, second, options, add(b"x"))
    assert [queue.options.lease_ms for queue in state.queues()] == [60_000, 5, 60_000]
    state = replayed(generation, options, add(b"x"), first)
    assert state.by_name[QueueName("a")].options.lease_ms == 60_000


def removal(payload: bytes, key: int = 0) -> bytes:
    return delta(RemoveEqualTask(queue=DEFAULT_QUEUE, key=key, payload=payload))


def ids(state: State) -> list[int]:
    return [task_id for task_id, _, _ in state.by_name[DEFAULT_QUEUE].tasks]


def test_a_removal_by_value_takes_the_task_that_the_extension_names() -> None:
    three = [add(b"x"), add(b"x"), add(b"x")]
    named = encode_extension(Removing(ids=(2,)))
    assert ids(replayed(Generation.TWO, *three, named, removal(b"x"))) == [1, 3]
    # Without one, and behind its end, the oldest goes, as the format has it.
    assert ids(replayed(Generation.TWO, *three, named, removal(b"x"), removal(b"x"))) == [3]
    assert ids(replayed(Generation.TWO, *three, removal(b"x"), named, removal(b"x"))) == [3]
    assert ids(replayed(Generation.TWO, *three, removal(b"none"))) == [1, 2, 3]


def test_a_removal_of_something_else_than_the_extension_names_is_taken_by_value() -> None:
    # Another program may go on in a log that was cut behind our extension.
    log = [add(b"x"), add(b"y"), add(b"y"), encode_extension(Removing(ids=(1,))), removal(b"y")]
    assert ids(replayed(Generation.TWO, *log)) == [1, 3]


def test_removals_by_value_find_tasks_of_a_default_queue_that_was_deleted_before() -> None:
    # TaskFlux lets its clients delete the default queue (W23): it begins anew, under the same number.
    log = [add(b"x"), removal(b"x"), delta(DeleteQueue(queue=DEFAULT_QUEUE)), add(b"x"), add(b"y")]
    assert ids(replayed(Generation.TWO, *log)) == [1, 2]
    assert ids(replayed(Generation.TWO, *log, removal(b"x"))) == [2]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_returns_to_a_queue_that_was_deleted_is_gone_with_it(generation: Generation) -> None:
    create = delta(CreateQueue(queue=QueueName("q"), policy=Policy()))
    drop = delta(DeleteQueue(queue=QueueName("q")))
    late = encode_extension(Returning(queue=1, ids=(1,)))
    state = replayed(generation, create, add(b"x", queue="q"), drop, create, late)
    assert [queue.number for queue in state.queues()] == [0, 2]


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    "bad",
    [
        add(b"x", queue="missing"),
        encode_extension(Returning(queue=0, ids=(9,))),
        delta(CreateQueue(queue=DEFAULT_QUEUE, policy=Policy())),
        b"\x44\x0e!penstock.1.!!",
        b"Z",
    ],
)
def test_an_entry_that_contradicts_the_state_is_named(generation: Generation, bad: bytes) -> None:
    with pytest.raises(ReplayConflict, match=r"entry 2: .*penstock repair"):
        replayed(generation, add(b"a"), add(b"b"), bad, add(b"c"))


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_delay_that_was_over_when_the_task_was_delivered_does_not_come_back(
    generation: Generation,
) -> None:
    # Replay has no clock; that a task came back without a delay says that the old one was over.
    log = [
        adding(1, not_before_ms=LATER),
        add(b"x"),
        encode_extension(Returning(queue=0, ids=(1,))),
    ]
    state = replayed(generation, *log)
    assert not len(state.by_name[DEFAULT_QUEUE].delayed)
    assert delivered_order(state, 0) == {"": [1]}


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("acked", [1, 3], ids=["some left", "drained"])
def test_ids_go_on_behind_a_snapshot_though_the_file_has_no_place_for_them(
    generation: Generation, acked: int
) -> None:
    # Generation 2 stores no ids. Entries behind a snapshot name tasks by those they had before it.
    rig = Rig(generation)
    caller = rig.caller()
    rig.ask(caller, v2.Enqueue(DEFAULT_QUEUE, [0, 0, 0], [b"x", b"x", b"x"]))
    got = rig.ask(caller, v2.Dequeue(DEFAULT_QUEUE, acked))
    assert isinstance(got, v2.Delivered)
    rig.ask(caller, v2.Ack(range(got.token, got.token + acked)))
    rig.snapshot()
    rig.ask(caller, v2.Enqueue(DEFAULT_QUEUE, [-1], [b"x"]))
    got = rig.ask(caller, v2.Dequeue(DEFAULT_QUEUE, 1))
    assert isinstance(got, v2.Delivered)
    assert list(got.ids) == [4]
    rig.ask(caller, v2.Nack([got.token]))
    assert rig.rebuilt() == rig.dump()
    rig.restart()
    assert rig.queue().attempts == {4: 1}
