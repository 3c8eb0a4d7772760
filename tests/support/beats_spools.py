"""Spools of Elastic Beats for tests: the vectors of the format's description, and directories made of segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.formats.beats.body import BodyEncoder
from penstock.formats.beats.event import Event, encode_event
from penstock.formats.beats.frame import encode_frames
from penstock.formats.beats.segment import Header, Options, encode_header, segment_name
from penstock.formats.beats.state import Position, State, encode_state
from support.damage import overwritten

# Two events, A and B, in all forms; the encrypted ones and those of protobuf hold A alone.
_HEX: Final = {
    "v0_json": (
        "00000000700000007b2274696d657374616d70223a313730343136343634353637383930313233342c22666c"
        "616773223a312c226d657461223a7b225f6964223a22612d31227d2c226669656c6473223a7b226d65737361"
        "6765223a2268656c6c6f222c226e223a34327d7d718e853370000000c90000007b2274696d657374616d7022"
        "3a313730343136343634363030303030303030302c22666c616773223a302c226d657461223a7b7d2c226669"
        "656c6473223a7b226d657373616765223a2274c58d72c58d205c22e6a1835c22205c75303033635c75303032"
        "365c7530303365222c226e6567223a2d3230302c2266223a312e352c226f6b223a747275652c226e6f6e6522"
        "3a6e756c6c2c2274616773223a5b2278222c2279225d2c22686f7374223a7b226e616d65223a226831227d7d"
        "7db3e0a0c1c9000000"
    ),
    "v1_cbor": (
        "01000000020000004f000000a46974696d657374616d701b17a668b7587867f265666c61677301646d657461"
        "a1635f696463612d31666669656c6473a2676d6573736167656568656c6c6f616e182a80f07fce4f00000081"
        "000000a46974696d657374616d701b17a668b76b9bfc0065666c61677300646d657461a0666669656c6473a7"
        "676d6573736167657074c58d72c58d2022e6a18322203c263e636e656738c76166fb3ff8000000000000626f"
        "6bf5646e6f6e65f66474616773826178617964686f7374a1646e616d656268315541212f81000000"
    ),
    "v2_cbor": (
        "0200000002000000000000004f000000a46974696d657374616d701b17a668b7587867f265666c6167730164"
        "6d657461a1635f696463612d31666669656c6473a2676d6573736167656568656c6c6f616e182a80f07fce4f"
        "00000081000000a46974696d657374616d701b17a668b76b9bfc0065666c61677300646d657461a066666965"
        "6c6473a7676d6573736167657074c58d72c58d2022e6a18322203c263e636e656738c76166fb3ff800000000"
        "0000626f6bf5646e6f6e65f66474616773826178617964686f7374a1646e616d656268315541212f81000000"
    ),
    "v2_cbor_lz4": (
        "02000000020000000200000004224d186470b9b5000000ff414f000000a46974696d657374616d701b17a668"
        "b7587867f265666c61677301646d657461a1635f696463612d31666669656c6473a2676d6573736167656568"
        "656c6c6f616e182a80f07fce4f000000814f0000426b9bfc004f0011004f0013a0470014a74700f10e7074c5"
        "8d72c58d2022e6a18322203c263e636e656738c76166fb3ff8000100f01b626f6bf5646e6f6e65f664746167"
        "73826178617964686f7374a1646e616d656268315541212f810000000000000092bc094b"
    ),
    "v2_cbor_lz4_unclean": (
        "02000000000000000200000004224d186470b94f0000804f000000a46974696d657374616d701b17a668b758"
        "7867f265666c61677301646d657461a1635f696463612d31666669656c6473a2676d6573736167656568656c"
        "6c6f616e182a80f07fce4f0000008100008081000000a46974696d657374616d701b17a668b76b9bfc006566"
        "6c61677300646d657461a0666669656c6473a7676d6573736167657074c58d72c58d2022e6a18322203c263e"
        "636e656738c76166fb3ff8000000000000626f6bf5646e6f6e65f66474616773826178617964686f7374a164"
        "6e616d656268315541212f81000000"
    ),
    "v2_proto_gen3": (
        "020000000100000004000000710000000a0c08a5facdac0610f2ebdcc302120c0a04696e2d31120473742d31"
        "1a180a046c6f6773120767656e657269631a0764656661756c74220e0a0c0a035f696412054203612d312a1d"
        "0a120a076d6573736167651207420568656c6c6f0a070a016e1202282acd3581a371000000"
    ),
    "v2_proto_gen2": (
        "020000000100000004000000780000000a0c08a5facdac0610f2ebdcc302120c0a04696e2d31120473742d31"
        "1a180a046c6f6773120767656e657269631a0764656661756c74220e0a0c0a035f696412051a03612d312a24"
        "0a120a076d65737361676512071a0568656c6c6f0a0e0a016e1209110000000000004540f197958978000000"
    ),
    "v2_cbor_aes": (
        "020000000100000001000000101112131415161718191a1b1c1d1e1f48feef7445bc7707fd6b9d65eff9e288"
        "8564adb38074e5f0231f1103ec8adf6ca7444c069486a7c201f5eb0190b35b13359e02c7f925d0105fe05465"
        "ab69b96d5a6891a5f0373f4a89b545674c8192"
    ),
    "v2_cbor_aes_lz4": (
        "020000000100000003000000101112131415161718191a1b1c1d1e1f03dca26c85a5ba21900e6e5e8e949237"
        "fbb6ac69bd7ff6632b0966752d916950b246ca02538999cc1697ee41c4a15cdb33ad0fd0382390444af55c67"
        "a268a2aa51699bb7ed4e72af1ca2ee4420eef35146b7ac79e78a30be4bb751bdfd759862a185"
    ),
    "state_v1": ("0100000000000000000000005b000000000000000100000000000000"),
    "state_v0": ("0000000000000000000000007000000000000000"),
}
VECTORS: Final = {name: bytes.fromhex(text) for name, text in _HEX.items()}

_NO_OPTIONS: Final = Options(0)

KEY: Final = bytes(range(16))
"""Of the encrypted vectors."""

A: Final[dict[str, Any]] = {
    "timestamp": "2024-01-02T03:04:05.678901234Z",
    "flags": 1,
    "meta": {"_id": "a-1"},
    "fields": {"message": "hello", "n": 42},
}
B: Final[dict[str, Any]] = {
    "timestamp": "2024-01-02T03:04:06.000000000Z",
    "flags": 0,
    "meta": {},
    "fields": {
        "message": 't\u014dr\u014d "\u6843" <&>',
        "neg": -200,
        "f": 1.5,
        "ok": True,
        "none": None,
        "tags": ["x", "y"],
        "host": {"name": "h1"},
    },
}

PLAIN: Final = VECTORS["v2_cbor"]
"""Frames at 12 and 91, 220 bytes."""

# The negative cases that are made from it.
TORN: Final = overwritten(PLAIN[:200], 4, bytes(4))
BAD_PAYLOAD: Final = overwritten(PLAIN, 0x20, bytes([PLAIN[0x20] ^ 1]))
BAD_END: Final = overwritten(PLAIN, 87, bytes([PLAIN[87] ^ 1]))
HUGE_LENGTH: Final = overwritten(PLAIN, 12, b"\xff" * 4)
SHORT_LENGTH: Final = overwritten(PLAIN, 12, b"\x0c\0\0\0")
EMPTY: Final = overwritten(PLAIN[:12], 4, bytes(4))
HALF_HEADER: Final = PLAIN[:7]
FUTURE_VERSION: Final = overwritten(PLAIN, 0, b"\x03")
UNKNOWN_OPTION: Final = overwritten(PLAIN, 8, b"\x10")


def spool(place: Path, segments: Mapping[int | str, bytes], state: bytes | None = None) -> Path:
    """Write a spool's directory; a segment is named by its number or by its file name."""
    place.mkdir(parents=True)
    for name, data in segments.items():
        (place / (segment_name(name) if isinstance(name, int) else name)).write_bytes(data)
    if state is not None:
        (place / "state.dat").write_bytes(state)
    return place


def stored(segment: int, offset: int, index: int) -> bytes:
    """Return a ``state.dat`` of version 1."""
    return encode_state(State(Position(segment, offset, index)))


def sealed(
    payloads: Sequence[bytes],
    *,
    version: int = 2,
    options: Options = _NO_OPTIONS,
    count: int | None = None,
    key: bytes | None = None,
) -> bytes:
    """Return a segment as a writer leaves it that has closed it."""
    encoder = BodyEncoder(options, key=key, iv=bytes(range(100, 116)))
    counted = len(payloads) if count is None else count
    header = Header(version, counted if version else 0, options)
    parts = [encode_header(header), encoder.begin()]
    parts += [encoder.encode(encode_frames(payloads)), encoder.end()]
    return b"".join(parts)


def some_events(count: int, *, first: int = 0) -> list[Event]:
    """Return events that are all different."""
    return [
        Event(
            timestamp=1_704_164_645_000_000_000 + number,
            flags=number % 2,
            meta={"_id": f"e-{number}"},
            fields={"message": "x" * (number % 50), "number": number},
        )
        for number in range(first, first + count)
    ]


def payloads_of(events: Sequence[Event], header: Header) -> list[bytes]:
    """Return events as a segment with this header stores them."""
    return [encode_event(event, header.payload_format) for event in events]
