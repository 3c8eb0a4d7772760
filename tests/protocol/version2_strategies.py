"""Any request and any answer of version 2, for tests by property."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock.model import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    LEASE_MS_MAX,
    UINT64_MAX,
    Implementation,
    KeyRange,
    Policy,
    QueueName,
    QueueOptions,
)
from penstock.protocol import version2 as v2
from penstock.protocol.frames import Frame, encode_frame

UINT32_MAX = 2**32 - 1

uint8 = st.integers(0, 255)
uint16 = st.integers(0, 2**16 - 1)
uint32 = st.integers(0, UINT32_MAX)
uint64 = st.integers(0, UINT64_MAX)
int64 = st.integers(INT64_MIN, INT64_MAX)
milliseconds = st.none() | st.integers(0, v2.MILLISECONDS_MAX)
names = st.builds(
    QueueName, st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=255)
)
tokens = st.lists(uint64, max_size=20).map(tuple)
limits = st.none() | st.integers(0, INT32_MAX)
ranges = st.tuples(int64, int64).map(lambda two: KeyRange(lowest=min(two), highest=max(two)))
producers = st.builds(v2.Producer, st.binary(min_size=16, max_size=16), uint64)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    implementation = draw(st.sampled_from(Implementation))
    is_heap = implementation is Implementation.HEAP
    return Policy(
        implementation=implementation,
        size_max=draw(limits),
        payload_size_max=draw(limits),
        keys=draw(st.none() | ranges if is_heap else ranges),
    )


@st.composite
def enqueues(draw: st.DrawFn) -> v2.Enqueue:
    tasks = draw(st.lists(st.tuples(int64, st.binary(max_size=40)), max_size=20))
    return v2.Enqueue(
        draw(names),
        tuple(key for key, _ in tasks),
        [payload for _, payload in tasks],
        draw(milliseconds),
        draw(milliseconds),
        draw(st.none() | producers),
    )


creates = st.builds(
    v2.Create,
    names,
    policies(),
    uint32,
    st.none() | st.integers(1, UINT32_MAX),
    st.none() | names,
)

node_ids = st.integers(1, INT32_MAX)
peer_addresses = st.builds(
    lambda host, port: f"{host}:{port}",
    st.from_regex(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]", fullmatch=True),
    st.integers(1, 65_535),
)


@st.composite
def change_members(draw: st.DrawFn) -> v2.ChangeMembers:
    nodes = draw(st.lists(node_ids, min_size=1, max_size=v2.STEPS_MAX, unique=True))
    steps = []
    for node in nodes:
        step = draw(st.sampled_from(v2.MemberStep))
        has_address = step is not v2.MemberStep.REMOVE and draw(st.booleans())
        steps.append(v2.MemberChange(step, node, draw(peer_addresses) if has_address else ""))
    return v2.ChangeMembers(steps)


requests: st.SearchStrategy[v2.Request] = st.one_of(
    enqueues(),
    st.builds(v2.Dequeue, names, uint32, uint32, uint32, uint32),
    st.builds(v2.Ack, tokens),
    st.builds(v2.Nack, tokens, milliseconds, st.none() | int64),
    st.builds(v2.Release, tokens),
    st.builds(v2.Start, tokens, tokens),
    st.builds(v2.Extend, tokens, uint32),
    st.builds(v2.Subscribe, names, uint32, uint32),
    st.builds(v2.Unsubscribe, uint32),
    st.builds(v2.Peek, names, uint32),
    st.builds(v2.Purge, names),
    creates,
    st.builds(v2.Delete, names),
    st.builds(v2.Stat, st.none() | names),
    st.builds(v2.Read, uint64, uint32, uint32),
    st.just(v2.Node()),
    st.just(v2.Ping()),
    st.just(v2.Cluster()),
    change_members(),
    st.builds(v2.Transfer, st.integers(-(2**31), INT32_MAX)),
)


@st.composite
def task_columns(draw: st.DrawFn) -> tuple[Any, ...]:
    tasks = draw(st.lists(st.tuples(uint64, int64, uint32, st.binary(max_size=40)), max_size=20))
    ids, keys, attempts = (tuple(task[place] for task in tasks) for place in range(3))
    return ids, keys, attempts, [task[3] for task in tasks]


@st.composite
def delivered(draw: st.DrawFn) -> v2.Delivered:
    columns = draw(task_columns())
    token = draw(st.integers(0, UINT64_MAX + 1 - max(1, len(columns[0]))))
    return v2.Delivered(token, draw(uint32), *columns)


@st.composite
def entries(draw: st.DrawFn) -> v2.Entries:
    found = draw(st.lists(st.tuples(int64, st.binary(max_size=40)), max_size=20))
    terms, payloads = tuple(term for term, _ in found), [payload for _, payload in found]
    return v2.Entries(draw(uint8), draw(uint64), draw(int64), terms, payloads)


# All runs together are a request's tasks, so their counts have a common bound.
runs = st.builds(v2.Run, uint8, st.integers(0, 1000), st.integers(0, UINT64_MAX - 1000))

options = st.builds(
    QueueOptions,
    lease_ms=st.integers(1, LEASE_MS_MAX),
    attempts_max=st.none() | st.integers(1, INT32_MAX),
    dead_letter=st.none() | names,
)
stats = st.builds(
    v2.QueueStat,
    name=names,
    policy=policies(),
    options=options,
    count=uint64,
    leased=uint64,
    delayed=uint64,
    size=uint64,
    last_id=uint64,
    enqueued=uint64,
    delivered=uint64,
    acked=uint64,
    returned=uint64,
    expired=uint64,
    dead_lettered=uint64,
)
nodes = st.builds(
    v2.NodeInfo,
    node=st.integers(0, INT32_MAX),
    leader=st.none() | st.integers(0, INT32_MAX),
    version=st.text(max_size=20),
    generation=uint8,
    term=int64,
    first=int64,
    committed=int64,
    frame_size_max=uint32,
    payload_size_max=uint32,
    addresses=st.lists(st.text(max_size=20), max_size=5).map(tuple),
)

members = st.builds(
    v2.ClusterMember,
    node=st.integers(0, INT32_MAX),
    address=st.text(max_size=20),
    client_address=st.text(max_size=20),
    standing=st.sampled_from(v2.STANDINGS),
    is_leader=st.booleans(),
    is_self=st.booleans(),
    match=st.none() | int64,
    lag=st.none() | int64,
    pace=st.none() | st.sampled_from(v2.PACES),
    window=st.none() | uint32,
)
clusters = st.builds(
    v2.ClusterInfo,
    node=st.integers(0, INT32_MAX),
    leader=st.none() | st.integers(0, INT32_MAX),
    role=st.sampled_from(v2.ROLES),
    is_leading=st.booleans(),
    is_joint=st.booleans(),
    term=int64,
    first=int64,
    last=int64,
    committed=int64,
    applied=int64,
    members=st.lists(members, max_size=5).map(tuple),
)

answers: st.SearchStrategy[v2.Answer] = st.one_of(
    st.builds(v2.Enqueued, st.lists(runs, max_size=20)),
    delivered(),
    st.builds(v2.Settled, tokens),
    task_columns().map(lambda columns: v2.Peeked(*columns)),
    st.builds(v2.Purged, uint64),
    st.builds(v2.Stats, st.lists(stats, max_size=4)),
    entries(),
    nodes,
    clusters,
    st.just(v2.Ok()),
    st.builds(v2.Failed, uint16, st.text(max_size=40), int64),
)

frames: st.SearchStrategy[Frame] = st.tuples(uint8, uint32, st.binary(max_size=60))


def joined(several: list[Frame]) -> bytes:
    """Return the stream of these frames."""
    return b"".join([encode_frame(*frame) for frame in several])
