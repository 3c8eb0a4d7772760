"""The consumer's position, with and without our trailer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, InvalidValue, TruncatedData, UnsupportedVersion
from penstock.formats.beats.state import Position, State, decode_state, encode_state
from support.damage import flipped

UINT64 = st.integers(0, 2**64 - 1)
POSITIONS = st.builds(Position, UINT64, UINT64, UINT64)
STATES = st.builds(State, POSITIONS, sending=st.none() | POSITIONS)


@given(STATES, st.binary(max_size=80))
def test_a_state_comes_back_whatever_stands_behind_it(state: State, rest: bytes) -> None:
    data = encode_state(state)
    assert len(data) == (28 if state.sending is None else 64)
    assert decode_state(data) == state
    # Beats allows a longer file; random bytes are no trailer of ours.
    assert decode_state(data + rest) == state


@given(POSITIONS, POSITIONS, POSITIONS)
def test_a_trailer_is_forgotten_when_beats_moves_the_position(
    before: Position, sending: Position, after: Position
) -> None:
    data = encode_state(State(before, sending=sending))
    moved = encode_state(State(after)) + data[28:]
    expected = sending if before == after else None
    assert decode_state(moved) == State(after, sending=expected)


def test_a_turned_bit_never_leaves_the_trailer_in_force() -> None:
    data = encode_state(State(Position(3, 812, 1), sending=Position(4, 12, 0)))
    for bit in range(8 * 4, 8 * len(data)):
        assert decode_state(flipped(data, bit)).sending is None


@given(STATES)
def test_a_state_cut_in_its_first_28_bytes_is_truncated(state: State) -> None:
    data = encode_state(state)
    for size in range(28):
        with pytest.raises(TruncatedData):
            decode_state(data[:size])
    for size in range(28, 64):
        assert decode_state(data[:size]) == State(state.position)


def test_the_trailer_stands_where_the_page_says() -> None:
    data = encode_state(State(Position(1, 2, 3), sending=Position(4, 5, 6)))
    assert data[28:60].hex() == ("50454e53544f434b040000000000000005000000000000000600000000000000")
    assert data[60:].hex() == "498626af"


@given(st.binary(max_size=80))
def test_any_bytes_are_a_state_or_refused(data: bytes) -> None:
    try:
        state = decode_state(data)
    except BadData:
        return
    assert state.version in (0, 1)


def test_a_version_that_we_do_not_know_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="found 2"):
        decode_state(b"\2" + bytes(27))
    with pytest.raises(TruncatedData, match="expected 28 bytes, found 0"):
        decode_state(b"")
    with pytest.raises(TruncatedData, match="expected 20 bytes, found 19"):
        decode_state(bytes(19))


def test_a_state_of_version_0_is_written_as_it_was_read() -> None:
    data = bytes(4) + b"\5" + bytes(7) + b"\x10" + bytes(7)
    state = decode_state(data)
    assert state == State(Position(5, 20, 0), version=0)
    assert encode_state(state) == data
    assert encode_state(State(Position(5, 0, 0), version=0)) == data[:12] + bytes(8)
    with pytest.raises(InvalidValue):
        State(Position(5), version=0, sending=Position(6))


def test_an_offset_beyond_64_bits_can_be_read_but_not_written() -> None:
    state = decode_state(bytes(4) + bytes(8) + b"\xff" * 8)
    assert state.position.offset == 2**64 + 3
    with pytest.raises(InvalidValue, match="beyond 64 bits"):
        encode_state(state)


def test_places_compare_in_the_order_of_delivery() -> None:
    places = [Position(1, 12, 0), Position(0, 91, 1), Position(0, 12, 0), Position()]
    assert sorted(places) == places[::-1]
    with pytest.raises(InvalidValue):
        Position(-1)
