"""The key of encrypted segments, read anew by each process that needs it: no plan, option or message holds it."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import InvalidValue
from penstock.families.beats.keys import KEY_VARIABLE, read_key
from penstock.families.tables import ReadOptions
from penstock.formats.beats.segment import Options


def key_for(path: Path, kind: Options, options: ReadOptions) -> bytes | None:
    """Return the key of a segment with these options of its own; ``None`` if it needs none.

    Raises ``InvalidValue`` and ``PathMissing`` if it needs one and there is none.
    """
    if not kind & Options.ENCRYPTED:
        return None
    own = options.own
    key = read_key(own.get("key_file"), own.get("password_file"), os.environ)
    if key is None:
        raise InvalidValue(
            f"{path}: is encrypted; name a file with its key, option keyFile or passwordFile, or set the variable"
            f" {KEY_VARIABLE}"
        )
    return key
