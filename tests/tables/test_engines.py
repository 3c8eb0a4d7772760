"""Polars and DuckDB over the tables: push-down, and one source several times in a query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from penstock.errors import PathMissing
from penstock.formats.taskflux.generation import Generation
from penstock.tables import duckdb_relation, read, scan, scan_polars
from support.directories import build

Row = dict[str, Any]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("engines") / "node", Generation.THREE, snapshot_after=2)


@pytest.fixture(scope="module")
def tasks(node: Path) -> list[Row]:
    found: list[Row] = read(node).read_all().to_pylist()
    assert len({row["key"] for row in found}) > 2
    return found


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with closing(duckdb.connect()) as made:
        yield made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The columns that each read of a query asks for."""
    columns: list[list[str]] = []
    plain = scan.Scan.batches_of

    def watched(self: scan.Scan, splits: Any, wanted: Any, **how: Any) -> Any:
        columns.append(list(wanted))
        return plain(self, splits, wanted, **how)

    monkeypatch.setattr(scan.Scan, "batches_of", watched)
    return columns


# --- Polars --------------------------------------------------------------------------------------


def test_polars_has_the_rows_of_the_table(node: Path) -> None:
    for table in ("tasks", "entries", "changes"):
        expected = pl.DataFrame(read(node, table).read_all())
        assert scan_polars(node, table).collect().equals(expected)
        assert scan_polars(node, table).collect_schema() == expected.schema


def test_polars_reads_only_the_columns_of_a_query(
    node: Path, asked: list[list[str]], tasks: list[Row]
) -> None:
    frame = scan_polars(node).filter(pl.col("key") > 1).select("queue").collect()
    assert frame["queue"].to_list() == [row["queue"] for row in tasks if row["key"] > 1]
    (columns,) = asked
    assert sorted(columns) == ["key", "queue"]


def test_polars_counts_a_limit_before_a_later_filter_and_after_an_earlier_one(
    node: Path, tasks: list[Row]
) -> None:
    lazy = scan_polars(node).select("key")
    keys = [row["key"] for row in tasks]
    for count in range(len(keys) + 2):
        for bound in sorted({*keys}):
            is_above = pl.col("key") > bound
            first = lazy.head(count).filter(is_above).collect()["key"].to_list()
            assert first == [key for key in keys[:count] if key > bound]
            last = lazy.filter(is_above).head(count).collect()["key"].to_list()
            assert last == [key for key in keys if key > bound][:count]


def test_polars_joins_and_unites_one_source_with_different_filters(
    node: Path, tasks: list[Row]
) -> None:
    lazy = scan_polars(node)
    low, high = pl.col("key") <= 2, pl.col("key") > 2
    both = pl.concat([lazy.filter(low), lazy.filter(high)]).select("task_id", "queue").collect()
    assert sorted(both.rows()) == sorted((row["task_id"], row["queue"]) for row in tasks)
    joined = lazy.join(lazy.filter(high), on=["queue", "task_id"]).select("key").collect()
    assert sorted(joined["key"].to_list()) == sorted(row["key"] for row in tasks if row["key"] > 2)
    own = lazy.join(lazy, on=["queue", "task_id"]).collect()
    assert own.height == len(tasks)


def test_polars_raises_the_exceptions_of_reading(tmp_path: Path) -> None:
    with pytest.raises(PathMissing):
        scan_polars(tmp_path / "missing").collect()


# --- DuckDB --------------------------------------------------------------------------------------


def test_duckdb_has_the_rows_of_the_table(
    node: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    for table in ("tasks", "entries", "changes"):
        expected = [tuple(row.values()) for row in read(node, table).read_all().to_pylist()]
        found = duckdb_relation(connection, node, table).project("* EXCLUDE properties").fetchall()
        place = list(read(node, table).schema.names).index("properties")
        assert found == [row[:place] + row[place + 1 :] for row in expected]


def test_duckdb_reads_only_the_columns_of_a_query_and_filters_by_others(
    node: Path, connection: duckdb.DuckDBPyConnection, asked: list[list[str]], tasks: list[Row]
) -> None:
    found = duckdb_relation(connection, node).filter("key > 1").project("queue").fetchall()
    assert found == [(row["queue"],) for row in tasks if row["key"] > 1]
    assert [sorted({*columns, "key"}) for columns in asked] == [["key", "queue"]]


def test_duckdb_joins_and_unites_one_source_with_different_filters(
    node: Path, connection: duckdb.DuckDBPyConnection, tasks: list[Row]
) -> None:
    duckdb_relation(connection, node).create_view("tasks")
    union = """
        SELECT task_id, queue FROM tasks WHERE key <= 2
        UNION ALL SELECT task_id, queue FROM tasks WHERE key > 2
    """
    expected = sorted((row["task_id"], row["queue"]) for row in tasks)
    assert sorted(connection.sql(union).fetchall()) == expected
    join = "SELECT a.key FROM tasks a JOIN tasks b USING (queue, task_id) WHERE b.key > 2"
    for _ in range(2):  # and again
        found = sorted(key for (key,) in connection.sql(join).fetchall())
        assert found == sorted(row["key"] for row in tasks if row["key"] > 2)


@pytest.mark.parametrize("batches", [1, 100])
def test_duckdb_closes_after_a_limit_left_a_read_unfinished(
    node: Path, batches: int, connection: duckdb.DuckDBPyConnection
) -> None:
    # Pyarrow's own scanner, which reads ahead on a thread, hung here.
    relation = duckdb_relation(connection, [node] * batches, "entries")
    assert len(relation.limit(1).fetchall()) == 1


def test_duckdb_reports_what_reading_raised(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    with pytest.raises(duckdb.Error, match="missing"):
        duckdb_relation(connection, tmp_path / "missing").fetchall()


# --- pandas --------------------------------------------------------------------------------------


def test_pandas_reads_through_arrow(node: Path, tasks: list[Row]) -> None:
    frame = read(node, columns=["queue", "key"]).read_pandas()
    assert frame["key"].tolist() == [row["key"] for row in tasks]
