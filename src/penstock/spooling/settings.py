"""A spool's settings as people write them."""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidValue
from penstock.formats.beats.segment import PayloadFormat, segment_options
from penstock.storage.spool import SpoolSettings, WhenFull


def spool_settings(
    *,
    size: int,
    segment_size: int | None,
    when_full: str,
    compress: bool,
    key: bytes | None,
    encrypt: bool | None = None,
    serialization: str = PayloadFormat.CBOR,
) -> SpoolSettings:
    """Return settings of a spool; with a key it is encrypted, unless said otherwise. Raises ``InvalidValue``."""
    _check_size(size, "spool_size")
    if segment_size is not None:
        _check_size(segment_size, "spool_segment_size")
    if when_full not in list(WhenFull):
        raise InvalidValue(f"spool_when_full is one of {', '.join(WhenFull)}, not {when_full!r}")
    if key is not None and not isinstance(key, bytes):
        raise InvalidValue("a key is bytes; read them from where they are kept")
    options = segment_options(
        serialization=serialization,
        compress=compress,
        encrypt=key is not None if encrypt is None else encrypt,
    )
    return SpoolSettings(
        max_size=size,
        segment_size=segment_size,
        when_full=WhenFull(when_full),
        options=options,
        key=key,
    )


def _check_size(value: Any, what: str) -> None:
    if type(value) is not int:
        raise InvalidValue(f"{what} is a number of bytes, not {value!r}")
