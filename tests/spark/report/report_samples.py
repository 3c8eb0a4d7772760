"""Tables as the pipeline makes them: of a small simulated node, of a bad day, and of no rows at all."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.spark.report import Facts, SourceFacts
from penstock.spark.report.inputs import COLUMNS

START_US: Final = 1_763_281_800_000_000  # 2025-11-16 08:30 UTC
SECOND_US: Final = 1_000_000
BUCKETS: Final = 180
NODE: Final = "/var/lib/penstock"


def rows_table(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return a table of the page with these rows; columns that a row lacks are null."""
    schema = pa.schema(list(COLUMNS[name].items()))
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)


def empty_tables() -> dict[str, pa.Table]:
    """Return every table, without a row."""
    return {name: rows_table(name, []) for name in COLUMNS}


def facts(*sources: SourceFacts, title: str = "Penstock report") -> Facts:
    """Return facts about these sources."""
    return Facts(
        title=title, made_at=datetime(2025, 11, 16, 11, 2, 7, tzinfo=UTC), sources=sources, seconds=8.4, version="0.1.0"
    )  # fmt: skip


def source_facts(
    source: str = NODE, *, first: int | None = 0, last: int | None = 9_999, size: int = 2_870_000
) -> SourceFacts:
    """Return the facts of one source."""
    entries = 0 if first is None or last is None else last - first + 1
    return SourceFacts(
        source=source,
        family="taskflux",
        generation="generation 3, deltas by id",
        first_index=first,
        last_index=last,
        entries=entries,
        size=size,
    )


@dataclass(slots=True)
class Task:
    """A task of the simulation."""

    queue: str
    task_id: int
    key: int
    size: int
    added_index: int
    added_us: int
    removed_index: int | None = None
    removed_us: int | None = None
    deliveries: int = 1


@cache
def simulation(*, entries: int, seed: int = 7) -> Simulation:
    """Return a simulation that has run; several tests look at the same one."""
    return Simulation(entries=entries, seed=seed)


class Simulation:
    """A node of three queues for two hours: one with bursts, one steady, one whose consumers are too slow."""

    def __init__(self, *, entries: int, seed: int) -> None:
        self.tasks: list[Task] = []
        self._random = np.random.default_rng(seed)
        self._heaps: dict[str, list[tuple[int, int]]] = {"orders": [], "mail": [], "thumbnails": []}
        self.log: list[tuple[int, int, Task, bool]] = []  # index, time, task, whether it was added
        self._run(entries)

    def _run(self, entries: int) -> None:
        seconds = 2 * 3600
        base = entries / seconds  # entries a second, adds and removes together
        step = 2.0
        index = 0
        for tick in range(int(seconds / step)):
            now = tick * step
            burst = 3.2 if 1500 < now % 2700 < 1850 else 1.0
            wave = 1 + 0.45 * math.sin(now / 900)
            adds = {"orders": 0.27 * burst * wave, "mail": 0.11, "thumbnails": 0.075 * wave}
            takes = {
                "orders": 0.42,
                "mail": 0.14 if not 3300 < now < 4100 else 0.0,
                "thumbnails": 0.058,
            }
            moves: list[tuple[str, bool]] = []
            for queue, share in adds.items():
                moves += [(queue, True)] * int(self._random.poisson(share * base * step))
            for queue, share in takes.items():
                moves += [(queue, False)] * int(self._random.poisson(share * base * step))
            for i in self._random.permutation(len(moves)):
                at = START_US + int((now + float(self._random.random()) * step) * SECOND_US)
                index += self._move(*moves[i], index=index, at=at)

    def _move(self, queue: str, is_add: bool, *, index: int, at: int) -> int:
        heap = self._heaps[queue]
        if is_add:
            task = Task(queue, len(self.tasks), self._key(queue), self._size(queue), index, at)
            heapq.heappush(heap, (task.key, task.task_id))
            self.tasks.append(task)
        elif heap:
            task = self.tasks[heapq.heappop(heap)[1]]
            task.removed_index, task.removed_us = index, at
            task.deliveries = 1 + int(self._random.poisson(0.05))
        else:
            return 0
        self.log.append((index, at, task, is_add))
        return 1

    def _key(self, queue: str) -> int:
        if queue == "orders":
            return int(
                self._random.choice(
                    [0, 1, 2, 3, 5, 8, 10], p=[0.02, 0.05, 0.1, 0.4, 0.3, 0.1, 0.03]
                )
            )
        if queue == "mail":
            return int(self._random.integers(0, 1000))
        return int(self._random.geometric(0.02))

    def _size(self, queue: str) -> int:
        middle = {"orders": 6.4, "mail": 8.9, "thumbnails": 4.6}[queue]
        return int(self._random.lognormal(middle, 0.8)) if self._random.random() > 0.004 else 0

    def tables(
        self, source: str = NODE, *, has_times: bool = True, lifecycles: int = 40
    ) -> dict[str, pa.Table]:
        """Return the pipeline's tables."""
        made = {name: rows_table(name, []) for name in ("damage", "gaps", "divergence")}
        made["depth"], made["throughput"] = self._buckets(source, has_times=has_times)
        made["keys"] = rows_table("keys", list(self._keys(source)))
        made["sizes"] = rows_table("sizes", list(self._sizes(source)))
        made["tasks_summary"] = rows_table("tasks_summary", list(self._summary(source)))
        made["lifecycles"] = rows_table(
            "lifecycles", self._lifecycles(source, lifecycles, has_times=has_times)
        )
        return made

    def _buckets(self, source: str, *, has_times: bool) -> tuple[pa.Table, pa.Table]:
        width = max(1, math.ceil(len(self.log) / BUCKETS))
        waiting: dict[str, int] = defaultdict(int)
        depth, throughput = [], []
        before = START_US
        for bucket in range(0, len(self.log), width):
            part = self.log[bucket : bucket + width]
            end = max(at for _, at, _, _ in part)
            for queue in self._heaps:
                adds = [task for _, _, task, is_add in part if is_add and task.queue == queue]
                removes = sum(
                    1 for _, _, task, is_add in part if not is_add and task.queue == queue
                )
                waiting[queue] += len(adds) - removes
                place = {"source": source, "queue": queue, "bucket": bucket // width}
                depth.append(
                    place | {"log_index": part[-1][0], "event_time": end if has_times else None, "added": len(adds),
                             "removed": removes, "depth": waiting[queue]}
                )  # fmt: skip
                throughput.append(
                    place | {"first_index": part[0][0], "last_index": part[-1][0], "adds": len(adds), "removes": removes,
                             "bytes_added": sum(task.size for task in adds),
                             "seconds": (end - before) / SECOND_US if has_times else None}
                )  # fmt: skip
            before = end
        return rows_table("depth", depth), rows_table("throughput", throughput)

    def _keys(self, source: str) -> Iterable[dict[str, Any]]:
        found: dict[tuple[str, int], list[Task]] = defaultdict(list)
        for task in self.tasks:
            found[task.queue, task.key].append(task)
        for (queue, key), tasks in found.items():
            waiting = sum(1 for task in tasks if task.removed_index is None)
            yield {"source": source, "queue": queue, "key": key, "adds": len(tasks),
                   "removes": len(tasks) - waiting, "waiting": waiting}  # fmt: skip

    def _sizes(self, source: str) -> Iterable[dict[str, Any]]:
        found: dict[tuple[str, int], list[Task]] = defaultdict(list)
        for task in self.tasks:
            found[task.queue, 1 << (task.size.bit_length() - 1) if task.size else 0].append(task)
        for (queue, low), tasks in found.items():
            yield {"source": source, "queue": queue, "size_low": low, "adds": len(tasks),
                   "bytes": sum(task.size for task in tasks)}  # fmt: skip

    def _summary(self, source: str) -> Iterable[dict[str, Any]]:
        for queue in self._heaps:
            left = [
                task for task in self.tasks if task.queue == queue and task.removed_index is None
            ]
            keys = [task.key for task in left]
            yield {"source": source, "queue": queue, "count": len(left), "bytes": sum(task.size for task in left),
                   "lowest_key": min(keys, default=None), "highest_key": max(keys, default=None),
                   "oldest_index": min((task.added_index for task in left), default=None)}  # fmt: skip

    def _lifecycles(self, source: str, limit: int, *, has_times: bool) -> list[dict[str, Any]]:
        end = len(self.log)

        def waited(task: Task) -> int:
            return (end if task.removed_index is None else task.removed_index) - task.added_index

        removed = sorted(
            (t for t in self.tasks if t.removed_index is not None), key=waited, reverse=True
        )
        waiting = sorted(
            (t for t in self.tasks if t.removed_index is None), key=waited, reverse=True
        )
        return [
            {"source": source, "queue": task.queue, "incarnation": 0, "task_id": task.task_id, "key": task.key,
             "size": task.size, "added_index": task.added_index, "removed_index": task.removed_index,
             "waited": waited(task), "deliveries": task.deliveries,
             "added_time": task.added_us if has_times else None,
             "removed_time": task.removed_us if has_times else None}
            for task in removed[:limit] + waiting[:limit]
        ]  # fmt: skip


def realistic(*, entries: int = 20_000) -> tuple[dict[str, pa.Table], Facts]:
    """Return two hours of a node with one damaged place in its log."""
    node = simulation(entries=entries)
    tables = node.tables()
    damaged = len(node.log) * 2 // 5
    # A record has about 40 bytes around its payload.
    ends = np.cumsum([40 + task.size * is_add for _, _, task, is_add in node.log])
    tables["damage"] = rows_table(
        "damage",
        [{"source": NODE, "family": "taskflux", "path": "segments/00000000000000000000.log",
          "offset": int(ends[damaged - 1]), "size": 643, "log_index": damaged, "status": "bad-checksum",
          "reason": "the payload does not match its checksum"}],
    )  # fmt: skip
    return tables, facts(source_facts(last=len(node.log) - 1, size=int(ends[-1])))


def bad_day(*, entries: int = 6_000) -> tuple[dict[str, pa.Table], Facts]:
    """Return three replicas without times that differ, are damaged, have gaps, and hold hostile names."""
    names = ["/srv/node-a", "/srv/node-b", "/srv/node-c/<b>'\"&amp;"]
    nodes = [simulation(entries=entries, seed=seed) for seed in range(3)]
    parts = [node.tables(name, has_times=False) for node, name in zip(nodes, names, strict=True)]
    tables = {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}
    last = len(nodes[0].log) - 1
    statuses = ["bad-checksum", "torn", "zeros", "bad-marker", "falling-term", "leftover"]
    tables["damage"] = rows_table(
        "damage",
        [{"source": names[i % 3], "family": "taskflux", "path": f"segments/{i * 512:020}.log", "offset": i * 8191,
          "size": 37 * (i + 1), "log_index": last // 9 * i if i % 4 else None, "status": statuses[i % 6],
          "reason": "zeros, as at the end, but with <script>alert(1)</script> behind them"} for i in range(9)],
    )  # fmt: skip
    tables["gaps"] = rows_table(
        "gaps",
        [{"source": names[1], "path": f"segments/{2048:020}.log", "expected": 1931, "found": 2048,
          "reason": "the segment before it ends too early"},
         {"source": names[2], "path": None, "expected": None, "found": 12, "reason": None}],
    )  # fmt: skip
    tables["divergence"] = rows_table(
        "divergence",
        [{"log_index": 1500 + i, "source": names[0], "queue": ("orders", "", None, "mail")[i], "term": 4, "checksum": 0x1F00BA47 + i, "other_source": names[1],
          "other_term": 5 if i else 4, "other_checksum": 0x77AC0111 + i * 0x1234567,
          "reason": "same index, other content" if not i else "same index, other term"} for i in range(4)],
    )  # fmt: skip
    return tables, facts(
        *(
            source_facts(name, last=len(node.log) - 1)
            for node, name in zip(nodes, names, strict=True)
        ),
        title="Audit after the power cut",
    )
