"""Erlang terms in their external format (docs/formats/rabbitmq-messages.md).

The decoder builds plain values and runs nothing. It never believes a length: each is held against the
bytes that are left before anything is allocated, and depth, number of values and inflated size have
bounds. The encoder writes what Erlang's own ``term_to_binary`` writes, byte for byte.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import isfinite
from struct import Struct
from typing import Final, TypeAlias

from penstock.binary import INT32, UINT32, Bytes
from penstock.errors import CorruptData, InvalidValue, TruncatedData

VERSION: Final = 131
COMPRESSED: Final = 80

DEPTH_MAX: Final = 128
"""Messages need about ten levels. Each level costs two of Python's thousand call frames."""

COUNT_MAX: Final = 1 << 18
"""Values in one term. A value may take one byte in the file and a hundred in memory. A body of half a
gigabyte, the most that brokers take, has half as many fragments with the smallest frames."""

INFLATED_SIZE_MAX: Final = 16 << 20
"""Brokers do not compress. Who does it for them gets as much as a store file holds by default."""

INTEGER_SIZE_MAX: Final = 1024
"""Bytes of the largest integer. Python refuses to print one of more than 1785 bytes."""

ATOM_LENGTH_MAX: Final = 255  # characters; Erlang's own limit

_UINT16: Final = Struct(">H")
_DOUBLE: Final = Struct(">d")


@dataclass(frozen=True, slots=True)
class Atom:
    """A name that is its own value, as ``true`` or ``basic_message``."""

    name: str

    def __post_init__(self) -> None:
        if len(self.name) > ATOM_LENGTH_MAX:
            raise InvalidValue(f"an atom has at most {ATOM_LENGTH_MAX} characters")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImproperList:
    """A list that ends in something else than the empty list."""

    items: tuple[ErlangTerm, ...]
    tail: ErlangTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class BitString:
    """Bytes of whose last one only the upper ``last_bits``, 1 to 8, count."""

    data: bytes
    last_bits: int


@dataclass(frozen=True, slots=True)
class Map:
    """Pairs in the order of the file. Erlang orders them by a rule of its own, so we keep it."""

    pairs: tuple[tuple[ErlangTerm, ErlangTerm], ...]

    def get(self, name: str) -> ErlangTerm | None:
        """Return the value under the atom ``name``."""
        wanted = Atom(name)
        return next((value for key, value in self.pairs if key == wanted), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """A process, port or reference of some node: it means nothing to us, so its bytes are kept."""

    tag: int
    data: bytes


ErlangTerm: TypeAlias = (
    "int | float | bytes | bytearray | memoryview | Atom | tuple[ErlangTerm, ...] | list[ErlangTerm]"
    " | ImproperList | BitString | Map | Opaque"
)
"""Tuples are Erlang's tuples, lists its proper lists; a string of Erlang's is a list of integers."""

TRUE: Final = Atom("true")
FALSE: Final = Atom("false")
UNDEFINED: Final = Atom("undefined")


class AtomEncoding(Enum):
    """How atoms are written. Both are read by every release."""

    LATIN_1 = "latin-1"  # up to Erlang/OTP 25; UTF-8 for names that Latin-1 has no letters for
    UTF_8 = "utf-8"  # Erlang/OTP 26 and later


# --- decoding ------------------------------------------------------------------------------------


def decode_term(data: Bytes, *, views: bool = False) -> ErlangTerm:
    """Return the term that ``data`` holds, all of it. Raises ``BadData``.

    With ``views`` binaries are memoryviews on ``data``, so that a large body is not copied. Offsets in
    errors count from the start of ``data``, or of the inflated bytes of a compressed term.
    """
    if len(data) < 2:
        raise TruncatedData("the bytes end inside a term", offset=len(data))
    if data[0] != VERSION:
        raise CorruptData("not an Erlang term", offset=0, expected=str(VERSION), found=str(data[0]))
    if data[1] == COMPRESSED:
        decoder = _Decoder(_inflate(memoryview(data)), 0, views=views)
    else:
        decoder = _Decoder(data, 1, views=views)
    term = decoder.term(DEPTH_MAX)
    if decoder.offset != decoder.end:
        raise CorruptData("bytes left over after a term", offset=decoder.offset)
    return term


def _inflate(data: memoryview) -> bytes:
    if len(data) < 6:
        raise TruncatedData("the bytes end inside a compressed term", offset=len(data))
    size = UINT32.unpack_from(data, 2)[0]
    if size > INFLATED_SIZE_MAX:
        raise CorruptData(
            "a compressed term is too large",
            offset=2,
            expected=f"up to {INFLATED_SIZE_MAX}",
            found=str(size),
        )
    inflater = zlib.decompressobj()
    try:
        # A limit of 0 would mean none, and the byte more shows a stream that goes on.
        inflated = inflater.decompress(data[6:], size + 1)
    except zlib.error as error:
        raise CorruptData(f"a compressed term cannot be inflated: {error}", offset=6) from None
    if len(inflated) > size or inflater.unused_data:
        raise CorruptData("a compressed term is longer than it says", offset=2, expected=str(size))
    if len(inflated) < size or not inflater.eof:
        raise TruncatedData("the bytes end inside a compressed term", offset=len(data))
    return inflated


# What "%.20e" prints; Python's float() takes much more, such as underscores and "nan".
_OLD_FLOAT: Final = re.compile(rb"[+-]?[0-9]{1,2}\.[0-9]{1,24}e[+-][0-9]{1,3}\0*")


class _Decoder:
    """Walks over the tagged values in ``data``; ``count`` is how many it may still make."""

    __slots__ = ("count", "data", "end", "offset", "views")

    def __init__(self, data: Bytes, offset: int, *, views: bool) -> None:
        self.data = data  # as it came: Python cuts bytes faster than views
        self.offset = offset
        self.end = len(data)
        self.views = memoryview(data) if views else None
        self.count = COUNT_MAX

    def term(self, depth: int) -> ErlangTerm:
        """Return the value here, in which at most ``depth`` more may be nested."""
        offset = self.offset
        if offset >= self.end:
            raise self.ends_early(1)
        tag = self.data[offset]
        decode = _DECODERS.get(tag)
        if decode is None:
            raise CorruptData("unknown tag in a term", offset=offset, found=str(tag))
        if depth == 0:
            raise CorruptData(f"a term is nested more than {DEPTH_MAX} deep", offset=offset)
        if self.count <= 0:
            raise self.too_many()
        self.count -= 1
        self.offset = offset + 1
        return decode(self, depth - 1)

    def take(self, size: int) -> Bytes:
        offset = self.offset
        end = offset + size
        if end > self.end:
            raise self.ends_early(size)
        self.offset = end
        return self.data[offset:end]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def ends_early(self, size: int) -> TruncatedData:
        return TruncatedData(
            "the bytes end inside a term",
            offset=self.offset,
            expected=f"{size} bytes",
            found=str(self.end - self.offset),
        )

    def too_many(self) -> CorruptData:
        return CorruptData(f"a term has more than {COUNT_MAX} values", offset=self.offset)

    def terms(self, count: int, depth: int) -> list[ErlangTerm]:
        if count > self.end - self.offset:  # each takes a byte at least
            raise self.ends_early(count)
        return [self.term(depth) for _ in range(count)]

    # --- one method a tag, named after what follows the tag ---

    def small_integer(self, _: int) -> int:
        return self.number(1)

    def integer(self, _: int) -> int:
        value: int = INT32.unpack(self.take(4))[0]
        return value

    def small_big(self, _: int) -> int:
        return self.big(self.number(1))

    def large_big(self, _: int) -> int:
        return self.big(self.number(4))

    def big(self, size: int) -> int:
        offset = self.offset
        if size > INTEGER_SIZE_MAX:
            raise CorruptData(
                "an integer is too large",
                offset=offset,
                expected=f"up to {INTEGER_SIZE_MAX} bytes",
                found=str(size),
            )
        sign = self.number(1)
        if sign > 1:
            raise CorruptData(
                "an integer's sign", offset=offset, expected="0 or 1", found=str(sign)
            )
        value = int.from_bytes(self.take(size), "little")
        return -value if sign else value

    def old_float(self, _: int) -> float:
        offset = self.offset
        raw = bytes(self.take(31))
        value = float(raw.rstrip(b"\0")) if _OLD_FLOAT.fullmatch(raw) else float("nan")
        if isfinite(value):
            return value
        raise CorruptData("a float that is no number", offset=offset)

    def new_float(self, _: int) -> float:
        offset = self.offset
        value: float = _DOUBLE.unpack(self.take(8))[0]
        if isfinite(value):
            return value
        raise CorruptData("a float that is no number", offset=offset)

    def latin_1_atom(self, _: int) -> Atom:
        return self.atom(self.number(2), "latin-1")

    def small_latin_1_atom(self, _: int) -> Atom:
        return self.atom(self.number(1), "latin-1")

    def utf_8_atom(self, _: int) -> Atom:
        return self.atom(self.number(2), "utf-8")

    def small_utf_8_atom(self, _: int) -> Atom:
        return self.atom(self.number(1), "utf-8")

    def atom(self, size: int, encoding: str) -> Atom:
        offset = self.offset
        try:
            return _named(bytes(self.take(size)), encoding)
        except UnicodeDecodeError:
            raise CorruptData("an atom is not UTF-8", offset=offset) from None
        except InvalidValue as error:
            raise CorruptData(str(error), offset=offset) from None

    def small_tuple(self, depth: int) -> ErlangTerm:
        return tuple(self.terms(self.number(1), depth))

    def large_tuple(self, depth: int) -> ErlangTerm:
        return tuple(self.terms(self.number(4), depth))

    def empty_list(self, _: int) -> ErlangTerm:
        return []

    def string(self, _: int) -> ErlangTerm:
        raw = self.take(self.number(2))
        self.count -= len(raw)
        if self.count < 0:
            raise self.too_many()
        return list(raw)

    def list(self, depth: int) -> ErlangTerm:
        items = self.terms(self.number(4), depth)
        tail = self.term(depth)
        # Only hands write a list that goes on in its tail; Erlang reads the one list that it is.
        if isinstance(tail, list):
            return items + tail
        if isinstance(tail, ImproperList):
            return ImproperList(items=(*items, *tail.items), tail=tail.tail)
        return ImproperList(items=tuple(items), tail=tail) if items else tail

    def binary(self, _: int) -> ErlangTerm:
        size = self.number(4)
        if self.views is None:
            return bytes(self.take(size))
        start = self.offset
        if size > self.end - start:
            raise self.ends_early(size)
        self.offset = start + size
        return self.views[start : self.offset]

    def bit_binary(self, _: int) -> BitString:
        size = self.number(4)
        offset = self.offset
        last_bits = self.number(1)
        if size == 0 or not 1 <= last_bits <= 8:
            raise CorruptData("a bit string's last byte", offset=offset, found=str(last_bits))
        return BitString(data=bytes(self.take(size)), last_bits=last_bits)

    def map(self, depth: int) -> Map:
        items = self.terms(2 * self.number(4), depth)
        return Map(tuple(zip(items[::2], items[1::2], strict=True)))


@lru_cache(maxsize=1024)  # A message repeats a dozen names; the bound keeps hostile ones out.
def _named(raw: bytes, encoding: str) -> Atom:
    return Atom(raw.decode(encoding))


def _opaque(tag: int, size: int) -> Callable[[_Decoder, int], Opaque]:
    """Return the decoder of a node's name and ``size`` bytes."""

    def decode(decoder: _Decoder, depth: int) -> Opaque:
        start = decoder.offset
        _skip_node(decoder, depth)
        decoder.take(size)
        return Opaque(tag=tag, data=bytes(decoder.data[start : decoder.offset]))

    return decode


def _reference(tag: int, creation_size: int) -> Callable[[_Decoder, int], Opaque]:
    """Return the decoder of a count, a node's name, its creation and that many words."""

    def decode(decoder: _Decoder, depth: int) -> Opaque:
        start = decoder.offset
        count = decoder.number(2)
        _skip_node(decoder, depth)
        decoder.take(creation_size + 4 * count)
        return Opaque(tag=tag, data=bytes(decoder.data[start : decoder.offset]))

    return decode


def _skip_node(decoder: _Decoder, depth: int) -> None:
    offset = decoder.offset
    if not isinstance(decoder.term(depth), Atom):
        raise CorruptData("a node's name is no atom", offset=offset)


_DECODERS: Final[dict[int, Callable[[_Decoder, int], ErlangTerm]]] = {
    70: _Decoder.new_float,
    77: _Decoder.bit_binary,
    88: _opaque(88, 12),  # process, from OTP 23 on
    89: _opaque(89, 8),  # port, from OTP 23 on
    90: _reference(90, 4),  # from OTP 23 on
    97: _Decoder.small_integer,
    98: _Decoder.integer,
    99: _Decoder.old_float,
    100: _Decoder.latin_1_atom,
    101: _opaque(101, 5),  # reference, before R6
    102: _opaque(102, 5),  # port
    103: _opaque(103, 9),  # process
    104: _Decoder.small_tuple,
    105: _Decoder.large_tuple,
    106: _Decoder.empty_list,
    107: _Decoder.string,
    108: _Decoder.list,
    109: _Decoder.binary,
    110: _Decoder.small_big,
    111: _Decoder.large_big,
    114: _reference(114, 1),
    115: _Decoder.small_latin_1_atom,
    116: _Decoder.map,
    118: _Decoder.utf_8_atom,
    119: _Decoder.small_utf_8_atom,
    120: _opaque(120, 12),  # port of 64 bits, from OTP 24 on
}
"""By tag. Functions (112, 113, 117) and what only sockets carry (82, 121) are refused as unknown."""


# --- encoding ------------------------------------------------------------------------------------


def encode_term(term: ErlangTerm, *, atoms: AtomEncoding = AtomEncoding.LATIN_1) -> bytes:
    """Return the bytes of a term. The caller keeps to ``DEPTH_MAX``."""
    parts: list[Bytes] = [bytes((VERSION,))]
    _encode(term, parts.append, atoms, DEPTH_MAX)
    return b"".join(parts)


def _encode(
    term: ErlangTerm, emit: Callable[[Bytes], None], atoms: AtomEncoding, depth: int
) -> None:
    assert depth > 0, "a term is nested too deep"
    match term:
        case bool():
            raise AssertionError("a boolean of Erlang's is an atom")
        case int():
            emit(_encode_integer(term))
        case float():
            assert isfinite(term), "Erlang has no float that is no number"
            emit(b"\x46" + _DOUBLE.pack(term))
        case bytes() | bytearray() | memoryview():
            emit(b"\x6d" + UINT32.pack(len(term)))
            emit(term)
        case Atom():
            emit(_encode_atom(term, atoms))
        case tuple():
            emit(_size(term, short=b"\x68", long=b"\x69"))
            for item in term:
                _encode(item, emit, atoms, depth - 1)
        case list():
            _encode_list(term, emit, atoms, depth)
        case ImproperList():
            emit(b"\x6c" + UINT32.pack(len(term.items)))
            for item in (*term.items, term.tail):
                _encode(item, emit, atoms, depth - 1)
        case BitString():
            emit(b"\x4d" + UINT32.pack(len(term.data)) + bytes((term.last_bits,)) + term.data)
        case Map():
            emit(b"\x74" + UINT32.pack(len(term.pairs)))
            for pair in term.pairs:
                for item in pair:
                    _encode(item, emit, atoms, depth - 1)
        case Opaque():
            emit(bytes((term.tag,)) + term.data)


def _encode_list(
    items: list[ErlangTerm], emit: Callable[[Bytes], None], atoms: AtomEncoding, depth: int
) -> None:
    if not items:
        emit(b"\x6a")
    elif len(items) <= 0xFFFF and all(type(x) is int and 0 <= x <= 0xFF for x in items):
        emit(b"\x6b" + _UINT16.pack(len(items)) + bytes(items))  # type: ignore[arg-type]
    else:
        emit(b"\x6c" + UINT32.pack(len(items)))
        for item in items:
            _encode(item, emit, atoms, depth - 1)
        emit(b"\x6a")


def _encode_integer(value: int) -> bytes:
    if 0 <= value <= 0xFF:
        return bytes((97, value))
    if -(2**31) <= value < 2**31:
        return b"\x62" + INT32.pack(value)
    magnitude = abs(value)
    raw = magnitude.to_bytes((magnitude.bit_length() + 7) // 8, "little")
    assert len(raw) <= INTEGER_SIZE_MAX
    size = bytes((110, len(raw))) if len(raw) <= 0xFF else b"\x6f" + UINT32.pack(len(raw))
    return size + bytes((value < 0,)) + raw


@lru_cache(maxsize=1024)
def _encode_atom(atom: Atom, encoding: AtomEncoding) -> bytes:
    name = atom.name
    if encoding is AtomEncoding.LATIN_1 and all(character <= "\xff" for character in name):
        return b"\x64" + _UINT16.pack(len(name)) + name.encode("latin-1")
    raw = name.encode("utf-8")
    if len(raw) <= 0xFF:
        return bytes((119, len(raw))) + raw
    return b"\x76" + _UINT16.pack(len(raw)) + raw


def _size(items: tuple[ErlangTerm, ...], *, short: bytes, long: bytes) -> bytes:
    if len(items) <= 0xFF:
        return short + bytes((len(items),))
    return long + UINT32.pack(len(items))
