"""Files held open while messages are read from them one by one, a bounded number at a time."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final, Self

from penstock.families.files import FILES
from penstock.storage.files import File

OPEN_MAX: Final = 64
"""Files open at a time: messages of a queue stand in few store files, and a process may have 1024."""


class OpenFiles:
    """Opens each file when it is first read, and closes the one that was not read for longest."""

    def __init__(self, *, open_max: int = OPEN_MAX) -> None:
        self._open: OrderedDict[Path, File] = OrderedDict()
        self._open_max = open_max

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Return bytes of a file, fewer at its end. Raises ``OSError`` or ``PathRefused``."""
        file = self._open.get(path)
        if file is None:
            file = FILES.open(path, write=False)
            self._open[path] = file
        self._open.move_to_end(path)
        while len(self._open) > self._open_max:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        return file.read(offset, size)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
