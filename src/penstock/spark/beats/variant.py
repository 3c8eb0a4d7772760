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
    """Return rows of spools with a column ``event``, a variant: ``timestamp_ns``, ``flags``, ``meta``, ``fields``.

    Null in rows that have no event. Spark parses the text that ``properties`` holds; no row passes through Python.
    """
    from pyspark.sql.functions import expr

    return frame.withColumn("event", expr(f"try_parse_json({_TEXT})"))
