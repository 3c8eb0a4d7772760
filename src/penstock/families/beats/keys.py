"""The key of encrypted segments: from a file, a password in a file, or the environment.

Never from the command line, which every user of a machine can read. No message shows a key.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.errors import InvalidValue, PathMissing
from penstock.formats.beats.body import key_from_password
from penstock.formats.beats.segment import KEY_SIZE
from penstock.storage.files import FILES, read_whole

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
