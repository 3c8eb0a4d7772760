"""Spools as tables: directories of Elastic Beats' disk queue, or one segment of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.families.beats.location import FAMILY, Location, is_beats, resolve
from penstock.families.beats.tables.plan import plan_source
from penstock.families.description import Source
from penstock.families.filters import Filters
from penstock.families.follow import Follower
from penstock.families.options import OF_SPOOLS, ReadOptions, refuse_foreign
from penstock.families.plan import Split

if TYPE_CHECKING:
    import pyarrow as pa


class Beats:
    """The family of Beats' disk queue, and of spools of our own."""

    name = FAMILY

    def recognise(self, path: Path) -> Location | None:
        return resolve(path) if is_beats(path) else None

    def describe(self, source: str, found: Location, *, uncommitted: bool) -> Source:
        from penstock.families.beats.tables.description import describe

        del uncommitted  # there is no commit index: what is stored counts
        return describe(source, found)

    def plan(
        self, source: str, found: Location, options: ReadOptions, filters: Filters
    ) -> list[Split]:
        refuse_foreign(source, options, but=OF_SPOOLS)
        return plan_source(source, found, options, filters)

    def read(
        self, split: Split, options: ReadOptions, filters: Filters, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.families.beats.tables.scan import read_split

        return read_split(split, options, filters, columns)

    def follow(self, path: Path, options: ReadOptions) -> Follower:
        from penstock.families.beats.tables.growth import GrowingSpool

        refuse_foreign(path, options, but=OF_SPOOLS)
        return GrowingSpool(path, options)
