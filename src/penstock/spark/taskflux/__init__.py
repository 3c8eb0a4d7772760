"""TaskFlux's files as tables: a node's directory or any of its files, of every generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.families import Piece
from penstock.spark.filters import Filters
from penstock.spark.following import Follower, LogFollower
from penstock.spark.options import ReadOptions, refuse_foreign
from penstock.spark.sources import Source
from penstock.spark.taskflux.planning import plan_source
from penstock.tools.target import FAMILY, Target, resolve

if TYPE_CHECKING:
    import pyarrow as pa


class TaskFlux:
    """The family of the node's own files."""

    name = FAMILY

    def recognise(self, path: Path) -> Target:
        return resolve(path)

    def describe(self, source: str, found: Target, *, uncommitted: bool) -> Source:
        from penstock.spark.taskflux.describing import describe

        return describe(source, found, uncommitted=uncommitted)

    def plan(
        self, source: str, found: Target, options: ReadOptions, filters: Filters
    ) -> list[Piece]:
        refuse_foreign(source, options)
        return plan_source(source, found, options, filters)

    def read(
        self, piece: Piece, options: ReadOptions, filters: Filters, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        from penstock.spark.taskflux.scanning import read_piece

        return read_piece(piece, options, filters, columns)

    def follow(self, path: Path, options: ReadOptions) -> Follower:
        from penstock.spark.taskflux.growing import GrowingLog

        refuse_foreign(path, options)
        return LogFollower(GrowingLog(path), options)
