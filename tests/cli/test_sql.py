"""``penstock sql``: rows of every kind, wrong queries, and nothing outside of the files that were named."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from penstock import open as penstock_open
from penstock.formats.taskflux.generation import Generation
from penstock.tables import read
from support.command import penstock, process
from support.damage import flipped
from support.directories import build
from support.node_files import write_files
from support.rabbitmq_directories import unpacked
from support.samples import THREE


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("sql") / "node", Generation.THREE, snapshot_after=2)


@pytest.mark.parametrize("table", ["tasks", "entries", "changes"])
def test_every_table_is_a_view(node: Path, table: str) -> None:
    rows = read(node, table).read_all().to_pylist()
    outcome = penstock("sql", f"SELECT payload, properties FROM {table}", "--from", node)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.rows == [
        {
            "payload": None if row["payload"] is None else b64encode(row["payload"]).decode(),
            "properties": None if row["properties"] is None else dict(row["properties"]),
        }
        for row in rows
    ]


def test_payloads_are_text_and_json(tmp_path: Path) -> None:
    with penstock_open(tmp_path / "node") as client:
        client.enqueue("", b'{"user": "Ada", "pages": [1, 2]}', key=1)
        client.enqueue("", "für Bob".encode(), key=2)
        client.enqueue("", b"\xff\x00", key=3)
    query = (
        "SELECT payload_text AS t, payload_json->>'$.user' AS u, payload_json->'$.pages[1]' AS p"
    )
    outcome = penstock("sql", f"{query} FROM tasks ORDER BY key", "--from", tmp_path / "node")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.rows == [
        {"t": '{"user": "Ada", "pages": [1, 2]}', "u": "Ada", "p": "2"},
        {"t": "für Bob", "u": None, "p": None},
        {"t": None, "u": None, "p": None},
    ]


def test_the_views_have_the_rows_of_all_paths(node: Path, tmp_path: Path) -> None:
    old = build(tmp_path / "old", Generation.TWO)
    query = "SELECT source, count(*) AS tasks FROM tasks GROUP BY 1 ORDER BY 1"
    outcome = penstock("sql", query, "--from", node, "--from", old)
    assert {row["source"] for row in outcome.rows} == {str(node), str(old)}
    again = penstock("sql", query, "--from", node, "--from", node)
    assert len(again.rows) == 1


def test_values_of_every_kind_are_json(node: Path) -> None:
    query = """
        SELECT sum(key) AS total, 1.5 AS decimal, 'nan'::DOUBLE AS strange, {'a': ['b'::BLOB]} AS nested,
        map {1: 'x'} AS keyed, TIMESTAMP '2026-01-31 12:00:00' AS moment, DATE '2026-01-31' AS day, NULL AS nothing
        FROM tasks
    """
    (row,) = penstock("sql", query, "--from", node).rows
    total = sum(read(node).read_all().column("key").to_pylist())
    assert row == {
        "total": total,
        "decimal": 1.5,
        "strange": "nan",
        "nested": {"a": [b64encode(b"b").decode()]},
        "keyed": {"1": "x"},
        "moment": "2026-01-31T12:00:00",
        "day": "2026-01-31",
        "nothing": None,
    }


def test_a_table_for_people_shows_text_as_text(node: Path) -> None:
    query = "SELECT 'plain'::BLOB AS a, '\\xFF'::BLOB AS b FROM tasks LIMIT 1"
    outcome = penstock("sql", query, "--from", node, "--table")
    assert outcome.code == 0
    assert "plain" in outcome.out
    assert "base64:/w==" in outcome.out


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELEC 1", 2),
        ("SELECT * FROM nothing", 2),
        ("SELECT nothing FROM tasks", 2),
        ("SELECT 1 AS a, 2 AS a", 2),
        ("SELECT 'a'::INT", 1),
    ],
)
def test_a_wrong_query_is_one_sentence(node: Path, query: str, code: int) -> None:
    outcome = penstock("sql", query, "--from", node)
    assert (outcome.code, outcome.out, len(outcome.words)) == (code, "", 1)


def test_no_query_and_no_path_are_wrong_usage(node: Path, tmp_path: Path) -> None:
    assert penstock("sql", " ", "--from", node).code == 2
    assert penstock("sql", "SELECT 1").code == 2
    assert penstock("sql", "SELECT 1", "--from", tmp_path / "missing").code == 2


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_blob('{secret}')",
        "SELECT * FROM sniff_csv('{secret}')",
        "SELECT * FROM glob('{place}/*')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM 'https://localhost:1/a.csv'",
        "COPY tasks TO '{place}/out.csv'",
        "EXPORT DATABASE '{place}/out'",
        "ATTACH '{place}/out.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "SELECT * FROM views",
    ],
)
def test_sql_reads_and_writes_no_other_file(node: Path, tmp_path: Path, query: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("hidden,words\n1,2\n")
    outcome = penstock("sql", query.format(secret=secret, place=tmp_path), "--from", node)
    assert outcome.code in (1, 2)
    assert (outcome.out, len(outcome.words)) == ("", 1)
    assert "hidden" not in outcome.err
    assert list(tmp_path.iterdir()) == [secret]


def test_a_query_with_a_limit_ends_and_writes_no_file(node: Path, tmp_path: Path) -> None:
    # In a process of its own: what is left of the read must not keep the process, nor print when it ends.
    query = "SELECT a.queue FROM tasks a, entries b LIMIT 1"
    outcome = process("sql", query, "--from", node, cwd=tmp_path)
    assert (outcome.code, len(outcome.rows), outcome.err) == (0, 1, "")
    assert list(tmp_path.iterdir()) == []


def test_flags_of_families_apply_to_the_tables_that_have_them(node: Path, tmp_path: Path) -> None:
    broker = unpacked("c5_transient_clean", tmp_path / "rabbit")
    words = ("--from", broker, "--include-transient")
    assert penstock("sql", "SELECT count(*) FROM tasks", *words).code == 0
    assert penstock("sql", "SELECT count(*) FROM entries", *words).code == 0
    refused = penstock("sql", "SELECT 1", "--from", node, "--include-transient")
    assert (refused.code, "--include-transient" in refused.err) == (2, True)


def test_the_state_after_an_entry(node: Path) -> None:
    count = "SELECT count(*) AS tasks FROM tasks"
    (early,) = penstock("sql", count, "--from", node, "--at", "3").rows
    (late,) = penstock("sql", count, "--from", node).rows
    assert early["tasks"] < late["tasks"]
    beyond = penstock("sql", count, "--from", node, "--at", "1000")
    assert (beyond.code, len(beyond.words)) == (1, 1)


def test_damage_that_hides_the_tasks_is_one_sentence_and_the_entries_are_there(
    tmp_path: Path,
) -> None:
    files = THREE.files()
    name = next(name for name in files if name.endswith(".log"))
    damaged = write_files(tmp_path / "damaged", files | {name: flipped(files[name], 8 * 40)})
    outcome = penstock("sql", "SELECT count(*) FROM tasks", "--from", damaged)
    assert (outcome.code, outcome.out, len(outcome.words)) == (1, "", 1)
    query = "SELECT count(*) AS damaged FROM entries WHERE status <> 'ok'"
    (row,) = penstock("sql", query, "--from", damaged).rows
    assert row["damaged"] > 0


def test_queues_that_are_left_out_are_reported(tmp_path: Path) -> None:
    broker = unpacked("c9_quorum_and_stream_kill9", tmp_path / "rabbit")
    outcome = penstock("sql", "SELECT count(*) FROM tasks", "--from", broker)
    assert (outcome.code, len(outcome.rows)) == (1, 1)
    assert "left out" in outcome.err
    accepted = penstock("sql", "SELECT count(*) FROM tasks", "--from", broker, "--classic-only")
    assert accepted.code == 0
