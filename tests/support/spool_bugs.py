"""Wrong versions of the spool, each with one bug that programs like ours have had.

Every function patches the storage for the time of one test. None of this is in the product.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.binary import Bytes
from penstock.formats.beats.state import Position, State
from penstock.storage import spool as spool_module
from penstock.storage import spool_opening, spool_segments
from penstock.storage.files import File, Files, Poison
from penstock.storage.spool import Spool
from penstock.storage.spool_segments import Place, SegmentWriter
from penstock.storage.spool_writing import SpoolWriter

Patch = pytest.MonkeyPatch


class _NeverSynced:
    """A file whose syncs are left out."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        pass


# Publishing.


def seed_frames_unsynced(patch: Patch) -> None:
    original = SegmentWriter.append

    def append(self: SegmentWriter, payloads: Sequence[bytes]) -> None:
        file = self._file
        self._file = _NeverSynced(file)
        try:
            original(self, payloads)
        finally:
            self._file = file

    patch.setattr(SegmentWriter, "append", append)


def seed_names_unsynced(patch: Patch) -> None:
    original = SegmentWriter.append

    def append(self: SegmentWriter, payloads: Sequence[bytes]) -> None:
        self._is_named = True
        original(self, payloads)

    patch.setattr(SegmentWriter, "append", append)


def seed_told_before_the_last_segment_is_written(patch: Patch) -> None:
    """A batch over two segments counts as kept when its first part is."""
    original = SpoolWriter.write

    def write(self: SpoolWriter, payloads: Sequence[bytes]) -> Any:
        room = self._settings.size_of_segment // 2
        fitting = 0
        for payload in payloads:
            room -= len(payload)
            fitting += room >= 0
        return original(self, payloads[: max(1, fitting)])

    patch.setattr(SpoolWriter, "write", write)


def seed_number_used_again(patch: Patch) -> None:
    """The newest segment goes too, and numbers begin behind those that are there."""

    def remove_finished(self: Spool) -> None:
        finished = []
        while self._segments and self._is_finished(self._segments[0]):
            finished.append(self._segments.popleft())
        if finished:
            self._remove(finished)

    original = spool_opening.find_spool

    def find(files: Files, directory: Path, *, key: bytes | None) -> spool_opening.Found:
        found = original(files, directory, key=key)
        found.next_number = found.segments[-1].number + 1 if found.segments else 0
        return found

    patch.setattr(Spool, "_remove_finished", remove_finished)
    patch.setattr(spool_module, "find_spool", find)


def seed_vector_without_a_mark(patch: Patch) -> None:
    patch.setattr(spool_segments, "new_iv", lambda _: os.urandom(16))


# A full disk.


def seed_not_cut_back(patch: Patch) -> None:
    def cut_back(self: SegmentWriter, place: Place) -> None:
        self.durable_size, self.logical_size = place.durable_size, place.logical_size
        self.count = place.count
        self._is_sealed = True
        self._write_count()

    patch.setattr(SegmentWriter, "cut_back", cut_back)


def seed_goes_on_in_a_segment_that_was_cut(patch: Patch) -> None:
    def cut_back(self: SegmentWriter, place: Place) -> None:
        self.durable_size, self.logical_size = place.durable_size, place.logical_size
        self.count = place.count
        self._file.truncate(self.durable_size)
        self._file.sync()

    patch.setattr(SegmentWriter, "cut_back", cut_back)
    patch.setattr(SpoolWriter, "seal", lambda _: None)


def seed_new_segment_stays_behind(patch: Patch) -> None:
    patch.setattr(SegmentWriter, "remove", lambda self: self._file.close())


# A failing disk.


def seed_failure_forgotten(patch: Patch) -> None:
    original = Poison.__exit__

    def leave(self: Poison, kind: Any, error: Any, trace: Any) -> None:
        try:
            original(self, kind, error, trace)
        finally:
            self._cause = None

    patch.setattr(Poison, "__exit__", leave)


# The position.


def _replace(files: Files, path: Path, pieces: Iterable[Bytes], *, sync: bool, name: bool) -> None:
    sibling = path.with_name(path.name + ".penstock-temporary")
    file: File = files.open(sibling, write=True, create=True)
    file.truncate(0)
    file.write(0, list(pieces))
    if sync:
        file.sync()
    files.rename(sibling, path)
    if name:
        files.sync_directory(path.parent)


def seed_state_unsynced(patch: Patch) -> None:
    patch.setattr(
        spool_opening,
        "replace_file",
        lambda files, path, pieces: _replace(files, path, pieces, sync=False, name=True),
    )


def seed_state_name_unsynced(patch: Patch) -> None:
    patch.setattr(
        spool_opening,
        "replace_file",
        lambda files, path, pieces: _replace(files, path, pieces, sync=True, name=False),
    )


def seed_state_in_place(patch: Patch) -> None:
    def replace(files: Files, path: Path, pieces: Iterable[Bytes]) -> None:
        file = files.open(path, write=True, create=True)
        file.truncate(0)
        file.sync()
        file.write(0, list(pieces))
        file.sync()
        files.sync_directory(path.parent)

    patch.setattr(spool_opening, "replace_file", replace)


def seed_position_of_the_reader_saved(patch: Patch) -> None:
    original = spool_opening.write_state

    def save(self: Spool, sending: Position | None) -> None:
        position = self._position
        if self._reading is not None:
            cursor = self._reading.cursor
            position = Position(self._reading.segment.number, cursor.offset, cursor.index)
        original(self._files, self.path / "state.dat", State(position, sending=sending))
        self.sending = sending
        self._counts.unsaved = 0

    patch.setattr(Spool, "_save", save)


def seed_gaps_acknowledged(patch: Patch) -> None:
    def advance(self: Spool) -> None:
        for number, out in list(self._out.items()):
            if out.is_acknowledged:
                del self._out[number]
                out.segment.batches -= 1
                self._position = max(self._position, out.end)
                self._counts.unsaved += out.count

    patch.setattr(Spool, "_advance", advance)


def seed_state_saved_at_close_only(patch: Patch) -> None:
    original = Spool._save

    def save(self: Spool, sending: Position | None) -> None:
        if self._is_closed:
            original(self, sending)

    patch.setattr(Spool, "_save", save)


def seed_state_not_saved_at_close(patch: Patch) -> None:
    original = Spool._save

    def save(self: Spool, sending: Position | None) -> None:
        if not self._is_closed:
            original(self, sending)

    patch.setattr(Spool, "_save", save)


def seed_sending_forgotten(patch: Patch) -> None:
    original = Spool._save
    patch.setattr(Spool, "_save", lambda self, _: original(self, None))


def seed_sending_of_before(patch: Patch) -> None:
    """The end of the batch is saved, and not that the position has moved to its start."""
    original = spool_opening.write_state
    saved: list[Position] = []

    def write(files: Files, path: Path, state: State) -> None:
        position = state.position
        if state.sending is not None and saved:
            state = State(saved[-1], sending=state.sending)
        saved.append(position)
        original(files, path, state)

    patch.setattr(spool_module, "write_state", write)


# Segments.


def seed_removed_when_read(patch: Patch) -> None:
    patch.setattr(Spool, "_is_finished", lambda _, segment: segment.is_sealed and segment.is_read)


def seed_removed_with_the_readers_segment(patch: Patch) -> None:
    original = spool_opening._remove_sent
    patch.setattr(
        spool_opening,
        "_remove_sent",
        lambda files, paths, first: original(files, paths, first + 1),
    )


# Starting.


def seed_cut_one_byte_too_much(patch: Patch) -> None:
    original = spool_opening._whole_size

    def whole(segment: Any, header: Any, cursor: Any) -> int:
        size = original(segment, header, cursor)
        return size - int(size < segment.size)

    patch.setattr(spool_opening, "_whole_size", whole)


def seed_cut_at_the_first_flaw_of_any_segment(patch: Patch) -> None:
    """Cut the newest segment to what its header counts."""
    original = spool_opening._whole_size

    def whole(segment: Any, header: Any, cursor: Any) -> int:
        return header.body_start if header.count == 0 else original(segment, header, cursor)

    patch.setattr(spool_opening, "_whole_size", whole)


def seed_cut_in_silence(patch: Patch) -> None:
    original = spool_opening._mend

    def mend(files: Files, segment: Any, header: Any, key: Any, notes: list[str]) -> Any:
        del notes
        return original(files, segment, header, key, [])

    patch.setattr(spool_opening, "_mend", mend)


def seed_nothing_synced_at_start(patch: Patch) -> None:
    original = spool_opening._mend

    class Lazy:
        def __init__(self, files: Files) -> None:
            self._files = files

        def open(self, path: Path, *, write: bool) -> Any:
            return _NeverSynced(self._files.open(path, write=write))

    def mend(files: Files, *rest: Any) -> Any:
        return original(Lazy(files), *rest)  # type: ignore[arg-type]

    patch.setattr(spool_opening, "_mend", mend)


def seed_names_unsynced_at_start(patch: Patch) -> None:
    patch.setattr(spool_opening, "_settle_state", lambda *_: None)
