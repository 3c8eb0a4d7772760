"""Where the messages of a store are: a map from id to place over all its files.

A million messages take 36 MB: sorted arrays, no objects, and no bodies. Every whole copy of a message
is kept in it, those in ``.rdt`` files too: a merge that a crash interrupted may have left the only one
there. All copies of an id are alike, so the first that can still be read is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import PathRefused
from penstock.formats.rabbitmq import message_store
from penstock.formats.rabbitmq.message_store import FRAMING_SIZE, HEAD, Status
from penstock.tools.history import Progress, no_progress
from penstock.tools.rabbitmq.open_files import OpenFiles
from penstock.tools.rabbitmq.trouble import UNREADABLE, Tell, Trouble, reason_of, words_of
from penstock.tools.rabbitmq.windows import StoreWindow, scan_store_file
from penstock.tools.target import opened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ENTRY: Final = [
    ("high", "u8"),  # the first half of the id
    ("low", "u8"),
    ("offset", "i8"),
    ("length", "i8"),
    ("file", "u4"),  # its place in the list of files
]


class StorePlace(NamedTuple):
    """Where a record begins, and how long its message is."""

    path: Path
    offset: int
    length: int


class StoreMap:
    """The messages of one store."""

    def __init__(self, files: Sequence[Path], entries: NDArray[Any] | None) -> None:
        self._files = files
        self._entries = (
            entries  # sorted by id; copies in the order of the files. None if there are none
        )

    def __len__(self) -> int:
        """Return the number of records, copies included."""
        return 0 if self._entries is None else len(self._entries)

    def places(self, message_id: bytes) -> Iterator[StorePlace]:
        """Yield where whole copies of a message are."""
        entries = self._entries
        if entries is None:
            return
        high, low = int.from_bytes(message_id[:8], "big"), int.from_bytes(message_id[8:], "big")
        at = int(entries["high"].searchsorted(_uint64(high)))
        while at < len(entries) and int(entries["high"][at]) == high:
            entry = entries[at]
            if int(entry["low"]) == low:
                yield StorePlace(
                    self._files[entry["file"]], int(entry["offset"]), int(entry["length"])
                )
            at += 1

    def read(self, message_id: bytes, opened_files: OpenFiles) -> bytes | None:
        """Return a message, or ``None`` if no whole copy of it is there (any more)."""
        for place in self.places(message_id):
            message = read_message(place, message_id, opened_files)
            if message is not None:
                return message
        return None


def _uint64(value: int) -> Any:
    import numpy as np

    return np.uint64(value)


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


def build_map(files: Sequence[Path], tell: Tell, *, progress: Progress = no_progress) -> StoreMap:
    """Return where the messages of these files are; tell what in them is no whole record."""
    parts: list[NDArray[Any]] = []
    for number, path in enumerate(files):
        try:
            with opened(path) as file:
                for window in scan_store_file(file, progress=progress):
                    tell_gaps(path, window, tell)
                    parts.append(_entries(window, number))
        except (OSError, PathRefused) as error:
            tell(Trouble(path, None, None, UNREADABLE, words_of(error)))
    return StoreMap(files, _sorted(parts))


def tell_gaps(path: Path, window: StoreWindow, tell: Tell) -> None:
    """Tell what is no whole record; zeros are none, but brokers from 3.13 on leave them on purpose."""
    pieces = window.pieces
    for at in (pieces.status > Status.OK).nonzero()[0].tolist():
        status = Status(int(pieces.status[at]))
        offset = window.base + int(pieces.offset[at])
        if status is not Status.ZEROS:
            tell(Trouble(path, offset, int(pieces.size[at]), status.word, reason_of(status)))


def _entries(window: StoreWindow, number: int) -> NDArray[Any]:
    import numpy as np

    pieces = window.pieces
    whole = pieces.status == Status.OK
    offsets = pieces.offset[whole]
    entries = np.empty(len(offsets), dtype=_ENTRY)
    ids = _ids(window.data, offsets)
    entries["high"], entries["low"] = ids[:, 0], ids[:, 1]
    entries["offset"] = offsets + window.base
    entries["length"] = pieces.length[whole]
    entries["file"] = number
    return entries


def _ids(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[Any]:
    """Return the ids of the records at these offsets as two numbers each."""
    import numpy as np

    if len(offsets) == 0:
        return np.empty((0, 2), dtype=">u8")
    places = offsets[:, None] + np.arange(HEAD.size - 16, HEAD.size)
    return np.ascontiguousarray(data[places]).view(">u8")


def _sorted(parts: list[NDArray[Any]]) -> NDArray[Any] | None:
    if not parts:
        return None
    import numpy as np

    entries = np.concatenate(parts)
    parts.clear()
    # Stable: of the copies of a message the one in the first file comes first.
    return entries[np.lexsort((entries["low"], entries["high"]))]
