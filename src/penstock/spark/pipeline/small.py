"""Small tables that a query carries itself, made of what the driver knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def small_table(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
    """Return a table of rows that are in the query's plan: no job reads them, and joins with none of them vanish.

    Spark does so for Arrow's tables only; rows of Python it would read by a job of their own each time.
    """
    import pyarrow as pa

    struct = StructType.fromDDL(schema)
    assert isinstance(struct, StructType), "a table has columns"
    kind = to_arrow_schema(struct)
    columns = list(zip(*rows, strict=True)) or [()] * len(kind)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, kind, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=kind))
