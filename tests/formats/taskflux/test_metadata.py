"""Metadata: golden bytes of every layout, round trips, and what damage can and cannot hide."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.binary import checksum
from penstock.errors import (
    BadData,
    CannotConvert,
    CorruptData,
    TruncatedData,
    UnknownFormat,
    UnsupportedVersion,
)
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.metadata import (
    MARKER,
    MARKER_1,
    MARKER_1A,
    SIZE_MAX,
    Metadata,
    MetadataLayout,
    decode_metadata,
    encode_metadata,
)
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import INT32_MAX, INT64_MAX, HardState, NodeId, Term
from support.damage import (
    bits,
    cuts,
    flipped,
    number,
    overwritten,
    turns_into,
    unnoticed,
)
from support.refusal import attempted
from support.report import report
from support.taskflux_strategies import hard_states
from support.taskflux_vectors import METADATA, MetadataVector

each_vector = pytest.mark.parametrize("vector", METADATA, ids=lambda vector: vector.name)


def written_by_others(state: HardState, layout: MetadataLayout) -> bytes:
    """Return the file of a layout that we only read, built field by field."""
    vote = 0 if state.vote is None else int(state.vote)
    has_vote = state.vote is not None
    match layout:
        case MetadataLayout.ONE_A:
            return MARKER_1A + pack("<iiBi", 1, state.term, has_vote, vote)
        case MetadataLayout.ONE_B:
            return MARKER_1 + pack(">iii", 1, state.term, vote)
        case MetadataLayout.TWO_CODE:
            return MARKER + pack(">iii", 1, state.term, vote)
        case _:
            return encode_metadata(state, WRITTEN[layout.generation].metadata)


def is_read(data: bytes) -> bool:
    try:
        decode_metadata(data)
    except BadData:
        return False
    return True


# --- golden bytes and round trips ----------------------------------------------------------------


@each_vector
def test_golden_metadata_means_what_it_did(vector: MetadataVector) -> None:
    expected = Metadata(layout=vector.layout, state=vector.state)
    assert decode_metadata(vector.data) == expected
    assert decode_metadata(memoryview(vector.data)) == expected
    assert len(vector.data) == vector.layout.size


@each_vector
def test_golden_metadata_is_written_byte_for_byte(vector: MetadataVector) -> None:
    assert written_by_others(vector.state, vector.layout) == vector.data
    assert encode_metadata(vector.state, vector.layout) == vector.data


@given(hard_states())
def test_generation_3_holds_every_state(state: HardState) -> None:
    data = encode_metadata(state, WRITTEN[Generation.THREE].metadata)
    assert decode_metadata(data) == Metadata(layout=MetadataLayout.THREE, state=state)


@given(hard_states(term_max=INT32_MAX))
def test_the_vote_flag_of_generation_1_tells_a_vote_for_0_from_none(state: HardState) -> None:
    data = encode_metadata(state, WRITTEN[Generation.ONE].metadata)
    assert decode_metadata(data) == Metadata(layout=MetadataLayout.ONE_FLAG, state=state)
    data = written_by_others(state, MetadataLayout.ONE_A)
    assert decode_metadata(data) == Metadata(layout=MetadataLayout.ONE_A, state=state)


@pytest.mark.parametrize(
    "layout", [MetadataLayout.ONE_B, MetadataLayout.TWO_SEED, MetadataLayout.TWO_CODE]
)
@given(data=st.data())
def test_layouts_without_a_flag_hold_every_vote_but_for_node_0(
    layout: MetadataLayout, data: st.DataObject
) -> None:
    state = data.draw(hard_states(term_max=INT32_MAX, vote_min=1))
    assert decode_metadata(written_by_others(state, layout)) == Metadata(layout=layout, state=state)


def test_every_generation_has_one_layout_to_write() -> None:
    assert {generation: variant.metadata for generation, variant in WRITTEN.items()} == {
        Generation.ONE: MetadataLayout.ONE_FLAG,
        Generation.TWO: MetadataLayout.TWO_SEED,
        Generation.THREE: MetadataLayout.THREE,
    }
    assert [WRITTEN[generation].metadata.size for generation in Generation] == [17, 20, 24]
    assert max(layout.size for layout in MetadataLayout) == SIZE_MAX


# --- what a layout cannot hold -------------------------------------------------------------------


def test_a_vote_for_node_0_cannot_be_written_to_generation_2() -> None:
    """docs/formats/metadata.md: 0 means no vote there, and forgetting a vote elects two leaders."""
    state = HardState(term=Term(3), vote=NodeId(0))
    with pytest.raises(CannotConvert):
        encode_metadata(state, WRITTEN[Generation.TWO].metadata)
    for generation in (Generation.ONE, Generation.THREE):
        assert decode_metadata(encode_metadata(state, WRITTEN[generation].metadata)).state == state


@pytest.mark.parametrize("generation", [Generation.ONE, Generation.TWO])
def test_a_term_beyond_32_bits_cannot_be_written_to_old_generations(
    generation: Generation,
) -> None:
    largest = HardState(term=Term(INT32_MAX))
    assert decode_metadata(encode_metadata(largest, WRITTEN[generation].metadata)).state == largest
    with pytest.raises(CannotConvert):
        encode_metadata(HardState(term=Term(INT32_MAX + 1)), WRITTEN[generation].metadata)


# --- wrong bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2, 0x01000000, -1])
@each_vector
def test_only_version_1_is_supported(vector: MetadataVector, version: int) -> None:
    order = "<i" if vector.layout is MetadataLayout.ONE_A else ">i"
    data = overwritten(vector.data, 4, pack(order, version))
    if vector.layout.checked:
        data = data[:-4] + checksum(data[4:-4]).to_bytes(4, "big")
    with pytest.raises(UnsupportedVersion):
        decode_metadata(data)


@pytest.mark.parametrize("term", [0, -1, -(2**31)])
@each_vector
def test_a_term_below_1_is_corrupt(vector: MetadataVector, term: int) -> None:
    form = {MetadataLayout.ONE_A: "<i", MetadataLayout.THREE: ">q"}.get(vector.layout, ">i")
    data = overwritten(vector.data, 8, pack(form, term))
    if vector.layout.checked:
        data = data[:-4] + checksum(data[4:-4]).to_bytes(4, "big")
    with pytest.raises(CorruptData):
        decode_metadata(data)


@pytest.mark.parametrize(
    ("layout", "vote", "is_allowed"),
    [
        (MetadataLayout.ONE_FLAG, -1, False),
        (MetadataLayout.ONE_B, -1, False),
        (MetadataLayout.TWO_SEED, -1, False),
        (MetadataLayout.TWO_CODE, -1, False),
        (MetadataLayout.THREE, -1, True),
        (MetadataLayout.THREE, -2, False),
        (MetadataLayout.THREE, 0, True),
    ],
)
def test_a_negative_vote_is_corrupt_but_for_the_minus_1_of_generation_3(
    layout: MetadataLayout, vote: int, is_allowed: bool
) -> None:
    state = HardState(term=Term(5), vote=NodeId(1))
    data = written_by_others(state, layout)
    end = layout.size - 4 * layout.checked
    data = overwritten(data, end - 4, pack(">i", vote))
    if layout.checked:
        data = data[:-4] + checksum(data[4:-4]).to_bytes(4, "big")
    assert is_read(data) == is_allowed


@pytest.mark.parametrize("flag", [1, 2, 0x80, 0xFF])
def test_any_byte_but_zero_says_that_a_vote_follows(flag: int) -> None:
    data = overwritten(METADATA[0].data, 12, bytes((flag,)))
    assert decode_metadata(data).state == METADATA[0].state


@pytest.mark.parametrize("data", [b"\x00" * 17, b"\x5a\x6e\xa0\x13" + bytes(16), b"nonsense"])
def test_another_marker_is_no_metadata_we_know(data: bytes) -> None:
    with pytest.raises(UnknownFormat):
        decode_metadata(data)


@each_vector
def test_a_file_that_is_too_long_is_corrupt(vector: MetadataVector) -> None:
    for size in range(SIZE_MAX + 1, SIZE_MAX + 20):
        with pytest.raises(CorruptData):
            decode_metadata(vector.data + bytes(size - len(vector.data)))


# --- cuts ----------------------------------------------------------------------------------------


@each_vector
def test_metadata_cut_anywhere_is_refused_but_where_a_shorter_layout_ends(
    vector: MetadataVector,
) -> None:
    """The sizes tell the layouts apart, so 17 bytes cut to 16 and 20 cut to 16 are other files."""
    read = {len(part): decode_metadata(part) for part in cuts(vector.data) if is_read(part)}
    if vector.layout is MetadataLayout.ONE_FLAG:
        vote = None if vector.state.vote is None else NodeId(0x01000000)
        state = HardState(term=vector.state.term, vote=vote)
        assert read == {16: Metadata(layout=MetadataLayout.ONE_B, state=state)}
    elif vector.layout is MetadataLayout.TWO_SEED:
        assert read == {16: Metadata(layout=MetadataLayout.TWO_CODE, state=vector.state)}
    else:
        assert read == {}


def test_generation_3_cut_to_16_bytes_is_refused_for_every_term_below_33_bits() -> None:
    """Its term then begins with zeros, which are no term; a larger one would be misread."""
    for term in (1, INT32_MAX, 2**32 - 1):
        assert not is_read(
            encode_metadata(HardState(term=Term(term)), WRITTEN[Generation.THREE].metadata)[:16]
        )
    cut = encode_metadata(HardState(term=Term(2**32 + 1)), WRITTEN[Generation.THREE].metadata)[:16]
    assert decode_metadata(cut).state == HardState(term=Term(1), vote=NodeId(1))


@each_vector
def test_a_cut_file_is_called_truncated(vector: MetadataVector) -> None:
    for part in cuts(vector.data):
        if not is_read(part) and len(part) not in (16, 20):
            with pytest.raises(TruncatedData):
                decode_metadata(part)


# --- flips ---------------------------------------------------------------------------------------


def invisible(vector: MetadataVector) -> set[int]:
    """Return the bits that a layout without a checksum cannot vouch for."""
    if vector.layout.checked:
        return set()
    little = vector.layout is MetadataLayout.ONE_A

    def value(raw: bytes) -> int:
        return number(raw[::-1] if little else raw)

    found = turns_into(vector.data, 8, 12, lambda raw: value(raw) >= 1)
    if not vector.layout.has_flag:
        return found | turns_into(vector.data, 12, 16, lambda raw: value(raw) >= 0)
    # Turning the flag makes or forgets a vote; what is no vote may be any number.
    has_vote = vector.state.vote is not None
    found |= bits(12, 13)
    return found | turns_into(vector.data, 13, 17, lambda raw: not has_vote or value(raw) >= 0)


@each_vector
def test_every_flip_is_noticed_where_there_is_a_checksum(vector: MetadataVector) -> None:
    found = unnoticed(vector.data, lambda data: not is_read(data))
    assert found == invisible(vector)
    report(f"metadata {vector.name}: {len(found)} of {8 * len(vector.data)} flips invisible")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("1 with a vote", 30 + 8 + 31),
        ("1 without a vote", 30 + 8 + 32),
        ("1a with a vote", 30 + 8 + 31),
        ("1b with a vote", 30 + 31),
        ("1b without a vote", 30 + 31),
        ("2 with a vote", 0),
        ("2 initial", 0),
        ("2 as programmed", 31 + 31),
        ("3 with a vote", 0),
        ("3 initial", 0),
    ],
)
def test_the_number_of_invisible_flips_is_known(name: str, count: int) -> None:
    vector = next(vector for vector in METADATA if vector.name == name)
    assert len(unnoticed(vector.data, lambda data: not is_read(data))) == count


@given(hard_states(vote_min=1, term_max=INT32_MAX), st.data())
def test_no_flip_changes_what_a_checked_file_says(state: HardState, data: st.DataObject) -> None:
    for generation in (Generation.TWO, Generation.THREE):
        raw = encode_metadata(state, WRITTEN[generation].metadata)
        bit = data.draw(st.integers(0, 8 * len(raw) - 1))
        with pytest.raises(BadData):
            decode_metadata(flipped(raw, bit))


@given(st.binary(max_size=30))
def test_no_bytes_make_metadata_fail_otherwise_than_by_bad_data(data: bytes) -> None:
    for marker in (b"", MARKER, MARKER_1, MARKER_1A):
        found = attempted(decode_metadata, marker + data)
        if isinstance(found, BadData):
            assert found.offset is not None
        else:
            assert 1 <= found.state.term <= INT64_MAX
