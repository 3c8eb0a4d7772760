"""Bodies of canonical JSON: unknown members are kept, wrong ones refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecord
from penstock.formats.records.canonical import encode_canonical
from penstock.formats.records.columns import padded
from penstock.formats.records.settings import (
    ClusterSettings,
    MemberSettings,
    QueueSettings,
    SnapshotEnd,
    SnapshotStart,
    decode_access,
    decode_cluster,
    decode_queue,
    decode_snapshot_end,
    decode_snapshot_start,
    encode_settings,
)
from penstock.model import QueueName
from support.record_strategies import strange

ID = bytes(range(16))
QUEUE = {"name": "mail", "options": {}, "policy": {}}
MEMBERS = {"feature_level": 1, "members": [{"addresses": {}, "number": 2, "roles": ["voter"]}]}
ACCESS: dict[str, Any] = {"grants": [], "principals": [], "tokens": [], "users": []}
START = SnapshotStart(
    last_index=9,
    last_term=2,
    last_checksum=2**32 - 1,
    time_ms=2**53,
    next_queue_id=2**32,
    feature_level=1,
    cluster_id=ID,
    counts={"queues": 1, "tasks": 5},
    other={"later": [1]},
)
END = SnapshotEnd(counts={"records": 3}, digest=ID)


def body_of(value: object) -> bytes:
    return padded(encode_canonical(value))


def test_members_that_are_not_known_are_kept() -> None:
    body = body_of(QUEUE | {"color": {"deep": [1, None]}})
    queue = decode_queue(body, 0, len(body))
    assert queue == QueueSettings(name=QueueName("mail"), other={"color": {"deep": [1, None]}})
    assert encode_settings(queue) == body
    member = MEMBERS["members"][0] | {"zone": "b"}  # type: ignore[index]
    body = body_of(MEMBERS | {"members": [member], "more": True})
    cluster = decode_cluster(body, 0, len(body))
    assert cluster == ClusterSettings(
        members=(MemberSettings(number=2, roles=("voter",), other={"zone": "b"}),),
        feature_level=1,
        other={"more": True},
    )
    assert encode_settings(cluster) == body


def test_start_and_end_of_a_snapshot_round_trip() -> None:
    start, end = encode_settings(START), encode_settings(END)
    assert decode_snapshot_start(start, 0, len(start)) == START
    assert decode_snapshot_end(end, 0, len(end)) == END


counts = st.dictionaries(st.text(max_size=5), st.integers(0, 2**53), max_size=3)
numbers = st.integers(0, 2**53)
u32s = st.integers(0, 2**32 - 1)
starts = st.builds(
    SnapshotStart,
    last_index=numbers,
    last_term=numbers,
    last_checksum=u32s,
    time_ms=numbers,
    next_queue_id=u32s,
    feature_level=numbers,
    cluster_id=st.binary(min_size=16, max_size=16),
    counts=counts,
    other=strange("counts"),
)
snapshot_ends = st.builds(
    SnapshotEnd,
    counts=counts,
    digest=st.binary(min_size=16, max_size=16),
    continues=st.booleans(),
    other=strange(),
)


@given(starts, snapshot_ends)
def test_any_start_and_end_of_a_snapshot_round_trip(start: SnapshotStart, end: SnapshotEnd) -> None:
    body = encode_settings(start)
    assert decode_snapshot_start(memoryview(body), 0, len(body)) == start
    body = encode_settings(end)
    assert decode_snapshot_end(memoryview(body), 0, len(body)) == end


@pytest.mark.parametrize(
    ("decode", "value"),
    [
        (decode_queue, []),
        (decode_queue, {"options": {}, "policy": {}}),
        (decode_queue, QUEUE | {"name": "a b"}),
        (decode_queue, QUEUE | {"name": 1}),
        (decode_queue, QUEUE | {"policy": None}),
        (decode_queue, QUEUE | {"last_id": -1}),
        (decode_queue, QUEUE | {"last_id": True}),
        (decode_cluster, MEMBERS | {"feature_level": "1"}),
        (decode_cluster, MEMBERS | {"cluster_id": "00"}),
        (decode_cluster, MEMBERS | {"cluster_id": "G" * 32}),
        (decode_cluster, MEMBERS | {"members": [1]}),
        (decode_cluster, MEMBERS | {"members": MEMBERS["members"] * 2}),  # type: ignore[operator]
        (decode_cluster, MEMBERS | {"members": [{"addresses": {}, "number": 2, "roles": [1]}]}),
        (decode_access, ACCESS | {"users": {}}),
        (decode_access, ACCESS | {"principals": [{"id": 0, "name": "a"}]}),
        (decode_access, ACCESS | {"principals": [{"id": 1, "name": "a"}] * 2}),
        (decode_access, ACCESS | {"principals": [{"id": 1}]}),
        (decode_snapshot_start, {}),
        (decode_snapshot_end, {"counts": {"tasks": -1}, "digest": "00" * 16}),
        (decode_snapshot_end, {"counts": {}, "digest": "00" * 15}),
        (decode_snapshot_end, {"counts": {}, "digest": "00" * 16, "continues": False}),
        (decode_snapshot_end, {"counts": {}, "digest": "00" * 16, "continues": 1}),
    ],
)
def test_settings_that_break_a_rule_are_refused(
    decode: Callable[[bytes, int, int], object], value: object
) -> None:
    body = bytes(8) + body_of(value)
    with pytest.raises(BadRecord) as caught:
        decode(body, 8, len(body))
    assert caught.value.offset == 8


@pytest.mark.parametrize("tail", [bytes(8), b"\0" * 3 + b" " + b"\0" * 4, b""])
def test_padding_must_be_zero_and_short(tail: bytes) -> None:
    body = encode_canonical(QUEUE | {"name": "mails"}) + tail
    with pytest.raises(BadRecord):
        decode_queue(body, 0, len(body))
