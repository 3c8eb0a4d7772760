"""``spark.read.format("penstock")``: our files as a source of Spark's own kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import InvalidValue
from penstock.families.family import Split
from penstock.families.plan import plan, read_splits
from penstock.families.tables import ReadOptions, parse_options, schema_of
from penstock.spark.sink_options import SinkOptions, is_of_sink, parse_sink_options
from penstock.spark.worker import in_a_sentence, settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format ``penstock`` in a Spark session. The configuration of the session does not change."""
    spark.dataSource.register(_by_value())


def _by_value() -> type[DataSource]:
    """Return a class that Spark sends to its processes whole, not by name: it reports a missing package itself.

    A local class is pickled by value. It must not use a global of this module, which would be pickled by name.
    """

    class Penstock(DataSource):
        def __new__(cls, options: dict[str, str]) -> Any:
            try:
                from penstock.spark.source import PenstockSource as Source
            except ImportError as error:
                import os
                import sys

                os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # this process exits after the error
                raise ImportError(
                    f"the Python of Spark's workers, {sys.executable}, cannot import Penstock ({error}); install"
                    " 'penstock[spark]' there, set PYSPARK_PYTHON (spark.pyspark.python) to a Python that has it, or"
                    " send the package with --py-files (docs/spark.md, Clusters)"
                ) from None
            return Source(options)

        @classmethod
        def name(cls) -> str:
            return "penstock"

    return Penstock


class PenstockSource(DataSource):
    """Files of every family, at rest or growing, or a live node."""

    @in_a_sentence
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Whether it will be read or written nobody says; what only a write has is checked as one.
        self._read = None if is_of_sink(options) else parse_options(options)
        if self._read is None:
            parse_sink_options(options)

    @classmethod
    def name(cls) -> str:
        return "penstock"

    @in_a_sentence
    def schema(self) -> StructType:
        columns = self._checked.columns
        own = from_arrow_schema(schema_of(self._checked.table))
        return own if columns is None else StructType([own[name] for name in columns])

    @in_a_sentence
    def reader(self, schema: StructType) -> DataSourceReader:
        columns = _columns(self._checked, schema)
        if self._checked.node is not None:
            from penstock.spark.node import NodeReader

            return NodeReader(self._checked, columns)
        return Reader(self._checked, columns)

    @in_a_sentence
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names
        from penstock.spark.stream import StreamReader

        return StreamReader(self._checked, _columns(self._checked, schema))

    @in_a_sentence
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import BatchWriter

        return BatchWriter(self._written(overwrite), schema)

    @in_a_sentence
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from penstock.spark.sink import StreamWriter

        return StreamWriter(self._written(overwrite), schema)

    @property
    def _checked(self) -> ReadOptions:
        if self._read is None:
            raise InvalidValue("these are options of a write; a read is filtered by its columns")
        return self._read

    def _written(self, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise InvalidValue('a queue is added to, never replaced: mode("append")')
        return parse_sink_options(self.options)


def _columns(options: ReadOptions, schema: StructType) -> list[str]:
    """Return the columns that are read. Raises ``InvalidValue`` for one that the table does not have."""
    own = from_arrow_schema(schema_of(options.table))
    if not schema.fields:
        raise InvalidValue(f"the schema is empty; name at least one column of {own.simpleString()}")
    for field in schema.fields:
        if field.name not in own.names or own[field.name].dataType != field.dataType:
            raise InvalidValue(
                f"table {options.table} has no column {field.name} {field.dataType.simpleString()};"
                f" it has {own.simpleString()}"
            )
        if not field.nullable:
            raise InvalidValue(f"any column may be null; leave out NOT NULL at {field.name}")
    if options.columns is not None and list(options.columns) != schema.names:
        raise InvalidValue("a schema and option columns say different things; give one of them")
    return list(schema.names)


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, splits: list[Split]) -> None:
        super().__init__(None)
        self.splits = splits


class Reader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    @in_a_sentence
    def partitions(self) -> Sequence[InputPartition]:
        if self._options.filters.is_empty:
            return [Task([])]
        return [Task(splits) for splits in plan(self._options)] or [Task([])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Task)
        yield from read_splits(partition.splits, self._options, self._columns)
        settle()
