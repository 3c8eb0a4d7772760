"""What must hold for any bytes at all where version 1 of the protocol is spoken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.errors import BadData
from penstock.protocol import version1 as v1
from protocol.version1_samples import REQUESTS, RESPONSES

SEEDS: list[bytes] = [
    *(bytes.fromhex(text) for _, text in REQUESTS),
    *(bytes.fromhex(text) for _, text in RESPONSES),
]

_PAYLOAD_SIZE_MAX = 300  # below what a fuzzer sends, so that both sides of it are tried

_PREFIXES_MAX = 32

Packet = v1.Request | v1.Response
Decoder = Callable[[bytes, int], tuple[Packet, int] | None]


def check(data: bytes) -> None:
    """Decode ``data`` as a stream of packets, from either side, and judge all that comes out."""
    for with_id in (True, False):
        decode = partial(v1.decode_response, payload_size_max=_PAYLOAD_SIZE_MAX, with_id=with_id)
        _check_stream(data, decode, partial(_encode_response, with_id=with_id))
    decode_request = partial(v1.decode_request, payload_size_max=_PAYLOAD_SIZE_MAX)
    _check_stream(data, decode_request, _encode_request)


def _encode_request(packet: Packet) -> bytes | None:
    if isinstance(packet, v1.Unsendable):
        return None  # its content is not kept
    return v1.encode_request(packet)  # type: ignore[arg-type]


def _encode_response(packet: Packet, *, with_id: bool) -> bytes | None:
    return v1.encode_response(packet, with_id=with_id)  # type: ignore[arg-type]


def _check_stream(data: bytes, decode: Decoder, encode: Callable[[Packet], bytes | None]) -> None:
    offset = 0
    while True:
        try:
            found = decode(data, offset)
        except BadData as error:
            str(error)
            return
        if found is None:
            return
        packet, end = found
        assert offset < end <= len(data)
        _check_packet(data[offset:end], packet, decode, encode)
        offset = end


def _check_packet(
    data: bytes,
    packet: Packet,
    decode: Decoder,
    encode: Callable[[Packet], bytes | None],
) -> None:
    assert decode(data, 0) == (packet, len(data))
    step = max(1, len(data) // _PREFIXES_MAX)
    for size in range(0, len(data), step):
        assert decode(data[:size], 0) is None, f"{size} bytes of {packet} are not waited on"
    again = encode(packet)
    if again is not None:
        assert decode(again, 0) == (packet, len(again)), f"{packet} does not survive its own bytes"
