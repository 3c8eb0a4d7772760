"""The files of a directory of generation 4 as values: the small files, the heads of snapshots, the bytes of segments.

Damage is collected, not raised. ``scan`` walks over the log; ``replay`` builds the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from penstock.errors import BadData, CorruptData, PathRefused
from penstock.families.damage import Damage, Severity, words_of
from penstock.families.family import Progress, no_progress
from penstock.families.penstock.location import (
    HARD_STATE,
    IDENTITY,
    SYNC_POINT,
    StoredFile,
    Target,
)
from penstock.formats.records.changes import AddTasks, Envelope, SetQueue, decode_change
from penstock.formats.records.hard_state import SIZE as HARD_STATE_SIZE
from penstock.formats.records.hard_state import decode_hard_state
from penstock.formats.records.header import (
    HEADER_SIZE,
    RECORD_SIZE_MAX,
    Header,
    Kind,
    check_body,
    decode_header,
)
from penstock.formats.records.identity import SIZE_MAX as IDENTITY_SIZE_MAX
from penstock.formats.records.identity import Identity, decode_identity
from penstock.formats.records.read import Chain, collect, walk
from penstock.formats.records.segment import FILE_HEADER_SIZE, decode_file_header
from penstock.formats.records.settings import SnapshotStart, decode_snapshot_start
from penstock.formats.records.sync_point import SIZE as SYNC_POINT_SIZE
from penstock.formats.records.sync_point import SyncedTo, decode_sync_point
from penstock.model import HardState, QueueName
from penstock.storage.files import opened
from penstock.storage.log_end import end_of_data

FILE_DATA_MAX: Final = 2**32
"""Bytes of a file that are read into memory. Segments have 64 MiB, or one record; no snapshot comes near."""

START_SIZE_MAX: Final = 2**20
"""Bytes of the first record of a snapshot: some numbers as JSON."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHead:
    """A snapshot by its first record. The rest is checked when it is restored."""

    file: StoredFile
    start: SnapshotStart


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is known of a target before its log is read."""

    target: Target
    identity: Identity | None = None
    hard_state: HardState | None = None
    synced: SyncedTo | None = None
    snapshots: tuple[SnapshotHead, ...] = ()  # readable ones, oldest first
    damage: tuple[Damage, ...] = ()  # small files and heads that cannot be believed
    progress: Progress = field(default=no_progress, compare=False)

    @property
    def newest(self) -> SnapshotHead | None:
        """The newest snapshot whose head can be read."""
        return self.snapshots[-1] if self.snapshots else None

    @property
    def covered(self) -> int:
        """The last index that a snapshot covers; 0 without one."""
        return 0 if self.newest is None else self.newest.start.last_index

    @property
    def commit_floor(self) -> int | None:
        """The last index that is known to be committed; None if nothing is known."""
        if self.synced is None and not self.snapshots:
            return None
        return max(self.covered, 0 if self.synced is None else self.synced.commit_floor)

    @property
    def promised(self) -> int:
        """The last index that is known to have been on the disk."""
        point = self.synced
        return max(self.covered, 0 if point is None else max(point.index, point.commit_floor))

    def chain_before(self, first_index: int) -> Chain | None:
        """Return what the entry ``first_index`` must continue, if it is known without reading the log."""
        if first_index == 1:
            return Chain(0, 0)
        for head in self.snapshots:
            if head.start.last_index == first_index - 1:
                return Chain(head.start.last_checksum, first_index - 1)
        return None


def survey(target: Target, *, progress: Progress = no_progress) -> History:
    """Read everything of a target but its log and the contents of its snapshots."""
    damage: list[Damage] = []
    heads = [_head(file, damage) for file in target.snapshots]
    found = tuple(head for head in heads if head is not None)
    home = target.home
    if home is None:
        return History(target=target, snapshots=found, damage=tuple(damage), progress=progress)
    read = partial(_small_file, damage=damage, home=home)
    return History(
        target=target,
        identity=read(IDENTITY, IDENTITY_SIZE_MAX, decode_identity),
        hard_state=read(HARD_STATE, HARD_STATE_SIZE, decode_hard_state),
        synced=read(SYNC_POINT, SYNC_POINT_SIZE, partial(_newest, home / SYNC_POINT, damage)),
        snapshots=found,
        damage=tuple(damage),
        progress=progress,
    )


def _small_file(
    name: str, size_max: int, decode: Callable[[bytes], T], *, damage: list[Damage], home: Path
) -> T | None:
    """Return what one of the small files says; None if it does not say it."""
    path = home / name
    try:
        with opened(path) as file:
            return decode(file.read(0, size_max + 1))
    except FileNotFoundError:
        reason = f"{name} is missing"
        damage.append(_metadata_damage(path, "missing", reason))
    except BadData as error:
        damage.append(bad_file(path, error, f"bad-{name}", Severity.DAMAGED, "metadata"))
    except (OSError, PathRefused) as error:
        damage.append(_metadata_damage(path, "unreadable", words_of(error)))
    return None


def _metadata_damage(path: Path, status: str, reason: str, offset: int | None = None) -> Damage:
    return Damage(
        path=path,
        offset=offset,
        status=status,
        reason=reason,
        severity=Severity.DAMAGED,
        kind="metadata",
    )


def _newest(path: Path, damage: list[Damage], data: bytes) -> SyncedTo | None:
    """Return the newest sync point. A crash may destroy one of the two sectors, which is harmless."""
    found = decode_sync_point(data)
    for offset in found.damaged:
        is_torn = found.newest is not None
        damage.append(
            Damage(
                path=path,
                offset=offset,
                status="torn" if is_torn else "bad-sync-point",
                reason="one of the two sectors is not whole; the other one counts"
                if is_torn
                else "no sector is whole: a torn tail cannot be told from damage",
                severity=Severity.HARMLESS if is_torn else Severity.DAMAGED,
                kind="metadata",
            )
        )
    return found.newest


def bad_file(path: Path, error: BadData, status: str, severity: Severity, kind: str) -> Damage:
    """Return the damage that a decoder raised about a file."""
    details = {"expected": error.expected, "found": error.found}
    return Damage(
        path=path,
        offset=error.offset,
        status=status,
        reason=error.reason,
        severity=severity,
        kind=kind,
        details={name: value for name, value in details.items() if value is not None},
    )


def _head(file: StoredFile, damage: list[Damage]) -> SnapshotHead | None:
    """Return the head of a snapshot, or None and the damage of it."""
    try:
        with opened(file.path) as source:
            data = source.read(0, FILE_HEADER_SIZE + START_SIZE_MAX)
        first = decode_file_header(data).first_index
        header = decode_header(data, FILE_HEADER_SIZE)
        check_body(data, FILE_HEADER_SIZE, header)
        if header.kind != Kind.SNAPSHOT_START:
            raise CorruptData("a snapshot begins with kind 128", offset=FILE_HEADER_SIZE + 12)
        body = FILE_HEADER_SIZE + HEADER_SIZE
        start = decode_snapshot_start(data, body, FILE_HEADER_SIZE + header.size)
        if first != start.last_index or file.number not in (None, first):
            raise CorruptData(
                "name, file header and start of a snapshot disagree about its index",
                offset=16,
                expected=str(start.last_index),
                found=f"{first}, {file.path.name}",
            )
    except BadData as error:
        damage.append(bad_file(file.path, error, "bad-snapshot", Severity.LOST, "snapshot"))
    except (OSError, PathRefused) as error:
        damage.append(unreadable(file.path, error))
    else:
        return SnapshotHead(file=file, start=start)
    return None


def unreadable(path: Path, error: OSError | PathRefused) -> Damage:
    """Return the damage of a file that the system does not let us read."""
    return Damage(path=path, status="unreadable", reason=words_of(error), severity=Severity.LOST)


def load(file: StoredFile, progress: Progress = no_progress) -> bytes:
    """Return the bytes of a file. Raises ``BadData``, ``OSError``, ``PathRefused``.

    Of the zeros behind the last record no more are returned than that record may need.
    """
    with opened(file.path) as source:
        size = source.size()
        end = min(size, end_of_data(source, 0, size) + RECORD_SIZE_MAX)
        if end > FILE_DATA_MAX:
            raise CorruptData(
                "larger than any file of generation 4",
                offset=FILE_DATA_MAX,
                expected=f"at most {FILE_DATA_MAX} bytes",
                found=str(end),
            )
        data = source.read(0, end)
    progress(file.size)
    return data


def queue_names(history: History) -> dict[int, QueueName]:
    """Return the name of every queue id that snapshots, footers and the log tell. Damaged parts tell nothing."""
    names: dict[int, QueueName] = {}
    for file in (*history.target.snapshots, *history.target.segments):
        try:
            data = load(file)
        except (BadData, OSError, PathRefused):
            continue
        is_snapshot = file in history.target.snapshots
        records, end = collect(walk(data, is_snapshot=is_snapshot))
        if end.footer is not None:
            names |= {
                queue.queue_id: QueueName(queue.name.decode())
                for queue in end.footer.queues
                if queue.name is not None
            }
            continue
        for offset, header in records:
            if header.kind in (Kind.ADD, Kind.QUEUE, Kind.ENVELOPE):
                names |= names_in(header, data, offset)
    return names


def names_in(header: Header, data: bytes, offset: int) -> dict[int, QueueName]:
    """Return the names of queues that a record tells."""
    if header.kind not in (Kind.ADD, Kind.QUEUE, Kind.ENVELOPE):
        return {}
    try:
        change = decode_change(header, data, offset + HEADER_SIZE, offset + header.size)
    except BadData:
        return {}
    match change:
        case AddTasks(queue_id=queue_id, body=body):
            return {queue_id: QueueName(body.name.decode())}
        case SetQueue(queue_id=queue_id, settings=settings):
            return {queue_id: settings.name}
        case Envelope(parts=parts):
            adds = [part.change for part in parts if isinstance(part.change, AddTasks)]
            return {each.queue_id: QueueName(each.body.name.decode()) for each in adds}
        case _:
            return {}
