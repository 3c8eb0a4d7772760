"""The events of a spool as one column that Spark looks into: a variant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TEXT: Final = """concat(
    '{"timestamp_ns":', properties['timestamp_ns'], ',"flags":', properties['flags'],
    ',"meta":', properties['meta'], ',"fields":', properties['fields'], '}'
)"""


def with_event(frame: DataFrame) -> DataFrame:
    """Add a column ``event`` of type variant to rows that were read from a spool.

    Its fields are ``timestamp_ns``, ``flags``, ``meta`` and ``fields``. The column is null in rows without an event.
    Spark parses the text in ``properties``; no row passes through Python.
    """
    from pyspark.sql.functions import expr

    return frame.withColumn("event", expr(f"try_parse_json({_TEXT})"))
