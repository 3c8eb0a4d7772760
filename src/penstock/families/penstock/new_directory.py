"""A new directory of generation 4 that repair or conversion writes: whole and synced, or not there at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.families.family import Row
from penstock.families.penstock.family import GENERATION, NAME
from penstock.families.penstock.location import HARD_STATE, IDENTITY, LOG, SNAPSHOTS, SYNC_POINT
from penstock.families.taskflux.new_directory import whole_directory
from penstock.formats.records.hard_state import encode_hard_state
from penstock.formats.records.identity import INCARNATION_SIZE, Identity, encode_identity
from penstock.formats.records.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, file_name
from penstock.formats.records.settings import CLUSTER_ID_SIZE, ClusterSettings, MemberSettings
from penstock.formats.records.sync_point import SIZE as SYNC_POINT_SIZE
from penstock.formats.records.sync_point import SyncedTo, encode_sync_point
from penstock.formats.records.writer import WrittenSegment
from penstock.model import HardState
from penstock.storage.files import FILES, replace_file

FEATURE_LEVEL: Final = 1


def new_cluster_id() -> bytes:
    """Draw the id of a cluster."""
    return secrets.token_bytes(CLUSTER_ID_SIZE)


def lone_member(node: int, cluster_id: bytes) -> ClusterSettings:
    """Return the settings of a cluster of one node."""
    member = MemberSettings(number=node, roles=("voter",))
    return ClusterSettings(members=(member,), feature_level=FEATURE_LEVEL, cluster_id=cluster_id)


class NewDirectory:
    """The files of a node that is being written."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._segment = 0  # first index of the last one
        self._offset = 0  # behind its last record
        for name in (LOG, SNAPSHOTS):
            FILES.make_directory(root / name)

    def write_log(self, segments: Iterable[WrittenSegment]) -> None:
        """Write the segments of a log, one after the other."""
        for segment in segments:
            path = self._root / LOG / file_name(segment.first_index, LOG_SUFFIX)
            replace_file(FILES, path, [segment.data])
            self._segment, self._offset = segment.first_index, len(segment.data)

    def write_snapshot(self, index: int, pieces: Iterable[bytes]) -> None:
        """Write a snapshot of the state after an entry."""
        path = self._root / SNAPSHOTS / file_name(index, SNAPSHOT_SUFFIX)
        replace_file(FILES, path, pieces)

    def finish(
        self, *, node: int, cluster_id: bytes, state: HardState, last: int, committed: int
    ) -> None:
        """Write the small files. ``last``: the last entry of the log or of a snapshot."""
        identity = Identity(
            node=node, incarnation=secrets.token_bytes(INCARNATION_SIZE), cluster_id=cluster_id
        )
        replace_file(FILES, self._root / IDENTITY, [encode_identity(identity)])
        replace_file(FILES, self._root / HARD_STATE, [encode_hard_state(state)])
        point = SyncedTo(
            sequence=1,
            index=last,
            segment=self._segment,
            offset=self._offset,
            commit_floor=committed,
        )
        at, sector = encode_sync_point(point)
        data = bytes(at) + sector + bytes(SYNC_POINT_SIZE - at - len(sector))
        replace_file(FILES, self._root / SYNC_POINT, [data])


@contextmanager
def new_directory(out: Path, *, source: Path | None = None) -> Iterator[NewDirectory]:
    """Give the files of a node that appear at ``out`` when all is well. Raises ``PathRefused``."""
    with whole_directory(out, source=source) as building:
        yield NewDirectory(building)


def written_row(
    out: Path, entries: int, snapshot_index: int | None, queues: int, tasks: int
) -> Row:
    """Return the row of a conversion into this family."""
    return {
        "family": NAME,
        "generation": GENERATION,
        "path": str(out),
        "entries": entries,
        "snapshot_index": snapshot_index,
        "queues": queues,
        "tasks": tasks,
    }
