"""What a path is: a directory or a single file of the TaskFlux family, found by content.

A directory of a node is taken whole. A single file is taken alone, as if nothing else were known.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from penstock.errors import BadData, PathMissing, PathRefused, UnknownFormat
from penstock.formats.taskflux import metadata as metadata_format
from penstock.formats.taskflux import snapshot as snapshot_format
from penstock.formats.taskflux.commands import CREATE, decode_command, is_command
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
from penstock.model import CreateWithPolicy
from penstock.storage.directory import (
    CONSENSUS,
    LOG_NAMES_2,
    Layout,
    layout_in,
    locate,
    locate_all,
)
from penstock.storage.files import FILES, File, Files, opened, read_whole
from penstock.storage.log_end import find_record_in_file
from penstock.storage.reading import scan_file

OLD_NAMES: Final = ("raft.log", "raft.metadata", "raft.snapshot")

DECIDED: Final = 100
"""By so many more records a log must read as commands, or as deltas, for the rest not to be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One file of a log. ``first`` is known here only if the file's name tells it.

    ``following`` is the first index of the next segment, if there is one.
    """

    path: Path
    layout: LogLayout
    first: int | None
    size: int
    following: int | None = None


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
    home: Path | None = None  # of a directory: where metadata and snapshot are
    notice: str | None = None  # what to tell people about a second set of files

    @property
    def size(self) -> int:
        """The bytes that a full reading reads."""
        snapshot = self.snapshot.stat().st_size if self.snapshot is not None else 0
        return snapshot + sum(log.size for log in self.logs)


def resolve(path: Path, generation: Generation | None = None) -> Target:
    """Return what is at ``path``. Raises ``PathRefused`` or ``BadData``.

    ``generation`` chooses between two sets of files in one directory.
    """
    target = _resolve(path, generation)
    if generation not in (None, target.generation):
        raise PathRefused(
            f"{path}: holds files of generation {int(target.generation)}, not {int(generation or 0)}; omit --generation"
        )
    return target


def _resolve(path: Path, generation: Generation | None) -> Target:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise PathMissing(f"{path}: no such file or directory; check the path") from None
    if stat.S_ISDIR(mode):
        return _resolve_directory(path, generation)
    if stat.S_ISREG(mode):
        return _resolve_file(path)
    raise PathRefused(f"{path}: neither a file nor a directory; name a data file or its directory")


def _resolve_directory(path: Path, generation: Generation | None) -> Target:
    notice = None
    try:
        choice = choose(FILES, path, generation)
        layout, notice = choice.layout, choice.notice
    except BadData:
        layout = _locate_unmarked(path)
        if layout is None:
            raise
    if layout is None:
        raise PathRefused(
            f"{path}: no files that Penstock knows; name a node's directory (with 'data' or 'consensus'"
            " in it, or 'msg_stores' if it is RabbitMQ's) or a single file"
        )
    return replace(_target_of(path, layout), notice=notice)


def _target_of(path: Path, layout: Layout) -> Target:
    snapshot = layout.snapshot if _is_filled(layout.snapshot) else None
    return Target(
        path=path,
        kind="directory",
        generation=layout.generation,
        logs=tuple(_log_files(layout, snapshot)),
        metadata=layout.metadata if _is_filled(layout.metadata) else None,
        snapshot=snapshot,
        companions=layout.companions,
        home=layout.home,
    )


# --- two sets of files in one directory ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The set of files that a directory is read or served by."""

    layout: Layout | None  # None: there are no files
    notice: str | None = None  # names both sets, where there are two


def choose(files: Files, root: Path, generation: Generation | None) -> Choice:
    """Return the set of files to use: the only one, the one of ``generation``, or the one that holds tasks.

    Raises ``PathRefused`` if two of them hold tasks and ``generation`` does not decide, ``BadData`` as ``locate`` does.
    """
    newer = locate(files, root)
    if newer is not None and generation in (None, newer.generation):
        originals = _originals(files, root, newer)
        if originals is not None:
            notice = f"upgraded from generation 1; its original files are kept in {originals}"
            return Choice(layout=newer, notice=f"{root}: taking {newer.home}, {notice}")
    try:
        found = locate_all(files, root)
    except BadData as error:
        if newer is None:
            raise
        raise PathRefused(
            f"{root} holds two sets of files: {newer.home}, and one that cannot be told ({error}); name the directory"
            " of one of them"
        ) from None
    if len(found) < 2:
        return Choice(layout=newer)
    wanted = [layout for layout in found if layout.generation is generation]
    counts = {layout: _count_tasks(root, layout) for layout in found}
    # Two generations may share the directory ``data``: then only the logs tell them apart.
    is_shared = len({layout.home for layout in found}) < len(found)
    places = {layout: layout.log if is_shared else layout.home for layout in found}
    named = " and ".join(f"{places[one]} ({_said_of(one, counts[one])})" for one in found)
    if len(wanted) != 1:
        wanted = [layout for layout in found if counts[layout] != 0] or [found[0]]
    if len(wanted) != 1:
        way = "" if is_shared else ", or name its directory"
        raise PathRefused(
            f"{root} holds {len(found)} sets of files, and more than one holds tasks: {named}; choose one with"
            f" --generation{way}"
        )
    return Choice(
        layout=wanted[0],
        notice=f"{root} holds {len(found)} sets of files: {named}; taking {places[wanted[0]]}",
    )


def _originals(files: Files, root: Path, newer: Layout) -> Path | None:
    """Return where the files of generation 1 are that ``newer`` was made from; ``None`` if it was not.

    Only a node of ours, or a conversion, writes a sync point into new files.
    """
    if newer.generation is not Generation.THREE:
        return None
    if not files.exists(newer.companions / SYNC_POINT_NAME):
        return None
    for home in (root / CONSENSUS, root):
        starts = [read_whole(files, home / name, size_max=3) for name in OLD_NAMES]
        markers = [start for start in starts if start]
        if markers and markers[0] in (metadata_format.MARKER_1, metadata_format.MARKER_1A):
            return home
    return None


def _count_tasks(root: Path, layout: Layout) -> int | None:
    """Return how many tasks a set of files holds; ``None`` if it cannot be read."""
    from penstock.families.taskflux.read import read_history  # both modules read targets
    from penstock.families.taskflux.replay import replay

    try:
        state = replay(read_history(_target_of(root, layout)))
    except BadData:
        return None
    return sum(map(len, state.queues.by_name.values()))


def _said_of(layout: Layout, count: int | None) -> str:
    tasks = "damaged" if count is None else f"{count} task{'' if count == 1 else 's'}"
    return f"generation {int(layout.generation)}, {tasks}"


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
        found = [
            (first, layout.log / name)
            for name in names
            if (first := parse_segment_name(name)) is not None and _is_filled(layout.log / name)
        ]
        followers = [*(first for first, _ in found[1:]), None]
        for (first, path), following in zip(found, followers, strict=False):
            yield _log_file(path, LogLayout.THREE, first, following)
    elif _is_filled(layout.log):
        if layout.generation is Generation.TWO:
            yield _log_file(layout.log, LogLayout.TWO, None)
        else:
            yield _log_file(layout.log, _unmarked_layout(layout.log, snapshot), None)


def _log_file(
    path: Path, layout: LogLayout, first: int | None, following: int | None = None
) -> LogFile:
    size = path.stat().st_size
    return LogFile(path=path, layout=layout, first=first, size=size, following=following)


def _unmarked_layout(path: Path, snapshot: Path | None) -> LogLayout:
    """Tell the variants of generation 1 apart: by marker, by the snapshot beside, by the payloads."""
    with opened(path) as file:
        try:
            layout = detect_layout(file.read(0, 16))
        except BadData:
            layout = max((LogLayout.ONE_B, LogLayout.ONE_A), key=partial(_count, file))
        if layout is not LogLayout.ONE_B:
            return layout
        return _layout_beside(snapshot) or _layout_of_payloads(file)


def _count(file: File, layout: LogLayout) -> int:
    """Return the number of whole records, if the file is of this layout."""
    pieces = scan_file(file, layout, start=layout.header_size, size=file.size())
    return sum(piece.status is Status.OK for piece, _ in pieces)


_BESIDE: Final = {
    SnapshotLayout.ONE_C: LogLayout.ONE_C,
    SnapshotLayout.ONE_D: LogLayout.ONE_D,
}


def _layout_beside(snapshot: Path | None) -> LogLayout | None:
    """Return the variant that a snapshot's layout shows; ``None`` if it does not decide."""
    try:
        return None if snapshot is None else _BESIDE.get(read_snapshot_header(snapshot).layout)
    except BadData:
        return None


def _layout_of_payloads(file: File) -> LogLayout:
    """Return the variant that the payloads show: deltas (1c), commands with policies (1d), or commands (1b).

    A few payloads read as both. The first that reads as one only decides, together with its neighbours: one of
    them may be damaged. A creation tells 1d from 1b, and it may stand anywhere.
    """
    layout, commands, deltas = LogLayout.ONE_B, 0, 0
    pieces = scan_file(file, layout, start=layout.header_size, size=file.size())
    for piece, payload in pieces:
        if piece.status is not Status.OK or not payload:
            continue
        if commands - deltas < DECIDED:
            commands += is_command(payload)
            deltas += is_delta(payload, Contents.DELTAS_BY_VALUE)
        if deltas - commands >= DECIDED:
            break
        if payload[0] == CREATE and _is_creation_1d(payload):
            layout = LogLayout.ONE_D
    return LogLayout.ONE_C if deltas > commands else layout


def _is_creation_1d(payload: bytes) -> bool:
    try:
        return isinstance(decode_command(payload), CreateWithPolicy)
    except BadData:
        return False


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
    """Generation 1 marks all its files alike; name and size tell metadata from a log or snapshot.

    Variant 1a takes the names of log and metadata from the environment, and its own deployment calls the metadata
    ``metadata.log``.
    """
    if marker not in (metadata_format.MARKER_1, metadata_format.MARKER_1A):
        return False
    if path.suffix == ".snapshot" or path.name in LOG_NAMES_2:
        return False
    return path.suffix == ".metadata" or (
        path.stat().st_size in (16, 17) and not _holds_a_command(path)
    )


def _holds_a_command(path: Path) -> bool:
    """Return whether a small file of generation 1 is a log of one whole command."""
    with opened(path) as file:
        layout = detect_layout(file.read(0, 16))
        pieces = scan_file(file, layout, start=layout.header_size, size=file.size())
        return any(piece.status is Status.OK and payload for piece, payload in pieces)


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
