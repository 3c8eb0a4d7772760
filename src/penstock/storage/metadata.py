"""A node's term and vote on the disk: replaced whole, never overwritten."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import BadData
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.metadata import SIZE_MAX, decode_metadata, encode_metadata
from penstock.model import HardState
from penstock.storage.files import Files, Poison, read_whole, replace_file


class MetadataStore:
    """Keeps a ``HardState``. What ``replace`` returned from is never forgotten."""

    def __init__(self, files: Files, path: Path, generation: Generation) -> None:
        """Read the file, made if missing. Raises ``BadData``: a forgotten vote breaks the group."""
        self._files = files
        self._path = path
        self._generation = generation
        self._poison = Poison(str(path))
        data = read_whole(files, path, size_max=SIZE_MAX)
        initial = encode_metadata(HardState(), generation)
        if data is None or (len(data) < len(initial) and _is_cut_initial(data, initial)):
            self._state = HardState()
            self.replace(self._state)
            return
        try:
            self._state = decode_metadata(data).state
        except BadData as error:
            raise error.located(str(path)) from None

    @property
    def state(self) -> HardState:
        return self._state

    def replace(self, state: HardState) -> None:
        """Return when ``state`` is on the disk."""
        with self._poison.writing():
            replace_file(self._files, self._path, [encode_metadata(state, self._generation)])
        self._state = state


def _is_cut_initial(data: bytes, initial: bytes) -> bool:
    """Return whether a crash cut the very first write short; no vote can have been in it (R2)."""
    return len(data) < 16 and initial.startswith(data)
