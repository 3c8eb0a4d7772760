"""``spark.read.format("penstock")``: our files as a source of Spark's own kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import InvalidValue
from penstock.spark.columns import schema_of
from penstock.spark.families import Piece, families, plan
from penstock.spark.filters import Filters, from_options, with_pushed
from penstock.spark.options import ReadOptions, parse_options
from penstock.spark.session import PUSHDOWN

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format ``penstock`` known to a session, and let Spark push filters down to it."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(PenstockSource)


class PenstockSource(DataSource):
    """Files of every family, at rest or growing, or a live node."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._checked = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return from_arrow_schema(schema_of(self._checked.table))

    def reader(self, schema: StructType) -> DataSourceReader:
        columns = _columns(self._checked, schema)
        kind = PushdownReader if self._checked.pushdown else Reader
        return kind(self._checked, columns)


def _columns(options: ReadOptions, schema: StructType) -> list[str]:
    """Return the columns that are read. Raises ``InvalidValue`` for one that the table does not have."""
    own = from_arrow_schema(schema_of(options.table))
    for field in schema.fields:
        if field.name not in own.names or own[field.name].dataType != field.dataType:
            raise InvalidValue(
                f"table {options.table} has no column {field.name} {field.dataType.simpleString()};"
                f" it has {own.simpleString()}"
            )
    return list(schema.names)


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(None)
        self.pieces = pieces


class Reader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._filters = from_options(options)

    def partitions(self) -> Sequence[InputPartition]:
        if self._filters.is_empty:
            return [Task([])]
        return [Task(pieces) for pieces in plan(self._options, self._filters)] or [Task([])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Task)
        return read_pieces(partition.pieces, self._options, self._filters, self._columns)


class PushdownReader(Reader):
    """The same, told by Spark which rows are wanted."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._filters = with_pushed(self._filters, filters)
        return filters  # all are checked again: what we skip must never decide alone


def read_pieces(
    pieces: Sequence[Piece], options: ReadOptions, filters: Filters, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some pieces, one after the other."""
    known = families()
    for piece in pieces:
        yield from known[piece.family].read(piece, options, filters, columns)
