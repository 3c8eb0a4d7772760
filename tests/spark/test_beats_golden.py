"""Directories that Beats' own disk queue wrote, through a real Spark: the rows of the command line, and the truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.beats_golden import CASES, canonical, parsed, unpacked
from support.beats_tables import WAITING, waiting

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark


def test_every_real_directory_gives_its_truth_and_the_rows_of_the_command_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One job reads all directories: starting one for each would take longer than reading them."""
    cases = {str(tmp_path / name / "queue"): unpacked(name, tmp_path / name) for name in CASES}
    (key,) = {case.key for case in cases.values() if case.key is not None}
    (tmp_path / "key").write_bytes(key)
    reader = spark.read.format("penstock").options(table="tasks", keyFile=str(tmp_path / "key"))
    found: dict[str, list[Row]] = {source: [] for source in cases}
    for row in reader.load(str(tmp_path / "*" / "queue")).collect():
        found[row["source"]].append(row)
    for source, case in cases.items():
        rows = sorted(found[source], key=lambda row: row["task_id"])
        assert [_event(row) for row in rows] == case.truth, source
        listed = [{name: row[name] for name in WAITING} for row in rows]
        for each in listed:
            each["payload"] = bytes(each["payload"])
        assert listed == waiting(case.queue, case.key), source


def _event(row: Row) -> str:
    properties = row["properties"]
    return canonical(
        {
            "ts": int(properties["timestamp_ns"]),
            "flags": int(properties["flags"]),
            "meta": parsed(properties["meta"]),
            "fields": parsed(properties["fields"]),
        }
    )
