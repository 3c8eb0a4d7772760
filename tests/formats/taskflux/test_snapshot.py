"""Snapshots: golden bytes of every layout, round trips, detection, and what no state may be."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from penstock.binary import checksum
from penstock.errors import BadData, CannotConvert, CorruptData, TruncatedData, UnknownFormat
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.snapshot import (
    MARKER,
    MARKER_1,
    MARKER_1A,
    TASKS_PER_PIECE,
    WINDOW,
    SnapshotLayout,
    encode_snapshot,
)
from penstock.formats.taskflux.snapshot_decode import (
    TASKS_PER_BATCH,
    Batch,
    SnapshotHeader,
    decode_header,
    decode_snapshot,
)
from penstock.formats.taskflux.snapshot_frame import detect_layout
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import (
    INT32_MAX,
    INT64_MAX,
    NO_LIMITS,
    Implementation,
    Index,
    KeyRange,
    Policy,
    QueueHead,
    QueueName,
    SnapshotPoint,
    TaskId,
    Term,
)
from support.damage import overwritten
from support.refusal import attempted
from support.snapshot_files import Snapshot, decoded, encoded, is_read, reader_of
from support.taskflux_strategies import Queues, snapshots
from support.taskflux_vectors import (
    DEFAULT,
    ORDERS,
    POINT,
    SNAPSHOT_1,
    SNAPSHOT_1B,
    SNAPSHOT_2,
    SNAPSHOT_3,
    SNAPSHOTS,
    SnapshotVector,
)

each_vector = pytest.mark.parametrize("vector", SNAPSHOTS, ids=lambda vector: vector.name)
each_layout = pytest.mark.parametrize("layout", SnapshotLayout, ids=lambda layout: layout.name)
MARKED = [layout for layout in SnapshotLayout if layout.marker == MARKER]


def queue(name: str, policy: Policy = NO_LIMITS, tasks: int = 0) -> QueueHead:
    return QueueHead(name=QueueName(name), policy=policy, last_id=TaskId(tasks), count=tasks)


def sealed(data: bytes, layout: SnapshotLayout) -> bytes:
    """Return a file with the length and checksum that its bytes need."""
    body = data[:-4] if layout.is_checked else data
    if layout.has_length:
        at = layout.state_offset
        body = overwritten(body, at - 4, pack(">i", len(body) - at))
    if not layout.is_checked:
        return body
    return body + checksum(body[layout.covered_offset :]).to_bytes(4, "big")


# --- golden bytes and round trips ----------------------------------------------------------------


@each_vector
def test_golden_snapshots_mean_what_they_did(vector: SnapshotVector) -> None:
    assert decoded(vector.data) == Snapshot(vector.layout, vector.point, vector.queues)


@each_vector
def test_golden_snapshots_are_written_byte_for_byte(vector: SnapshotVector) -> None:
    assert encoded(vector.point, vector.queues, vector.layout) == vector.data


@each_vector
def test_the_header_of_a_golden_snapshot_can_be_read_alone(vector: SnapshotVector) -> None:
    header = decode_header(reader_of(vector.data), vector.layout)
    assert header == SnapshotHeader(layout=vector.layout, point=vector.point)


def test_generation_1c_is_the_documented_generation_2_under_another_marker() -> None:
    data = MARKER_1 + SNAPSHOT_2[4:-4]
    assert len(data) == 100
    assert decoded(data) == Snapshot(SnapshotLayout.ONE_C, POINT, SNAPSHOTS[2].queues)


@pytest.mark.parametrize(
    ("data", "layout"),
    [(SNAPSHOT_1, SnapshotLayout.ONE_A_COUNTED), (SNAPSHOT_1B, SnapshotLayout.ONE_A)],
)
def test_generation_1a_differs_in_its_header_alone(data: bytes, layout: SnapshotLayout) -> None:
    data = MARKER_1A + pack("<ii", 2, 2) + data[12:]
    assert decoded(data) == Snapshot(layout, POINT, SNAPSHOTS[0].queues)


def test_every_generation_has_one_layout_to_write() -> None:
    assert {generation: variant.snapshot for generation, variant in WRITTEN.items()} == {
        Generation.ONE: SnapshotLayout.ONE_COUNTED,
        Generation.TWO: SnapshotLayout.TWO_SEED,
        Generation.THREE: SnapshotLayout.THREE,
    }


@each_layout
@given(data=st.data())
def test_snapshots_round_trip_and_are_recognised(
    layout: SnapshotLayout, data: st.DataObject
) -> None:
    """Generation 1 is told by what uses up the file; a file that two layouts use up cannot be told."""
    point, queues = data.draw(snapshots(layout))
    raw = encoded(point, queues, layout)
    assert decoded(raw, layout) == Snapshot(layout, point, queues)
    rivals = [rival for rival in SnapshotLayout if rival.marker == layout.marker]
    if layout in MARKED or [rival for rival in rivals if is_read(raw, rival)] == [layout]:
        assert decoded(raw) == Snapshot(layout, point, queues)
    else:
        event("two layouts use up the file")


# --- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [SnapshotLayout.TWO_SEED, SnapshotLayout.THREE])
def test_tasks_come_in_batches_and_say_where_they_are(layout: SnapshotLayout) -> None:
    count = 2 * TASKS_PER_BATCH + 5
    tasks = [(i, -i, b"%d" % i) for i in range(1, count + 1)]
    raw = encoded(POINT, [(queue("", tasks=count), tasks)], layout)
    parts = list(decode_snapshot(reader_of(raw), len(raw), layout))
    batches = [part for part in parts if isinstance(part, Batch)]
    assert [len(batch.tasks) for batch in batches] == [TASKS_PER_BATCH, TASKS_PER_BATCH, 5]
    assert [task for batch in batches for task in batch.tasks] == tasks
    for batch in batches:
        task_id, key, payload = batch.tasks[0]
        header = layout.form.task_header
        fields = (task_id, key, len(payload)) if layout.form.has_ids else (key, len(payload))
        assert raw[batch.offset :].startswith(header.pack(*fields) + payload)


def test_a_state_larger_than_the_window_is_read_in_pieces() -> None:
    """Tasks straddle the windows, and one is larger than a window."""
    payloads = [bytes((i,)) * 300_000 for i in range(8)] + [b"L" * (2 * WINDOW + 7), b"", b"x"]
    tasks = [(i, i, payload) for i, payload in enumerate(payloads, 1)]
    raw = encoded(POINT, [(queue("", tasks=len(tasks)), tasks)], SnapshotLayout.THREE)
    sizes: list[int] = []

    def read(offset: int, size: int) -> bytes:
        sizes.append(size)
        return raw[offset : offset + size]

    found = [
        task
        for part in decode_snapshot(read, len(raw), SnapshotLayout.THREE)
        if isinstance(part, Batch)
        for task in part.tasks
    ]
    assert found == tasks
    assert max(sizes) <= len(payloads[8]) + 20
    assert sorted(sizes)[-2] <= WINDOW
    assert sum(sizes) <= len(raw) + 100  # nothing is read twice


def test_many_queues_straddle_the_window() -> None:
    queues: Queues = [(queue(f"{i:0255d}"), []) for i in range(1, 5000)]
    queues.append((queue(""), []))
    raw = encoded(POINT, queues, SnapshotLayout.TWO_SEED)
    assert len(raw) > WINDOW
    assert decoded(raw).queues == queues


def test_a_file_that_shrinks_while_it_is_read_is_truncated() -> None:
    read = reader_of(SNAPSHOT_2[:60])
    with pytest.raises(TruncatedData):
        list(decode_snapshot(read, len(SNAPSHOT_2), SnapshotLayout.TWO_SEED))
    assert detect_layout(read, len(SNAPSHOT_2)) is SnapshotLayout.TWO_SEED


def test_pieces_are_bounded_in_tasks_and_in_bytes() -> None:
    """Large payloads once were joined 4096 at a time, whatever memory that took."""
    payload = bytes(WINDOW // 4)
    tasks = [(i, 0, payload) for i in range(1, 41)]
    pieces = list(
        encode_snapshot(POINT, 1, [(queue("", tasks=40), tasks)], SnapshotLayout.TWO_SEED)
    )
    assert max(map(len, pieces)) < 2 * WINDOW
    assert decoded(b"".join(pieces)).queues == [(queue("", tasks=40), tasks)]
    small = [(i, 0, b"") for i in range(1, 3 * TASKS_PER_PIECE)]
    head = queue("", tasks=len(small))
    pieces = list(encode_snapshot(POINT, 1, [(head, small)], SnapshotLayout.TWO_SEED))
    assert max(map(len, pieces)) == TASKS_PER_PIECE * 12


def test_a_state_too_large_for_its_length_field_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2 GiB in truth; a thousand bytes here."""
    monkeypatch.setattr("penstock.formats.taskflux.snapshot.INT32_MAX", 1000)
    queues: Queues = [(queue("", tasks=1), [(1, 0, bytes(1000))])]
    for layout in (SnapshotLayout.TWO_CODE, SnapshotLayout.THREE):
        with pytest.raises(CannotConvert, match="2 GiB"):
            encoded(POINT, queues, layout)
    assert decoded(encoded(POINT, queues, SnapshotLayout.TWO_SEED)).queues == queues


# --- what no state may be ------------------------------------------------------------------------


@pytest.mark.parametrize("vector", SNAPSHOTS, ids=lambda vector: vector.name)
def test_a_snapshot_without_the_default_queue_is_corrupt(vector: SnapshotVector) -> None:
    start = vector.layout.state_offset + 4 * vector.layout.is_counted
    names = vector.data.index(b"\x06orders")
    data = vector.data[:start] + vector.data[names:]
    if vector.layout.is_counted:
        data = overwritten(data, start - 4, pack(">i", 1))
    with pytest.raises(CorruptData, match="default queue is missing"):
        decoded(sealed(data, vector.layout), vector.layout)


@pytest.mark.parametrize("vector", SNAPSHOTS, ids=lambda vector: vector.name)
def test_a_queue_that_stands_twice_is_corrupt(vector: SnapshotVector) -> None:
    start = vector.layout.state_offset + 4 * vector.layout.is_counted
    second = vector.data.index(b"\x06orders")
    data = vector.data[:second] + vector.data[start:second] + vector.data[second:]
    if vector.layout.is_counted:
        data = overwritten(data, start - 4, pack(">i", 3))
    with pytest.raises(CorruptData, match="stands twice"):
        decoded(sealed(data, vector.layout), vector.layout)


@pytest.mark.parametrize("code", [-1, 0, 3, 0x01000000])
@pytest.mark.parametrize("vector", SNAPSHOTS[3:], ids=lambda vector: vector.name)
def test_an_unknown_implementation_is_corrupt(vector: SnapshotVector, code: int) -> None:
    at = vector.data.index(b"\x06orders") + 7
    data = overwritten(vector.data, at, pack(">i", code))
    with pytest.raises(CorruptData, match="unknown queue implementation"):
        decoded(sealed(data, vector.layout), vector.layout)


@pytest.mark.parametrize(
    "name", [b"\x06or ers", b"\x06or\x7fers", b"\x06or\x00ers", b"\x06or\xc3ers"]
)
@each_vector
def test_a_name_with_a_forbidden_byte_is_corrupt(vector: SnapshotVector, name: bytes) -> None:
    data = overwritten(vector.data, vector.data.index(b"\x06orders"), name)
    with pytest.raises(CorruptData):
        decoded(sealed(data, vector.layout), vector.layout)


@pytest.mark.parametrize(
    "vector", [v for v in SNAPSHOTS if v.layout.is_counted], ids=lambda vector: vector.name
)
def test_another_number_of_queues_than_there_are_is_refused(vector: SnapshotVector) -> None:
    at = vector.layout.state_offset
    for count in (-1, 0, 1, 3, INT32_MAX):
        data = sealed(overwritten(vector.data, at, pack(">i", count)), vector.layout)
        with pytest.raises(BadData):
            decoded(data, vector.layout)


@each_vector
def test_another_number_of_tasks_than_there_are_is_refused(vector: SnapshotVector) -> None:
    task_size = vector.layout.form.task_header.size
    at = len(vector.data) - 4 * vector.layout.is_checked - 2 * task_size - 2 - 4
    assert vector.data[at : at + 4] == b"\x00\x00\x00\x02"
    for count in (-1, 0, 1, 3, INT32_MAX):
        data = sealed(overwritten(vector.data, at, pack(">i", count)), vector.layout)
        with pytest.raises(BadData):
            decoded(data, vector.layout)


@each_vector
def test_another_payload_length_than_there_is_is_refused(vector: SnapshotVector) -> None:
    at = vector.data.index(b"\x00\x00\x00\x02hi")
    for length in (-1, 1, 3, INT32_MAX, -(2**31)):
        data = sealed(overwritten(vector.data, at, pack(">i", length)), vector.layout)
        with pytest.raises(BadData):
            decoded(data, vector.layout)


@pytest.mark.parametrize("layout", MARKED, ids=lambda layout: layout.name)
@pytest.mark.parametrize(("index", "term"), [(-1, 1), (0, 0), (0, -1), (-(2**31), 1)])
def test_an_index_below_0_or_a_term_below_1_is_corrupt(
    layout: SnapshotLayout, index: int, term: int
) -> None:
    raw = encoded(POINT, [(queue(""), [])], layout)
    form = ">qq" if layout is SnapshotLayout.THREE else ">ii"
    with pytest.raises(CorruptData, match="cannot be"):
        decoded(sealed(overwritten(raw, 4, pack(form, index, term)), layout), layout)


@pytest.mark.parametrize(("task_id", "is_allowed"), [(0, False), (1, True), (3, True), (4, False)])
def test_an_id_that_the_queue_never_gave_out_is_corrupt(task_id: int, is_allowed: bool) -> None:
    data = sealed(overwritten(SNAPSHOT_3, 102, pack(">Q", task_id)), SnapshotLayout.THREE)
    assert is_read(data) == is_allowed


@pytest.mark.parametrize(("last_id", "is_allowed"), [(0, False), (1, False), (2, False), (3, True)])
def test_a_last_id_below_what_was_given_out_is_corrupt(last_id: int, is_allowed: bool) -> None:
    data = sealed(overwritten(SNAPSHOT_3, 65, pack(">Q", last_id)), SnapshotLayout.THREE)
    assert is_read(data) == is_allowed


@pytest.mark.parametrize("vector", SNAPSHOTS, ids=lambda vector: vector.name)
def test_bytes_behind_the_last_queue_are_refused(vector: SnapshotVector) -> None:
    end = len(vector.data) - 4 * vector.layout.is_checked
    data = sealed(vector.data[:end] + b"\x00" + vector.data[end:], vector.layout)
    with pytest.raises(BadData):
        decoded(data, vector.layout)


def test_a_wrong_checksum_is_named_together_with_the_first_impossible_value() -> None:
    data = overwritten(SNAPSHOT_2, 41, pack(">i", 9))
    with pytest.raises(CorruptData, match=r"checksum does not match.*implementation"):
        decoded(data)
    data = overwritten(SNAPSHOT_2, 84, b"x")
    with pytest.raises(BadData, match="checksum does not match"):
        decoded(data)


# --- detection -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(4))
@pytest.mark.parametrize("data", [SNAPSHOT_1, SNAPSHOT_2], ids=["1", "2"])
def test_the_beginning_of_a_marker_reads_as_truncated(data: bytes, size: int) -> None:
    with pytest.raises(TruncatedData):
        detect_layout(reader_of(data[:size]), size)


@pytest.mark.parametrize("data", [bytes(20), b"\xb6\x38\x0f\xc8" + bytes(20), b"nonsense"])
def test_another_marker_is_no_snapshot_we_know(data: bytes) -> None:
    with pytest.raises(UnknownFormat):
        detect_layout(reader_of(data), len(data))


@each_vector
def test_a_named_layout_with_another_marker_is_corrupt(vector: SnapshotVector) -> None:
    data = b"\x00" + vector.data[1:]
    with pytest.raises(CorruptData, match="wrong snapshot marker"):
        decoded(data, vector.layout)


@pytest.mark.parametrize("vector", SNAPSHOTS[3:], ids=lambda vector: vector.name)
def test_a_damaged_state_is_still_of_the_layout_whose_length_fits(vector: SnapshotVector) -> None:
    """So that the message speaks of the file that it is."""
    data = overwritten(vector.data, len(vector.data) - 10, b"damage")
    assert detect_layout(reader_of(data), len(data)) is vector.layout


@pytest.mark.parametrize("limit", [None, 5_000_000])
def test_a_limit_of_the_first_queue_is_not_taken_for_a_length(limit: int | None) -> None:
    """A file of 33 554 459 bytes, ours and whole, was once refused as a damaged generation 3."""
    layout = SnapshotLayout.TWO_SEED
    head = queue("", Policy(size_max=limit), tasks=1)
    shape = encoded(POINT, [(head, [(1, 0, b"")])], layout)
    size = int.from_bytes(shape[20:24], "big") + 28
    payload = bytes(size - len(shape))
    data = encoded(POINT, [(head, [(1, 0, payload)])], layout)
    assert len(data) == size == (33_554_459 if limit is None else 16_796_775)
    assert detect_layout(reader_of(data), len(data)) is layout


def test_a_term_beyond_32_bits_does_not_hide_generation_3() -> None:
    point = SnapshotPoint(index=Index(INT64_MAX), term=Term(2**40 + 1))
    data = encoded(point, [(queue(""), [])], SnapshotLayout.THREE)
    assert decoded(data).point == point


@given(st.binary(max_size=120))
def test_no_bytes_make_a_snapshot_fail_otherwise_than_by_bad_data(data: bytes) -> None:
    for marker in (b"", MARKER, MARKER_1, MARKER_1A):
        raw = marker + data
        for layout in (None, *SnapshotLayout):
            found = attempted(decoded, raw, layout)
            if isinstance(found, BadData):
                assert found.reason
            else:
                assert DEFAULT in [head.name for head, _ in found.queues]


# --- what a layout cannot hold -------------------------------------------------------------------

BEYOND_A_LIMIT = [
    Policy(size_max=0),
    Policy(payload_size_max=5),
    Policy(keys=KeyRange(lowest=0, highest=1)),
    Policy(implementation=Implementation.ARRAY, keys=KeyRange(lowest=0, highest=1)),
]


@pytest.mark.parametrize("policy", BEYOND_A_LIMIT)
def test_generation_1_refuses_what_a_bare_limit_cannot_say(policy: Policy) -> None:
    queues: Queues = [(queue(""), []), (queue("orders", policy), [])]
    with pytest.raises(CannotConvert, match="orders"):
        encoded(POINT, queues, SnapshotLayout.ONE_COUNTED)
    for layout in (SnapshotLayout.TWO_SEED, SnapshotLayout.THREE):
        assert decoded(encoded(POINT, queues, layout)).queues == queues


@pytest.mark.parametrize("policy", [Policy(size_max=2**31), Policy(payload_size_max=2**32 - 1)])
def test_limits_beyond_31_bits_fit_generation_1_alone(policy: Policy) -> None:
    queues: Queues = [(queue("", policy), [])]
    for layout in (SnapshotLayout.TWO_SEED, SnapshotLayout.THREE):
        with pytest.raises(CannotConvert):
            encoded(POINT, queues, layout)
    if policy.payload_size_max is None:
        raw = encoded(POINT, queues, SnapshotLayout.ONE_COUNTED)
        assert decoded(raw, SnapshotLayout.ONE_COUNTED).queues == queues


@pytest.mark.parametrize(("index", "term"), [(INT32_MAX + 1, 1), (0, INT32_MAX + 1)])
def test_an_index_or_term_beyond_32_bits_fits_generation_3_alone(index: int, term: int) -> None:
    point = SnapshotPoint(index=Index(index), term=Term(term))
    queues: Queues = [(queue(""), [])]
    for layout in SnapshotLayout:
        if layout is SnapshotLayout.THREE:
            assert decoded(encoded(point, queues, layout)).point == point
        else:
            with pytest.raises(CannotConvert):
                encoded(point, queues, layout)


def test_a_state_that_is_not_what_its_heads_promise_is_our_own_mistake() -> None:
    layout = SnapshotLayout.THREE
    one = queue("", tasks=1)
    for count, queues in (
        (1, [(one, [])]),  # a task too few
        (1, [(queue(""), [(1, 0, b"")])]),  # a task too many
        (2, [(queue(""), [])]),  # a queue too few
        (1, [(queue(""), []), (queue("q"), [])]),  # a queue too many
        (2, [(queue(""), []), (queue(""), [])]),  # a name twice
        (1, [(queue("orders"), [])]),  # no default queue
    ):
        with pytest.raises(AssertionError):
            list(encode_snapshot(POINT, count, queues, layout))


def test_names_of_255_bytes_are_kept() -> None:
    queues: Queues = [(queue("~" * 255), []), (queue(""), []), (queue(ORDERS), [])]
    for layout in SnapshotLayout:
        assert decoded(encoded(POINT, queues, layout), layout).queues == queues
