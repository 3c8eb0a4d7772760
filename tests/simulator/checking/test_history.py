"""The record of operations and its file: what is written is read, and what cannot be is refused with its line."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData, InvalidValue, PathMissing, PathRefused
from penstock.model import KeyRange, Policy
from simulation.checking import history as histories
from simulation.checking.history import (
    Op,
    Operation,
    Outcome,
    decode_operation,
    encode_operation,
    merged_retries,
    read_history,
    scan_history,
    write_history,
)
from simulator.checking.made import deq, enq, unknown

NAMES = st.integers() | st.text(max_size=5)
INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
COUNTS = st.integers(min_value=0, max_value=2**63 - 1)
TIMES = st.integers(min_value=0, max_value=10**18) | st.floats(min_value=0, max_value=1e9)
POLICIES = st.builds(
    Policy,
    size_max=st.none() | st.integers(min_value=0, max_value=2**32 - 1),
    payload_size_max=st.none() | st.integers(min_value=0, max_value=2**32 - 1),
    keys=st.none() | st.builds(KeyRange, lowest=st.just(-5), highest=st.integers(-5, 5)),
)


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    op = draw(st.sampled_from(list(Op)))
    ids = tuple(draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)))
    if op in {Op.DEQUEUE, Op.PURGE} and draw(st.booleans()):
        ids = ()

    def column(values: st.SearchStrategy[int]) -> tuple[int, ...]:
        if draw(st.booleans()) and op is not Op.ENQUEUE:
            return ()
        return tuple(draw(st.lists(values, min_size=len(ids), max_size=len(ids))))

    outcome = draw(st.sampled_from(list(Outcome)))
    start, end = sorted([draw(TIMES), draw(TIMES)])
    is_open = outcome is Outcome.UNKNOWN and draw(st.booleans())
    producer = draw(st.none() | st.text(max_size=3))
    return Operation(
        process=draw(NAMES),
        op=op,
        queue=draw(st.text(max_size=3)),
        ids=ids,
        keys=column(INT64),
        t0=start,
        t1=math.inf if is_open else end,
        outcome=outcome,
        index=draw(st.none() | INT64),
        term=draw(st.none() | INT64),
        step=draw(st.integers(0, 5)),
        reason=draw(st.text(max_size=3)),
        sizes=column(COUNTS),
        numbers=column(COUNTS),
        tokens=column(COUNTS),
        producer=producer,
        sequence=None if producer is None else draw(INT64),
        asked=draw(st.integers(1, 100)),
        count=draw(st.none() | COUNTS),
        policy=draw(st.none() | POLICIES),
    )


@given(operations())
def test_what_is_written_is_read(operation: Operation) -> None:
    line = encode_operation(operation)
    assert "\n" not in line
    assert decode_operation(line) == operation
    assert decode_operation(line.encode()) == operation


def test_a_line_looks_as_it_always_did() -> None:
    operation = enq("a-1", 7, 10, 25, queue="jobs", process="p1", index=4, term=2)
    line = (
        '{"process":"p1","op":"enqueue","queue":"jobs","key":7,"id":"a-1","t0":10,"t1":25,'
        '"outcome":"ok","index":4,"term":2}'
    )
    assert encode_operation(operation) == line
    batch = Operation(process=1, op=Op.ACK, ids=(1, 2), t0=0, outcome=Outcome.UNKNOWN)
    line = '{"process":1,"op":"ack","queue":"","ids":[1,2],"t0":0,"t1":null,"outcome":"unknown"}'
    assert encode_operation(batch) == line
    assert decode_operation(line) == batch


RIGHT = '"process":1,"op":"dequeue","t0":1,"t1":2,"outcome":"ok"'

BAD = {
    "": "no JSON",
    "no": "no JSON",
    "[]": "no JSON object",
    "7": "no JSON object",
    "{" + RIGHT + ',"colour":3}': "unknown field 'colour'",
    "{" + RIGHT + ',"t0":3}': "same field twice",
    '{"op":"dequeue","t0":1,"t1":2,"outcome":"ok"}': "field 'process' is neither",
    '{"process":true,"op":"dequeue","t0":1,"t1":2,"outcome":"ok"}': "field 'process' is neither",
    '{"process":1,"op":"steal","t0":1,"t1":2,"outcome":"ok"}': "expected enqueue, dequeue",
    '{"process":1,"op":["ack"],"t0":1,"t1":2,"outcome":"ok"}': "field 'op' is unknown",
    '{"process":1,"op":"dequeue","t0":1,"t1":2,"outcome":"maybe"}': "expected ok, fail, unknown",
    '{"process":1,"op":"dequeue","t0":"1","t1":2,"outcome":"ok"}': "field 't0' is no time",
    '{"process":1,"op":"dequeue","t0":NaN,"t1":2,"outcome":"ok"}': "NaN is no number",
    '{"process":1,"op":"dequeue","t0":1,"t1":1e999,"outcome":"ok"}': "field 't1' is no time",
    '{"process":1,"op":"dequeue","t0":1,"t1":null,"outcome":"ok"}': "needs the time of its return",
    '{"process":1,"op":"dequeue","t0":3,"t1":2,"outcome":"ok"}': "cannot last from 3 to 2",
    "{" + RIGHT + ',"index":1.5}': "field 'index' is no whole number",
    "{" + RIGHT + ',"index":' + "9" * 30 + "}": "field 'index' is no whole number",
    "{" + RIGHT + ',"index":' + "9" * 5000 + "}": "no JSON",
    "{" + RIGHT + ',"id":1,"ids":[1]}': "'id' or 'ids', not both",
    "{" + RIGHT + ',"ids":[1,null]}': "field 'ids' is no list",
    "{" + RIGHT + ',"ids":[1,1]}': "names a task twice",
    "{" + RIGHT + ',"ids":[1,2],"keys":[1]}': "1 keys do not go with 2 ids",
    "{" + RIGHT + ',"asked":0}': "asked 0",
    "{" + RIGHT + ',"count":-1}': "count -1",
    "{" + RIGHT + ',"producer":"p"}': "go together",
    "{" + RIGHT + ',"queue":1}': "field 'queue' is no text",
    "{" + RIGHT + ',"policy":7}': "field 'policy' is no object",
    "{" + RIGHT + ',"policy":{"size":7}}': "field 'policy' has more",
    "{" + RIGHT + ',"policy":{"keys":[1,2,3]}}': "field 'policy' has more",
    "{" + RIGHT + ',"policy":{"keys":[2,1]}}': "key range 2…1",
    '{"process":1,"op":"enqueue","id":1,"t0":1,"t1":2,"outcome":"ok"}': "needs the keys",
    '{"process":1,"op":"ack","t0":1,"t1":2,"outcome":"ok"}': "needs the ids",
    "[" * 100_000: "nested too deep",
}  # fmt: skip


@pytest.mark.parametrize(("line", "reason"), BAD.items(), ids=range(len(BAD)))
def test_a_bad_line_is_refused_with_its_number(line: str, reason: str) -> None:
    good = encode_operation(deq("a", 1, 2)).encode()
    with pytest.raises(CorruptData) as caught:
        list(scan_history(io.BytesIO(good + b"\n" + line.encode() + b"\n" + good + b"\n")))
    assert "line 2" in str(caught.value)
    assert reason in str(caught.value)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(CorruptData, match="line 1: the line is no JSON"):
        list(scan_history(io.BytesIO(b'{"process":"\xff"}\n')))


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_is_raised(data: bytes) -> None:
    with pytest.raises((CorruptData, InvalidValue)):
        decode_operation(data)


def test_a_line_cut_anywhere_is_refused() -> None:
    line = encode_operation(enq("a", 1, 10, 25, index=4, term=2)).encode() + b"\n"
    assert len(list(scan_history(io.BytesIO(line + line)))) == 2
    for end in range(1, len(line)):
        with pytest.raises(CorruptData, match="line 2 ends in the middle"):
            list(scan_history(io.BytesIO(line + line[:end])))


def test_a_line_without_end_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "LINE_SIZE_MAX", 100)
    file = io.BytesIO(b" " * 1_000_000)
    with pytest.raises(CorruptData, match="line 1 is longer than 100 bytes"):
        list(scan_history(file))
    assert file.tell() == 101


def test_a_history_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "OPERATIONS_MAX", 3)
    line = encode_operation(deq("a", 1, 2)).encode() + b"\n"
    assert len(list(scan_history(io.BytesIO(3 * line)))) == 3
    with pytest.raises(CorruptData, match="more than 3 operations"):
        list(scan_history(io.BytesIO(4 * line)))


def test_a_file_is_written_once_and_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    history = [enq("a", 1, 0, 1), unknown(deq("a", 2, 3)), deq(None, 4, 5)]
    write_history(path, history)
    assert read_history(path) == history
    with pytest.raises(PathRefused, match="cannot be written: File exists"):
        write_history(path, history)
    with pytest.raises(PathMissing, match="does not exist"):
        read_history(tmp_path / "other.jsonl")
    with pytest.raises(PathRefused, match="cannot be read"):
        read_history(tmp_path)


def test_damage_of_a_file_is_told_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("{}\n")
    with pytest.raises(CorruptData, match=r"run\.jsonl: line 1: field 'process'"):
        read_history(path)


def test_repetitions_of_a_producer_become_one() -> None:
    first = enq("a", 1, 0, 3, producer="p", sequence=1)
    again = enq("a", 1, 5, 9, producer="p", sequence=1)
    other = enq("b", 1, 5, 9, producer="p", sequence=2)
    (merged, left) = merged_retries([unknown(first), other, again])
    assert (merged.t0, merged.t1, merged.outcome) == (0, 9, Outcome.OK)
    assert left == other
    (merged,) = merged_retries([again, first])
    assert (merged.t0, merged.t1, merged.outcome) == (0, 3, Outcome.OK)


def test_a_repetition_that_was_refused_says_nothing_of_the_attempt_before() -> None:
    first = unknown(enq("a", 1, 0, 3, producer="p", sequence=1))
    refused = enq("a", 1, 5, 9, producer="p", sequence=1, outcome=Outcome.FAIL, reason="queue-full")
    (merged,) = merged_retries([first, refused])
    assert merged.outcome is Outcome.UNKNOWN
    (merged,) = merged_retries([refused, refused])
    assert merged.outcome is Outcome.FAIL


def test_an_operation_is_told_in_a_line() -> None:
    assert str(deq(None, 4, 5, queue="q")) == "dequeue of nothing of queue 'q' by c (ok, 4…5)"
    open_end = Operation(process=1, op=Op.ACK, ids=(7,), t0=3, outcome=Outcome.UNKNOWN)
    assert str(open_end) == "ack 7 by 1 (unknown, 3…)"
