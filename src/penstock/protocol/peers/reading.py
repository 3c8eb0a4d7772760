"""Bytes to packets, in whatever pieces they arrive (docs/peers.md).

Nothing is believed that was not checked: the type when it is there, a length when its four bytes are, and everything
else when the packet is whole and its checksum right. Until then a reader holds the bytes of one packet, and no more.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from penstock.binary import INT32, UINT32, Reader, checksum_of_one
from penstock.errors import CorruptData, TruncatedData
from penstock.model import TERM_MAX
from penstock.protocol.peers import packets as p
from penstock.protocol.peers.layouts import (
    APPEND_HEAD,
    BOUNDS,
    CHECKSUM_SIZE,
    CHUNK_HEAD,
    ENTRY_HEAD,
    ENTRY_UNIT,
    LENGTH_SIZE,
    MEASURED,
    OFFER_HEAD,
    PLAIN,
    TYPE_SIZE,
    ZEROS,
    Layout,
)
from penstock.protocol.peers.packets import Packet, Standing, Type

_TYPES: Final = frozenset(Type)
_HEAD_SIZE: Final = TYPE_SIZE + LENGTH_SIZE
_FIXED: Final[dict[int, Layout]] = {**PLAIN, **MEASURED}
_FIXED_SIZES: Final[dict[int, int]] = {
    kind: TYPE_SIZE + one.form.size + CHECKSUM_SIZE for kind, one in PLAIN.items()
}

_TERMS: Final = frozenset(("term", "last_term", "hint_term", "leader_term"))
"""The fields of packets of fixed size that are terms."""

ALL_TYPES: Final[frozenset[int]] = _TYPES


class PacketReader:
    """Cuts arriving bytes into packets. After a refusal nothing that follows means anything."""

    __slots__ = ("_held", "_offset", "_wanted")

    def __init__(self) -> None:
        self._held = bytearray()
        self._offset = 0  # where the next packet begins
        self._wanted = 0  # its size, once that is known

    @property
    def held(self) -> int:
        """How many bytes are there that no packet was made of yet."""
        return len(self._held) - self._offset

    def feed(self, data: bytes) -> None:
        """Take bytes; ``next`` returns the packets in them, and has to be asked until it returns none."""
        if self._offset:
            del self._held[: self._offset]
            self._offset = 0
        self._held += data

    def next(self, allowed: Container[int] = ALL_TYPES) -> Packet | None:
        """Return the next packet, ``None`` while it is not whole.

        ``allowed`` are the types that may come now. Raises ``BadData`` for any other, for an impossible length, a
        wrong checksum, and contents that cannot be.
        """
        held, offset = self._held, self._offset
        if offset == len(held):
            return None
        kind = held[offset]
        if kind not in allowed or kind not in _TYPES:
            raise CorruptData("a packet of a type that may not come now", found=_name(kind))
        if not self._wanted:
            self._wanted = _size(held, offset, kind)
        if not self._wanted or len(held) - offset < self._wanted:
            return None
        with memoryview(held) as view:
            payload = bytes(view[offset + TYPE_SIZE : offset + self._wanted - CHECKSUM_SIZE])
        (found,) = UINT32.unpack_from(held, offset + self._wanted - CHECKSUM_SIZE)
        packet = _decode(kind, payload, found)
        self._offset = offset + self._wanted
        self._wanted = 0
        return packet


def _name(kind: int) -> str:
    return f"{kind:02X} ({chr(kind)})" if 33 <= kind <= 126 else f"{kind:02X}"


def _size(data: bytearray, offset: int, kind: int) -> int:
    """Return the size of the packet that begins at ``offset``, 0 while that cannot be told."""
    fixed = _FIXED_SIZES.get(kind)
    if fixed is not None:
        return fixed
    if len(data) - offset < _HEAD_SIZE:
        return 0
    (length,) = INT32.unpack_from(data, offset + TYPE_SIZE)
    least, most = BOUNDS[kind]
    if not least <= length <= most:
        raise CorruptData(
            f"impossible length of a packet of type {_name(kind)}",
            offset=TYPE_SIZE,
            expected=f"{least} to {most}",
            found=str(length),
        )
    return int(_HEAD_SIZE + length + CHECKSUM_SIZE)


def _decode(kind: int, payload: bytes, found: int) -> Packet:
    right = checksum_of_one(payload)
    if found != right:
        raise CorruptData(
            f"wrong checksum of a packet of type {_name(kind)}",
            expected=f"{right:08X}",
            found=f"{found:08X}",
        )
    if kind == Type.APPEND:
        return _decode_append(payload)
    layout = _FIXED.get(kind)
    if layout is not None:
        return _decode_fixed(layout, payload)
    return _decode_varied(kind, payload)


def _decode_fixed(layout: Layout, payload: bytes) -> Packet:
    fields = dict(
        zip(
            layout.names,
            layout.form.unpack_from(payload, len(payload) - layout.form.size),
            strict=True,
        )
    )
    for name in _TERMS.intersection(fields):
        _check_term(fields[name])
    if "standing" in fields:
        fields["standing"] = _standing(fields["standing"])
    packet: Packet = layout.kind(**fields)
    return packet


def _check_term(term: int) -> None:
    """Refuse a term that no cluster can reach: the one after it would not fit its field."""
    if term > TERM_MAX:
        raise CorruptData("an impossible term", expected=f"at most {TERM_MAX}", found=str(term))


def _standing(code: int) -> Standing:
    try:
        return Standing(code)
    except ValueError:
        raise CorruptData("unknown standing of a transfer", found=str(code)) from None


def _decode_append(payload: bytes) -> p.Append:
    commit, term, previous_term, previous_index, leader, count = APPEND_HEAD.unpack_from(
        payload, LENGTH_SIZE
    )
    room = len(payload) - LENGTH_SIZE - APPEND_HEAD.size
    if not 0 <= count <= room // ENTRY_HEAD.size:
        raise CorruptData(
            "impossible number of entries",
            offset=LENGTH_SIZE + APPEND_HEAD.size - 4,
            expected=f"0 to {room // ENTRY_HEAD.size}",
            found=str(count),
        )
    terms, payloads = _decode_entries(payload, LENGTH_SIZE + APPEND_HEAD.size, count)
    _check_term(max(term, previous_term, *terms))
    return p.Append(
        commit=commit,
        term=term,
        previous_term=previous_term,
        previous_index=previous_index,
        leader=leader,
        terms=terms,
        payloads=payloads,
    )


def _decode_entries(data: bytes, offset: int, count: int) -> tuple[list[int], list[bytes]]:
    """Return the entries from ``offset`` to the end, which must be ``count``."""
    terms: list[int] = []
    payloads: list[bytes] = []
    end, unpack, head_size = len(data), ENTRY_HEAD.unpack_from, ENTRY_HEAD.size
    for _ in range(count):
        if end - offset < head_size:
            raise TruncatedData("the bytes end inside an entry's head", offset=offset)
        term, size = unpack(data, offset)
        begin = offset + head_size
        padding = size % ENTRY_UNIT
        offset = begin + size + padding
        if size < 0 or offset > end:
            raise CorruptData(
                "impossible length of an entry",
                offset=begin - 4,
                expected=f"0 to {end - begin}",
                found=str(size),
            )
        if padding and data[offset - padding : offset] != ZEROS[padding]:
            raise CorruptData("padding that is not zero", offset=offset - padding)
        terms.append(term)
        payloads.append(data[begin : begin + size])
    if offset != end:
        raise CorruptData(
            "bytes left over after the entries", offset=offset, found=f"{end - offset} more"
        )
    return terms, payloads


def _decode_varied(kind: int, payload: bytes) -> Packet:
    reader = Reader(payload, LENGTH_SIZE)
    if kind == Type.CHUNK:
        leader_term, index, term, offset, size = CHUNK_HEAD.unpack_from(payload, LENGTH_SIZE)
        data = payload[LENGTH_SIZE + CHUNK_HEAD.size :]
        _check_term(max(leader_term, term))
        if offset < 0 or offset + len(data) > size:
            raise CorruptData(
                "a chunk that is not inside its snapshot",
                expected=f"0 to {size}",
                found=f"{offset} to {offset + len(data)}",
            )
        return p.Chunk(
            leader_term=leader_term, index=index, term=term, offset=offset, size=size, data=data
        )
    if kind == Type.OFFER:
        return _decode_offer(payload)
    if kind == Type.MEMBERS:
        return _decode_members(reader)
    version = reader.byte("a version")
    if version < p.VERSION:
        raise CorruptData("a version that never was", found=str(version))
    incarnation, knows = _incarnation(reader), _incarnation(reader)
    address = _text(reader, "a client address")
    if version == p.VERSION:  # a later one may say more
        reader.finish("a greeting")
    return p.Hello(incarnation=incarnation, knows=knows, client_address=address, version=version)


def _decode_members(reader: Reader) -> p.Members:
    index, count = reader.int64("an index"), reader.int32("a count of members")
    room = p.MEMBERS_SIZE_MAX // (INT32.size + LENGTH_SIZE)
    if not 0 <= count <= room:
        raise CorruptData("impossible number of members", expected=f"0 to {room}", found=str(count))
    addresses: dict[int, str] = {}
    for _ in range(count):
        number = reader.int32("a node's number")
        addresses[number] = _text(reader, "an address")
    reader.finish("members")
    if (
        list(addresses) != sorted(addresses)
        or len(addresses) != count
        or min(addresses, default=1) < 1
    ):
        raise CorruptData("members that are not in order, or not numbered from 1 on")
    return p.Members(index=index, addresses=addresses)


def _decode_offer(payload: bytes) -> p.Offer:
    leader_term, index, term, size, checksum = OFFER_HEAD.unpack_from(payload, LENGTH_SIZE)
    _check_term(max(leader_term, term))
    if size < 0:
        raise CorruptData("negative size of a snapshot", offset=LENGTH_SIZE + 24, found=str(size))
    return p.Offer(
        leader_term=leader_term,
        index=index,
        term=term,
        size=size,
        checksum=checksum,
        configuration=payload[LENGTH_SIZE + OFFER_HEAD.size :],
    )


def _text(reader: Reader, what: str) -> str:
    offset = reader.offset
    text = reader.string(what)
    if reader.offset - offset - LENGTH_SIZE > p.TEXT_SIZE_MAX:
        raise CorruptData(f"{what} is too long", offset=offset)
    return text


def _incarnation(reader: Reader) -> str:
    offset = reader.offset
    text = _text(reader, "an incarnation")
    if text and (len(text) != p.INCARNATION_SIZE or text.strip("0123456789abcdef")):
        raise CorruptData(
            "an incarnation that is none", offset=offset, expected="16 hexadecimal digits"
        )
    return text
