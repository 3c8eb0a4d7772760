"""What the queues of a source hold, as rows: its snapshot and log replayed on one executor.

For sources that fit one machine, each by itself; ``pipeline`` computes the same by aggregation. Where ids tell what is
removed, a log without damage is replayed in columns (``lives``); every other one in order, as the tools do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptData
from penstock.families import arrow
from penstock.families.tables import ReadOptions, Table, schema_of
from penstock.families.taskflux.family import NAME as FAMILY
from penstock.families.taskflux.location import resolve
from penstock.families.taskflux.read import History, read_history
from penstock.families.taskflux.replay import replay
from penstock.families.taskflux.tables import lives
from penstock.families.taskflux.tables.plan import StatePlan

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 16_384


def read(
    source: str, plan: StatePlan, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the tasks of every queue, each queue in its order of delivery. Raises ``BadData`` for damage."""
    history = read_history(resolve(Path(plan.path)))
    found = lives.replay_columns(history, at=plan.at)
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
