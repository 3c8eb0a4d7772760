"""Random changes of generation 4, for round trips: every kind and every column, in both forms."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st

from penstock.formats.records.add import TIME_MAX_IN_REQUEST, Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    DeleteQueue,
    Deliver,
    Empty,
    Envelope,
    MoveTasks,
    Part,
    RemoveTasks,
    ReturnTasks,
    SetAccess,
    SetMembers,
    SetQueue,
    SetTasks,
    Stamp,
)
from penstock.formats.records.columns import NONE, TIME_DISTANCE_MAX, Extension
from penstock.formats.records.ids import (
    DeliverReason,
    Ids,
    MoveReason,
    RemoveReason,
    ReturnReason,
)
from penstock.formats.records.settings import (
    AccessSettings,
    ClusterSettings,
    MemberSettings,
    QueueSettings,
)
from penstock.formats.records.task_headers import encode_headers
from penstock.model import INT64_MAX, INT64_MIN, UINT64_MAX, QueueName

u32s = st.integers(0, 2**32 - 1)
u64s = st.integers(0, UINT64_MAX)
queue_ids = st.integers(1, 2**32 - 1)
first_ids = st.integers(1, UINT64_MAX - 100)
keys = st.integers(INT64_MIN, INT64_MAX)
times = st.integers(-TIME_DISTANCE_MAX, TIME_DISTANCE_MAX)
times_or_none = times | st.just(NONE)
names = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
short_bytes = st.binary(max_size=20)
texts = st.text(max_size=10).map(str.encode)
producers = st.tuples(st.binary(min_size=16, max_size=16), u64s)
headers = st.dictionaries(names.filter(bool), short_bytes, max_size=3)
extensions = st.lists(
    st.builds(Extension, st.integers(0, 2**16 - 1), st.just(0), short_bytes), max_size=2
).map(tuple)
stamps = st.builds(
    Stamp,
    index=st.integers(1, INT64_MAX),
    term=st.integers(1, INT64_MAX),
    time_ms=st.integers(0, 2**53),
    principal_id=u32s,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3)
    ),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=5), json_values, max_size=3)


def strange(*known: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return members of a JSON object that a later version might write."""
    return st.dictionaries(
        st.text(max_size=5).filter(lambda name: name not in known), json_values, max_size=2
    )


@st.composite
def request_columns(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """Draw the columns that a request may have."""
    life = st.integers(0, TIME_MAX_IN_REQUEST)
    each = st.lists(life | st.just(NONE), min_size=count, max_size=count)
    return draw(
        st.fixed_dictionaries(
            {},
            optional={
                "not_before": life | each,
                "expires": life | each,
                "headers": st.lists(headers, min_size=count, max_size=count),
                "producer": producers,
            },
        )
    )


@st.composite
def record_columns(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """Draw the columns that a record may have."""

    def each(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(values, min_size=count, max_size=count)

    columns: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "not_before": times | each(times_or_none),
                "expires": times | each(times_or_none),
                "headers": each(headers),
                "producer": producers,
                "groups": each(short_bytes),
                "unique": each(short_bytes),
                "producers": each(st.none() | producers),
                "attempts": each(u32s),
                "enqueued": each(times_or_none),
                "principals": each(u32s),
                "entries": each(u64s),
                "born": each(st.none() | st.tuples(queue_ids, u64s)),
                "origins": each(short_bytes),
                "extensions": extensions,
            },
        )
    )
    if "producer" in columns:
        columns.pop("producers", None)
    return columns


@st.composite
def request_bodies(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """Draw the arguments of ``encode_add`` for a request, and the body."""
    count = draw(st.integers(1, 5))
    arguments = draw(request_columns(count)) | _drawn_tasks(draw, count)
    return arguments, encode_add(**arguments)


def _drawn_tasks(draw: st.DrawFn, count: int) -> dict[str, Any]:
    return {
        "name": draw(names).encode(),
        "keys": draw(keys | st.lists(keys, min_size=count, max_size=count)),
        "payloads": draw(st.lists(short_bytes, min_size=count, max_size=count)),
    }


@st.composite
def ascending(draw: st.DrawFn, count: int | None = None) -> array[int]:
    """Draw ids that are not all consecutive, unless there is one only."""
    least, most = (1, 5) if count is None else (count, count)
    steps = draw(st.lists(st.integers(1, 10), min_size=least, max_size=most))
    start = draw(first_ids)
    return array("Q", accumulate(steps[1:], initial=start))


@st.composite
def adds(draw: st.DrawFn) -> AddTasks:
    """Draw an add with any columns."""
    count = draw(st.integers(1, 5))
    arguments = draw(record_columns(count)) | _drawn_tasks(draw, count)
    ids = draw(ascending(count))
    body = encode_add(**arguments, ids=ids)
    return AddTasks(draw(queue_ids), ids[0], decode_add(body, 0, len(body), Rules.RECORD))


@st.composite
def id_changes(draw: st.DrawFn) -> Any:
    """Draw a change by id: its ids, and a function that draws an optional column of them."""
    ids: Ids = draw(ascending() | st.builds(lambda start: range(start, start + 3), first_ids))

    def optional(one: st.SearchStrategy[Any], each: st.SearchStrategy[Any] | None = None) -> Any:
        both = st.lists(one if each is None else each, min_size=len(ids), max_size=len(ids))
        return draw(st.none() | both | (one if each is None else st.nothing()))

    queue_id, added = draw(queue_ids), draw(extensions)
    blobs = st.lists(short_bytes, min_size=len(ids), max_size=len(ids))
    match draw(st.integers(0, 4)):
        case 0:
            reason = draw(st.sampled_from(RemoveReason))
            if isinstance(ids, range) and draw(st.booleans()):
                return RemoveTasks(queue_id, ids, reason, True, None, added)
            return RemoveTasks(queue_id, ids, reason, False, draw(st.none() | blobs), added)
        case 1:
            return ReturnTasks(
                queue_id, ids, draw(st.sampled_from(ReturnReason)), optional(times_or_none),
                optional(keys), optional(texts), added,
            )  # fmt: skip
        case 2:
            return MoveTasks(
                queue_id, ids, draw(st.sampled_from(MoveReason)), draw(queue_ids), draw(u64s),
                optional(times_or_none), optional(keys), optional(times_or_none), optional(texts), added,
            )  # fmt: skip
        case 3:
            encoded = headers.map(encode_headers)
            return SetTasks(
                queue_id, ids, optional(keys), optional(times_or_none), optional(times_or_none),
                optional(st.nothing(), encoded), added,
            )  # fmt: skip
        case _:
            return Deliver(
                queue_id,
                ids,
                draw(st.sampled_from(DeliverReason)),
                draw(names).encode(),
                draw(times),
                added,
            )


task_changes = adds() | id_changes().filter(lambda change: not isinstance(change, Deliver))

queue_settings = st.builds(
    QueueSettings,
    name=names.map(QueueName),
    policy=objects,
    options=objects,
    last_id=st.none() | st.integers(0, 2**53),
    other=strange("name"),
)
cluster_settings = st.builds(
    ClusterSettings,
    members=st.lists(
        st.builds(
            MemberSettings,
            number=st.integers(0, 2**31),
            roles=st.lists(st.text(max_size=5), max_size=2).map(tuple),
            addresses=objects,
            other=strange("roles"),
        ),
        max_size=3,
        unique_by=lambda member: member.number,
    ).map(lambda members: tuple(sorted(members, key=lambda member: member.number))),
    feature_level=st.integers(0, 100),
    cluster_id=st.none() | st.binary(min_size=16, max_size=16),
    other=strange(),
)
access_settings = st.builds(
    AccessSettings,
    users=st.lists(objects, max_size=2).map(tuple),
    grants=st.lists(objects, max_size=2).map(tuple),
    tokens=st.lists(objects, max_size=2).map(tuple),
    principals=st.dictionaries(queue_ids, st.text(max_size=5), max_size=3),
    other=strange("users"),
)

changes: st.SearchStrategy[Change] = st.one_of(
    st.just(Empty()),
    adds(),
    id_changes(),
    st.builds(SetQueue, queue_ids, queue_settings),
    st.builds(DeleteQueue, queue_ids),
    st.builds(SetMembers, cluster_settings),
    st.builds(SetAccess, access_settings),
    st.builds(
        Envelope,
        st.lists(
            st.tuples(task_changes, u32s).map(lambda part: Part(*part)), min_size=1, max_size=3
        ).map(tuple),
    ),
)
