"""A live node as a table: its committed entries, by the protocol's Read (docs/spark-streams.md).

The same rows as those of its files, but for where they stand: ``source`` is the node's address, ``path`` and
``offset`` are null. What a snapshot replaced cannot be read from a node; that is a table of its files.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from penstock.client.blocking import Client, connect
from penstock.client.retries import Backoff
from penstock.errors import Compacted, ProtocolBroken, Unreachable
from penstock.families import arrow
from penstock.families.tables import ReadOptions
from penstock.families.taskflux.tables.plan import LogPlan
from penstock.families.taskflux.tables.scan import Builder
from penstock.formats.taskflux.entries import EntryColumns, decode_changes
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout
from penstock.formats.taskflux.log_scan import PieceColumns
from penstock.protocol.version2 import Entries
from penstock.spark.source import Reader, Task, in_a_sentence
from penstock.storage.reading import Batch

if TYPE_CHECKING:
    import pyarrow as pa

ENTRIES_PER_TASK: Final = 100_000
"""Entries that one task asks for: a hundred pages or so, many times what its start costs."""

PATIENCE_SECONDS: Final = 30.0
"""How long a task tries to reach its node, as long as a client repeats a request."""

_LAYOUTS: Final = {int(Generation.TWO): LogLayout.TWO, int(Generation.THREE): LogLayout.THREE}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """Entries ``first`` to ``last`` of a node."""

    address: str
    first: int
    last: int


class NodeLog:
    """The committed entries of a node, asked over one connection that mends itself."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: Client | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_address": self._address, "_client": None}  # a connection stays where it was made

    @property
    def name(self) -> str:
        return self._address

    def look(self) -> tuple[int, int]:
        """Return the first and the last index that can be read; the last is before the first if none can."""
        info = self._connected().node()
        return max(info.first, 0), info.committed

    def term(self, index: int) -> int:
        """Return an entry's term. Raises ``Compacted`` if it went away, ``ProtocolBroken`` if it is not there."""
        return int(_page(self._connected(), index, size_max=1).terms[0])

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> Client:
        if self._client is None:
            self._client = connect(self._address)
        return self._client

    def plan(self, first: int, last: int) -> list[NodePlan]:
        """Cut a range of entries into tasks."""
        return [
            NodePlan(address=self._address, first=at, last=min(last, at + ENTRIES_PER_TASK - 1))
            for at in range(first, last + 1, ENTRIES_PER_TASK)
        ]


def reach(address: str) -> Client:
    """Return a client, trying for a while: a job must outlive the restart of a node. Raises ``ConnectionFailed``."""
    backoff = Backoff(retry=PATIENCE_SECONDS, clock=time.monotonic, chance=random.random)
    while True:
        try:
            return connect(address)
        except Unreachable:
            pause = backoff.next_pause()
            if pause is None:
                raise
            time.sleep(pause)


def _page(client: Client, first: int, *, size_max: int = 0) -> Entries:
    page = client.entries_page(first, size_max=size_max)
    if page.first != first or not page.terms:
        raise ProtocolBroken(
            f"the node had entry {first} and does not send it: it ends at {page.committed};"
            " is this the same node, with the same data?"
        )
    return page


# --- a batch read --------------------------------------------------------------------------------


class NodeReader(Reader):
    """Reads what is committed when it plans."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        assert options.node is not None
        super().__init__(options, columns)
        self._log = NodeLog(options.node)

    @in_a_sentence
    def partitions(self) -> Sequence[InputPartition]:
        filters = self._options.filters
        if filters.is_empty or filters.paths is not None:
            return [Task([])]
        try:
            first, last = self._log.look()
        finally:
            self._log.close()
        wanted = max(filters.first or 0, 0)
        if wanted < first and self._options.fail_on_data_loss:
            raise Compacted(
                f"{self._log.name}: entries {wanted} to {first - 1} were compacted away; read its files, which hold"
                f" their outcome, or the rest: startingIndex={first} or failOnDataLoss=false"
            )
        first = max(first, wanted)
        last = last if filters.last is None else min(last, filters.last)
        return [Task([plan]) for plan in self._log.plan(first, last)] or [Task([])]


# --- on executors --------------------------------------------------------------------------------


def read_range(
    plan: NodePlan, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range of entries. Raises ``Compacted`` and ``ConnectionFailed``."""
    first = plan.first
    with reach(plan.address) as client:
        while first <= plan.last:
            page = _page(client, first)
            count = min(len(page.terms), plan.last + 1 - first)
            built = _build(plan, page, count, options, columns)
            if built is not None:
                yield built
            first += count


def _build(
    plan: NodePlan,
    page: Entries,
    count: int,
    options: ReadOptions,
    columns: Sequence[str],
) -> pa.RecordBatch | None:
    import numpy as np

    layout = _LAYOUTS.get(page.generation)
    if layout is None:
        raise ProtocolBroken(f"entries of generation {page.generation}; this client is too old")
    log = LogPlan(
        path=plan.address,
        shown="",
        layout=layout.name,
        first=page.first,
        start=0,
        stop=0,
        size=0,
        commit=None,  # all that a node sends is committed
    )
    builder = Builder(plan.address, log, layout, options, columns)
    indexes = np.arange(page.first, page.first + count), np.ones(count, dtype=np.bool_)
    built = builder.build(_columns(page, count, layout), indexes)
    if built is None:
        return None
    made = dict(zip(columns, built.columns, strict=True))
    for name in made.keys() & {"path", "offset"}:
        made[name] = arrow.same(None, built.num_rows, made[name].type)
    return arrow.batch(made, columns)


def _columns(page: Entries, count: int, layout: LogLayout) -> Batch:
    """Return a page as if it had been scanned from a log: its payloads in one buffer, one behind the other."""
    import numpy as np

    payloads = page.payloads[:count]
    data = np.frombuffer(b"".join(payloads) or b"\0", dtype=np.uint8)
    ends = np.fromiter(accumulate(map(len, payloads)), dtype=np.int64, count=count)
    length = np.diff(ends, prepend=0)
    header = layout.record_header.size
    # Records would begin before their payloads; the headers themselves are not there.
    offset = ends - length - header
    status = np.zeros(count, dtype=np.int64)
    pieces = PieceColumns(
        offset=offset,
        size=length + header,
        status=status,
        term=np.array(page.terms[:count], dtype=np.int64),
        length=length,
    )
    entries = EntryColumns(pieces=pieces, changes=decode_changes(data, layout, pieces))
    return Batch(0, data, entries)
