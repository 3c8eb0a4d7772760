"""Wrong versions of what is around the core: disk, snapshots, membership and queues of a node in a group.

Every function patches the product for as long as the patch lasts. None of this is in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.formats.taskflux import notes
from penstock.formats.taskflux.log import LogLayout
from penstock.model import QueueHead, SnapshotPoint
from penstock.queues.order import _Fifo
from penstock.queues.producers import Producers
from penstock.queues.queue import Queue
from penstock.queues.state import State
from penstock.queues.tasks import Tasks
from penstock.raft.messages import Entry
from penstock.server import books, membership, rebuild
from penstock.server.broker import Broker
from penstock.server.entry_store import EntryStore
from penstock.server.group_replica import GroupReplica
from penstock.server.membership import Membership
from penstock.server.rebuild import SnapshotWalk
from penstock.storage import segmented_log
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import File, Poison
from penstock.storage.log_end import end_of_data
from penstock.storage.reading import Walked
from penstock.storage.recovery import Cut
from penstock.storage.segmented_log import SegmentedLog
from penstock.storage.snapshot import SnapshotStore, SnapshotWriter
from support import storage_bugs
from support.storage_bugs import Patch, returning

# Disk.


def seed_log_not_synced(patch: Patch) -> None:
    storage_bugs.seed_no_sync(patch)


def seed_failed_sync_tried_again(patch: Patch) -> None:
    def leave(self: Poison, kind: object, error: BaseException | None, trace: object) -> None:
        pass  # what has failed is forgotten: the next call finds nothing wrong

    def sync(self: SegmentedLog) -> None:
        with suppress(OSError):
            original(self)
            return
        original(self)

    original = SegmentedLog.sync
    patch.setattr(Poison, "__exit__", leave)
    patch.setattr(SegmentedLog, "sync", sync)


def seed_write_error_ignored(patch: Patch) -> None:
    original = GroupReplica._finish

    def finish(self: GroupReplica, ready: Any, error: BaseException | None) -> None:
        original(self, ready, None)

    patch.setattr(GroupReplica, "_finish", finish)


def seed_directory_not_synced(patch: Patch) -> None:
    wrong = partial(storage_bugs.replace_wrongly, syncs_directory=False)
    storage_bugs.seed_replace(patch, syncs_directory=False)
    patch.setattr(membership, "replace_file", wrong)


def seed_metadata_in_place(patch: Patch) -> None:
    storage_bugs.seed_metadata_in_place(patch)


def seed_damage_is_a_torn_tail(patch: Patch) -> None:
    def judge(
        file: File, path: Path, _layout: LogLayout, walked: Walked, **_known: object
    ) -> Cut | None:
        start = walked.records.end
        stop = end_of_data(file, start, file.size())
        if stop == start:
            return None
        return Cut(path=path, offset=start, size=stop - start, reason="whatever it is")

    patch.setattr(segmented_log, "judge_tail", judge)


def seed_cache_believed_at_start(patch: Patch) -> None:
    patch.setattr(SegmentedLog, "_write_again", returning(None))


def seed_truncation_in_memory_only(patch: Patch) -> None:
    storage_bugs.seed_truncate_in_memory_only(patch)


# Log between core and files.


def seed_cache_survives_truncation(patch: Patch) -> None:
    def stored(self: EntryStore, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        cut = max(0, entries[0].index - (self._last - len(self._held)) - 1)
        fresh = list(entries)[len(self._held) - cut :]
        self._held = self._held[: cut + len(entries)] + fresh
        self._last = entries[-1].index

    patch.setattr(EntryStore, "stored", stored)


# Snapshots.


def seed_log_dropped_first(patch: Patch) -> None:
    def install(self: NodeDirectory, point: SnapshotPoint, writer: SnapshotWriter) -> None:
        self.log.begin_compaction(point)
        self.log.drop_prefix(point)
        writer.install()
        self.snapshot.reload()

    def install_received(self: NodeDirectory, point: SnapshotPoint, writer: SnapshotWriter) -> None:
        assert isinstance(self.log, SegmentedLog)
        self.log.begin_compaction(point)
        self.log.restart_behind(point)
        writer.install()
        self.snapshot.reload()

    patch.setattr(NodeDirectory, "install_snapshot", install)
    patch.setattr(NodeDirectory, "install_received", install_received)


def seed_half_snapshot_accepted(patch: Patch) -> None:
    storage_bugs.seed_snapshot_unsynced(patch)
    patch.setattr(SnapshotStore, "_verify", returning(None))


def seed_received_unverified(patch: Patch) -> None:
    patch.setattr(SnapshotWriter, "verify", returning(None))


def seed_without_notes(patch: Patch, kind: type[object]) -> None:
    original = rebuild._notes

    def some(state: State, *, has_ids: bool) -> Iterator[notes.Note]:
        return (note for note in original(state, has_ids=has_ids) if not isinstance(note, kind))

    patch.setattr(rebuild, "_notes", some)


def seed_configuration_missing(patch: Patch) -> None:
    seed_without_notes(patch, notes.GroupNote)


def seed_log_behind_snapshot_kept(patch: Patch) -> None:
    def restart(self: SegmentedLog, point: SnapshotPoint) -> None:
        self.drop_prefix(point)

    patch.setattr(SegmentedLog, "restart_behind", restart)


def seed_replay_goes_on_after_restore(patch: Patch) -> None:
    original = GroupReplica._begin_anew

    def begin_anew(self: GroupReplica, index: Any) -> None:
        before = self._replay
        original(self, index)
        self._replay = before

    patch.setattr(GroupReplica, "_begin_anew", begin_anew)


# Members.


def seed_wiped_node_votes(patch: Patch) -> None:
    original = Membership.__init__

    def begin(self: Membership, *rest: Any, **named: Any) -> None:
        original(self, *rest, **named)
        if not self._settings.is_joining:
            self._is_admitted = True
            self._initial = {str(peer): at for peer, at in self._settings.peers.items()}

    patch.setattr(Membership, "__init__", begin)


# Queue.


def seed_returned_task_last(patch: Patch) -> None:
    def push(self: _Fifo, task_id: int) -> None:
        self._ids.append(task_id)

    patch.setattr(_Fifo, "push", push)


def seed_leased_missing_in_snapshot(patch: Patch) -> None:
    original = SnapshotWalk.__init__

    def begin(self: SnapshotWalk, state: State, point: SnapshotPoint, generation: Any) -> None:
        out = {id(queue.tasks): set(queue.out) for queue in state.queues()}
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(rebuild, "_head", partial(head, rebuild._head))
            inner.setattr(Tasks, "walk", partial_walk(Tasks.walk, out))
            original(self, state, point, generation)

    def head(original: Callable[[Queue], QueueHead], queue: Queue) -> QueueHead:
        found = original(queue)
        return replace(found, count=found.count - len(queue.out))

    def partial_walk(original: Any, out: dict[int, set[int]]) -> Callable[[Tasks], Any]:
        def walk(self: Tasks) -> Iterator[tuple[int, int, bytes]]:
            gone = out[id(self)]
            return (task for task in original(self) if task[0] not in gone)

        return walk

    patch.setattr(SnapshotWalk, "__init__", begin)


def seed_producers_missing(patch: Patch) -> None:
    seed_without_notes(patch, notes.ProducerNote)


def seed_retry_counts_twice(patch: Patch) -> None:
    original = Broker._find_produced

    def find(self: Broker, *request: Any) -> int | None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Producers, "find", returning(None))
            return original(self, *request)

    patch.setattr(Broker, "_find_produced", find)


def seed_size_ignores_leases(patch: Patch) -> None:
    original = books.Books._judge

    def judge(self: books.Books, queue: Queue, keys: Any, payloads: Any) -> int:
        size_max = queue.policy.size_max
        if size_max is None:
            return original(self, queue, keys, payloads)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Queue, "__len__", lambda one: one.tasks.count - len(one.out))
            return original(self, queue, keys, payloads)

    patch.setattr(books.Books, "_judge", judge)


def seed_leases_survive_leadership(patch: Patch) -> None:
    patch.setattr(Queue, "stop_leading", returning(None))
