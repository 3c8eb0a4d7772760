"""Generated models for the property tests: values as wild as the formats allow.

Keys cover all 64 bits, payloads may be empty or look like parts of a log, names may be empty or
255 bytes long. Whole logs come as lists of records, so that a failure shrinks to few of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from hypothesis import strategies as st

from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.generation import Contents
from penstock.formats.taskflux.log import (
    END_MARKER,
    RECORD_MARKER,
    LogLayout,
    encode_header,
    encode_record,
)
from penstock.formats.taskflux.snapshot import QueueForm, SnapshotLayout, StoredTask
from penstock.model import (
    DEFAULT_QUEUE,
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    UINT64_MAX,
    AddTask,
    Command,
    CountTasks,
    CreateCommand,
    CreateQueue,
    CreateWithPolicy,
    DeleteCommand,
    DeleteQueue,
    Delta,
    Dequeue,
    Enqueue,
    HardState,
    Implementation,
    Index,
    KeyRange,
    ListQueues,
    NodeId,
    Policy,
    QueueHead,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    SnapshotPoint,
    TaskId,
    Term,
)

MARKED: Final = (LogLayout.TWO, LogLayout.THREE)

keys = st.integers(INT64_MIN, INT64_MAX) | st.sampled_from([INT64_MIN, -1, 0, 1, INT64_MAX])
_letters = st.characters(min_codepoint=33, max_codepoint=126)
names = (
    st.sampled_from([DEFAULT_QUEUE, QueueName("q"), QueueName("~" * 255)])
    | st.text(_letters, max_size=8).map(QueueName)
    # Letters of which each is drawn make long names too slow to draw.
    | st.text(_letters, min_size=1, max_size=4).map(lambda text: QueueName((text * 255)[:255]))
)
task_ids = st.integers(0, UINT64_MAX).map(TaskId)


def _limits(highest: int = INT32_MAX) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(0, highest) | st.sampled_from([0, highest])


key_ranges = st.tuples(keys, keys).map(lambda ends: KeyRange(lowest=min(ends), highest=max(ends)))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    implementation = draw(st.sampled_from(Implementation))
    needs_range = implementation is Implementation.ARRAY
    return Policy(
        implementation=implementation,
        size_max=draw(_limits()),
        payload_size_max=draw(_limits()),
        keys=draw(key_ranges if needs_range else st.none() | key_ranges),
    )


bare_limits = st.none() | st.integers(1, 2**32 - 1)
"""What generation 1 can say of a queue: a size limit that is not 0."""


# --- payloads ------------------------------------------------------------------------------------


@st.composite
def records(draw: st.DrawFn, layout: LogLayout) -> bytes:
    """Return a whole record, as it may also stand inside a payload."""
    return encode_record(layout, term=draw(st.integers(1, 9)), payload=draw(st.binary(max_size=12)))


def lookalikes(layout: LogLayout) -> st.SearchStrategy[bytes]:
    """Return bytes that a careless reader takes for a part of a log."""
    parts = (
        st.binary(max_size=8)
        | st.sampled_from([RECORD_MARKER, RECORD_MARKER[:3], END_MARKER, bytes(20)])
        | records(layout)
        | records(layout).map(lambda record: record[:-1])
    )
    return st.lists(parts, max_size=4).map(b"".join)


def payloads(layout: LogLayout = LogLayout.THREE) -> st.SearchStrategy[bytes]:
    return st.just(b"") | st.binary(max_size=40) | lookalikes(layout)


# --- deltas and commands -------------------------------------------------------------------------


def deltas(contents: Contents) -> st.SearchStrategy[Delta]:
    removals: st.SearchStrategy[Delta]
    if contents is Contents.DELTAS_BY_ID:
        removals = st.builds(RemoveTask, queue=names, id=task_ids)
    else:
        removals = st.builds(RemoveEqualTask, queue=names, key=keys, payload=payloads())
    return (
        st.builds(CreateQueue, queue=names, policy=policies())
        | st.builds(DeleteQueue, queue=names)
        | st.builds(AddTask, queue=names, key=keys, payload=payloads())
        | removals
    )


commands: st.SearchStrategy[Command] = (
    st.builds(Enqueue, queue=names, key=keys, payload=payloads())
    | st.builds(Dequeue, queue=names)
    | st.builds(CountTasks, queue=names)
    | st.builds(CreateCommand, queue=names, size_max=bare_limits)
    | st.builds(CreateWithPolicy, queue=names, policy=policies())
    | st.builds(DeleteCommand, queue=names)
    | st.just(ListQueues())
)


# --- logs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log as a model: its records and what follows them."""

    layout: LogLayout
    commit: int
    records: list[tuple[int, bytes]]  # term, payload
    tail: bytes

    @property
    def data(self) -> bytes:
        parts = [encode_record(self.layout, term=t, payload=p) for t, p in self.records]
        header = encode_header(self.layout, commit=self.commit)
        return header + b"".join(parts) + self.tail

    @property
    def offsets(self) -> list[int]:
        """Where each record begins, and where the last one ends."""
        offsets = [self.layout.header_size]
        for _, payload in self.records:
            offsets.append(offsets[-1] + self.layout.record_header.size + len(payload))
        return offsets


@st.composite
def logs(draw: st.DrawFn, layout: LogLayout, *, size_max: int = 6) -> Log:
    """Return an undamaged log whose terms never fall."""
    steps = st.just(0) | st.integers(0, 3) | st.integers(0, layout.term_max // size_max - 2)
    contents = draw(st.lists(st.tuples(steps, payloads(layout)), max_size=size_max))
    term = 1
    found: list[tuple[int, bytes]] = []
    for step, payload in contents:
        term += step
        found.append((term, payload))
    tail = draw(st.sampled_from([0, 4, 5, 64])) if layout.is_marked else 0
    commit = draw(st.integers(-1, max(len(found) - 1, -1)))
    return Log(layout=layout, commit=commit, records=found, tail=bytes(tail))


@st.composite
def delta_logs(draw: st.DrawFn, layout: LogLayout) -> Log:
    """Return a log whose payloads are deltas, nearly deltas, or nothing."""
    whole = deltas(layout.contents).map(encode_delta)
    bent = st.tuples(whole, st.integers(0, 2**16), st.integers(1, 255)).map(_bent)
    contents = draw(st.lists(st.just(b"") | whole | bent | payloads(layout), max_size=6))
    return Log(layout=layout, commit=-1, records=[(1, p) for p in contents], tail=bytes(4))


def _bent(parts: tuple[bytes, int, int]) -> bytes:
    """Return bytes with one of the first 40 changed: where a delta's fields are."""
    data, place, change = parts
    at = place % min(len(data), 40)
    return data[:at] + bytes((data[at] ^ change,)) + data[at + 1 :]


# --- metadata and snapshots ----------------------------------------------------------------------


def hard_states(*, term_max: int = INT64_MAX, vote_min: int = 0) -> st.SearchStrategy[HardState]:
    votes = st.none() | st.integers(vote_min, INT32_MAX).map(NodeId)
    terms = st.integers(1, term_max) | st.sampled_from([1, term_max])
    return st.builds(HardState, term=terms.map(Term), vote=votes)


Queues = list[tuple[QueueHead, list[StoredTask]]]


@st.composite
def snapshots(draw: st.DrawFn, layout: SnapshotLayout) -> tuple[SnapshotPoint, Queues]:
    """Return a point and queues that the layout has bytes for."""
    highest = INT64_MAX if layout is SnapshotLayout.THREE else INT32_MAX
    point = SnapshotPoint(
        index=Index(draw(st.integers(0, highest))), term=Term(draw(st.integers(1, highest)))
    )
    others = draw(st.lists(names.filter(bool), max_size=3, unique=True))
    order = draw(st.permutations([DEFAULT_QUEUE, *others]))
    return point, [draw(_queue(name, layout.form)) for name in order]


@st.composite
def _queue(draw: st.DrawFn, name: QueueName, form: QueueForm) -> tuple[QueueHead, list[StoredTask]]:
    found = draw(st.lists(st.tuples(keys, payloads()), max_size=4))
    bare = bare_limits.map(lambda limit: Policy(size_max=limit))
    policy = draw(bare if form is QueueForm.LIMIT else policies())
    if form is QueueForm.OPTIONAL_LIMITS:
        policy = replace(policy, implementation=Implementation.HEAP)
    if form.has_ids:
        ids = draw(
            st.lists(
                st.integers(1, UINT64_MAX),
                min_size=len(found),
                max_size=len(found),
                unique=True,
            ).map(sorted)
        )
        last_id = draw(st.integers(ids[-1] if ids else 0, UINT64_MAX))
    else:
        ids = list(range(1, len(found) + 1))
        last_id = len(found)
    head = QueueHead(name=name, policy=policy, last_id=TaskId(last_id), count=len(found))
    return head, [(i, key, payload) for i, (key, payload) in zip(ids, found, strict=True)]
