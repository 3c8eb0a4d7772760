"""Tables of places beside files that are not appended to any more, so that a start need not read those.

A table is written with the checkpoint that vouches for it, by the thread that writes that, from the file itself. It may
be missing, torn, or left from an earlier life: then it is not the one of the checkpoint, the file is
read instead, and the next checkpoint makes it anew (docs/formats/paged.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import BadData
from penstock.formats.rabbitmq.places import (
    Covers,
    PlaceTable,
    TableMark,
    decode_table,
    encode_table,
    mark_of,
    places_name,
)
from penstock.storage.files import File
from penstock.storage.paged.tree_files import TreeFiles, Unsynced

TABLES_MAX: Final = 64
"""Tables that a checkpoint makes: as many as their files, of some 16 MB each, take seconds to read. Those of a
directory that has none yet come with the checkpoints that follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTable:
    """A file that should have a table."""

    path: Path  # of the file
    number: int
    make: Callable[[File], PlaceTable | None]  # runs in any thread


class NewTables:
    """Tables on their way: wanted when a checkpoint begins, made while it is written, there when it counts."""

    def __init__(self, wanted: Sequence[WantedTable] = ()) -> None:
        self._wanted = wanted
        self.made: dict[int, TableMark] = {}  # by the number of the file

    def __len__(self) -> int:
        return len(self._wanted)

    def write(self, unsynced: Unsynced) -> None:
        """Make them; they are synced with everything else. Raises ``StorageFailed``."""
        for wanted in self._wanted:
            table = unsynced.read(wanted.path, wanted.make)
            if table is not None:
                data = encode_table(table)
                unsynced.write(table_path(wanted.path, wanted.number), data)
                self.made[wanted.number] = mark_of(data)


def table_path(path: Path, number: int) -> Path:
    """Return where the table of a file is."""
    return path.with_name(places_name(number))


def read_table(
    tree: TreeFiles,
    path: Path,
    mark: TableMark,
    *,
    covers: Covers,
    queue: int,
    number: int,
    length: int,
) -> PlaceTable | None:
    """Return the table of a file, of whose bytes ``length`` count; ``None`` if it is not the marked one."""
    place = table_path(path, number)
    data = tree.read_whole(place, size_max=mark.size)
    if len(data) != mark.size or mark_of(data) != mark:
        return None
    try:
        table = decode_table(data)
    except BadData:
        return None
    is_its = (table.covers, table.queue, table.number) == (covers, queue, number)
    return table if is_its and table.length <= length else None


def remove_table(tree: TreeFiles, path: Path, number: int) -> None:
    """Remove the table of a file that is removed, if there is one."""
    place = table_path(path, number)
    if tree.exists(place):
        tree.remove(place)
