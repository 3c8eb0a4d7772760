"""Logs that were cut or had a bit turned: what is noticed, and exactly what no reader can notice.

docs/formats/log.md, "What the checksum does not cover", lists the reasons.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadData, TruncatedData
from penstock.formats.taskflux.commands import is_command
from penstock.formats.taskflux.log import LogLayout, Status, decode_header, detect_layout
from penstock.formats.taskflux.log_scan import Piece, scan
from penstock.model import INT64_MAX
from support.damage import (
    all_of,
    bits,
    cuts,
    flipped,
    name_bits,
    number,
    turns_into,
    unnoticed,
)
from support.report import report
from support.taskflux_strategies import Log, logs
from support.taskflux_vectors import (
    LOG_1,
    LOG_1A,
    LOG_2,
    LOG_2_EMPTY,
    LOG_3,
    LOGS,
    LogVector,
)

each_vector = pytest.mark.parametrize("vector", LOGS, ids=lambda vector: vector.name)

# Terms that rise by more than one leave room between them, where a turned bit can hide.
ROOMY = [
    LogVector(
        f"{layout.variant} with rising terms",
        layout,
        log.data,
        log.commit if layout is LogLayout.TWO else None,
        log.offsets[:-1],
        [term for term, _ in log.records],
        [payload for _, payload in log.records],
        log.tail,
    )
    for layout in LogLayout
    for log in [
        Log(
            layout=layout,
            commit=1,
            records=[(1, b""), (4, b"\x44\x01q"), (4, b"\x44\x00"), (9, b""), (70_000, b"")],
            tail=bytes(8) if layout.is_marked else b"",
        )
    ]
]


def pieces_of(data: bytes, layout: LogLayout) -> list[Piece]:
    return list(scan(data, layout, start=layout.header_size))


def end_of(pieces: list[Piece], layout: LogLayout) -> int:
    return pieces[-1].offset + pieces[-1].size if pieces else layout.header_size


# --- cuts ----------------------------------------------------------------------------------------


@each_vector
def test_a_log_cut_anywhere_keeps_the_records_before_the_cut(vector: LogVector) -> None:
    whole = pieces_of(vector.data, vector.layout)
    for data in cuts(vector.data):
        if len(data) < vector.layout.header_size:
            with pytest.raises(TruncatedData):
                decode_header(data, vector.layout)
            continue
        kept = [piece for piece in whole if piece.offset + piece.size <= len(data)]
        end = min(end_of(kept, vector.layout), vector.end)
        torn = []
        # Half an end marker is torn, too; behind the records of an uncut log there is a whole one.
        is_half = vector.layout.is_marked and len(data) - end < 4
        if (vector.end > end or is_half) and end < len(data):
            torn = [Piece(end, len(data) - end, Status.TORN, 0, 0)]
        assert pieces_of(data, vector.layout) == kept + torn


@pytest.mark.parametrize("layout", LogLayout, ids=lambda layout: layout.variant)
@settings(deadline=None)
@given(data=st.data())
def test_no_cut_makes_a_record_of_the_log_other_than_it_was(
    layout: LogLayout, data: st.DataObject
) -> None:
    """Records that are whole stay; what comes behind them is torn, whatever a payload looks like."""
    log = data.draw(logs(layout))
    raw = log.data
    size = data.draw(st.integers(layout.header_size, len(raw)))
    pieces = pieces_of(raw[:size], layout)
    kept = [offset for offset in log.offsets[1:] if offset <= size]
    assert [piece.offset + piece.size for piece in pieces[: len(kept)]] == kept
    assert all(piece.status is Status.OK for piece in pieces[: len(kept)])
    if pieces[len(kept) :]:
        assert pieces[len(kept)].status is Status.TORN


# --- flips ---------------------------------------------------------------------------------------


def notices(vector: LogVector, data: bytes) -> bool:
    """Return whether a reader of the framing sees that ``data`` is not the log it was."""
    try:
        header = decode_header(data)
    except BadData:
        return True
    pieces = pieces_of(data, header.layout)
    if any(piece.status is not Status.OK for piece in pieces):
        return True
    return end_of(pieces, header.layout) != vector.end


def hidden_terms(vector: LogVector, metadata_term: int = INT64_MAX) -> list[dict[int, int]]:
    """Return, for each record, the terms that one turned bit makes of its own and nobody questions.

    Those are from the term before up to the term behind or, for the last, the metadata's.
    """
    at = 4 if vector.layout.is_marked else 0
    size = 8 if vector.layout is LogLayout.THREE else 4
    floors = [1, *vector.terms]
    roofs = [*vector.terms[1:], metadata_term]
    found: list[dict[int, int]] = []
    for offset, floor, roof in zip(vector.offsets, floors, roofs, strict=False):
        first = offset + at
        terms: dict[int, int] = {}
        for bit in bits(first, first + size):
            raw = flipped(vector.data, bit)[first : first + size]
            term = number(raw[::-1] if vector.layout is LogLayout.ONE_A else raw)
            if floor <= term <= roof:
                terms[bit] = term
        found.append(terms)
    return found


def term_bits(vector: LogVector, metadata_term: int = INT64_MAX) -> set[int]:
    """Return the bits of terms that can be turned within what neighbours and metadata allow."""
    return all_of(set(terms) for terms in hidden_terms(vector, metadata_term))


def swallowing_bits(vector: LogVector) -> set[int]:
    """Return the bits of lengths that stretch a record of generation 1 to the end of a later one."""
    order = "little" if vector.layout is LogLayout.ONE_A else "big"
    found: set[int] = set()
    for offset in vector.offsets:
        for bit in bits(offset + 4, offset + 8):
            raw = flipped(vector.data, bit)[offset + 4 : offset + 8]
            end = offset + 8 + int.from_bytes(raw, order, signed=True)  # type: ignore[arg-type]
            if end > offset and end in (*vector.offsets, vector.end):
                found.add(bit)
    return found


def commit_bits(vector: LogVector) -> set[int]:
    """Return the bits of the commit field whose turn leaves -1 or more."""
    if vector.layout is not LogLayout.TWO:
        return set()
    return turns_into(vector.data, 8, 12, lambda raw: number(raw) >= -1)


def payload_bits(vector: LogVector) -> set[int]:
    """Return the bits of all payloads: nothing covers them in generation 1."""
    header_size = vector.layout.record_header.size
    return all_of(
        bits(offset + header_size, offset + header_size + len(payload))
        for offset, payload in zip(vector.offsets, vector.payloads, strict=True)
    )


@pytest.mark.parametrize("vector", [*LOGS, *ROOMY], ids=lambda vector: vector.name)
def test_every_flip_is_noticed_but_where_nothing_can_tell(
    vector: LogVector,
) -> None:
    invisible = term_bits(vector) | commit_bits(vector)
    if not vector.layout.is_marked:
        invisible |= payload_bits(vector) | swallowing_bits(vector)
    if vector.layout is LogLayout.ONE_C:
        assert detect_layout(vector.data) is LogLayout.ONE_B
    found = unnoticed(vector.data, lambda data: notices(vector, data))
    assert found == invisible
    report(f"log {vector.name}: {len(found)} of {8 * len(vector.data)} flips invisible")


@pytest.mark.parametrize(
    ("data", "count"),
    [(LOG_1, 366), (LOG_1A, 366), (LOG_2, 61), (LOG_2_EMPTY, 1), (LOG_3, 62)],
    ids=["1", "1a", "2", "2 empty", "3"],
)
def test_the_number_of_invisible_flips_of_a_golden_log_is_known(data: bytes, count: int) -> None:
    vector = next(vector for vector in LOGS if vector.data == data)
    assert len(unnoticed(data, lambda changed: notices(vector, changed))) == count


@pytest.mark.parametrize(
    "vector", [v for v in LOGS if v.layout.is_marked and v.terms], ids=lambda vector: vector.name
)
def test_the_metadata_term_shows_every_term_flip_of_the_golden_logs(vector: LogVector) -> None:
    """No record is of a higher term than the node has seen, and there the terms rise by one."""
    assert term_bits(vector)
    assert term_bits(vector, metadata_term=vector.terms[-1]) == set()


@pytest.mark.parametrize(
    "vector", [v for v in ROOMY if v.layout.is_marked], ids=lambda vector: vector.name
)
def test_a_term_flip_stays_invisible_only_where_terms_rise_by_more_than_one(
    vector: LogVector,
) -> None:
    assert vector.terms == [1, 4, 4, 9, 70_000]
    hidden = hidden_terms(vector, metadata_term=vector.terms[-1])
    assert [set(terms.values()) for terms in hidden] == [
        {3},
        set(),
        {5, 6},
        {8, 11, 13} | {9 + 2**place for place in range(4, 17)},
        {70_000 - 2**place for place in (4, 5, 6, 8, 12, 16)},  # it falls, but not below 9
    ]


@pytest.mark.parametrize("vector", LOGS[:2], ids=lambda vector: vector.name)
def test_decoding_the_commands_narrows_the_invisible_flips_of_generation_1(
    vector: LogVector,
) -> None:
    """Only a limit, a key, a task's payload, a letter of a name and a term can change unnoticed."""
    layout, data = vector.layout, vector.data

    def notices_command(changed: bytes) -> bool:
        return notices(vector, changed) or not all(
            is_command(changed[piece.offset + layout.record_header.size :][: piece.length])
            for piece in pieces_of(changed, layout)
        )

    create, enqueue, dequeue = (offset + layout.record_header.size for offset in vector.offsets)
    invisible = (
        term_bits(vector)
        | all_of(name_bits(data, body + 2, body + 8) for body in (create, enqueue, dequeue))
        | bits(create + 8, create + 12)
        | bits(enqueue + 8, enqueue + 16)
        | bits(enqueue + 20, enqueue + 22)
    )
    found = unnoticed(data, notices_command)
    assert found == invisible
    report(
        f"log {vector.name} with its commands decoded:"
        f" {len(found)} of {8 * len(data)} flips invisible"
    )


@pytest.mark.parametrize("zeros", [4, 512])
@pytest.mark.parametrize("data", [LOG_2, LOG_3], ids=["2", "3"])
def test_every_flip_in_preallocated_zeros_is_noticed(data: bytes, zeros: int) -> None:
    """The zeros behind the end are promised too; a bit among them is reported as left over."""
    layout = detect_layout(data)
    preallocated = data + bytes(zeros)
    for bit in bits(len(data), len(preallocated)):
        (last,) = pieces_of(flipped(preallocated, bit), layout)[3:]
        assert (last.offset, last.status) == (len(data) - 4, Status.LEFTOVER)


@pytest.mark.parametrize("layout", [LogLayout.TWO, LogLayout.THREE])
@settings(deadline=None)
@given(data=st.data())
def test_a_flip_in_any_payload_or_marker_or_checksum_is_noticed(
    layout: LogLayout, data: st.DataObject
) -> None:
    """Whatever the payloads look like, and also when they hold whole records of their own."""
    log = data.draw(logs(layout).filter(lambda log: log.records))
    raw = log.data
    which = data.draw(st.integers(0, len(log.records) - 1))
    first, end = log.offsets[which], log.offsets[which + 1]
    term_end = first + layout.record_header.size - 8
    places = [*range(first, first + 4), *range(term_end, end)]
    bit = 8 * data.draw(st.sampled_from(places)) + data.draw(st.integers(0, 7))
    pieces = pieces_of(flipped(raw, bit), layout)
    assert [piece.offset for piece in pieces[:which]] == log.offsets[:which]
    assert pieces[which].offset == first
    assert pieces[which].status is not Status.OK
