"""What a path is: a directory or a single file of the TaskFlux family, found by content.

A directory of a node is taken whole. A single file is taken alone, as if nothing else were known.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from penstock.errors import BadData, PathMissing, PathRefused, UnknownFormat
from penstock.formats.taskflux import metadata as metadata_format
from penstock.formats.taskflux import snapshot as snapshot_format
from penstock.formats.taskflux.commands import is_command
from penstock.formats.taskflux.compaction import FILE_NAME as COMPACTION_NAME
from penstock.formats.taskflux.compaction import SIZE as COMPACTION_SIZE
from penstock.formats.taskflux.compaction import Compaction, decode_compaction
from penstock.formats.taskflux.deltas import is_delta
from penstock.formats.taskflux.generation import Contents, Generation
from penstock.formats.taskflux.log import LogLayout, Status, detect_layout, parse_segment_name
from penstock.formats.taskflux.metadata import (
    SIZE_MAX,
    Metadata,
    MetadataLayout,
    decode_metadata,
)
from penstock.formats.taskflux.snapshot import SnapshotLayout
from penstock.formats.taskflux.snapshot_decode import SnapshotHeader, decode_header
from penstock.formats.taskflux.snapshot_frame import detect_layout as detect_snapshot_layout
from penstock.formats.taskflux.sync_point import FILE_NAME as SYNC_POINT_NAME
from penstock.formats.taskflux.sync_point import SIZE as SYNC_POINT_SIZE
from penstock.formats.taskflux.sync_point import SyncPoint, decode_sync_point
from penstock.storage.directory import CONSENSUS, LOG_NAMES_2, Layout, layout_in, locate
from penstock.storage.files import File, OsFiles, read_whole
from penstock.storage.reading import find_record_in_file, scan_file

FAMILY: Final = "taskflux"
FILES: Final = OsFiles()

DECIDED: Final = 100
"""By so many more records a log must read as commands, or as deltas, for the rest not to be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One file of a log. ``first`` is known here only if the file's name tells it."""

    path: Path
    layout: LogLayout
    first: int | None
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What stands at a path."""

    path: Path
    kind: str  # directory, log, metadata or snapshot
    generation: Generation
    logs: tuple[LogFile, ...] = ()
    metadata: Path | None = None
    snapshot: Path | None = None
    companions: Path | None = None

    @property
    def size(self) -> int:
        """The bytes that a full reading reads."""
        snapshot = self.snapshot.stat().st_size if self.snapshot is not None else 0
        return snapshot + sum(log.size for log in self.logs)


def resolve(path: Path) -> Target:
    """Return what is at ``path``. Raises ``PathRefused`` or ``BadData``."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise PathMissing(f"{path}: no such file or directory; check the path") from None
    if stat.S_ISDIR(mode):
        return _resolve_directory(path)
    if stat.S_ISREG(mode):
        return _resolve_file(path)
    raise PathRefused(f"{path}: neither a file nor a directory; name a data file or its directory")


def _resolve_directory(path: Path) -> Target:
    try:
        layout = locate(FILES, path)
    except BadData:
        layout = _locate_unmarked(path)
        if layout is None:
            raise
    if layout is None:
        raise PathRefused(
            f"{path}: no files that Penstock knows; name a node's directory (with 'data' or 'consensus'"
            " in it, or 'msg_stores' if it is RabbitMQ's) or a single file"
        )
    snapshot = layout.snapshot if _is_filled(layout.snapshot) else None
    return Target(
        path=path,
        kind="directory",
        generation=layout.generation,
        logs=tuple(_log_files(layout, snapshot)),
        metadata=layout.metadata if _is_filled(layout.metadata) else None,
        snapshot=snapshot,
        companions=layout.companions,
    )


def _locate_unmarked(path: Path) -> Layout | None:
    """Return the layout of a directory whose log has lost its marker, if other bytes still tell."""
    for home in (path / CONSENSUS, path):
        for name in LOG_NAMES_2:
            generation = _generation_beside(home, home / name)
            if generation is not None:
                return replace(layout_in(home, generation), log=home / name)
    return None


def _generation_beside(home: Path, log: Path) -> Generation | None:
    """Return the generation that metadata, snapshot or the log's own records show."""
    if not log.exists():
        return None
    for name in ("raft.metadata", "raft.snapshot"):
        marker = read_whole(FILES, home / name, size_max=3) or b""
        if marker in (metadata_format.MARKER_1, metadata_format.MARKER_1A):
            return Generation.ONE
        if marker in (metadata_format.MARKER, snapshot_format.MARKER):
            return Generation.TWO
    with opened(log) as file:
        found = find_record_in_file(file, LogLayout.TWO, LogLayout.TWO.header_size, file.size())
    return None if found is None else Generation.TWO


def _is_filled(path: Path) -> bool:
    """Return whether there is a file with something in it; an empty one stands for its default (R1)."""
    if not path.exists():
        return False
    if not path.is_file():
        raise PathRefused(f"{path}: is not a file; put the file itself there")
    return path.stat().st_size > 0


def _log_files(layout: Layout, snapshot: Path | None) -> Iterator[LogFile]:
    if layout.generation is Generation.THREE:
        names = FILES.names(layout.log) if layout.log.is_dir() else []
        for name in names:
            first = parse_segment_name(name)
            path = layout.log / name
            if first is not None and _is_filled(path):
                yield _log_file(path, LogLayout.THREE, first)
    elif _is_filled(layout.log):
        if layout.generation is Generation.TWO:
            yield _log_file(layout.log, LogLayout.TWO, None)
        else:
            yield _log_file(layout.log, _unmarked_layout(layout.log, snapshot), None)


def _log_file(path: Path, layout: LogLayout, first: int | None) -> LogFile:
    return LogFile(path=path, layout=layout, first=first, size=path.stat().st_size)


def _unmarked_layout(path: Path, snapshot: Path | None) -> LogLayout:
    """Tell the variants of generation 1 apart: by marker, by the snapshot beside, by the payloads."""
    with opened(path) as file:
        try:
            layout = detect_layout(file.read(0, 16))
        except BadData:
            layout = max((LogLayout.ONE_B, LogLayout.ONE_A), key=partial(_count, file))
        if layout is not LogLayout.ONE_B:
            return layout
        is_1c = _is_snapshot_1c(snapshot) or _holds_deltas(file)
    return LogLayout.ONE_C if is_1c else LogLayout.ONE_B


def _count(file: File, layout: LogLayout) -> int:
    """Return the number of whole records, if the file is of this layout."""
    pieces = scan_file(file, layout, start=layout.header_size, size=file.size())
    return sum(piece.status is Status.OK for piece, _ in pieces)


def _is_snapshot_1c(path: Path | None) -> bool:
    try:
        return path is not None and read_snapshot_header(path).layout is SnapshotLayout.ONE_C
    except BadData:
        return False


def _holds_deltas(file: File) -> bool:
    """Return whether the payloads are deltas and not commands.

    A few read as both. The first that reads as one only decides, together with its neighbours: one of
    them may be damaged.
    """
    layout, commands, deltas = LogLayout.ONE_B, 0, 0
    pieces = scan_file(file, layout, start=layout.header_size, size=file.size())
    for piece, payload in pieces:
        if piece.status is Status.OK and payload:
            commands += is_command(payload)
            deltas += is_delta(payload, Contents.DELTAS_BY_VALUE)
        if abs(commands - deltas) >= DECIDED:
            break
    return deltas > commands


def _resolve_file(path: Path) -> Target:
    with opened(path) as file:
        start = file.read(0, 16)
    if not start:
        raise PathRefused(f"{path}: the file is empty; there is nothing in it to read")
    marker = start[:4]
    if marker == metadata_format.MARKER or _is_metadata_1(path, marker):
        return Target(
            path=path, kind="metadata", generation=_generation_of_metadata(path), metadata=path
        )
    if marker == snapshot_format.MARKER or _is_snapshot_1(path, marker):
        return Target(
            path=path, kind="snapshot", generation=_generation_of_snapshot(path), snapshot=path
        )
    try:
        layout_of_log = detect_layout(start)
    except UnknownFormat:
        raise UnknownFormat(
            "not a file that Penstock knows; name a log, metadata or snapshot file, or a directory",
            path=str(path),
            offset=0,
            found=marker.hex(" ").upper(),
        ) from None
    except BadData as error:
        raise error.located(str(path)) from None
    return _resolve_log(path, layout_of_log)


def _resolve_log(path: Path, layout: LogLayout) -> Target:
    first = parse_segment_name(path.name)
    if layout.generation is Generation.ONE:
        layout = _unmarked_layout(path, None)
    elif first is not None:
        layout = LogLayout.THREE
    elif path.name in ("log.raft", "raft.log", "tflux.log"):
        layout = LogLayout.TWO
    return Target(
        path=path,
        kind="log",
        generation=layout.generation,
        logs=(_log_file(path, layout, first if layout is LogLayout.THREE else None),),
    )


def _is_metadata_1(path: Path, marker: bytes) -> bool:
    """Generation 1 marks all its files alike; name and size tell metadata from a log or snapshot."""
    if marker not in (metadata_format.MARKER_1, metadata_format.MARKER_1A):
        return False
    if path.suffix in (".log", ".snapshot"):
        return False
    return path.suffix == ".metadata" or path.stat().st_size in (16, 17)


def _is_snapshot_1(path: Path, marker: bytes) -> bool:
    """Return whether a generation 1 file is a snapshot: by name, else because it reads as one."""
    if marker not in (snapshot_format.MARKER_1, snapshot_format.MARKER_1A):
        return False
    if path.suffix in (".log", ".snapshot"):
        return path.suffix == ".snapshot"
    with opened(path) as file:
        try:
            detect_snapshot_layout(file.read, file.size())
        except BadData:
            return False
    return True


def _generation_of_snapshot(path: Path) -> Generation:
    """Return the generation; only for damaged files of generation 1 the layout cannot be told."""
    with opened(path) as file:
        try:
            return detect_snapshot_layout(file.read, file.size()).generation
        except BadData:
            return Generation.ONE


def _generation_of_metadata(path: Path) -> Generation:
    """Return the generation; for damaged metadata the one that its size shows."""
    try:
        return read_metadata(path).layout.generation
    except BadData:
        with opened(path) as file:
            is_old = file.read(0, 4) != metadata_format.MARKER
            is_long = file.size() > MetadataLayout.TWO_SEED.size
        return Generation.ONE if is_old else Generation.THREE if is_long else Generation.TWO


# --- reading the small files ---------------------------------------------------------------------


@contextmanager
def opened(path: Path) -> Iterator[File]:
    """Open a file to read it; damage that is found in it names it."""
    file = FILES.open(path, write=False)
    try:
        yield file
    except BadData as error:
        raise error.located(str(path)) from None
    finally:
        file.close()


def read_metadata(path: Path) -> Metadata:
    """Return a metadata file's content. Raises ``BadData``."""
    with opened(path) as file:
        return decode_metadata(file.read(0, SIZE_MAX + 1))


def read_snapshot_header(path: Path) -> SnapshotHeader:
    """Return a snapshot's layout and point. Raises ``BadData``."""
    with opened(path) as file:
        layout = detect_snapshot_layout(file.read, file.size())
        return decode_header(file.read, layout)


def read_compaction(target: Target) -> Compaction | None:
    """Return the compaction that a crash interrupted, if one did. Raises ``BadData``."""
    if target.companions is None or target.generation is not Generation.TWO:
        return None
    path = target.companions / COMPACTION_NAME
    if not _is_filled(path):
        return None
    with opened(path) as file:
        return decode_compaction(file.read(0, COMPACTION_SIZE + 1))


def read_sync_point(target: Target) -> SyncPoint | None:
    """Return how far the log was known to be synced, if a node of ours wrote it."""
    if target.companions is None:
        return None
    data = read_whole(FILES, target.companions / SYNC_POINT_NAME, size_max=SYNC_POINT_SIZE)
    return None if data is None else decode_sync_point(data)
