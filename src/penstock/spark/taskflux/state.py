"""What the queues of a source hold, as rows: its snapshot and log replayed on one executor.

For sources that fit one machine, each by itself; ``pipeline`` computes the same by aggregation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark import arrow
from penstock.spark.columns import Table, schema_of
from penstock.spark.filters import Filters
from penstock.spark.options import ReadOptions
from penstock.spark.taskflux.planning import StatePlan
from penstock.tools.history import read_history
from penstock.tools.replay import replay
from penstock.tools.target import FAMILY, resolve

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 16_384


def read(
    source: str, plan: StatePlan, options: ReadOptions, filters: Filters, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the tasks of every queue, each queue in its order of delivery. Raises ``BadData`` for damage."""
    import pyarrow as pa

    history = read_history(resolve(Path(plan.path)))
    found = replay(history, at=options.at, uncommitted=options.uncommitted)
    schema = schema_of(Table.TASKS)
    for name in sorted(found.queues.by_name):
        if filters.queues is not None and name not in filters.queues:
            continue
        tasks = iter(found.queues.by_name[name].in_order())
        while some := list(islice(tasks, _ROWS)):
            ids, keys, payloads = zip(*some, strict=True)
            made: dict[str, pa.Array] = {
                "task_id": pa.array(ids, pa.uint64()).view(pa.int64()),
                "key": pa.array(keys, pa.int64()),
                "payload": pa.array(payloads, pa.binary()),
            }
            constants = {
                "source": source,
                "family": FAMILY,
                "log_index": found.index,
                "term": found.term,
                "queue": name,
            }
            for field in schema:
                if field.name not in made:
                    made[field.name] = arrow.same(constants.get(field.name), len(some), field.type)
            yield arrow.batch(made, columns)
