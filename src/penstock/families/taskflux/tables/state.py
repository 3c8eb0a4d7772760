"""What the queues of a source hold, as rows: its snapshot and log replayed on one executor.

For sources that fit one machine, each by itself; ``pipeline`` computes the same by aggregation. Where ids tell what is
removed, a log without damage is replayed in columns; every other one in order, as the tools do.

Between its creation and its deletion a queue lives. In one life ids count up, one for each task added, so the tasks
that are left are those added whose ids no removal names. Only for a log that is whole and contradicts nothing: for
any other one there is no answer here, and a replay in order tells what is wrong, and where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptData
from penstock.families import arrow
from penstock.families.tables import ReadOptions, Table, schema_of
from penstock.families.taskflux.family import NAME as FAMILY
from penstock.families.taskflux.location import LogFile, resolve
from penstock.families.taskflux.read import History, read_history, restore_snapshot
from penstock.families.taskflux.replay import replay
from penstock.families.taskflux.tables.plan import StatePlan
from penstock.families.taskflux.tables.scan import _Rows
from penstock.formats.taskflux.deltas import ADD, BAD_OP, CREATE, DELETE, REMOVE
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import Status
from penstock.model import DEFAULT_QUEUE, UINT64_MAX, QueueName
from penstock.queues.contents import QueueContents
from penstock.queues.replay import Queues
from penstock.storage import reading
from penstock.storage.files import opened

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


_ROWS: Final = 16_384


def read(
    source: str, plan: StatePlan, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the tasks of every queue, each queue in its order of delivery. Raises ``BadData`` for damage."""
    history = read_history(resolve(Path(plan.path)))
    found = replay_columns(history, at=plan.at)
    if found is None:
        yield from _in_order(source, history, plan, options, columns)
        return
    for name in found.names:
        if options.filters.wants_queue(name):
            for some in found.tasks(name, _ROWS):
                yield _batch(source, name, found.index, found.term, some, columns)


def _in_order(
    source: str,
    history: History,
    plan: StatePlan,
    options: ReadOptions,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    found = replay(history, at=plan.at, uncommitted=options.uncommitted)
    if found.damage is not None:
        raise CorruptData(found.damage)
    for name in sorted(found.queues.by_name):
        if not options.filters.wants_queue(name):
            continue
        tasks = iter(found.queues.by_name[name].in_order())
        while some := list(islice(tasks, _ROWS)):
            ids, keys, payloads = zip(*some, strict=True)
            made = {
                "task_id": pa.array(ids, pa.uint64()).view(pa.int64()),
                "key": pa.array(keys, pa.int64()),
                "payload": pa.array(payloads, pa.binary()),
            }
            yield _batch(source, name, found.index, found.term, made, columns)


def _batch(
    source: str,
    queue: str,
    index: int,
    term: int,
    made: dict[str, pa.Array],
    columns: Sequence[str],
) -> pa.RecordBatch:
    """Return rows of one queue."""
    constants = {
        "source": source,
        "family": FAMILY,
        "log_index": index,
        "term": term,
        "queue": queue,
    }
    count = len(made["key"])
    rest = {
        field.name: arrow.same(constants.get(field.name), count, field.type)
        for field in schema_of(Table.TASKS)
        if field.name not in made
    }
    return arrow.batch(made | rest, columns)


LOGS_SIZE_MAX: Final = 4 * 2**30
"""Bytes of log that are replayed in columns: an entry takes as many bytes here as a small one in the log."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """The entries that change a queue, behind the snapshot and up to the one asked for."""

    op: Numbers
    queue: Numbers  # its place in ``names``
    names: list[QueueName]
    key: Numbers
    task_id: NDArray[np.uint64]
    file: Numbers  # its place among the log files
    offset: Numbers  # of the payload, in the file
    size: Numbers
    index: int  # the last entry read, or covered by the snapshot
    term: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Left:
    """What a life leaves: tasks that the snapshot brought, and places of adds among the changes, with their ids."""

    old: Sequence[int]
    places: Numbers
    ids: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Payloads:
    """Payloads one behind the other. An Arrow array of several chunks would be joined by every ``take``."""

    data: NDArray[np.uint8]
    ends: Numbers  # where each begins; the last is the end of all

    def take(self, places: Numbers) -> pa.Array:
        """Return a column of some of them."""
        import numpy as np
        import pyarrow as pa

        start = self.ends[places]
        there = np.ones(len(places), dtype=np.bool_)
        return arrow.stretches(self.data, start, self.ends[places + 1] - start, there, pa.binary())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """The queues after an entry."""

    index: int
    term: int
    queues: Queues  # as the snapshot has them
    left: dict[QueueName, _Left]
    changes: Changes
    gathered: Numbers  # places of adds whose payloads were gathered, in their order
    payloads: _Payloads

    @property
    def names(self) -> list[QueueName]:
        return sorted(self.left)

    def tasks(self, name: QueueName, rows: int) -> Iterator[dict[str, pa.Array]]:
        """Yield a queue's tasks in their order of delivery."""
        import numpy as np
        import pyarrow as pa

        left = self.left[name]
        stored = (
            [self.queues.by_name[name].tasks[number] for number in left.old] if left.old else []
        )
        ids = np.concatenate((np.array(left.old, dtype=np.uint64), left.ids))
        old_keys = np.array([key for key, _ in stored], dtype=np.int64)
        keys = np.concatenate((old_keys, self.changes.key[left.places]))
        old = pa.array([payload for _, payload in stored], pa.binary())
        order = np.lexsort((ids, keys))
        for start in range(0, len(order), rows):
            some = order[start : start + rows]
            yield {
                "task_id": pa.array(ids[some].view(np.int64)),
                "key": pa.array(keys[some]),
                "payload": self._payloads(left.places, old, some),
            }

    def _payloads(self, places: Numbers, old: pa.Array, some: Numbers) -> pa.Array:
        """Return the payloads of some tasks of a queue: those of the snapshot count first, then those that were added."""
        import numpy as np
        import pyarrow as pa

        is_old = some < len(old)
        new = self.payloads.take(np.searchsorted(self.gathered, places[some[~is_old] - len(old)]))
        if not is_old.any():
            return new
        both = pa.concat_arrays([old.take(pa.array(some[is_old])), new])
        back = np.empty(len(some), dtype=np.int64)
        back[np.argsort(~is_old, kind="stable")] = np.arange(len(some))
        return both.take(pa.array(back))


def replay_columns(history: History, *, at: int | None) -> State | None:
    """Return the state after entry ``at``, or after the last one; ``None`` if only a replay in order can tell.

    Raises ``BadData`` for a damaged snapshot.
    """
    target = history.target
    is_large = sum(log.size for log in target.logs) > LOGS_SIZE_MAX
    if target.generation is not Generation.THREE or is_large:
        return None
    if at is not None and at < history.covered:
        return None
    queues = Queues()
    restore_snapshot(history, queues)
    changes = _read_changes(history, at)
    promised = history.sure if at is None else at
    if changes is None or changes.index < promised:
        return None
    left = _live(changes, queues)
    if left is None:
        return None
    gathered, payloads = _gather(history, changes, left)
    return State(
        index=changes.index,
        term=changes.term,
        queues=queues,
        left=left,
        changes=changes,
        gathered=gathered,
        payloads=payloads,
    )


# --- reading -------------------------------------------------------------------------------------


def _read_changes(history: History, at: int | None) -> Changes | None:
    """Return the changes of a whole log, or ``None`` for one that is not."""
    import numpy as np

    covered = history.covered
    places: dict[QueueName, int] = {}
    parts: list[tuple[NDArray[np.int64], ...]] = []
    number = min(history.first, covered + 1)
    index, term = covered, 0 if history.point is None else history.point.term
    for place, log in enumerate(history.target.logs):
        if at is not None and index >= at:
            break
        if (history.first if log.first is None else log.first) != number:
            return None
        with opened(log.path) as file:
            size = file.size()
            start = log.layout.header_size
            rule = history.end_rule(log)
            batches = reading.scan_file_columns(
                file, log.layout, start=start, stop=size, size=size, rule=rule
            )
            for batch in batches:
                count = len(batch.entries)
                first = max(0, covered + 1 - number)
                end = count if at is None else min(count, at + 1 - number)
                number += count
                if (batch.entries.pieces.status != int(Status.OK)).any():
                    return None
                if first >= end:
                    continue
                there = np.ones(count, dtype=np.bool_)
                rows = _Rows(batch, (np.zeros(count, dtype=np.int64), there), log.layout)
                there[:first] = there[end:] = False
                if (rows.op[there] == BAD_OP).any():
                    return None
                parts.append(_part(rows.only(there & rows.has_queue), place, batch.base, places))
                index, term = number - count + end - 1, int(batch.entries.pieces.term[end - 1])
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] or [
        np.zeros(0, dtype=np.int64) for _ in range(7)
    ]
    return Changes(
        op=columns[0],
        queue=columns[1],
        names=list(places),
        key=columns[2],
        task_id=columns[3].view(np.uint64),
        file=columns[4],
        offset=columns[5],
        size=columns[6],
        index=index,
        term=term,
    )


def _part(rows: _Rows, file: int, base: int, places: dict[QueueName, int]) -> tuple[Numbers, ...]:
    """Return one batch of changes; a queue that was not met before gets its place."""
    import numpy as np
    import pyarrow as pa

    names = arrow.stretches(
        rows.data, rows.queue_offset, rows.queue_size, rows.has_queue, pa.string()
    ).dictionary_encode()
    known = [
        places.setdefault(QueueName(name), len(places)) for name in names.dictionary.to_pylist()
    ]
    queue = np.array(known, dtype=np.int64)[names.indices.to_numpy(zero_copy_only=False)]
    where = np.full(len(rows), file, dtype=np.int64)
    offset = rows.payload_offset + base
    return rows.op, queue, rows.key, rows.task_id, where, offset, rows.payload_size


# --- living --------------------------------------------------------------------------------------


def _live(changes: Changes, queues: Queues) -> dict[QueueName, _Left] | None:
    """Return what is left in each queue, or ``None`` if some change contradicts those before it."""
    import numpy as np

    nothing = np.zeros(0, dtype=np.int64)
    left: dict[QueueName, _Left] = {
        name: _Left(old=list(contents.tasks), places=nothing, ids=nothing.view(np.uint64))
        for name, contents in queues.by_name.items()
    }
    order = np.argsort(changes.queue, kind="stable")
    edges = np.searchsorted(changes.queue[order], np.arange(len(changes.names) + 1))
    for place, name in enumerate(changes.names):
        own = order[edges[place] : edges[place + 1]]
        before: QueueContents | None = queues.by_name.get(name)
        is_there = before is not None
        marks = np.flatnonzero(np.isin(changes.op[own], (CREATE, DELETE)))
        start = 0
        for mark in (*marks.tolist(), len(own)):
            life = own[start:mark]
            if len(life) and not is_there:
                return None
            if is_there:
                found = _one_life(changes, life, before)
                if found is None:
                    return None
                left[name] = found
            if mark < len(own):
                is_created = int(changes.op[own[mark]]) == CREATE
                if is_created and is_there:
                    return None
                # The default queue always exists: deleting it can only mean its tasks.
                is_there = is_created or (is_there and name == DEFAULT_QUEUE)
                before = None
                left.pop(name, None)
                if is_there:
                    left[name] = _Left(old=[], places=nothing, ids=nothing.view(np.uint64))
            start = mark + 1
    return left


def _one_life(changes: Changes, life: Numbers, before: QueueContents | None) -> _Left | None:
    """Return what is left at the end of a life, which may have begun with a snapshot's tasks."""
    import numpy as np

    last_id = 0 if before is None else before.last_id
    old = np.array([] if before is None else list(before.tasks), dtype=np.uint64)
    op = changes.op[life]
    adds, removes = life[op == ADD], life[op == REMOVE]
    removed = changes.task_id[removes]
    is_new = removed > np.uint64(last_id)
    number = removed[is_new] - np.uint64(last_id) - np.uint64(1)
    is_possible = (
        last_id + len(adds) <= UINT64_MAX
        and not (old > np.uint64(last_id)).any()
        and len(np.unique(removed)) == len(removed)
        and not (number >= np.uint64(len(adds))).any()
        and bool(np.isin(removed[~is_new], old).all())
    )
    if not is_possible:
        return None
    taken = number.astype(np.int64)
    if (adds[taken] > removes[is_new]).any():
        return None  # removed before it was added
    is_left = np.ones(len(adds), dtype=np.bool_)
    is_left[taken] = False
    ids = np.uint64(last_id) + np.arange(1, len(adds) + 1, dtype=np.uint64)
    return _Left(
        old=old[~np.isin(old, removed[~is_new])].tolist(),
        places=adds[is_left],
        ids=ids[is_left],
    )


# --- payloads ------------------------------------------------------------------------------------


def _gather(
    history: History, changes: Changes, left: dict[QueueName, _Left]
) -> tuple[Numbers, _Payloads]:
    """Return the places of all adds that are left, in file order, and their payloads."""
    import numpy as np

    none = np.zeros(0, dtype=np.int64)
    places = np.sort(np.concatenate([none, *(one.places for one in left.values())]))
    ends = np.zeros(len(places) + 1, dtype=np.int64)
    np.cumsum(changes.size[places], out=ends[1:])
    gathered = np.empty(int(ends[-1]), dtype=np.uint8)
    edges = np.searchsorted(changes.file[places], np.arange(len(history.target.logs) + 1))
    for number, log in enumerate(history.target.logs):
        own = slice(edges[number], edges[number + 1])
        offset, size = changes.offset[places[own]], changes.size[places[own]]
        _gather_file(log, offset, size, ends[own], gathered)
    return places, _Payloads(data=gathered, ends=ends)


def _gather_file(
    log: LogFile, offset: Numbers, size: Numbers, starts: Numbers, gathered: NDArray[np.uint8]
) -> None:
    """Copy payloads of one file to where each begins among all."""
    import numpy as np

    start = 0
    with opened(log.path) as file:
        while start < len(offset):
            base = int(offset[start])
            end = max(start + 1, int(np.searchsorted(offset, base + reading.WINDOW)))
            stretch = int(offset[end - 1] + size[end - 1]) - base
            data = np.frombuffer(file.read(base, stretch), dtype=np.uint8)
            if len(data) < stretch:
                raise CorruptData("became shorter while it was read; read it again", offset=base)
            some = slice(start, end)
            arrow.gather(data, offset[some] - base, size[some], starts[some], gathered)
            start = end
