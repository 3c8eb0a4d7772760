"""An option that means nothing is one clear error, before anything is planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.errors import InvalidValue
from penstock.families.tables import SPLIT_SIZE, Filters, Mode, ReadOptions, Table, parse_options
from penstock.spark.source import PenstockSource, Reader
from support.samples import THREE
from support.spark_tables import read_rows


def test_the_defaults() -> None:
    assert parse_options({"path": "/a"}) == ReadOptions(paths=("/a",))
    assert ReadOptions(paths=()).split_size == SPLIT_SIZE == 64 * 2**20
    assert ReadOptions(paths=()).mode is Mode.PERMISSIVE
    assert ReadOptions(paths=()).table is Table.ENTRIES


def test_every_option_in_any_case_of_letters() -> None:
    given = {
        "path": "/a",
        "TABLE": "Changes",
        "mode": "failFast",
        "splitsize": "1M",
        "STARTINGINDEX": "5",
        "endingIndex": " 9 ",
        "uncommitted": "TRUE",
        "queues": '["a", ""]',
        "ops": "add",
        "files": '["data/x"]',
        "COLUMNS": " payload,log_index ",
        "maxEntriesPerTrigger": "7",
        "failOnDataLoss": "False",
    }
    assert parse_options(given) == ReadOptions(
        paths=("/a",),
        table=Table.CHANGES,
        mode=Mode.FAILFAST,
        split_size=2**20,
        filters=Filters(
            first=5,
            last=9,
            queues=frozenset({"a", ""}),
            ops=frozenset({"add"}),
            paths=frozenset({"data/x"}),
        ),
        uncommitted=True,
        columns=("payload", "log_index"),
        max_entries=7,
        fail_on_data_loss=False,
    )
    assert parse_options({"path": "/a", "table": "tasks", "at": "-1"}).at == -1


def test_several_paths_come_as_a_list() -> None:
    assert parse_options({"paths": json.dumps(["/a", "/b"])}).paths == ("/a", "/b")
    assert parse_options({"path": "/c", "paths": '["/a"]'}).paths == ("/c", "/a")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("1k", 1024), ("1 KB", 1024), ("64m", 2**26), ("64MB", 2**26), ("2g", 2**31),
     ("2000b", 2000), (" 5m ", 5 * 2**20)],
)  # fmt: skip
def test_sizes_are_written_as_people_write_them(text: str, size: int) -> None:
    assert parse_options({"path": "/a", "splitSize": text}).split_size == size


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("splitSize", "abc", "option splitSize is 'abc'; it takes a size such as 65536 or 64m"),
        ("splitSize", "0", "at least 1k"),
        ("splitSize", "1023", "at least 1k"),
        ("splitSize", "-5m", "at least 1k"),
        ("splitSize", "64 mm", "at least 1k"),
        ("splitSize", "9" * 5000, "at least 1k"),
        ("splitSize", "", "at least 1k"),
        ("splitSize", "1e6", "at least 1k"),
        ("splitSize", "٤k", "at least 1k"),
        ("startingIndex", "-1", "option startingIndex is '-1'; it takes a whole number from 0 on"),
        ("startingIndex", "--1", "a whole number from 0 on"),
        ("startingIndex", "1.0", "a whole number from 0 on"),
        ("startingIndex", "latest", "a whole number from 0 on"),
        ("endingIndex", str(2**63), "a whole number from 0 on"),
        ("endingIndex", "9" * 5000, "a whole number from 0 on"),
        (
            "at",
            "-2",
            "an index from -1 on, a time such as 2026-01-31T12:00:00Z, or an age such as -2h",
        ),
        ("mode", "STRICT", "it takes one of PERMISSIVE, DROPMALFORMED, FAILFAST"),
        ("table", "messages", "it takes one of entries, changes, tasks"),
        ("uncommitted", "yes", "option uncommitted is 'yes'; it takes true or false"),
        ("maxEntriesPerTrigger", "0", "a whole number from 1 on"),
        ("failOnDataLoss", "", "true or false"),
        ("node", "", "something"),
        ("queues", "", "option queues is ''; it takes something"),
        ("queues", '["a"', "it takes a name, or a list such as"),
        ("queues", "[5]", "it takes a name, or a list such as"),
        ("ops", "push", "it takes one of create, delete, add"),
        ("ops", '["add", "push"]', "or a list of them"),
        ("columns", "", "option columns is ''; it takes names of columns with commas between them"),
        ("columns", " ", "names of columns with commas between them, each once"),
        ("columns", ",", "names of columns with commas between them, each once"),
        ("columns", "queue,", "names of columns with commas between them, each once"),
        ("columns", "queue, ,key", "names of columns with commas between them, each once"),
        ("columns", "queue,queue", "names of columns with commas between them, each once"),
        ("columns", "queue,key, queue", "names of columns with commas between them, each once"),
        (
            "columns",
            "index",
            "option columns names 'index'; table entries has source, family, kind",
        ),
        ("columns", "queue,Key", "option columns names 'Key'; table entries has"),
        ("columns", '["queue"]', "table entries has"),
        ("columns", "queue key", "option columns names 'queue key'; table entries has"),
        ("splitsizes", "1", "option 'splitsizes' is unknown; there are table, mode, splitSize"),
    ],
)
def test_a_value_that_means_nothing_is_refused(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_options({"path": "/a", name: value})
    message = str(caught.value)
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "no path to read"),
        ({"path": ""}, "no path to read"),
        ({"paths": "[]"}, "no path to read"),
        ({"paths": "/a,/b"}, "not a JSON list"),
        ({"paths": '["/a", 5]'}, "not a JSON list"),
        ({"paths": '["/a", ""]'}, "not a JSON list"),
        ({"path": "/a", "node": "localhost:1"}, "a read is of files or of a live node"),
        ({"path": "/a", "startingIndex": "6", "endingIndex": "5"}, "nothing is between"),
        ({"path": "/a", "at": "5"}, "option at is for the table tasks"),
        ({"path": "/a", "table": "tasks", "startingIndex": "5"}, "use option at"),
        ({"path": "/a", "table": "tasks", "ops": "add"}, "use option queues"),
        ({"path": "/a", "table": "tasks", "files": "x"}, "use option queues"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        parse_options(given)


# --- the source ----------------------------------------------------------------------------------


def test_the_source_checks_its_options_when_it_is_made() -> None:
    with pytest.raises(InvalidValue, match="unknown"):
        PenstockSource({"path": "/a", "colour": "red"})


@pytest.mark.parametrize("table", Table)
def test_each_table_has_its_own_columns(table: Table) -> None:
    names = PenstockSource({"path": "/a", "table": table}).schema().names
    assert len(set(names)) == len(names)
    assert ("status" in names) is (table is Table.ENTRIES)
    assert {"source", "path", "log_index", "queue", "payload"} <= set(names)
    assert not {"index", "count"} & set(names)  # methods of a row


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (StructType([StructField("index", LongType())]), "has no column index bigint"),
        (StructType([StructField("queue", LongType())]), "has no column queue bigint"),
        (StructType([StructField("Queue", StringType())]), "has no column Queue string"),
        (StructType([]), "at least one column"),
        (StructType([StructField("queue", StringType(), False)]), "leave out NOT NULL at queue"),
    ],
)
def test_a_schema_that_the_table_does_not_have_is_refused(schema: StructType, words: str) -> None:
    source = PenstockSource({"path": "/a"})
    with pytest.raises(InvalidValue, match=words):
        source.reader(schema)


# --- the columns of a read -----------------------------------------------------------------------


@pytest.mark.parametrize("table", Table)
def test_columns_are_those_that_were_named_in_their_order(table: Table) -> None:
    own = PenstockSource({"path": "/a", "table": table}).schema()
    for names in (["payload", "log_index"], ["log_index", "payload"], ["queue"], own.names[::-1]):
        for comma in (",", " , ", ",\t"):
            source = PenstockSource({"path": "/a", "table": table, "columns": comma.join(names)})
            assert source.schema() == StructType([own[name] for name in names])
            assert isinstance(source.reader(source.schema()), Reader)


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("changes", "status"),
        ("changes", "reason"),
        ("changes", "severity"),
        ("tasks", "status"),
        ("tasks", "reason"),
        ("tasks", "kind"),
        ("tasks", "op"),
    ],
)
def test_a_column_of_another_table_is_refused(table: str, name: str) -> None:
    given = {"path": "/a", "columns": f"log_index,{name}"}
    assert PenstockSource(given).schema().names == ["log_index", name]
    with pytest.raises(InvalidValue) as caught:
        PenstockSource(given | {"table": table})
    message = str(caught.value)
    assert message.startswith(f"option columns names '{name}'; table {table} has source, family, ")
    assert "\n" not in message


@pytest.mark.parametrize(
    "given",
    [
        *({"path": "/a", "table": table} for table in Table),
        {"node": "127.0.0.1:1", "table": "entries"},
        {"node": "127.0.0.1:1", "table": "changes"},
    ],
    ids=lambda given: "-".join(given.values()),
)
def test_a_schema_that_differs_from_the_columns_is_refused(given: dict[str, str]) -> None:
    own = PenstockSource(given).schema()
    source = PenstockSource(given | {"columns": "log_index,payload"})
    for names in (["log_index"], ["payload", "log_index"], ["log_index", "payload", "queue"]):
        schema = StructType([own[name] for name in names])
        for reader in (source.reader, source.streamReader):
            with pytest.raises(InvalidValue, match="say different things; give one of them"):
                reader(schema)
    assert source.reader(StructType([own["log_index"], own["payload"]])) is not None


def test_a_write_has_no_columns() -> None:
    with pytest.raises(InvalidValue, match="option 'columns' is unknown; there are node, queue"):
        PenstockSource({"node": "127.0.0.1:1", "queue": "q", "columns": "payload"})


@pytest.mark.parametrize("table", Table)
@pytest.mark.parametrize("columns", ["payload,log_index", "queue", "task_id, key,properties"])
def test_rows_have_the_columns_that_were_named(tmp_path: Path, table: Table, columns: str) -> None:
    root = THREE.write(tmp_path)
    names = [name.strip() for name in columns.split(",")]
    rows = read_rows(root, table=table, Columns=columns)
    assert [list(row) for row in rows] == [names] * len(rows)
    whole = read_rows(root, table=table)
    assert whole
    assert rows == [{name: row[name] for name in names} for row in whole]
