"""Packets to bytes (docs/peers.md). A value that does not fit its field is our own mistake, and asserted."""

from __future__ import annotations

from typing import Any, Final

from penstock.binary import INT32, UINT32, checksum_of_one, encode_string
from penstock.protocol.peers import packets as p
from penstock.protocol.peers.layouts import (
    APPEND_HEAD,
    BOUNDS,
    CHUNK_HEAD,
    ENTRY_HEAD,
    ENTRY_UNIT,
    MEASURED,
    MEMBERS_HEAD,
    OFFER_HEAD,
    PLAIN,
    ZEROS,
    Layout,
)
from penstock.protocol.peers.packets import Packet, Type

_FIXED: Final[dict[type[Any], tuple[int, Layout, bool]]] = {
    layout.kind: (kind, layout, table is MEASURED)
    for table in (PLAIN, MEASURED)
    for kind, layout in table.items()
}
"""Of each packet of fixed size: its type, its fields, and whether a length comes before them."""

_pack_entry = ENTRY_HEAD.pack
_pack_length = UINT32.pack


def encode_packet(packet: Packet) -> bytes:
    """Return the bytes of one packet."""
    fixed = _FIXED.get(type(packet))
    if fixed is not None:
        kind, layout, has_length = fixed
        body = layout.form.pack(*[getattr(packet, name) for name in layout.names])
        return _sealed(kind, _pack_length(len(body)) + body if has_length else body)
    match packet:
        case p.Append():
            return _encode_append(packet)
        case p.Chunk():
            place = packet.leader_term, packet.index, packet.term, packet.offset, packet.size
            return _measured(Type.CHUNK, CHUNK_HEAD.pack(*place) + packet.data)
        case p.Offer():
            head = packet.leader_term, packet.index, packet.term, packet.size, packet.checksum
            return _measured(Type.OFFER, OFFER_HEAD.pack(*head) + packet.configuration)
        case p.Hello():
            return _measured(Type.HELLO, bytes((packet.version,)) + _encode_names(packet))
        case p.Members():
            return _measured(Type.MEMBERS, _encode_members(packet))
    raise AssertionError(f"no packet: {packet!r}")


def _encode_append(packet: p.Append) -> bytes:
    terms, payloads = packet.terms, packet.payloads
    assert len(terms) == len(payloads)
    head = APPEND_HEAD.pack(
        packet.commit,
        packet.term,
        packet.previous_term,
        packet.previous_index,
        packet.leader,
        len(payloads),
    )
    pieces = [head]
    for term, payload in zip(terms, payloads, strict=True):
        size = len(payload)
        pieces.append(_pack_entry(term, size))
        pieces.append(payload)
        if size % ENTRY_UNIT:
            pieces.append(ZEROS[size % ENTRY_UNIT])
    return _measured(Type.APPEND, b"".join(pieces))


def _encode_names(packet: p.Hello) -> bytes:
    return (
        encode_string(packet.incarnation)
        + encode_string(packet.knows)
        + encode_string(packet.client_address)
    )


def _encode_members(packet: p.Members) -> bytes:
    pieces = [MEMBERS_HEAD.pack(packet.index, len(packet.addresses))]
    for number, address in sorted(packet.addresses.items()):
        pieces += [INT32.pack(number), encode_string(address)]
    return b"".join(pieces)


def _measured(kind: Type, body: bytes) -> bytes:
    least, most = BOUNDS[kind]
    assert least <= len(body) <= most, f"a packet of type {kind.name} has no {len(body)} bytes"
    return _sealed(kind, _pack_length(len(body)) + body)


def _sealed(kind: int, payload: bytes) -> bytes:
    return bytes((kind,)) + payload + _pack_length(checksum_of_one(payload))
