"""TaskFlux's files as tables: a node's directory or any of its files, of every generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.families.description import Source
from penstock.families.filters import Filters
from penstock.families.follow import Follower, LogFollower
from penstock.families.options import ReadOptions, refuse_foreign
from penstock.families.plan import Split
from penstock.families.taskflux.location import FAMILY, Target, resolve
from penstock.families.taskflux.tables.plan import plan_source

if TYPE_CHECKING:
    import pyarrow as pa


class TaskFlux:
    """The family of the node's own files."""

    name = FAMILY

    def recognise(self, path: Path) -> Target:
        return resolve(path)

    def describe(self, source: str, found: Target, *, uncommitted: bool) -> Source:
        from penstock.families.taskflux.tables.description import describe

        return describe(source, found, uncommitted=uncommitted)

    def plan(
        self, source: str, found: Target, options: ReadOptions, filters: Filters
    ) -> list[Split]:
        refuse_foreign(source, options)
        return plan_source(source, found, options, filters)

    def read(
        self, split: Split, options: ReadOptions, filters: Filters, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.families.taskflux.tables.scan import read_split

        return read_split(split, options, filters, columns)

    def follow(self, path: Path, options: ReadOptions) -> Follower:
        from penstock.families.taskflux.tables.growth import GrowingLog

        refuse_foreign(path, options)
        return LogFollower(GrowingLog(path), options)
