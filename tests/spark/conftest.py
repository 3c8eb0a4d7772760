"""What the tests of our tables share: compiled kernels, directories in memory, and one Spark for all that need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from penstock.formats.taskflux.entries import scan_entries
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record
from support.spark_tables import MEMORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "2g",
    # Hundreds of small jobs: what Spark remembers of each would fill its memory.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "1",
    # Small jobs gain nothing from being planned anew at every stage.
    "spark.sql.adaptive.enabled": "false",
    # Short jobs end before the second compiler has paid for itself.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
}


@pytest.fixture(autouse=True, scope="session")
def _warm_kernels() -> None:
    """Compile the scanner and both payload kernels before any test is timed."""
    for layout in LogLayout:
        data = encode_header(layout) + encode_record(layout, term=1, payload=b"D\x00")
        for _ in scan_entries(data, layout, start=layout.header_size):
            pass


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory, where there is one."""
    with TemporaryDirectory(dir=MEMORY) as place:
        yield Path(place)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests. Those that ask for it bear ``pytest.mark.spark``: one process starts a Java."""
    from penstock.spark.sessions import session

    made, _ = session("local[2]", name="penstock tests", settings=SETTINGS)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
