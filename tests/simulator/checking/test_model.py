"""The sequential model: what a right queue answers, by hand."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from random import Random

import simulation.checking
from penstock.model import KeyRange, Policy
from simulation.checking.history import Op, Operation, Outcome, Refusal, TaskName
from simulation.checking.model import Model
from simulation.checking.samples import Life
from simulator.checking.made import enq, event, settle, unknown


def add(name: TaskName, key: int = 1, **fields: object) -> Operation:
    return enq(name, key, 0, 1, **fields)


def take(*names: TaskName, process: str = "c", **fields: object) -> Operation:
    fields.setdefault("asked", max(1, len(names)))
    return Operation(op=Op.DEQUEUE, process=process, ids=names, t0=0, t1=1, **fields)  # type: ignore[arg-type]


def end(op: Op, name: TaskName, **fields: object) -> Operation:
    return settle(op, name, 0, 1, **fields)


def refused(operation: Operation, reason: str) -> Operation:
    return replace(operation, outcome=Outcome.FAIL, reason=reason)


def play(*operations: Operation, model: Model | None = None) -> str | None:
    """Apply operations, all of which but the last must be right, and return what is wrong with the last."""
    model = model or Model()
    for operation in operations[:-1]:
        assert model.apply(operation) is None, operation
    return model.apply(operations[-1])


def create(queue: str = "q", **limits: object) -> Operation:
    policy = Policy(**limits)  # type: ignore[arg-type]
    return event(Op.CREATE, 0, 1, queue=queue, policy=policy)


def test_the_smallest_key_comes_first_and_within_a_key_the_first() -> None:
    tasks = [add("a", 2), add("b", 1), add("c", 2), add("d", 1)]
    assert play(*tasks, take("b"), take("d", "a"), take("c"), take()) is None
    assert play(*tasks, take("d")) == "task 'd' was delivered, and 'b' was next"
    assert play(*tasks, take()) == "task 'b' was waiting"
    assert play(add("a"), take("a"), take("a")) == "task 'a' was delivered from an empty queue"
    assert (
        play(add("a", 1), take("a", keys=(2,)))
        == "task 'a' was delivered with key 2, and came with 1"
    )
    assert play(*tasks, take("b", "d", asked=1)) == "2 tasks were delivered, and 1 asked for"


def test_fewer_than_asked_for_may_be_delivered_but_not_none() -> None:
    assert play(add("a"), add("b"), take("a", asked=5), take("b", asked=5)) is None
    assert play(add("a"), take(asked=5)) == "task 'a' was waiting"


def test_what_comes_back_comes_to_its_old_place() -> None:
    out = [add("a"), add("b"), add("c"), take("a", "b")]
    for back in (
        [end(Op.NACK, "a")],
        [end(Op.LEASE_END, "a", process="node")],
        [event(Op.DISCONNECT, 0, 1, process="c")],
        [event(Op.LEAD, 0, 1)],
    ):
        assert play(*out, *back, take("a")) is None
        assert play(*out, *back, take("c")) == "task 'c' was delivered, and 'a' was next"


def test_a_disconnect_returns_only_what_the_process_had() -> None:
    out = [add("a"), add("b"), take("a", process="x"), take("b", process="y")]
    assert play(*out, event(Op.DISCONNECT, 0, 1, process="y"), take("b"), take()) is None


def test_only_the_holder_can_settle() -> None:
    out = [add("a"), take("a", process="x")]
    for op in (Op.ACK, Op.NACK):
        assert play(*out, end(op, "a", process="x")) is None
        assert play(*out, end(op, "a", process="y")) == "it should have been refused: lease-lost"
        assert play(*out, refused(end(op, "a", process="y"), Refusal.LEASE_LOST)) is None
        wrong = refused(end(op, "a", process="x"), Refusal.LEASE_LOST)
        assert play(*out, wrong) == "it was refused as lease-lost, and should not have been"
    assert (
        play(
            *out,
            end(Op.ACK, "a", process="x"),
            refused(end(Op.ACK, "a", process="x"), "lease-lost"),
        )
        is None
    )


def test_a_token_tells_two_leases_of_one_process_apart() -> None:
    ended = [add("a"), take("a", tokens=(1,)), end(Op.LEASE_END, "a"), take("a", tokens=(2,))]
    assert play(*ended, end(Op.ACK, "a", tokens=(1,))) == "it should have been refused: lease-lost"
    assert play(*ended, end(Op.ACK, "a", tokens=(2,))) is None


def test_what_was_acknowledged_is_gone() -> None:
    assert play(add("a"), take("a"), end(Op.ACK, "a"), event(Op.LEAD, 0, 1), take()) is None


def test_a_policy_is_kept_and_gives_its_own_reason() -> None:
    made = create(size_max=2, payload_size_max=10, keys=KeyRange(lowest=0, highest=5))

    def put(name: str, key: int = 1, size: int = 1) -> Operation:
        return add(name, key, queue="q", sizes=(size,))

    assert play(made, put("a"), put("b")) is None
    assert play(made, put("a"), put("b"), put("c")) == "it should have been refused: queue-full"
    assert play(made, put("a"), put("b"), refused(put("c"), "queue-full")) is None
    assert play(made, put("a"), refused(put("b"), "queue-full")) == (
        "it was refused as queue-full, and should not have been"
    )
    assert play(made, put("a", key=6)) == "it should have been refused: key-out-of-range"
    assert play(made, put("a", size=11)) == "it should have been refused: payload-too-large"
    assert play(made, refused(put("a", size=11), "key-out-of-range")) == (
        "it was refused as key-out-of-range, and not as payload-too-large"
    )


def test_tasks_on_lease_count_for_the_size() -> None:
    made = [create(size_max=1), add("a", queue="q"), take("a", queue="q")]
    assert play(*made, add("b", queue="q")) == "it should have been refused: queue-full"
    acked = end(Op.ACK, "a", queue="q")
    assert play(*made, acked, add("b", queue="q")) is None


def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    batch = Operation(process=1, op=Op.ENQUEUE, queue="q", ids=("a", "b"), keys=(1, 1), t0=0, t1=1)
    assert play(create(size_max=2), batch) is None
    assert play(create(size_max=1), batch) == "it should have been refused: queue-full"
    assert play(create(size_max=1), refused(batch, "queue-full"), take(queue="q")) is None


def test_refusals_that_no_queue_decides_are_taken_as_they_are() -> None:
    assert play(refused(add("a"), "not-leader"), take()) is None


def test_a_repetition_of_a_producer_adds_nothing() -> None:
    put = add("a", producer="p", sequence=1)
    assert play(put, put, take("a"), end(Op.ACK, "a"), put, take()) is None
    assert play(put, add("b", producer="p", sequence=2), take("a", "b")) is None
    assert play(put, add("b", producer="p", sequence=1)) == (
        "a repetition brought other tasks than the first attempt"
    )


def test_a_repetition_adds_what_the_first_attempt_did_not() -> None:
    whole = Operation(process=1, op=Op.ENQUEUE, ids=("a", "b"), keys=(5, 1), t0=0, t1=1, producer="p", sequence=1)  # fmt: skip
    part = unknown(add("a", 5, producer="p", sequence=1))
    assert play(part, whole, take("b", "a"), take()) is None


def test_a_repetition_is_answered_as_the_first_even_if_the_queue_is_full_or_gone() -> None:
    put = add("a", queue="q", producer="p", sequence=1)
    made = [create(size_max=1), put]
    assert play(*made, put) is None
    assert play(*made, event(Op.DELETE, 0, 1, queue="q"), put) is None


def test_a_purge_leaves_what_is_on_lease() -> None:
    tasks = [add("a"), add("b"), add("c"), take("a")]
    purge = event(Op.PURGE, 0, 1, count=2)
    assert play(*tasks, purge, take(), end(Op.NACK, "a"), take("a")) is None
    assert play(*tasks, event(Op.PURGE, 0, 1, count=3)) == "it removed 3 tasks, and 2 were waiting"


def test_a_queue_is_there_from_its_creation_to_its_deletion() -> None:
    put = add("a", queue="q")
    gone = event(Op.DELETE, 0, 1, queue="q")
    assert play(put) == "it should have been refused: queue-missing"
    assert play(refused(put, "queue-missing"), create(), put) is None
    assert play(create(), create()) == "it should have been refused: queue-exists"
    assert play(create(), refused(create(), "queue-exists")) is None
    assert play(create(), put, gone, create(), take(queue="q")) is None
    assert (
        play(
            create(),
            put,
            take("a", queue="q"),
            gone,
            refused(end(Op.ACK, "a", queue="q"), "lease-lost"),
        )
        is None
    )
    assert play(add("z"), create(), gone, take("z")) is None


def test_numbers_grow_and_a_task_keeps_its_own() -> None:
    assert play(add("a", numbers=(3,)), add("b", numbers=(4,)), take("a", numbers=(3,))) is None
    assert play(add("a", numbers=(3,)), add("b", numbers=(3,))) == (
        "task 'b' got number 3, and 3 was given before"
    )
    assert play(add("a", numbers=(3,)), take("a", numbers=(4,))) == (
        "task 'a' has number 3, and was answered with 4"
    )


def test_a_dequeue_without_an_answer_takes_what_is_next() -> None:
    assert play(add("a"), add("b"), unknown(take()), take("b"), take()) is None
    assert play(unknown(take()), add("a"), take("a")) is None


def test_a_copy_goes_its_own_way_and_equal_states_are_equal() -> None:
    model = Model()
    for operation in (add("a"), add("b"), take("a")):
        assert model.apply(operation) is None
    other = model.copy()
    assert other.state() == model.state()
    assert other.apply(end(Op.NACK, "a")) is None
    assert other.state() != model.state()
    assert model.apply(end(Op.ACK, "a")) is None
    assert play(take("b"), model=model) is None
    assert play(take("a"), model=other) is None


def test_the_order_of_equal_keys_is_part_of_the_state() -> None:
    one, other = Model(), Model()
    for model, names in ((one, "ab"), (other, "ba")):
        for name in names:
            assert model.apply(add(name)) is None
    assert one.state() != other.state()


def test_lives_of_another_queue_are_right() -> None:
    for seed in range(10):
        life = Life(Random(seed), 1000, unknown=0.0)
        model = Model()
        for operation in life.history:
            assert model.apply(operation) is None, f"seed {seed}: {operation}"


def test_no_check_imports_the_queues_it_judges() -> None:
    folder = Path(simulation.checking.__file__).parent
    allowed = ("penstock.errors", "penstock.model", "simulation.checking")
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            ours = [n for n in names if n.startswith(("penstock", "simulation"))]
            assert all(n.startswith(allowed) for n in ours), path
