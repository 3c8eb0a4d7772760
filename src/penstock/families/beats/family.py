"""The family of Elastic Beats' disk queue, and of spools of ours: the directory, or one file of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidOption
from penstock.families.beats.versions import FORMATS
from penstock.families.family import Files, Split
from penstock.families.options import FILES, Kind, Operation, Option, Values
from penstock.families.tables import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

NAME: Final = "beats"
TITLE: Final = "Beats"
CBOR: Final = "cbor"
"""The serialization of spools where none is asked for."""

_ALL: Final = FILES | {Operation.INGEST, Operation.TABLES, Operation.SPOOL, Operation.SPOOL_PUT}
_WRITES: Final = frozenset({Operation.CONVERT, Operation.SPOOL_PUT})

KEY_FILE: Final = Option(
    name="key_file",
    kind=Kind.FILE,
    metavar="FILE",
    help="The key of encrypted segments; without it the variable PENSTOCK_SPOOL_KEY.",
    operations=_ALL,
)
PASSWORD_FILE: Final = Option(
    name="password_file",
    kind=Kind.FILE,
    metavar="FILE",
    help="The password that the key is derived from.",
    operations=_ALL,
)
SERIALIZATION: Final = Option(
    name="serialization",
    kind=Kind.TEXT,
    metavar="FORM",
    help=f"Write events as {CBOR} or protobuf; without it {CBOR}.",
    operations=_WRITES,
)
COMPRESS: Final = Option(
    name="compress",
    kind=Kind.FLAG,
    help="Write with LZ4.",
    operations=_WRITES,
)
ENCRYPT: Final = Option(
    name="encrypt",
    kind=Kind.FLAG,
    help="Write encrypted, with the key that is given.",
    operations=_WRITES,
)
OPTIONS: Final = (
    KEY_FILE,
    PASSWORD_FILE,
    Option(
        name="queue",
        kind=Kind.TEXT,
        metavar="NAME",
        help="Only this queue.",
        operations=frozenset({Operation.TASKS}),
    ),
    Option(
        name="queue",
        kind=Kind.TEXT,
        metavar="NAME",
        help="Where events go that name no queue.",
        operations=frozenset({Operation.CONVERT, Operation.INGEST}),
    ),
    SERIALIZATION,
    COMPRESS,
    ENCRYPT,
)


class Beats:
    """The family."""

    name: Final = NAME
    title: Final = TITLE
    options: Final = OPTIONS
    formats: Final = tuple(FORMATS)

    def detect(self, path: Path) -> bool:
        from penstock.families.beats.location import is_beats

        return is_beats(path)

    def open(self, path: Path, values: Values) -> Files:
        from penstock.families.beats.files import BeatsFiles
        from penstock.families.beats.location import resolve

        if "key_file" in values and "password_file" in values:
            raise InvalidOption(
                "password_file",
                "a key comes from one file, and key_file names one; omit one of them",
            )
        return BeatsFiles(resolve(path), values)

    def read(
        self, split: Split, options: ReadOptions, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.families.beats.tables.scan import read_split

        return read_split(split, options, columns)


def key_of(values: Values) -> bytes | None:
    """Return the key that options or the environment name. Raises ``InvalidValue`` or ``PathMissing``."""
    from penstock.families.beats.keys import read_key

    return read_key(values.get("key_file"), values.get("password_file"), os.environ)


FAMILY: Final = Beats()
