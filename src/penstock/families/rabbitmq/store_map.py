"""Where the messages of a store are: a map from id to place over all its files.

A million messages take 36 MB: sorted arrays, no objects, and no bodies. Every whole copy of a message
is kept in it, those in ``.rdt`` files too: a merge that a crash interrupted may have left the only one
there. All copies of an id are alike, so the first that can still be read is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import PathRefused
from penstock.families.damage import Report, words_of
from penstock.families.family import Progress, no_progress
from penstock.families.rabbitmq.damage import UNREADABLE, damage_at, reason_of
from penstock.formats.rabbitmq import message_store
from penstock.formats.rabbitmq.message_store import FRAMING_SIZE, HEAD, Status
from penstock.storage.broker_files import StoreWindow, scan_store_file
from penstock.storage.files import OpenFiles, opened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ID_DTYPE: Final = "S16"
"""How ids are compared and sorted: byte by byte. Read out one by one they would lose zeros at their ends."""


class StorePlace(NamedTuple):
    """Where a record begins, and how long its message is."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoreEntries:
    """Whole records of a store as one array per field."""

    message_id: NDArray[np.bytes_]
    file: NDArray[np.uint32]  # its place in the list of files
    offset: NDArray[np.int64]
    length: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> StoreEntries:
        """Return some of the records."""
        return StoreEntries(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


class StoreMap:
    """The messages of one store."""

    def __init__(self, files: Sequence[Path], entries: StoreEntries | None) -> None:
        self.files = files
        # Sorted by id; copies in the order of the files. None if there are none.
        self._entries = entries

    def __len__(self) -> int:
        """Return the number of records, copies included."""
        return 0 if self._entries is None else len(self._entries.message_id)

    def places(self, message_id: bytes) -> Iterator[StorePlace]:
        """Yield where whole copies of a message are."""
        entries = self._entries
        if entries is None:
            return
        first = int(entries.message_id.searchsorted(message_id, side="left"))
        end = int(entries.message_id.searchsorted(message_id, side="right"))
        for at in range(first, end):
            path = self.files[entries.file[at]]
            yield StorePlace(path, int(entries.offset[at]), int(entries.length[at]))

    def find(self, message_ids: NDArray[np.void]) -> tuple[NDArray[np.bool_], StoreEntries]:
        """Return which of many messages are there, and the first copy of each of those."""
        import numpy as np

        wanted = message_ids.view(ID_DTYPE)
        entries = self._entries
        if entries is None or len(self) == 0:
            nowhere = np.zeros(len(wanted), dtype=bool)
            return nowhere, _no_entries()
        places = np.minimum(entries.message_id.searchsorted(wanted), len(self) - 1)
        is_there = entries.message_id[places] == wanted
        return is_there, entries.take(places[is_there])

    def read(self, message_id: bytes, opened_files: OpenFiles) -> bytes | None:
        """Return a message, or ``None`` if no whole copy of it is there (any more)."""
        for place in self.places(message_id):
            message = read_message(place, message_id, opened_files)
            if message is not None:
                return message
        return None


def _no_entries() -> StoreEntries:
    import numpy as np

    return StoreEntries(
        message_id=np.empty(0, dtype=ID_DTYPE),
        file=np.empty(0, dtype=np.uint32),
        offset=np.empty(0, dtype=np.int64),
        length=np.empty(0, dtype=np.int64),
    )


def read_message(place: StorePlace, message_id: bytes, files: OpenFiles) -> bytes | None:
    """Return the message of a record, or ``None`` if it is not there any more: a broker may be at work."""
    try:
        data = files.read(place.path, place.offset, FRAMING_SIZE + place.length)
    except (OSError, PathRefused):
        return None
    piece = next(message_store.scan(data), None)
    if piece is None or piece.status is not Status.OK or piece.message_id != message_id:
        return None
    return data[HEAD.size : HEAD.size + piece.length]


def build_map(
    files: Sequence[Path], report: Report, *, progress: Progress = no_progress
) -> StoreMap:
    """Return where the messages of these files are; report what in them is no whole record."""
    parts: list[StoreEntries] = []
    for number, path in enumerate(files):
        try:
            with opened(path) as file:
                for window in scan_store_file(file, progress=progress):
                    report_gaps(path, window, report)
                    parts.append(_entries(window, number))
        except (OSError, PathRefused) as error:
            report(damage_at(path, UNREADABLE, words_of(error)))
    return StoreMap(files, _sorted(parts))


def report_gaps(path: Path, window: StoreWindow, report: Report) -> None:
    """Report what is no whole record; zeros are none, but brokers from 3.13 on leave them on purpose."""
    pieces = window.pieces
    for at in (pieces.status > Status.OK).nonzero()[0].tolist():
        status = Status(int(pieces.status[at]))
        offset = window.base + int(pieces.offset[at])
        if status is not Status.ZEROS:
            report(
                damage_at(
                    path, status.word, reason_of(status), offset=offset, size=int(pieces.size[at])
                )
            )


def _entries(window: StoreWindow, number: int) -> StoreEntries:
    import numpy as np

    pieces = window.pieces
    whole = pieces.status == Status.OK
    offsets = pieces.offset[whole]
    return StoreEntries(
        message_id=_ids(window.data, offsets),
        file=np.full(len(offsets), number, dtype=np.uint32),
        offset=offsets + window.base,
        length=pieces.length[whole],
    )


def _ids(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.bytes_]:
    """Return the ids of the records at these offsets."""
    import numpy as np

    if len(offsets) == 0:
        return np.empty(0, dtype=ID_DTYPE)
    # Every place of the buffer as the start of an id: a view, of which some are copied.
    overlapping: NDArray[np.bytes_] = np.ndarray(
        (len(data) - 15,), dtype=ID_DTYPE, buffer=data, strides=(1,)
    )
    return overlapping[offsets + HEAD.size - 16]


def _sorted(parts: list[StoreEntries]) -> StoreEntries | None:
    if not parts:
        return None
    import numpy as np

    joined = StoreEntries(
        **{
            each.name: np.concatenate([getattr(part, each.name) for part in parts])
            for each in fields(StoreEntries)
        }
    )
    parts.clear()
    halves = joined.message_id.view(">u8").reshape(-1, 2).astype(np.uint64)
    # Stable: of the copies of a message the one in the first file comes first.
    return joined.take(np.lexsort((halves[:, 1], halves[:, 0])))
