"""The body of a segment: how its logical stream is compressed and encrypted (docs/formats/beats.md).

Writing goes frames, LZ4, AES, file; reading goes back. Both work in pieces, so that no more than a block of LZ4 and a
piece are ever in memory, whatever a body claims to expand to. A body that was not closed has no end
mark; everything up to its last whole block comes out. AES-CTR proves nothing: with a wrong key a plain body
gives damaged frames, and a compressed one is no LZ4.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from enum import Enum, auto
from hashlib import pbkdf2_hmac
from typing import Any, Final

from penstock.binary import Bytes
from penstock.errors import InvalidValue, needing
from penstock.formats.beats.segment import IV_SIZE, KEY_SIZE, UINT32, Options

PIECE_MAX: Final = 4 * 1024 * 1024
"""The most bytes of a logical stream that come out at once: what a block of LZ4 can hold."""

LZ4_MAGIC: Final = bytes.fromhex("04224d18")
"""How a compressed body begins."""

IV_RANDOM_SIZE: Final = 12
"""Bytes of an initialization vector of ours that are random; the mark of the key follows."""

_PASSWORD_ROUNDS: Final = 4096


def key_from_password(password: bytes) -> bytes:
    """Return the key that Elastic's shipper makes of a password."""
    return pbkdf2_hmac("sha1", password, password, _PASSWORD_ROUNDS, KEY_SIZE)


def marked_iv(random: bytes, key: bytes) -> bytes:
    """Return an initialization vector of ours: ``IV_RANDOM_SIZE`` random bytes, and a mark by which the key is known.

    A body proves its key only by its first frame. After a crash there may be none, and that must not look
    like a wrong key.
    """
    assert len(random) == IV_RANDOM_SIZE
    return random + hmac.digest(key, random, "sha256")[: IV_SIZE - IV_RANDOM_SIZE]


def is_key_of(iv: bytes, key: bytes) -> bool:
    """Return whether this key is the vector's. ``False`` proves nothing: vectors that Beats made have no mark."""
    return iv == marked_iv(iv[:IV_RANDOM_SIZE], key)


class BodyDecoder:
    """Turns the bytes behind a segment's header into its logical stream."""

    def __init__(self, options: Options, *, key: bytes | None) -> None:
        """``key`` is for encrypted bodies, and not looked at for others.

        Raises ``InvalidValue`` for a key that is missing or has another size than 16 bytes, and ``DependencyMissing``.
        """
        is_encrypted = bool(options & Options.ENCRYPTED)
        self._decipher = _Decipher(_checked_key(key)) if is_encrypted else None
        self._lz4 = _Lz4Decoder() if options & Options.COMPRESSED else None

    @property
    def is_closed(self) -> bool:
        """Whether an LZ4 body has its end mark, with nothing behind it; other bodies have none to tell it by."""
        return self._lz4 is not None and self._lz4.is_closed

    @property
    def torn_size(self) -> int:
        """How many of the last bytes have given nothing yet: part of a vector, of a block, or what follows damage."""
        torn = 0 if self._lz4 is None else self._lz4.torn_size
        return torn + (0 if self._decipher is None else self._decipher.torn_size)

    def feed(self, data: Bytes) -> Iterator[bytes]:
        """Yield the stream that these bytes add, in pieces of at most ``PIECE_MAX``.

        The first 16 bytes of an encrypted body are its initialization vector. Behind damage nothing comes any
        more; ``finish`` says so. The iterator must be used up before more is fed.
        """
        with memoryview(data) as view:
            for start in range(0, len(view), PIECE_MAX):
                piece = bytes(view[start : start + PIECE_MAX])
                if self._decipher is not None:
                    piece = self._decipher.update(piece)
                if self._lz4 is not None:
                    yield from self._lz4.feed(piece)
                elif piece:
                    yield piece

    def finish(self) -> str | None:
        """Return what is wrong with the body as far as it was fed; ``None``: nothing.

        A missing end mark is nothing wrong, nor is a last block that is not whole: a crash leaves that.
        """
        if self._decipher is not None and self._decipher.torn_size:
            return "the body ends inside its initialization vector"
        problem = None if self._lz4 is None else self._lz4.problem
        if problem is not None and self._decipher is not None:
            return f"wrong key or damaged: {problem}"
        return problem


class BodyEncoder:
    """Turns a logical stream into what stands behind a segment's header."""

    def __init__(
        self, options: Options, *, key: bytes | None = None, iv: bytes | None = None
    ) -> None:
        """``iv`` are 16 random bytes, for this body alone: a vector that is used twice gives the text away.

        Raises ``InvalidValue`` for a key or a vector that is missing or has another size, and ``DependencyMissing``.
        """
        self._iv = b""
        self._encryptor: Any = None
        self._compressor: Any = None
        if options & Options.ENCRYPTED:
            key = _checked_key(key)
            if iv is None or len(iv) != IV_SIZE:
                raise InvalidValue(f"an initialization vector has {IV_SIZE} bytes")
            self._iv = iv
            self._encryptor = _cipher(key, iv).encryptor()
        if options & Options.COMPRESSED:
            # What Beats writes; each call of ``encode`` ends its blocks.
            lz4 = _lz4_frame()
            self._compressor = lz4.LZ4FrameCompressor(
                block_size=lz4.BLOCKSIZE_MAX4MB,
                block_linked=False,
                content_checksum=True,
                auto_flush=True,
            )

    def begin(self) -> bytes:
        """Return what comes first, once: the initialization vector and the head of the LZ4 frame."""
        head = b"" if self._compressor is None else self._compressor.begin()
        return self._iv + self._encrypted(head)

    def encode(self, stream: Bytes) -> bytes:
        """Return the bytes to be appended for more of the stream; a reader gets all of it from them."""
        data = bytes(stream) if self._compressor is None else self._compressor.compress(stream)
        return self._encrypted(data)

    def end(self) -> bytes:
        """Return what closes the body, once: the LZ4 frame's end mark and checksum, or nothing."""
        return self._encrypted(b"" if self._compressor is None else self._compressor.flush())

    def _encrypted(self, data: bytes) -> bytes:
        if self._encryptor is None:
            return data
        encrypted: bytes = self._encryptor.update(data)
        return encrypted


# --- AES -----------------------------------------------------------------------------------------


def _checked_key(key: bytes | None) -> bytes:
    if key is None:
        raise InvalidValue(f"the segment is encrypted, and no key of {KEY_SIZE} bytes is given")
    if len(key) != KEY_SIZE:
        raise InvalidValue(f"a key of {len(key)} bytes; segments need one of {KEY_SIZE}")
    return key


def _cipher(key: bytes, iv: bytes) -> Any:
    with needing("spool", "an encrypted segment"):
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CTR
    return Cipher(AES(key), CTR(iv))


class _Decipher:
    """Takes the initialization vector off, and decrypts the rest."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._iv = b""
        self._decryptor: Any = None
        _cipher(key, bytes(IV_SIZE))  # so that a missing library is found before there are bytes

    @property
    def torn_size(self) -> int:
        return len(self._iv) if self._decryptor is None else 0

    def update(self, data: bytes) -> bytes:
        if self._decryptor is None:
            missing = IV_SIZE - len(self._iv)
            self._iv += data[:missing]
            data = data[missing:]
            if len(self._iv) < IV_SIZE:
                return b""
            self._decryptor = _cipher(self._key, self._iv).decryptor()
        plain: bytes = self._decryptor.update(data)
        return plain


# --- LZ4 -----------------------------------------------------------------------------------------


def _lz4_frame() -> Any:
    with needing("spool", "a compressed segment"):
        import lz4.frame  # type: ignore[import-untyped]
    return lz4.frame


_MAGIC: Final = UINT32.unpack(LZ4_MAGIC)[0]
_SKIPPABLE: Final = 0x184D2A50  # the lowest four bits are anybody's
_HEAD_SIZE_MIN: Final = 7  # magic, flags, block size, checksum
_FLAG_BLOCK_CHECKSUM: Final = 0x10
_FLAG_CONTENT_SIZE: Final = 0x08
_FLAG_CONTENT_CHECKSUM: Final = 0x04
_FLAG_DICTIONARY: Final = 0x01
_BLOCK_IS_STORED: Final = 0x80000000


class _Expected(Enum):
    """What comes next in a row of LZ4 frames."""

    FRAME = auto()
    BLOCK = auto()
    SKIPPED = auto()  # the rest of a frame that is not for us


class _Lz4Decoder:
    """Decompresses LZ4 frames that follow each other, block by block.

    The library takes any pieces, but what it has decompressed before an error is lost with it. So it is
    given whole blocks, one at a time, and damage costs nothing that stands before it.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        self._library = _lz4_frame()
        self._decompressor: Any = None
        self._expected = _Expected.FRAME
        self._flags = 0
        self._skip = 0
        self._held = bytearray()
        self._passed_size = 0  # of what was decoded, which is all that came before what is held
        self._lost_size = 0  # of damage and all that came behind it
        self._frame_count = 0

    @property
    def is_closed(self) -> bool:
        is_between = self._expected is _Expected.FRAME and not self._held
        return is_between and self._frame_count > 0 and self.problem is None

    @property
    def torn_size(self) -> int:
        return len(self._held) + self._lost_size

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self.problem is not None:
            self._lost_size += len(data)
            return
        self._held += data
        at = 0
        while self.problem is None:
            size = self._unit_size(at)
            if size == 0 or at + size > len(self._held):
                break
            unit = bytes(self._held[at : at + size])
            try:
                yield from self._decode(unit)
            except RuntimeError as error:
                # The library has no other class for what is wrong with the bytes.
                self.problem = self._problem(at, str(error))
                break
            at += size
        del self._held[:at]
        self._passed_size += at
        if self.problem is not None:
            self._lost_size = len(self._held)
            self._held.clear()

    def _unit_size(self, at: int) -> int:
        """Return the bytes of the next thing to decode: a head, a block or the end; 0 if that is not known yet."""
        left = len(self._held) - at
        if self._expected is _Expected.SKIPPED:
            return min(left, self._skip)
        if left < UINT32.size:
            return 0
        (word,) = UINT32.unpack_from(self._held, at)
        if self._expected is _Expected.FRAME:
            return self._head_size(at, word)
        if word == 0:
            return UINT32.size + (UINT32.size if self._flags & _FLAG_CONTENT_CHECKSUM else 0)
        size: int = word & ~_BLOCK_IS_STORED
        if size > PIECE_MAX:
            self.problem = self._problem(at, f"a block of {size} bytes; {PIECE_MAX} are allowed")
            return 0
        return UINT32.size + size + (UINT32.size if self._flags & _FLAG_BLOCK_CHECKSUM else 0)

    def _head_size(self, at: int, magic: int) -> int:
        if magic & ~0xF == _SKIPPABLE:
            return 2 * UINT32.size
        if magic != _MAGIC:
            self.problem = self._problem(at, f"no LZ4 frame begins with {magic:08x}")
            return 0
        if len(self._held) - at < _HEAD_SIZE_MIN:
            return 0
        flags = self._held[at + UINT32.size]
        size = _HEAD_SIZE_MIN + (8 if flags & _FLAG_CONTENT_SIZE else 0)
        return size + (4 if flags & _FLAG_DICTIONARY else 0)

    def _decode(self, unit: bytes) -> Iterator[bytes]:
        match self._expected:
            case _Expected.SKIPPED:
                self._skip -= len(unit)
            case _Expected.FRAME if UINT32.unpack_from(unit)[0] != _MAGIC:
                (self._skip,) = UINT32.unpack_from(unit, UINT32.size)
                self._expected = _Expected.SKIPPED
            case _Expected.FRAME:
                self._flags = unit[UINT32.size]
                self._decompressor = self._library.LZ4FrameDecompressor()
                self._decompressor.decompress(unit)
                self._expected = _Expected.BLOCK
                self._frame_count += 1
            case _Expected.BLOCK:
                # Without a bound the library may keep some of the block for the next call.
                if piece := self._decompressor.decompress(unit, PIECE_MAX):
                    yield piece
                if self._decompressor.eof:
                    self._expected = _Expected.FRAME
        if self._expected is _Expected.SKIPPED and self._skip == 0:
            self._expected = _Expected.FRAME

    def _problem(self, at: int, reason: str) -> str:
        return f"damaged LZ4, {self._passed_size + at} bytes into it: {reason}"
