"""Directories of generation 4, written from a list of changes through the format's own writer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from penstock.families.penstock.location import HARD_STATE, IDENTITY, LOG, SNAPSHOTS, SYNC_POINT
from penstock.formats.records.add import Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    DeleteQueue,
    Empty,
    MoveTasks,
    RemoveTasks,
    ReturnTasks,
    SetMembers,
    SetQueue,
    Stamp,
)
from penstock.formats.records.hard_state import encode_hard_state
from penstock.formats.records.header import head_checksum
from penstock.formats.records.identity import Identity, encode_identity
from penstock.formats.records.ids import MoveReason, RemoveReason, ReturnReason
from penstock.formats.records.read import Chain
from penstock.formats.records.segment import (
    LOG_SUFFIX,
    SEGMENT_SIZE,
    SNAPSHOT_SUFFIX,
    file_name,
)
from penstock.formats.records.settings import ClusterSettings, MemberSettings, QueueSettings
from penstock.formats.records.sync_point import SIZE as SYNC_POINT_SIZE
from penstock.formats.records.sync_point import SyncedTo, encode_sync_point
from penstock.formats.records.writer import record_of, write_log
from penstock.model import HardState, NodeId, QueueName, Term
from penstock.queues.columnar.snapshot import encode_snapshot, freeze
from penstock.queues.columnar.state import State

CLUSTER: Final = bytes(range(16))
INCARNATION: Final = bytes(range(16, 32))
TIME_MS: Final = 1_795_000_000_000  # 2026-11-18T09:06:40Z
STEP_MS: Final = 1000

Entries = Sequence[tuple[Stamp, Change]]


class Changes:
    """Collects entries of a log: every call is one entry, a second behind the one before."""

    def __init__(self, *, term: int = 1, time_ms: int = TIME_MS) -> None:
        self.entries: list[tuple[Stamp, Change]] = []
        self.term = term
        self.time_ms = time_ms
        self._last_ids: dict[int, int] = {}
        self._names: dict[int, QueueName] = {}

    def append(self, change: Change, *, principal_id: int = 0) -> int:
        """Add an entry; return its index."""
        index = len(self.entries) + 1
        self.entries.append((Stamp(index, self.term, self.time_ms, principal_id), change))
        self.time_ms += STEP_MS
        return index

    def begin(self) -> None:
        """Add the entry that founds a cluster of one node."""
        member = MemberSettings(number=1, roles=("voter",), addresses={"peer": "a:1"})
        settings = ClusterSettings(members=(member,), feature_level=1, cluster_id=CLUSTER)
        self.append(SetMembers(settings))

    def new_term(self) -> None:
        self.term += 1
        self.append(Empty())

    def queue(self, name: str, **fields: Any) -> int:
        """Create a queue; return its id."""
        queue_id = len(self._names) + 1
        self._names[queue_id] = QueueName(name)
        self._last_ids[queue_id] = 0
        self.append(SetQueue(queue_id, QueueSettings(name=QueueName(name), **fields)))
        return queue_id

    def delete(self, queue_id: int) -> None:
        self.append(DeleteQueue(queue_id))

    def add(
        self,
        queue_id: int,
        payloads: Sequence[bytes],
        keys: int | Sequence[int] = 0,
        *,
        principal_id: int = 0,
        **columns: Any,
    ) -> range:
        """Add tasks; return their ids. ``columns`` are those of ``encode_add``."""
        first = self._last_ids[queue_id] + 1
        self._last_ids[queue_id] += len(payloads)
        body = encode_add(self._names[queue_id].encode(), keys, payloads, **columns)
        change = AddTasks(queue_id, first, decode_add(body, 0, len(body), Rules.RECORD))
        self.append(change, principal_id=principal_id)
        return range(first, first + len(payloads))

    def remove(self, queue_id: int, ids: range) -> None:
        self.append(RemoveTasks(queue_id, ids, RemoveReason.ACKED))

    def fail(self, queue_id: int, ids: range, **fields: Any) -> None:
        self.append(ReturnTasks(queue_id, ids, ReturnReason.FAILED, **fields))

    def move(self, queue_id: int, ids: range, to: int, **fields: Any) -> None:
        first = self._last_ids[to] + 1
        self._last_ids[to] += len(ids)
        reason = MoveReason.DEAD_FAILED
        self.append(MoveTasks(queue_id, ids, reason, to, first, **fields))


def write_directory(
    root: Path,
    entries: Entries,
    *,
    segment_size: int = SEGMENT_SIZE,
    snapshots: Sequence[int] = (),
    first: int = 1,
    synced: int | None = None,
    commit_floor: int | None = None,
    zeros: int = 0,
) -> Path:
    """Write a directory whose log has these entries.

    ``snapshots``: the indexes after which there is one. ``first``: the first entry that the log still has. ``synced``,
    ``commit_floor``: the sync point; all entries unless given. ``zeros``: bytes behind the last record.
    """
    (root / LOG).mkdir(parents=True)
    (root / SNAPSHOTS).mkdir()
    identity = Identity(node=1, incarnation=INCARNATION, cluster_id=CLUSTER)
    (root / IDENTITY).write_bytes(encode_identity(identity))
    term = max((stamp.term for stamp, _ in entries), default=1)
    state = HardState(term=Term(term), vote=NodeId(1))
    (root / HARD_STATE).write_bytes(encode_hard_state(state))
    checksums = _write_snapshots(root / SNAPSHOTS, entries, snapshots)
    kept = [entry for entry in entries if entry[0].index >= first]
    chain = Chain(checksums[first - 1], first - 1)
    last_segment, offset = 0, 0
    for segment in write_log(
        kept, cluster_id=CLUSTER, segment_size=segment_size, chain=chain, names=_names(entries, first)
    ):  # fmt: skip
        path = root / LOG / file_name(segment.first_index, LOG_SUFFIX)
        path.write_bytes(segment.data + (b"" if segment.is_sealed else bytes(zeros)))
        last_segment, offset = segment.first_index, len(segment.data)
    last = entries[-1][0].index if entries else 0
    index = last if synced is None else synced
    write_sync_point(
        root,
        index=index,
        segment=last_segment,
        offset=offset if index == last else 0,
        commit_floor=index if commit_floor is None else commit_floor,
    )
    return root


def write_sync_point(root: Path, **fields: int) -> None:
    """Write the sync point of a directory, twice, as a node does in turn."""
    data = bytearray(SYNC_POINT_SIZE)
    for sequence in (1, 2):
        at, sector = encode_sync_point(SyncedTo(sequence=sequence, **fields))
        data[at : at + len(sector)] = sector
    (root / SYNC_POINT).write_bytes(data)


def _names(entries: Entries, before: int) -> dict[int, bytes]:
    """Return the names of the queues that entries before an index create."""
    return {
        change.queue_id: change.settings.name.encode()
        for stamp, change in entries
        if stamp.index < before and isinstance(change, SetQueue)
    }


def _write_snapshots(directory: Path, entries: Entries, wanted: Sequence[int]) -> list[int]:
    """Write the snapshots after these entries; return the head checksum of every entry, and 0 before the first."""
    state, checksums = State(), [0]
    for stamp, change in entries:
        checksums.append(head_checksum(record_of(change, stamp, checksums[-1])))
        state.apply(change, stamp)
        if stamp.index in wanted:
            pieces = encode_snapshot(freeze(state), last_checksum=checksums[-1])
            (directory / file_name(stamp.index, SNAPSHOT_SUFFIX)).write_bytes(b"".join(pieces))
    return checksums


def sample() -> Changes:
    """Return a small history with every kind of change that a queue sees."""
    made = Changes()
    made.begin()
    mail = made.queue("mail", options={"attempts_max": 3, "dead_letter": 2, "lease_ms": 60_000})
    dead = made.queue("dead")
    made.add(mail, [b"one", b"two", b"three"], [5, 5, 1])
    made.add(mail, [b'{"a":1}'] * 4, 7, not_before=60_000, expires=3_600_000, principal_id=4,
             headers=[{"type": b"json"}] * 4, producer=(bytes(16), 0))  # fmt: skip
    made.remove(mail, range(1, 2))
    made.new_term()
    made.fail(mail, range(2, 4), not_before=5000, keys=9, errors=b"timeout")
    made.move(mail, range(2, 3), dead, errors=b"gave up")
    made.queue("gone")
    made.add(3, [bytes(range(256))])
    made.delete(3)
    made.queue("")
    made.add(4, [b"", b"\xff\xfe"], [-1, 2])
    return made
