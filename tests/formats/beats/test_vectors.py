"""The vectors of the format's description, byte for byte, and the damage that is made from them."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.errors import InvalidValue, TruncatedData, UnsupportedVersion
from penstock.formats.beats.body import BodyDecoder, BodyEncoder, key_from_password
from penstock.formats.beats.event import Event, decode_event, encode_event, event_as_json
from penstock.formats.beats.frame import BadStretch, Frame, StretchKind, encode_frame, read_frames
from penstock.formats.beats.segment import (
    Header,
    Options,
    PayloadFormat,
    decode_header,
    encode_header,
)
from penstock.formats.beats.state import Position, State, decode_state, encode_state
from penstock.formats.beats.task_event import encode_tasks
from support import beats_spools as spools
from support.beats_spools import KEY, PLAIN, VECTORS
from support.damage import cuts, flipped, overwritten

SHA256 = {
    "v0_json": (317, "74756cb486002be5a8183547419499ba89f7e31ad86e5e103403ae93febfcd57"),
    "v1_cbor": (216, "2cbdcb9d8092c608d46299c53359c8ab74412755384c1bd83adb49a8ac493854"),
    "v2_cbor": (220, "a028f45c49e8e1bc9e803e2d98b52e691cd214b96c6ab16695e6b99da934b139"),
    "v2_cbor_lz4": (212, "4905054fbe21365d11a9cd094f4eec5b505bfc38db2a8a418300c4e4ef365804"),
    "v2_cbor_lz4_unclean": (
        235,
        "13158cb90d3a0819debcc268e6a3da064612b1b07298179e97fd51c28e77f1c9",
    ),
    "v2_proto_gen3": (125, "61df04a85faa4765cf7795ae7b1360e860fb760b6525f5b55785bc597d150f0b"),
    "v2_proto_gen2": (132, "cfc9c36d0f0cb10ff261885923295589a0196d3263683090ba2cb634a525d3b3"),
    "v2_cbor_aes": (107, "cece57b823a2b5afee8e9b7ea68ca0613d021c5b8f07fc8011ad8f2417f9822d"),
    "v2_cbor_aes_lz4": (126, "6f084923fedfb869c96d05738bf69604dff9728604431b6edac72a1055eae8ba"),
    "state_v1": (28, "b2ac257531c0ee2784b566b91f613e8a6837b00a505a22d7208ce867894e6977"),
    "state_v0": (20, "78548e00429551c3f1459cbe410627482e134f3e75e370a655ac368324ec6802"),
}
SEGMENTS = [name for name in SHA256 if name.startswith("v")]

A = Event(1_704_164_645_678_901_234, 1, {"_id": "a-1"}, {"message": "hello", "n": 42})
B = Event(1_704_164_646_000_000_000, 0, {}, spools.B["fields"])
A_PROTOBUF = Event(
    A.timestamp,
    0,
    {
        "_id": "a-1",
        "source": {"input_id": "in-1", "stream_id": "st-1"},
        "data_stream": {"type": "logs", "dataset": "generic", "namespace": "default"},
    },
    A.fields,
)
EVENTS = {
    "v0_json": [A, B],
    "v1_cbor": [A, B],
    "v2_cbor": [A, B],
    "v2_cbor_lz4": [A, B],
    "v2_cbor_lz4_unclean": [A, B],
    "v2_proto_gen3": [A_PROTOBUF],
    "v2_proto_gen2": [A_PROTOBUF],
    "v2_cbor_aes": [A],
    "v2_cbor_aes_lz4": [A],
}
IV = bytes(range(16, 32))


def logical(data: bytes, key: bytes | None = KEY) -> tuple[Header, bytes, BodyDecoder]:
    header = decode_header(data)
    decoder = BodyDecoder(header.options, key=key)
    return header, b"".join(decoder.feed(data[header.size :])), decoder


def found_in(data: bytes, key: bytes | None = KEY) -> list[Frame | BadStretch]:
    header, stream, _ = logical(data, key)
    return list(read_frames(stream, header.size))


def events_of(data: bytes, key: bytes | None = KEY) -> list[Event]:
    payload_format = decode_header(data).payload_format
    found = found_in(data, key)
    return [decode_event(it.payload, payload_format) for it in found if isinstance(it, Frame)]


def places(found: list[Frame | BadStretch]) -> list[tuple[str, int, int, int]]:
    return [
        (it.kind if isinstance(it, BadStretch) else "good", it.offset, it.size, it.index)
        for it in found
    ]


@pytest.mark.parametrize("name", SHA256)
def test_the_vectors_are_the_ones_that_were_published(name: str) -> None:
    assert (len(VECTORS[name]), sha256(VECTORS[name]).hexdigest()) == SHA256[name]


@pytest.mark.parametrize("name", SEGMENTS)
def test_every_vector_gives_its_events(name: str) -> None:
    assert events_of(VECTORS[name]) == EVENTS[name]


def test_an_event_is_shown_with_all_nine_digits_of_its_time() -> None:
    assert [event_as_json(event) for event in events_of(PLAIN)] == [spools.A, spools.B]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v0_json", [("good", 4, 112, 0), ("good", 116, 201, 1)]),
        ("v1_cbor", [("good", 8, 79, 0), ("good", 87, 129, 1)]),
        ("v2_cbor", [("good", 12, 79, 0), ("good", 91, 129, 1)]),
        # Logical offsets count neither LZ4's bytes nor the vector's: the file is shorter than what it holds.
        ("v2_cbor_lz4", [("good", 12, 79, 0), ("good", 91, 129, 1)]),
        ("v2_cbor_lz4_unclean", [("good", 12, 79, 0), ("good", 91, 129, 1)]),
        ("v2_proto_gen3", [("good", 12, 113, 0)]),
        ("v2_proto_gen2", [("good", 12, 120, 0)]),
        ("v2_cbor_aes", [("good", 12, 79, 0)]),
        ("v2_cbor_aes_lz4", [("good", 12, 79, 0)]),
    ],
)
def test_frames_stand_at_their_logical_offsets(
    name: str, expected: list[tuple[str, int, int, int]]
) -> None:
    assert places(found_in(VECTORS[name])) == expected


@pytest.mark.parametrize(
    ("name", "closed"),
    [
        ("v2_cbor", False),
        ("v2_cbor_lz4", True),
        ("v2_cbor_lz4_unclean", False),
        ("v2_cbor_aes_lz4", True),
    ],
)
def test_an_end_mark_tells_a_closed_body_and_none_is_nothing_wrong(name: str, closed: bool) -> None:
    _, _, decoder = logical(VECTORS[name])
    assert decoder.is_closed is closed
    assert decoder.finish() is None
    assert decoder.torn_size == 0


def written(
    header: Header, payloads: list[bytes], *, is_closed: bool, batches: int | None = None
) -> bytes:
    """Return a segment with one batch for each event, or all in one."""
    encoder = BodyEncoder(header.options, key=KEY, iv=IV)
    frames = [encode_frame(payload) for payload in payloads]
    streams = [b"".join(frames)] if batches == 1 else frames
    parts = [encode_header(header), encoder.begin(), *map(encoder.encode, streams)]
    return b"".join(parts) + (encoder.end() if is_closed else b"")


@pytest.mark.parametrize("name", [name for name in SEGMENTS if name != "v2_proto_gen2"])
def test_we_write_what_the_vectors_hold(name: str) -> None:
    header = decode_header(VECTORS[name])
    is_closed = name != "v2_cbor_lz4_unclean"
    payloads = [frame.payload for frame in found_in(VECTORS[name]) if isinstance(frame, Frame)]
    # The vectors hold the shortest form of -200, which Beats misreads; we write the next width.
    ours = [payload.replace(b"neg\x38\xc7", b"neg\x39\x00\xc7") for payload in payloads]
    assert [encode_event(event, header.payload_format) for event in EVENTS[name]] == ours
    data = written(header, payloads, is_closed=is_closed, batches=1 if is_closed else None)
    if name == "v2_cbor_lz4":
        # How well a block is compressed is the compressor's business.
        assert events_of(data) == [A, B]
        assert data[:19] == VECTORS[name][:19]
        assert data[-8:] == VECTORS[name][-8:]
    else:
        assert data == VECTORS[name]


def test_check_values_of_checksum_lz4_and_password() -> None:
    assert encode_frame(b"123456789").hex() == "15000000313233343536373839c37ea18b15000000"
    encoder = BodyEncoder(Options.COMPRESSED)
    lz4 = encoder.begin() + encoder.encode(b"abc") + encoder.end()
    assert lz4.hex() == "04224d186470b90300008061626300000000ff53d132"
    assert key_from_password(b"secret").hex() == "edaf02af5f91ce7400d744b88c84d52e"


def test_states_are_read_and_version_1_is_written() -> None:
    state = decode_state(VECTORS["state_v1"])
    assert state == State(Position(0, 91, 1))
    assert encode_state(state) == VECTORS["state_v1"]
    # Relative to the header, so that it is the frame at 116 of the segment of that time.
    assert decode_state(VECTORS["state_v0"]) == State(Position(0, 116, 0), version=0)


def test_an_unclosed_version_1_gives_its_events_although_it_counts_none() -> None:
    assert events_of(overwritten(VECTORS["v1_cbor"], 4, bytes(4))) == [A, B]


def test_json_in_a_version_1_is_known_by_its_first_byte() -> None:
    # Development snapshots wrote the header of version 1 before they wrote CBOR.
    data = encode_header(Header(1, 2)) + VECTORS["v0_json"][4:]
    assert decode_header(data).payload_format is PayloadFormat.CBOR
    assert events_of(data) == [A, B]


def test_the_page_shows_these_bytes() -> None:
    page = Path(__file__).parents[3] / "docs" / "formats" / "beats.md"
    shown = []
    for block in re.findall(r"```\n(0 .*?)```", page.read_text("utf-8"), re.DOTALL):
        data = b""
        for offset, row in re.findall(r"^(\d+) +((?:[0-9A-F]{2} )+)", block, re.MULTILINE):
            assert len(data) == int(offset)
            data += bytes.fromhex(row)
        shown.append(data)
    task = encode_tasks("mail", [b"hello"], [-5], timestamp=A.timestamp)[0]
    assert shown == [encode_frame(b"123456789"), encode_event(A, PayloadFormat.CBOR), task]


# --- derived negative cases ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected", "events"),
    [
        (spools.TORN, [("good", 12, 79, 0), (StretchKind.TAIL, 91, 109, 1)], [A]),
        (spools.BAD_PAYLOAD, [(StretchKind.FRAME, 12, 79, 0), ("good", 91, 129, 1)], [B]),
        (spools.BAD_END, [("good", 12, 79, 0), ("good", 91, 129, 1)], [A, B]),
        (spools.HUGE_LENGTH, [(StretchKind.GAP, 12, 79, 0), ("good", 91, 129, 0)], [B]),
        (spools.SHORT_LENGTH, [(StretchKind.GAP, 12, 79, 0), ("good", 91, 129, 0)], [B]),
        (spools.EMPTY, [], []),
    ],
    ids=["torn-tail", "payload", "trailing-length", "huge-length", "short-length", "empty"],
)
def test_damage_costs_the_frame_that_it_is_in(
    data: bytes, expected: list[tuple[str, int, int, int]], events: list[Event]
) -> None:
    assert places(found_in(data)) == expected
    assert events_of(data) == events


def test_damage_is_described_and_its_bytes_are_kept() -> None:
    damage, _ = found_in(spools.BAD_PAYLOAD)
    assert isinstance(damage, BadStretch)
    assert "checksum" in damage.reason
    assert damage.data == spools.BAD_PAYLOAD[12:91]
    frame, _ = found_in(spools.BAD_END)
    assert isinstance(frame, Frame)
    assert frame.warning == "the length at its end is 78, not 79"
    tail = found_in(spools.TORN)[1]
    assert isinstance(tail, BadStretch)
    assert tail.reason == "the stream ends 109 bytes into a frame of 129"


def test_headers_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(TruncatedData, match="header; expected 12 bytes, found 7"):
        decode_header(spools.HALF_HEADER)
    with pytest.raises(UnsupportedVersion, match="expected 0 to 2, found 3"):
        decode_header(spools.FUTURE_VERSION)
    with pytest.raises(UnsupportedVersion, match=r"offset 8: .* expected bits of 0x7, found 0x10"):
        decode_header(spools.UNKNOWN_OPTION)


def test_a_wrong_key_gives_nothing() -> None:
    other = bytes(16)
    found = found_in(VECTORS["v2_cbor_aes"], other)
    assert all(isinstance(it, BadStretch) for it in found)
    _, stream, decoder = logical(VECTORS["v2_cbor_aes_lz4"], other)
    assert stream == b""
    assert str(decoder.finish()).startswith("wrong key or damaged: ")
    assert decoder.torn_size == 98


@pytest.mark.parametrize("name", ["v2_cbor_aes", "v2_cbor_aes_lz4"])
def test_a_missing_key_is_said(name: str) -> None:
    with pytest.raises(InvalidValue, match="no key of 16 bytes is given"):
        events_of(VECTORS[name], None)
    with pytest.raises(InvalidValue, match="a key of 15 bytes; segments need one of 16"):
        events_of(VECTORS[name], bytes(15))


# --- every cut and every bit of the plain vectors ------------------------------------------------

PLAIN_VECTORS = ["v0_json", "v1_cbor", "v2_cbor", "v2_proto_gen3"]


def covered(found: list[Frame | BadStretch], start: int, end: int) -> bool:
    """Whether every byte is in exactly one piece."""
    for piece in found:
        if piece.offset != start or piece.size <= 0:
            return False
        start += piece.size
    return start == end


@pytest.mark.parametrize("name", PLAIN_VECTORS)
def test_a_segment_cut_anywhere_gives_its_whole_frames_and_a_tail(name: str) -> None:
    data = VECTORS[name]
    start = decode_header(data).size
    whole = found_in(data)
    for size, cut in enumerate(cuts(data)):
        if size < start:
            continue
        found = list(read_frames(cut[start:], start))
        frames = [it for it in whole if it.offset + it.size <= size]
        assert found[: len(frames)] == frames
        assert covered(found, start, size)
        for rest in found[len(frames) :]:
            assert isinstance(rest, BadStretch)
            assert rest.kind is StretchKind.TAIL


@pytest.mark.parametrize("name", PLAIN_VECTORS)
def test_a_turned_bit_costs_at_most_the_frame_that_it_is_in(name: str) -> None:
    data = VECTORS[name]
    start = decode_header(data).size
    whole = [it for it in found_in(data) if isinstance(it, Frame)]
    for bit in range(8 * start, 8 * len(data)):
        found = list(read_frames(flipped(data, bit)[start:], start))
        assert covered(found, start, len(data))
        payloads = {it.offset: it.payload for it in found if isinstance(it, Frame)}
        for frame in whole:
            is_hit = frame.offset <= bit // 8 < frame.offset + frame.size
            is_only_the_end = bit // 8 >= frame.offset + frame.size - 4
            if not is_hit or is_only_the_end:
                assert payloads[frame.offset] == frame.payload
            else:
                assert frame.offset not in payloads
