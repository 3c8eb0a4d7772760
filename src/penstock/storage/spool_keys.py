"""The key of encrypted segments: where it is read from, and whether it is the right one where no frame can tell.

AES-CTR proves a key by the first whole frame only, and a crash may leave a segment without one. Then the key counts as
proven by the mark in the segment's own initialization vector, which segments of ours have, or by another segment of the
directory whose first frame is sound under it. Nothing here writes, and no message shows a key.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from penstock.errors import BadData, InvalidValue, PathMissing
from penstock.formats.beats.body import LZ4_MAGIC, BodyDecoder, is_key_of, key_from_password
from penstock.formats.beats.event import EVENT_STARTS
from penstock.formats.beats.frame import FRAME_MAX, FRAME_MIN
from penstock.formats.beats.segment import (
    IV_SIZE,
    KEY_SIZE,
    UINT32,
    Header,
    Options,
    decode_header,
    segment_number,
)
from penstock.storage.files import FILES, Files, read_whole
from penstock.storage.spool_segments import HEADER_MAX, SegmentCursor

WITNESSES_MAX: Final = 16
"""Segments that are asked whether a key is right, the nearest first: a wrong key makes every segment ask."""

FIRST_FRAME_MAX: Final = 2**24
"""Bytes of a segment that are read to find its first frame; a larger frame proves nothing."""

_START_SIZE: Final = 32
"""Bytes of a body in which a torn frame is told from the noise that a wrong key gives."""


def is_key_proven(files: Files, path: Path, key: bytes) -> bool:
    """Return whether ``key`` is the key of a segment in which no frame can be read with it.

    A segment without our mark must also begin as a frame does under the key: its neighbours may have another one.
    Raises ``OSError``.
    """
    header, vector, body = _beginning(files, path)
    if header is None or len(vector) < IV_SIZE:
        return False
    if is_key_of(vector, key):
        return True
    witnesses = islice(_neighbours(files, path), WITNESSES_MAX)
    return _begins_as_a_frame(header, vector, body, key) and any(
        _is_witness(files, other, key) for other in witnesses
    )


def no_frame_reason(header: Header) -> str:
    """Return why an encrypted segment without a readable frame is not read: its key is not proven."""
    if header.count:  # a closed segment is not torn
        return "no frame can be read: wrong key or damaged"
    return "no frame can be read: torn, or another key"


def _beginning(files: Files, path: Path) -> tuple[Header | None, bytes, bytes]:
    """Return the header, the vector and the first bytes of the body of a segment; no header if it is not encrypted."""
    file = files.open(path, write=False)
    try:
        data = file.read(0, HEADER_MAX + IV_SIZE + _START_SIZE)
    finally:
        file.close()
    try:
        header = decode_header(data[:HEADER_MAX])
    except BadData:
        return None, b"", b""
    if not header.options & Options.ENCRYPTED:
        return None, b"", b""
    return header, data[header.size : header.body_start], data[header.body_start :]


def _begins_as_a_frame(header: Header, vector: bytes, body: bytes, key: bytes) -> bool:
    """Return whether the body may be the start of a frame, or was never written."""
    body = body.rstrip(b"\0")  # a power cut leaves zeros where nothing was written
    if not body:
        return True
    start = b"".join(BodyDecoder(Options.ENCRYPTED, key=key).feed(vector + body))
    if header.options & Options.COMPRESSED:
        return LZ4_MAGIC.startswith(start[: len(LZ4_MAGIC)])
    if len(start) < UINT32.size:
        return True
    event = EVENT_STARTS[header.payload_format]
    is_event = event.startswith(start[UINT32.size : UINT32.size + len(event)])
    return FRAME_MIN <= UINT32.unpack_from(start)[0] <= FRAME_MAX and is_event


def _neighbours(files: Files, path: Path) -> Iterator[Path]:
    """Yield the other encrypted segments of a directory that hold anything, those with the nearest numbers first."""
    own = segment_number(path.name) or 0
    numbered = ((segment_number(name), name) for name in files.names(path.parent))
    others = [(abs(n - own), name) for n, name in numbered if n is not None and name != path.name]
    for _, name in sorted(others):
        try:
            header, _, body = _beginning(files, path.parent / name)
        except OSError:  # removed by its owner, or not for us to read
            continue
        if header is not None and body:
            yield path.parent / name


def _is_witness(files: Files, path: Path, key: bytes) -> bool:
    """Return whether a segment's first frame is sound under a key."""
    try:
        file = files.open(path, write=False)
    except OSError:
        return False
    try:
        cursor = SegmentCursor(file, path, key=key)
        return cursor.begins_with_a_frame(size=min(file.size(), FIRST_FRAME_MAX))
    except OSError:
        return False
    finally:
        file.close()


# --- where a key comes from: never from the command line, which every user of a machine can read ------

KEY_VARIABLE: Final = "PENSTOCK_SPOOL_KEY"


SECRET_SIZE_MAX: Final = 4096
"""Bytes of a file with a key or a password; a longer one is some other file."""


def read_key(
    key_file: Path | None, password_file: Path | None, environment: Mapping[str, str]
) -> bytes | None:
    """Return the key that was given, or ``None``; a file goes before the environment.

    Raises ``InvalidValue`` for what is no key, and ``PathMissing``.
    """
    if key_file is not None and password_file is not None:
        raise InvalidValue("a key and a password were given; give one of them")
    if key_file is not None:
        return _key_of_file(key_file)
    if password_file is not None:
        password = _secret(password_file).rstrip(b"\r\n")
        if not password:
            raise InvalidValue(f"{password_file}: there is no password in this file")
        return key_from_password(password)
    text = environment.get(KEY_VARIABLE)
    return None if text is None else _key_of_text(text, f"the variable {KEY_VARIABLE}")


def _key_of_file(path: Path) -> bytes:
    data = _secret(path)
    if len(data) == KEY_SIZE:
        return data
    return _key_of_text(data.decode("ascii", "replace"), str(path), f"{KEY_SIZE} bytes, ")


def _key_of_text(text: str, place: str, others: str = "") -> bytes:
    text = text.strip()
    try:
        if len(text) == 2 * KEY_SIZE:
            return bytes.fromhex(text)
        key = b64decode(text, validate=True)
    except (ValueError, NotBase64):
        key = b""
    if len(key) != KEY_SIZE:
        raise InvalidValue(
            f"{place}: holds no key; a key is {others}{2 * KEY_SIZE} hexadecimal digits, or {KEY_SIZE} bytes in base64"
        )
    return key


def _secret(path: Path) -> bytes:
    data = read_whole(FILES, path, size_max=SECRET_SIZE_MAX)
    if data is None:
        raise PathMissing(f"{path}: no such file; check the path")
    if len(data) > SECRET_SIZE_MAX:
        raise InvalidValue(f"{path}: is too large for a key or a password; check the path")
    return data
