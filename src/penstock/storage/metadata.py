"""A node's term and vote on the disk: replaced whole, never overwritten."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.errors import BadData
from penstock.formats.taskflux.metadata import (
    SIZE_MAX,
    MetadataLayout,
    decode_metadata,
    encode_metadata,
)
from penstock.model import HardState
from penstock.storage.files import Files, Poison, read_whole, replace_file

_KEPT: Final = (MetadataLayout.TWO_SEED, MetadataLayout.ONE_B)
"""Layouts of files in ``consensus``, where several programs kept theirs.

Under TaskFlux's later names the file always gets its 16 bytes: TaskFlux rewrites the first 16 of a longer file in
place, and a checksum behind them would be stale.
"""


class MetadataStore:
    """Keeps a ``HardState``. What ``replace`` returned from is never forgotten."""

    def __init__(self, files: Files, path: Path, layout: MetadataLayout) -> None:
        """Read the file, made if missing. Raises ``BadData``: a forgotten vote breaks the group.

        ``layout`` is what a new file gets. An old one of generation 2 keeps its own.
        """
        self._files = files
        self._path = path
        self.layout = layout
        self._poison = Poison(str(path))
        data = read_whole(files, path, size_max=SIZE_MAX)
        initial = encode_metadata(HardState(), layout)
        if data is None or (len(data) < len(initial) and _is_cut_initial(data, initial)):
            self._state = HardState()
            self.replace(self._state)
            return
        try:
            found = decode_metadata(data)
        except BadData as error:
            raise error.located(str(path)) from None
        self._state = found.state
        if layout in _KEPT and found.layout in (*_KEPT, MetadataLayout.TWO_CODE):
            self.layout = found.layout

    @property
    def state(self) -> HardState:
        return self._state

    def replace(self, state: HardState) -> None:
        """Return when ``state`` is on the disk."""
        with self._poison.writing():
            replace_file(self._files, self._path, [encode_metadata(state, self.layout)])
        self._state = state


def _is_cut_initial(data: bytes, initial: bytes) -> bool:
    """Return whether a crash cut the very first write short; no vote can have been in it (R2)."""
    return len(data) < 16 and initial.startswith(data)
