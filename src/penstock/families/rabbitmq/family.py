"""RabbitMQ's files as tables: a node's data directory, or a vhost, a queue, a store or one file of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import InvalidValue
from penstock.families.description import Source
from penstock.families.filters import Filters
from penstock.families.follow import Follower
from penstock.families.options import OF_BROKERS, ReadOptions, refuse_foreign
from penstock.families.plan import Split
from penstock.families.rabbitmq.location import FAMILY, Location, is_rabbitmq, resolve
from penstock.families.rabbitmq.tables.plan import plan_source

if TYPE_CHECKING:
    import pyarrow as pa


class RabbitMQ:
    """The family of a broker's classic queues."""

    name = FAMILY

    def recognise(self, path: Path) -> Location | None:
        return resolve(path) if is_rabbitmq(path) else None

    def describe(self, source: str, found: Location, *, uncommitted: bool) -> Source:
        from penstock.families.rabbitmq.tables.description import describe

        del uncommitted  # there is no commit index: what is stored counts
        return describe(source, found)

    def plan(
        self, source: str, found: Location, options: ReadOptions, filters: Filters
    ) -> list[Split]:
        refuse_foreign(source, options, but=OF_BROKERS)
        return plan_source(source, found, options, filters)

    def read(
        self, split: Split, options: ReadOptions, filters: Filters, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.families.rabbitmq.tables.scan import read_split

        return read_split(split, options, filters, columns)

    def follow(self, path: Path, options: ReadOptions) -> Follower:
        del options
        raise InvalidValue(f"{path}: has no log that a stream could follow; read it instead")
