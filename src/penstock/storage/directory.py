"""A node's directory: which files are where in each generation, and opening them together.

``locate`` finds what is there and changes nothing; ``NodeDirectory`` locks a directory, recovers it and
keeps log, metadata and snapshot in step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from penstock.errors import BadData, CorruptData, PathRefused
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import MARKER, LogLayout, detect_layout, parse_segment_name
from penstock.formats.taskflux.snapshot import Patch, SnapshotLayout
from penstock.formats.taskflux.variant import WRITTEN, Variant
from penstock.model import TERM_MAX, SnapshotPoint
from penstock.storage.files import TEMPORARY_SUFFIX, Files, Poison, read_whole
from penstock.storage.log import DEFAULT_LIMITS, LogLimits
from penstock.storage.metadata import MetadataStore
from penstock.storage.recovery import Cut
from penstock.storage.segmented_log import SegmentedLog
from penstock.storage.single_log import SingleLog
from penstock.storage.snapshot import SnapshotStore, SnapshotWriter

LOCK_NAME: Final = "penstock.lock"

WAY_BACK: Final = (
    "start this node with an empty directory if the others have good ones, or else write a new one with"
    " 'penstock repair' (docs/cluster.md, An impossible term)"
)
"""What to do about a term beyond ``TERM_MAX``."""

# Where programs of each date kept their files, relative to the root; the first is what we write.
CONSENSUS: Final = Path("consensus")
DATA: Final = Path("data")
LOG_NAMES_2: Final = ("log.raft", "raft.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the files of one node are. Any of them may be missing."""

    generation: Generation
    log: Path  # a file, or in generation 3 the directory of segments
    metadata: Path
    snapshot: Path

    @property
    def variant(self) -> Variant:
        """The variant that the names show; files that are there may show another."""
        if self.generation is not Generation.TWO:
            return WRITTEN[self.generation]
        names = {"tflux.log": Variant.TWO_CODE, "raft.log": Variant.TWO_MIXED}
        return names.get(self.log.name, Variant.TWO)

    @property
    def home(self) -> Path:
        """The directory that holds metadata and snapshot."""
        return self.metadata.parent

    @property
    def companions(self) -> Path:
        """The directory that holds what we keep beside the log."""
        return self.log if self.generation is Generation.THREE else self.log.parent


def layout_for(root: Path, variant: Variant) -> Layout:
    """Return where the files of a new directory go."""
    home = root / DATA
    if variant is Variant.THREE:
        return _data_layout(home, Generation.THREE, home / "log")
    if variant is Variant.TWO_CODE:
        return _data_layout(home, Generation.TWO, home / "tflux.log")
    layout = layout_in(root / CONSENSUS, variant.generation)
    is_mixed = variant is Variant.TWO_MIXED
    return replace(layout, log=layout.home / "raft.log") if is_mixed else layout


def _data_layout(home: Path, generation: Generation, log: Path) -> Layout:
    return Layout(
        generation=generation,
        log=log,
        metadata=home / "tflux.metadata",
        snapshot=home / "tflux.snapshot",
    )


def locate(files: Files, root: Path) -> Layout | None:
    """Return the layout of the TaskFlux files at or below ``root``, or ``None`` if there are none.

    ``root`` may be the node's directory, its ``data`` or ``consensus`` directory, or the
    directory of segments itself. Of two sets of files the newer one is returned. Raises ``BadData`` for a log that
    is of no kind we know.
    """
    return next(_layouts(files, root), None)


def locate_all(files: Files, root: Path) -> list[Layout]:
    """Return every set of files at or below ``root``, the newer one first.

    There are several if programs of two dates used the same directory: TaskFlux of May 2024 ignores ``consensus`` and
    begins an empty ``data/log`` beside it. Raises ``BadData`` as ``locate`` does.
    """
    return list(_layouts(files, root))


def _layouts(files: Files, root: Path) -> Iterator[Layout]:
    if _segments(files, root):
        yield _data_layout(root.parent, Generation.THREE, root)
        return
    for home in (root / DATA, root):
        found = list(_locate_data(files, home))
        if found:
            yield from found
            break
    for home in (root / CONSENSUS, root):
        layout = _locate_consensus(files, home)
        if layout is not None:
            yield layout
            break


def _segments(files: Files, directory: Path) -> list[str]:
    if not files.is_directory(directory):
        return []
    return [name for name in files.names(directory) if parse_segment_name(name) is not None]


def _locate_data(files: Files, home: Path) -> Iterator[Layout]:
    single = home / "tflux.log"
    has_segments = bool(_segments(files, home / "log"))
    if has_segments:
        yield _data_layout(home, Generation.THREE, home / "log")
    # Beside segments an empty log is no set of files: nothing in it could be lost.
    if read_whole(files, single, size_max=1) if has_segments else files.exists(single):
        yield _data_layout(home, Generation.TWO, single)
    elif not has_segments and any(
        files.exists(home / name) for name in ("tflux.metadata", "tflux.snapshot")
    ):
        yield _data_layout(home, Generation.THREE, home / "log")


def _locate_consensus(files: Files, home: Path) -> Layout | None:
    for name in LOG_NAMES_2:
        if files.exists(home / name):
            return Layout(
                generation=_generation_of_log(files, home / name),
                log=home / name,
                metadata=home / "raft.metadata",
                snapshot=home / "raft.snapshot",
            )
    generation = _generation_beside_log(files, home)
    return None if generation is None else layout_in(home, generation)


def _generation_beside_log(files: Files, home: Path) -> Generation | None:
    """Return the generation of metadata or snapshot, or ``None`` if neither is there."""
    for name in ("raft.metadata", "raft.snapshot"):
        start = read_whole(files, home / name, size_max=4)
        if start:
            return Generation.ONE if start[:1] == b"\x2f" else Generation.TWO
    return None


def layout_in(home: Path, generation: Generation) -> Layout:
    """Return the layout of generation 1 or 2 whose files are in ``home`` itself."""
    name = "log.raft" if generation is Generation.TWO else "raft.log"
    return Layout(
        generation=generation,
        log=home / name,
        metadata=home / "raft.metadata",
        snapshot=home / "raft.snapshot",
    )


def _generation_of_log(files: Files, path: Path) -> Generation:
    """Return the generation of a single-file log; its name has decided between 2 and 3."""
    start = read_whole(files, path, size_max=16) or b""
    if not start:
        # Generation 2 used both names for a while; an empty log is of the kind of its neighbours.
        if path.name == "log.raft":
            return Generation.TWO
        return _generation_beside_log(files, path.parent) or Generation.ONE
    if MARKER.startswith(start[:4]):
        return Generation.TWO
    try:
        found = detect_layout(start)
    except BadData as error:
        raise error.located(str(path)) from None
    return Generation.ONE if found is not LogLayout.TWO else Generation.TWO


_BESIDE: Final = {
    variant.metadata: variant.snapshot
    for variant in (Variant.TWO, Variant.TWO_CODE, Variant.TWO_MIXED)
}
"""The snapshot that goes with the metadata of generation 2."""


class NodeDirectory:
    """A locked and recovered directory of generation 2 or 3."""

    def __init__(
        self,
        files: Files,
        root: Path,
        *,
        layout: Layout | None = None,
        generation: Generation = Generation.THREE,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        """Open ``root``; ``generation`` is what a new directory gets, an old one keeps its own.

        ``layout`` names the set of files to open where ``root`` holds two.

        Raises ``DirectoryLocked``, ``BadData`` for damage, ``PathRefused`` for generation 1.
        """
        files.make_directory(root)
        self._files = files
        self._lock = files.lock(root / LOCK_NAME)
        try:
            found = layout or locate(files, root)
            self.layout = found or layout_for(root, WRITTEN[generation])
            if self.layout.generation is Generation.ONE:
                raise PathRefused(
                    f"{root} holds files of generation 1, which are read but not served;"
                    " convert them: penstock convert PATH --to taskflux-3 --out DIR"
                )
            self._open(limits)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, limits: LogLimits) -> None:
        layout, files = self.layout, self._files
        with Poison(str(layout.home)).writing():
            for directory in dict.fromkeys((layout.home, layout.companions)):
                files.make_directory(directory)
                self._remove_temporary_files(directory)
                # A process that was killed may have left names that only the system's cache knows.
                files.sync_directory(directory)
        self.snapshot = SnapshotStore(files, layout.snapshot)
        self.metadata = MetadataStore(files, layout.metadata, layout.variant.metadata)
        self.log: SingleLog | SegmentedLog
        try:
            if layout.generation is Generation.TWO:
                self.log = SingleLog(files, layout.log, self.snapshot.point, limits)
            else:
                self.log = SegmentedLog(files, layout.log, self.snapshot.point, limits)
        except BadData as error:  # what the log says without a place, it says of the snapshot
            raise error.located(str(layout.snapshot)) from None
        self._refuse_impossible_term()
        self._refuse_unknown_term()

    def _refuse_impossible_term(self) -> None:
        """Refuse a term that no cluster reaches by elections: the next one would not fit where terms are stored.

        A log or snapshot with such a term has metadata with it, or is refused below.
        """
        term = self.metadata.state.term
        if term > TERM_MAX:
            self.log.close()
            raise CorruptData(
                f"an impossible term; {WAY_BACK}",
                path=str(self.layout.metadata),
                offset=8,
                expected=f"at most {TERM_MAX}",
                found=str(term),
            )

    def _refuse_unknown_term(self) -> None:
        """Refuse a log of a term that the metadata never saw: one of the two is not what it was.

        No checksum covers a record's term, and a node notes a term before it writes an entry of it.
        """
        point = self.snapshot.point
        last = max(self.log.last_term, 0 if point is None else point.term)
        known = self.metadata.state.term
        if last > known:
            self.log.close()
            raise CorruptData(
                "the log or snapshot is of a term that the metadata does not know; nothing was changed:"
                " restore the file that is wrong, or salvage with 'penstock repair'",
                path=str(self.layout.metadata),
                offset=8,
                expected=f"term {last} or later",
                found=f"term {known}",
            )

    @property
    def snapshot_layout(self) -> SnapshotLayout:
        """The layout that a snapshot is written in: that of the one in place, or else what goes with the metadata.

        Under TaskFlux's later names it is always TaskFlux's own: no program of its reads the documents' layout.
        """
        variant, header = self.layout.variant, self.snapshot.header
        if variant in (Variant.TWO_CODE, Variant.THREE):
            return variant.snapshot
        if header is not None:
            return header.layout
        return _BESIDE.get(self.metadata.layout, variant.snapshot)

    @property
    def cuts(self) -> list[Cut]:
        """What recovery cut off, to be said to people."""
        return self.log.cuts

    def save_snapshot(
        self, point: SnapshotPoint, pieces: Generator[bytes, None, Patch | None]
    ) -> None:
        """Write a snapshot, put it in place, and drop what it covers from the log: in this order."""
        self.install_snapshot(point, self.snapshot.write(pieces))

    def install_snapshot(self, point: SnapshotPoint, writer: SnapshotWriter) -> None:
        """Put a finished snapshot in place, then drop what it covers from the log: in this order."""
        self.log.begin_compaction(point)
        writer.install()
        self.log.drop_prefix(point)
        self.snapshot.reload()

    def install_received(self, point: SnapshotPoint, writer: SnapshotWriter) -> None:
        """Put another's snapshot in place, and let the log begin anew behind it."""
        assert isinstance(self.log, SegmentedLog), "groups keep generation 3"
        self.log.begin_compaction(point)
        writer.install()
        self.log.restart_behind(point)
        self.snapshot.reload()

    def close(self) -> None:
        """Let the files and the lock go. Raises ``StorageFailed``, but not for a failure told before."""
        try:
            self.log.close()
        finally:
            self._lock.release()

    def _remove_temporary_files(self, directory: Path) -> None:
        """Remove what a crash left half-written (R11); nothing refers to it."""
        for name in self._files.names(directory):
            if name.endswith(TEMPORARY_SUFFIX):
                self._files.remove(directory / name)
