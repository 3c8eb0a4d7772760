"""Values that cannot hold what is not valid."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import model
from penstock.errors import InvalidQueueName, InvalidValue, PenstockError
from penstock.model import (
    DEFAULT_QUEUE,
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    NO_INDEX,
    NO_LIMITS,
    NOTHING,
    RESERVED_PREFIX,
    UINT64_MAX,
    CreateQueue,
    DeleteQueue,
    HardState,
    Implementation,
    Index,
    KeyRange,
    NodeId,
    Policy,
    QueueHead,
    QueueName,
    SnapshotPoint,
    TaskId,
    Term,
)

# --- names ---------------------------------------------------------------------------------------


def test_a_name_holds_printable_ascii_without_space() -> None:
    for code in range(256):
        text = f"a{chr(code)}z"
        if 33 <= code <= 126:
            assert QueueName(text) == text
        else:
            with pytest.raises(InvalidQueueName):
                QueueName(text)


@pytest.mark.parametrize("text", ["ключ", "ａ", "a\u0301", "\ud800", "٣", "\u2028"])
def test_a_name_holds_no_letters_beyond_ascii(text: str) -> None:
    with pytest.raises(InvalidQueueName):
        QueueName(text)


@pytest.mark.parametrize("size", [0, 1, 255])
def test_a_name_has_up_to_255_letters(size: int) -> None:
    assert len(QueueName("n" * size)) == size


@pytest.mark.parametrize("size", [256, 257, 100_000])
def test_a_longer_name_is_invalid(size: int) -> None:
    with pytest.raises(InvalidQueueName, match=str(size)):
        QueueName("n" * size)


def test_an_invalid_name_is_an_invalid_value() -> None:
    assert issubclass(InvalidQueueName, InvalidValue)
    assert issubclass(InvalidValue, PenstockError)


def test_a_name_of_a_name_is_that_name() -> None:
    name = QueueName("orders")
    assert QueueName(name) is name


def test_names_are_equal_to_their_text_and_differ_by_case() -> None:
    assert QueueName("orders") == "orders"
    assert hash(QueueName("orders")) == hash("orders")
    assert QueueName("orders") != QueueName("Orders")


def test_names_survive_copying_and_pickling() -> None:
    name = QueueName("orders")
    for copy in (deepcopy(name), pickle.loads(pickle.dumps(name))):
        assert copy == name
        assert type(copy) is QueueName


@given(st.text())
def test_text_is_a_name_or_invalid(text: str) -> None:
    is_valid = len(text) <= 255 and all(33 <= ord(letter) <= 126 for letter in text)
    if is_valid:
        assert QueueName(text) == text
    else:
        with pytest.raises(InvalidQueueName):
            QueueName(text)


def test_the_reserved_prefix_is_a_name_like_any_other_to_the_format() -> None:
    assert DEFAULT_QUEUE == ""
    assert QueueName(RESERVED_PREFIX) == "!penstock."
    assert isinstance(NOTHING, DeleteQueue)
    assert NOTHING.queue.startswith(RESERVED_PREFIX)


# --- policies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lowest", "highest", "is_valid"),
    [
        (0, 0, True),
        (-1, 1, True),
        (INT64_MIN, INT64_MAX, True),
        (1, 0, False),
        (INT64_MIN - 1, 0, False),
        (0, INT64_MAX + 1, False),
    ],
)
def test_a_key_range_holds_a_key_at_least_and_64_bits_at_most(
    lowest: int, highest: int, is_valid: bool
) -> None:
    if is_valid:
        keys = KeyRange(lowest=lowest, highest=highest)
        assert (keys.lowest, keys.highest) == (lowest, highest)
    else:
        with pytest.raises(InvalidValue):
            KeyRange(lowest=lowest, highest=highest)


@pytest.mark.parametrize("limit", [-1, 2**32, -(2**40)])
def test_limits_are_from_0_to_32_bits(limit: int) -> None:
    with pytest.raises(InvalidValue, match="queue size limit"):
        Policy(size_max=limit)
    with pytest.raises(InvalidValue, match="payload size limit"):
        Policy(payload_size_max=limit)


@pytest.mark.parametrize("limit", [None, 0, 1, INT32_MAX, 2**32 - 1])
def test_none_and_0_are_different_limits(limit: int | None) -> None:
    assert Policy(size_max=limit).size_max == limit
    assert Policy(payload_size_max=limit).payload_size_max == limit


def test_an_array_queue_needs_a_range() -> None:
    with pytest.raises(InvalidValue, match="key range"):
        Policy(implementation=Implementation.ARRAY)
    keys = KeyRange(lowest=0, highest=9)
    assert Policy(implementation=Implementation.ARRAY, keys=keys).keys == keys


def test_no_limits_is_a_heap_that_takes_everything() -> None:
    assert Policy() == NO_LIMITS
    assert NO_LIMITS.implementation is Implementation.HEAP
    assert (NO_LIMITS.size_max, NO_LIMITS.payload_size_max, NO_LIMITS.keys) == (None, None, None)


def test_implementations_have_the_numbers_of_the_files() -> None:
    found = {member.name: member.value for member in Implementation}
    assert found == {"HEAP": 1, "ARRAY": 2, "PAGED": 1001}


# --- places in the log ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "is_valid"),
    [(0, False), (-1, False), (1, True), (INT64_MAX, True), (INT64_MAX + 1, False)],
)
def test_terms_are_from_1_to_64_bits(term: int, is_valid: bool) -> None:
    if is_valid:
        assert HardState(term=Term(term)).term == term
        assert SnapshotPoint(index=Index(0), term=Term(term)).term == term
    else:
        with pytest.raises(InvalidValue):
            HardState(term=Term(term))
        with pytest.raises(InvalidValue):
            SnapshotPoint(index=Index(0), term=Term(term))


@pytest.mark.parametrize(
    ("vote", "is_valid"), [(None, True), (0, True), (INT32_MAX, True), (-1, False), (2**31, False)]
)
def test_votes_are_for_nodes_from_0_to_31_bits(vote: int | None, is_valid: bool) -> None:
    node = None if vote is None else NodeId(vote)
    if is_valid:
        assert HardState(vote=node).vote == vote
    else:
        with pytest.raises(InvalidValue):
            HardState(vote=node)


def test_a_new_node_is_in_term_1_and_voted_for_nobody() -> None:
    assert HardState() == HardState(term=Term(1), vote=None)


@pytest.mark.parametrize(
    ("index", "is_valid"), [(-1, False), (0, True), (INT64_MAX, True), (INT64_MAX + 1, False)]
)
def test_a_snapshot_covers_an_entry_at_least(index: int, is_valid: bool) -> None:
    if is_valid:
        assert SnapshotPoint(index=Index(index), term=Term(1)).index == index
    else:
        with pytest.raises(InvalidValue):
            SnapshotPoint(index=Index(index), term=Term(1))
    assert NO_INDEX == -1


@pytest.mark.parametrize(
    ("last_id", "count", "is_valid"),
    [
        (0, 0, True),
        (UINT64_MAX, 5, True),
        (-1, 0, False),
        (UINT64_MAX + 1, 0, False),
        (0, -1, False),
    ],
)
def test_a_queue_head_has_an_id_of_64_bits_and_no_negative_count(
    last_id: int, count: int, is_valid: bool
) -> None:
    def head() -> QueueHead:
        return QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(last_id), count=count)

    if is_valid:
        assert head().last_id == last_id
    else:
        with pytest.raises(InvalidValue):
            head()


# --- all values ----------------------------------------------------------------------------------

VALUES = [
    value for value in vars(model).values() if isinstance(value, type) and is_dataclass(value)
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.__name__)
def test_values_are_frozen_slotted_and_built_by_name(value: type) -> None:
    assert value.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(value)
    assert all(field.kw_only for field in fields(value))


def test_a_value_cannot_be_changed() -> None:
    policy = Policy(size_max=1)
    with pytest.raises(FrozenInstanceError):
        policy.size_max = -1  # type: ignore[misc]
    assert len(VALUES) >= 16


def test_equal_values_are_equal_and_hash_alike() -> None:
    one = CreateQueue(queue=QueueName("q"), policy=Policy(size_max=3))
    two = CreateQueue(queue=QueueName("q"), policy=Policy(size_max=3))
    assert one == two
    assert len({one, two}) == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: model.AddTask(queue=QueueName("q"), key=2**63, payload=b""),
        lambda: model.AddTask(queue=QueueName("q"), key=-(2**63) - 1, payload=b""),
        lambda: model.RemoveEqualTask(queue=QueueName("q"), key=2**70, payload=b""),
        lambda: model.Enqueue(queue=QueueName("q"), key=2**63, payload=b""),
        lambda: model.RemoveTask(queue=QueueName("q"), id=model.TaskId(-1)),
        lambda: model.RemoveTask(queue=QueueName("q"), id=model.TaskId(2**64)),
        lambda: model.Task(id=model.TaskId(0), key=0, payload=b""),
        lambda: model.Task(id=model.TaskId(1), key=2**63, payload=b""),
        lambda: model.Entry(index=model.Index(-1), term=model.Term(1), payload=b""),
        lambda: model.Entry(index=model.Index(0), term=model.Term(0), payload=b""),
    ],
)
def test_a_change_that_no_file_could_hold_cannot_be_built(build: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue):
        build()
