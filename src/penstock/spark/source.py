"""The format ``penstock`` of Spark: its options, its readers and writers, and how they behave in Spark's processes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

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

from penstock.client.addresses import parse_addresses
from penstock.errors import InvalidValue, PenstockError
from penstock.families.family import Split
from penstock.families.options import parse_fields, parse_number, parse_text
from penstock.families.plan import plan, read_splits
from penstock.families.tables import KNOWN, PATHS, ReadOptions, parse_options, schema_of
from penstock.model import INT64_MIN, QueueName
from penstock.spark.daemon import MODULE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

P = ParamSpec("P")
T = TypeVar("T")

_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""The variable by which Spark's processes decide whether an error is sent to the driver with its traceback."""


def in_a_sentence(method: Callable[P, T]) -> Callable[P, T]:
    """Let an error of ours reach the user as its sentence, without a traceback."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except PenstockError as error:
            if is_of_spark():
                # A process of Spark's exits after the error, so this hides no other traceback.
                os.environ[_HIDE_TRACEBACK] = "1"
            raise error.with_traceback(None) from None

    return call


def is_of_spark() -> bool:
    """Return whether Spark started this process to plan or to read."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith(("pyspark.", MODULE))


_TRACKED_MAX: Final = 10_000
"""Objects that may be walked through behind every task; loading numba and Arrow leaves a hundred thousand."""


def settle() -> None:
    """Take what is loaded by now out of garbage collection; called behind every read, for any may load more.

    Spark collects behind every task, and would walk each time through all that numba and Arrow keep: that can take
    longer than the read.
    """
    if len(gc.get_objects()) > _TRACKED_MAX:
        gc.collect()
        gc.freeze()


# --- the source ----------------------------------------------------------------------------------


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
    """What one task reads: each a ``Split`` of files, or a ``NodePlan`` of a live node."""

    def __init__(self, splits: list[Any]) -> None:
        super().__init__(None)
        self.splits = splits


class Reader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    @in_a_sentence
    def partitions(self) -> Sequence[InputPartition]:
        return [Task(splits) for splits in plan(self._options)] or [Task([])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_task(partition, self._options, self._columns)


def read_task(
    task: InputPartition, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task."""
    assert isinstance(task, Task)
    for part in task.splits:
        if isinstance(part, Split):
            yield from read_splits([part], options, columns)
        else:
            from penstock.spark.node import read_range

            yield from read_range(part, options, columns)
    settle()


# --- the options of a write ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one write."""

    node: str
    queue: str | None = None  # of all rows; None: each row's own
    key: int | None = None  # of all rows; None: each row's own, 0 without such a column
    # Who writes, over restarts; None: the query, or nobody but this one write.
    application: str | None = None
    version: int | None = None  # which write of the application's this is; a stream numbers its own


VERSION_MAX: Final = 2**53
"""Numbers of requests are made of it and must fit 64 bits."""


def _version(value: str) -> int:
    number = parse_number(0)(value)
    if number > VERSION_MAX:
        raise ValueError(f"a whole number from 0 to {VERSION_MAX}")
    return number


def _queue(value: str) -> str:
    try:
        return QueueName(value)
    except InvalidValue as error:
        raise ValueError(f"a queue's name: {error}") from None


_OF_SINKS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "node": ("node", parse_text),
    "queue": ("queue", _queue),
    "key": ("key", parse_number(INT64_MIN)),
    "txnAppId": ("application", parse_text),
    "txnVersion": ("version", _version),
}
_ONLY_OF_SINKS: Final = [name for name in _OF_SINKS if name not in KNOWN]
_OF_SPARK: Final = ("checkpointlocation", "queryname", "outputmode")
"""What a stream is told and hands on to its sink."""


def is_of_sink(options: Mapping[str, str]) -> bool:
    """Return whether some option is one that only a write has."""
    only = {*map(str.lower, _ONLY_OF_SINKS), *_OF_SPARK}
    return any(name.lower() in only for name in options)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return what the options of a write say. Raises ``InvalidValue``."""
    if any(name.lower() in PATHS for name in options):
        raise InvalidValue(
            "a path, and nothing but a live node is written to: option node, and save() without a path; options"
            f" {', '.join(_ONLY_OF_SINKS)} are of a write, a read is filtered by its columns"
        )
    given = {name: value for name, value in options.items() if name.lower() not in _OF_SPARK}
    fields = parse_fields(given, _OF_SINKS)
    if "node" not in fields:
        raise InvalidValue("no node to write to; give option node, such as 127.0.0.1:2602")
    parsed = SinkOptions(**fields)  # type: ignore[arg-type]
    parse_addresses(parsed.node)
    return parsed
