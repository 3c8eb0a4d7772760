"""Spools as tables: directories of Elastic Beats' disk queue, or one segment of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.beats.planning import plan_source
from penstock.spark.families import Piece
from penstock.spark.filters import Filters
from penstock.spark.following import Follower
from penstock.spark.options import OF_SPOOLS, ReadOptions, refuse_foreign
from penstock.spark.sources import Source
from penstock.tools.beats.location import FAMILY, Location, is_beats, resolve

if TYPE_CHECKING:
    import pyarrow as pa


class Beats:
    """The family of Beats' disk queue, and of spools of our own."""

    name = FAMILY

    def recognise(self, path: Path) -> Location | None:
        return resolve(path) if is_beats(path) else None

    def describe(self, source: str, found: Location, *, uncommitted: bool) -> Source:
        from penstock.spark.beats.describing import describe

        del uncommitted  # there is no commit index: what is stored counts
        return describe(source, found)

    def plan(
        self, source: str, found: Location, options: ReadOptions, filters: Filters
    ) -> list[Piece]:
        refuse_foreign(source, options, but=OF_SPOOLS)
        return plan_source(source, found, options, filters)

    def read(
        self, piece: Piece, options: ReadOptions, filters: Filters, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.spark.beats.scanning import read_piece

        return read_piece(piece, options, filters, columns)

    def follow(self, path: Path, options: ReadOptions) -> Follower:
        from penstock.spark.beats.growing import GrowingSpool

        refuse_foreign(path, options, but=OF_SPOOLS)
        return GrowingSpool(path, options)
