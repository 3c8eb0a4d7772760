"""``format("penstock")`` in a real Spark: the same rows as without one, and errors before any job."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import PySparkException

from penstock.families.tables import Table, schema_of
from penstock.formats.taskflux.log import segment_name
from penstock.spark.daemon import MODULE
from penstock.spark.source import PenstockSource
from support.directories import EXPECTED, build
from support.node_files import write_files
from support.samples import THREE, TWO
from support.spark_tables import read_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Load = Callable[..., "DataFrame"]


@pytest.fixture
def load(spark: SparkSession) -> Load:
    def load(path: object, **options: str) -> DataFrame:
        return spark.read.format("penstock").options(**options).load(path)  # type: ignore[arg-type]

    return load


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Return rows as the direct read has them."""
    rows: list[dict[str, Any]] = []
    for row in frame.collect():
        fields = row.asDict()
        fields = {n: bytes(v) if isinstance(v, bytearray) else v for n, v in fields.items()}
        rows.append(fields)
    return rows


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in the order of their places, with properties in any order."""
    rows = [row | {"properties": dict(row["properties"] or {})} for row in rows]
    return sorted(rows, key=lambda row: (row["path"], row["offset"] or 0, row["kind"]))


def jobs(spark: SparkSession) -> int:
    """Return how many jobs this session has run."""
    tracker = spark.sparkContext.statusTracker()
    return len(tracker.getJobIdsForGroup(None))


@pytest.mark.parametrize("table", Table)
def test_the_columns_are_the_tables_own(load: Load, tmp_path: Path, table: Table) -> None:
    frame = load(str(THREE.write(tmp_path)), table=table)
    assert frame.schema == PenstockSource({"path": "/a", "table": table}).schema()
    assert frame.columns == schema_of(table).names
    assert frame.count() == len(read_rows(tmp_path, table=table))


def test_rows_are_those_of_the_direct_read_in_several_tasks(load: Load, tmp_path: Path) -> None:
    files = THREE.files()
    name = f"data/log/{segment_name(2)}"
    files[name] = files[name].replace(b"\xaa", b"\xab") + b"left" + files[name][12:] * 80
    root = write_files(tmp_path, files)
    frame = load(str(root), splitSize="1k")
    assert frame.rdd.getNumPartitions() > 3
    found = rows_of(frame)
    assert in_order(found) == in_order(read_rows(root))
    assert {row["status"] for row in found} > {"ok"}


def test_several_directories_and_a_queues_properties(load: Load, tmp_path: Path) -> None:
    two, three = TWO.write(tmp_path / "two"), THREE.write(tmp_path / "three")
    frame = load([str(two), str(three)])
    assert frame.select("source").distinct().count() == 2
    heads = frame.where("kind = 'queue' and queue = 'q'").selectExpr("properties['size_max'] as m")
    assert [row.m for row in heads.collect()] == ["9", "9"]


def test_queries_of_one_frame_do_not_disturb_each_other(
    spark: SparkSession, load: Load, tmp_path: Path
) -> None:
    """Spark 4.3 keeps the filters of one query for all that follow on the same frame: rows were lost."""
    root = THREE.write(tmp_path)
    frame = load(str(root))
    frame.createOrReplaceTempView("entries")
    whole = read_rows(root)
    for where, wanted in QUESTIONS.items():
        found = rows_of(spark.sql(f"select * from entries where {where}"))
        assert in_order(found) == in_order([row for row in whole if wanted(row)]), where
    assert frame.count() == len(whole)
    both = frame.where("log_index = 4").union(frame.where("log_index = 5")).union(frame)
    assert both.count() == len(whole) + 2


QUESTIONS: Final[dict[str, Callable[[dict[str, Any]], bool]]] = {
    "log_index between 3 and 4": lambda row: row["log_index"] in (3, 4),
    "queue = 'q' and op = 'add'": lambda row: row["queue"] == "q" and row["op"] == "add",
    "op in ('remove', null)": lambda row: row["op"] == "remove",
    "queue is null": lambda row: row["queue"] is None,
    f"path = 'data/log/{segment_name(4)}'": lambda row: row["path"].endswith("4.log"),
    "log_index > 4 or queue = ''": lambda row: (row["log_index"] or 0) > 4 or row["queue"] == "",
    "log_index = 4 and log_index = 5": lambda _row: False,
}


def test_options_choose_rows_before_they_are_read(load: Load, tmp_path: Path) -> None:
    root = THREE.write(tmp_path)
    frame = load(str(root), queues='["q"]', ops='["add", "remove"]', endingIndex="3")
    assert sorted(row.log_index for row in frame.collect()) == [2, 3]


def test_a_temporary_view_is_made_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    from penstock.formats.taskflux.generation import Generation

    root = build(tmp_path / "node", Generation.THREE)
    spark.sql(
        "create or replace temporary view waiting using penstock"
        f" options (path '{root}', table 'tasks')"
    )
    rows = spark.sql("select queue, key, payload from waiting order by queue, key, task_id")
    assert [(row.queue, row.key, bytes(row.payload)) for row in rows.collect()] == EXPECTED


def test_a_schema_chooses_the_columns(spark: SparkSession, tmp_path: Path) -> None:
    root = THREE.write(tmp_path)
    frame = spark.read.format("penstock").schema("queue string, log_index long").load(str(root))
    expected = read_rows(root, columns=["queue", "log_index"])
    assert sorted(map(str, rows_of(frame))) == sorted(map(str, expected))


def test_an_option_chooses_the_columns(load: Load, tmp_path: Path) -> None:
    root = THREE.write(tmp_path)
    frame = load(str(root), columns="queue, log_index")
    assert frame.columns == ["queue", "log_index"]
    expected = read_rows(root, columns=["queue", "log_index"])
    assert sorted(map(str, rows_of(frame))) == sorted(map(str, expected))


def test_a_schema_beside_other_columns_fails_before_any_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    root, before = THREE.write(tmp_path), jobs(spark)
    reader = spark.read.format("penstock").schema("queue string").option("columns", "log_index")
    with pytest.raises(PySparkException) as caught:
        reader.load(str(root)).collect()
    assert "a schema and option columns say different things" in last_line(caught.value)
    assert jobs(spark) == before


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"colour": "red"}, "option 'colour' is unknown; there are table, mode, splitSize"),
        ({"splitSize": "big"}, "option splitSize is 'big'; it takes a size such as 65536 or 64m"),
        ({"startingIndex": "5", "endingIndex": "4"}, "nothing is between"),
    ],
)
def test_an_option_that_means_nothing_fails_before_any_job(
    spark: SparkSession, load: Load, tmp_path: Path, options: dict[str, str], words: str
) -> None:
    root, before = THREE.write(tmp_path), jobs(spark)
    with pytest.raises(PySparkException) as caught:
        load(str(root), **options)
    assert words in last_line(caught.value)
    assert jobs(spark) == before


@pytest.mark.parametrize("table", ["entries", "tasks"])
def test_a_path_that_is_nothing_fails_before_any_job(
    spark: SparkSession, load: Load, tmp_path: Path, table: str
) -> None:
    (tmp_path / "empty").mkdir()
    before = jobs(spark)
    for name, words in {"missing": "no such file", "empty": "no files that Penstock knows"}.items():
        with pytest.raises(PySparkException) as caught:
            load(str(tmp_path / name), table=table).collect()
        assert f"{tmp_path / name}: {words}" in last_line(caught.value)
    assert jobs(spark) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "tasks", "at": "6"}, "entry 6 is beyond the log, which ends at entry 5"),
        ({"table": "tasks", "AT": "1000000"}, "entry 1000000 is beyond the log"),
    ],
)
def test_an_entry_beyond_the_log_failed_a_job_with_a_long_traceback(
    spark: SparkSession, load: Load, tmp_path: Path, options: dict[str, str], words: str
) -> None:
    root, before = THREE.write(tmp_path), jobs(spark)
    with pytest.raises(PySparkException) as caught:
        load(str(root), **options).collect()
    assert words in last_line(caught.value)
    assert jobs(spark) == before
    assert load(str(root), table="tasks", at="5").count() == load(str(root), table="tasks").count()


def test_a_node_that_does_not_answer_fails_before_any_job(spark: SparkSession, load: Load) -> None:
    before = jobs(spark)
    with pytest.raises(PySparkException) as caught:
        load(None, node="127.0.0.1:1").count()
    assert "no node answers at 127.0.0.1:1" in last_line(caught.value)
    assert jobs(spark) == before


def test_planning_runs_in_processes_of_our_daemon(load: Load, tmp_path: Path) -> None:
    """Spark's own daemon prints a traceback for every planning process that was idle for a minute."""
    assert load(str(THREE.write(tmp_path))).count() > 0
    started = [words for java, _ in children_of(os.getpid()) for _, words in children_of(java)]
    daemons = {bytes(words[3]): bytes(words[2]) for words in started if words[1:2] == [b"-m"]}
    assert {b"pyspark.sql.worker.create_data_source", b"pyspark.worker"} <= daemons.keys()
    assert set(daemons.values()) == {MODULE.encode()}


def children_of(parent: int) -> list[tuple[int, list[bytes]]]:
    """Return the processes that a process has started: number and command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            # The name before the state may hold spaces and parentheses.
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                words = (process / "cmdline").read_bytes().split(b"\0")
                found.append((int(process.name), words))
    return found


def test_a_column_that_is_not_there_fails_before_any_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    root, before = THREE.write(tmp_path), jobs(spark)
    with pytest.raises(PySparkException) as caught:
        spark.read.format("penstock").schema("index long").load(str(root)).collect()
    assert "table entries has no column index bigint" in last_line(caught.value)
    assert jobs(spark) == before


def test_failfast_names_the_file_and_the_offset(load: Load, tmp_path: Path) -> None:
    files = THREE.files()
    name = f"data/log/{segment_name(4)}"
    files[name] = files[name][:-5] + b"!" + files[name][-4:]
    root = write_files(tmp_path, files)
    bad = next(row for row in read_rows(root) if row["status"] != "ok")
    with pytest.raises(PySparkException) as caught:
        load(str(root), mode="FAILFAST").collect()
    assert f"{root}/{name}, offset {bad['offset']}: entry 5, bad-checksum" in str(caught.value)


def last_line(error: PySparkException) -> str:
    """Return the line that a person reads; Spark puts a number behind it."""
    line, last = (line for line in str(error).splitlines() if line.strip())
    assert "SQLSTATE" in last
    return line
