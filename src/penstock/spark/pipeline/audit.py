"""Whether directories are whole, and whether those of one log's replicas agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

from penstock.errors import InvalidValue
from penstock.spark.pipeline import tables
from penstock.spark.pipeline.inputs import find_sources
from penstock.spark.pipeline.small import small_table
from penstock.spark.sources import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Audit(NamedTuple):
    """What is wrong: nothing, if all three are empty."""

    sources: list[Source]
    damage: DataFrame
    gaps: DataFrame
    divergence: DataFrame
    compared: int  # the last index up to which the replicas were compared; -1 if none was


def audit(spark: SparkSession, paths: Sequence[str]) -> Audit:
    """Return what is wrong within each of some replicas, and between them. Raises ``PenstockError``."""
    sources = find_sources(paths)
    for source in sources:
        if not source.has_log:
            raise InvalidValue(
                f"{source.name}: an audit compares copies of a log, and {source.words} has none; 'penstock verify'"
                " checks its files"
            )
    entries = spark.read.format("penstock").load([source.name for source in sources])
    starts = small_table(
        spark, [(s.name, s.begin + 1) for s in sources], "source string, start long"
    )
    commits = {source.name: source.commit for source in sources}
    whole = entries.where("kind = 'entry' and status = 'ok'").groupBy("source")
    found = {
        row["source"]: row["end"] for row in whole.agg(F.max("log_index").alias("end")).collect()
    }
    ends = []
    for source in sources:
        end, commit = found.get(source.name, source.begin), commits[source.name]
        ends.append((source.name, end if commit is None else min(end, commit)))
    table = small_table(spark, ends, "source string, end long")
    return Audit(
        sources,
        tables.damage(entries),
        tables.gaps(tables.spans(entries), starts),
        tables.divergence(entries, table),
        min(end for _, end in ends) if len(ends) > 1 else -1,
    )
