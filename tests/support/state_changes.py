"""Random changes for a state of generation 4, most of them about tasks that are there."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import strategies as st

from penstock.formats.records.add import Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.changes import (
    AddTasks,
    Deliver,
    Envelope,
    MoveTasks,
    Part,
    RemoveTasks,
    ReturnTasks,
    SetTasks,
    TaskChange,
)
from penstock.formats.records.columns import NONE
from penstock.formats.records.ids import (
    DeliverReason,
    Ids,
    MoveReason,
    RemoveReason,
    ReturnReason,
)
from penstock.formats.records.task_headers import encode_headers
from support.naive_state import NaiveState

SIZES = (1, 1, 2, 3, 7, 40, 400)
"""Tasks of an add: small ones are merged in two tiers, large ones are cut up."""

KEYS = st.sampled_from((-3, 0, 1, 2, 5, 2**62))
DELAYS = st.sampled_from((0, 5, 50, 5000))
PAYLOADS = st.sampled_from((b"", b"a", b"bcd", b"e" * 40))
PRODUCERS = tuple(bytes([number]) * 16 for number in range(1, 4))
HEADERS = st.sampled_from(({}, {"a": b"1"}, {"a": b"", "b": b"22"}))
CONSUMERS = st.sampled_from((b"", b"c1", b"c2"))


def spread(draw: st.DrawFn, values: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Draw a few values and repeat them: one for each of many tasks."""
    few = draw(st.lists(values, min_size=1, max_size=4))
    return [few[number % len(few)] for number in range(count)]


def optional_column(draw: st.DrawFn, values: st.SearchStrategy[Any], count: int) -> Any:
    """Draw nothing, one value for all tasks, or one for each."""
    form = draw(st.integers(0, 3))
    if form == 0:
        return draw(values)
    return spread(draw, values, count) if form == 1 else None


@st.composite
def some_ids(draw: st.DrawFn, model: NaiveState, queue_id: int) -> Ids:
    """Draw ids, most of them of tasks of the queue: a range or scattered ones."""
    queue = model.queues.get(queue_id)
    known = sorted(queue.tasks) if queue is not None else []
    last = known[-1] if known else 0
    is_known: bool = draw(st.booleans())
    if known and is_known:
        start = draw(st.integers(0, len(known) - 1))
        step = draw(st.sampled_from((1, 1, 2, 7)))
        few = known[start::step][: draw(st.sampled_from(SIZES))]
    else:
        few = sorted(draw(st.sets(st.integers(1, last + 3), min_size=1, max_size=6)))
    if few[-1] - few[0] == len(few) - 1:
        return range(few[0], few[-1] + 1)
    return array("Q", few)


def draw_add(draw: st.DrawFn, model: NaiveState, queue_id: int) -> AddTasks:
    count = draw(st.sampled_from(SIZES))
    queue = model.queues.get(queue_id)
    gap = draw(st.sampled_from((0, 0, 0, 0, 3, -1)))
    first_id = max(1, (queue.last_id if queue is not None else 0) + 1 + gap)
    arguments: dict[str, Any] = {
        "not_before": optional_column(draw, DELAYS, count),
        "expires": optional_column(draw, DELAYS, count),
    }
    for name, values in (
        ("headers", HEADERS),
        ("groups", st.sampled_from((b"", b"g"))),
        ("unique", st.sampled_from((b"", b"u1"))),
        ("attempts", st.sampled_from((0, 1, 2**32 - 1))),
        ("enqueued", st.sampled_from((-7, 0, NONE))),
        ("principals", st.integers(0, 2)),
        ("entries", st.integers(1, 3)),
        ("born", st.sampled_from((None, (9, 4)))),
        ("origins", st.sampled_from((b"", b"{}"))),
    ):
        if draw(st.integers(0, 7)) == 0:
            arguments[name] = spread(draw, values, count)
    match draw(st.integers(0, 3)):
        case 0:
            arguments["producer"] = (draw(st.sampled_from(PRODUCERS)), draw(st.integers(0, 9)))
        case 1:
            one = st.none() | st.tuples(st.sampled_from(PRODUCERS), st.integers(0, 9))
            arguments["producers"] = spread(draw, one, count)
    if draw(st.integers(0, 3)) == 0:
        arguments["ids"] = array("Q", [first_id + 2 * number for number in range(count)])
    keys = draw(KEYS) if draw(st.booleans()) else spread(draw, KEYS, count)
    payloads = spread(draw, PAYLOADS, count)
    body = encode_add(b"name", keys, payloads, **arguments)
    return AddTasks(queue_id, first_id, decode_add(body, 0, len(body), Rules.RECORD))


@st.composite
def task_changes(draw: st.DrawFn, model: NaiveState) -> TaskChange:
    """Draw an add, a remove, a return, a move or a set."""
    queue_ids = st.sampled_from((*model.queues, *model.queues, *model.queues, 99))
    queue_id = draw(queue_ids)
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return draw_add(draw, model, queue_id)
    ids = draw(some_ids(model, queue_id))
    keys = optional_column(draw, KEYS, len(ids))
    not_before = optional_column(draw, DELAYS | st.just(NONE), len(ids))
    errors = optional_column(draw, st.sampled_from((b"", 'ä"'.encode())), len(ids))
    if kind == 1:
        return RemoveTasks(queue_id, ids, draw(st.sampled_from(RemoveReason)))
    if kind == 2:
        span = range(ids[0], ids[-1] + 1)
        return RemoveTasks(queue_id, span, draw(st.sampled_from(RemoveReason)), is_span=True)
    if kind == 3:
        reason = draw(st.sampled_from(ReturnReason))
        return ReturnTasks(queue_id, ids, reason, not_before, keys, errors)
    expires = optional_column(draw, DELAYS | st.just(NONE), len(ids))
    if kind == 4:
        target = draw(queue_ids)
        known = model.queues.get(target)
        first = max(
            1, (0 if known is None else known.last_id) + draw(st.sampled_from((1, 1, 1, 4, 0)))
        )
        reason = draw(st.sampled_from(MoveReason))
        return MoveTasks(queue_id, ids, reason, target, first, not_before, keys, expires, errors)
    headers = spread(draw, HEADERS.map(encode_headers), len(ids)) if draw(st.booleans()) else None
    return SetTasks(queue_id, ids, keys, not_before, expires, headers)


@st.composite
def deliveries(draw: st.DrawFn, model: NaiveState) -> Deliver:
    queue_id = draw(st.sampled_from((*model.queues, 99)))
    ids = draw(some_ids(model, queue_id))
    reason = draw(st.sampled_from(DeliverReason))
    return Deliver(queue_id, ids, reason, draw(CONSUMERS), draw(st.sampled_from((0, 30_000))))


@st.composite
def envelopes(draw: st.DrawFn, model: NaiveState) -> Envelope:
    """Draw an envelope of changes as they would be drawn one by one; the ids of later adds may collide."""
    changes = draw(st.lists(task_changes(model), min_size=1, max_size=3))
    return Envelope(tuple([Part(change, draw(st.integers(0, 3))) for change in changes]))
