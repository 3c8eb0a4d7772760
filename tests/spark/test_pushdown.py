"""Rows are lost when Spark pushes filters down to a Python source, so our source takes none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition

from penstock.spark import register
from support.samples import THREE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, while it pushes filters down to the sources that take them."""
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.unset(PUSHDOWN)


def test_a_self_union_with_two_filters_lost_rows(pushing: SparkSession, tmp_path: Path) -> None:
    root = str(THREE.write(tmp_path))
    frame = pushing.read.format("penstock").load(root)
    both = frame.where("log_index = 4").union(frame.where("log_index = 5"))
    assert sorted(row.log_index for row in both.collect()) == [4, 5]
    with pytest.raises(PySparkException):
        pushing.read.format("penstock").option("pushdown", "true").load(root)


def test_registering_the_source_changed_the_session_for_other_sources(spark: SparkSession) -> None:
    spark.conf.unset(PUSHDOWN)
    before = dict(spark.conf.getAll)
    register(spark)
    assert dict(spark.conf.getAll) == before


def test_spark_itself_still_loses_rows_of_a_source_that_takes_filters(
    pushing: SparkSession,
) -> None:
    """Fails when Spark fixes the defect that decision 0025 is about."""

    # Local classes are sent to the workers by value: they cannot import this file.
    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.wanted: set[Any] = {1, 2}

        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
            for one in filters:
                if isinstance(one, EqualTo):
                    self.wanted &= {one.value}
            return filters

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:  # noqa: ARG002 - Spark's
            return iter([(number,) for number in sorted(self.wanted)])

    class OneAndTwo(DataSource):
        @classmethod
        def name(cls) -> str:
            return "one_and_two"

        def schema(self) -> str:
            return "number long"

        def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - Spark's
            return Reader()

    pushing.dataSource.register(OneAndTwo)
    frame = pushing.read.format("one_and_two").load()
    both = frame.where("number = 1").union(frame.where("number = 2"))
    assert both.count() < 2, (
        "Spark no longer mixes up the filters of two queries: read docs/decisions/0025 and consider"
        " pushing filters down again"
    )
