"""``penstock export``: every format holds the rows of the table, and a file appears when it is whole."""

from __future__ import annotations

import csv
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.formats.taskflux.generation import Generation
from penstock.tables import export, read
from support.command import penstock
from support.damage import flipped
from support.directories import build
from support.node_files import write_files
from support.rabbitmq_directories import unpacked
from support.samples import THREE
from support.table_sources import MAKERS

TABLES = ("tasks", "entries", "changes")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One source of each family."""
    root = tmp_path_factory.mktemp("export")
    return [
        build(root / "node", Generation.THREE, snapshot_after=2),
        unpacked("c4_props_ttl_priority_clean", root / "rabbit"),
        MAKERS["made spool"](root).path,
    ]


def exported(source: Path, target: Path, *flags: str) -> dict[str, Any]:
    outcome = penstock("export", source, "--to", target, *flags)
    assert (outcome.code, outcome.err) == (0, "")
    (row,) = outcome.rows
    assert not target.with_name(target.name + export.SUFFIX).exists()
    assert row["size"] == target.stat().st_size
    return row


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_files_of_arrow_and_parquet_hold_the_table(
    sources: list[Path], tmp_path: Path, suffix: str, table: str
) -> None:
    for number, source in enumerate(sources):
        expected = read(source, table).read_all()
        target = tmp_path / f"{number}{suffix}"
        row = exported(source, target, "--table", table)
        assert row["rows"] == expected.num_rows
        found = (
            pq.read_table(target) if suffix == ".parquet" else pa.ipc.open_file(target).read_all()
        )
        assert found.to_pylist() == expected.to_pylist()
        assert found.schema.names == expected.schema.names


def as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, list):
        return dict(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


@pytest.mark.parametrize("table", TABLES)
def test_json_lines_and_csv_hold_the_table(sources: list[Path], tmp_path: Path, table: str) -> None:
    for number, source in enumerate(sources):
        rows = [
            {name: as_json(value) for name, value in row.items()}
            for row in read(source, table).read_all().to_pylist()
        ]
        exported(source, tmp_path / f"{number}.jsonl", "--table", table)
        lines = (tmp_path / f"{number}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == rows
        exported(source, tmp_path / f"{number}.csv", "--table", table)
        csv.field_size_limit(2**30)
        with (tmp_path / f"{number}.csv").open(newline="") as file:
            found = list(csv.DictReader(file))
        assert len(found) == len(rows)
        for line, row in zip(found, rows, strict=True):
            for name, value in row.items():
                text = (
                    json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else value
                )
                assert line[name] == ("" if text is None else str(text)), name


def test_some_columns_in_their_order(sources: list[Path], tmp_path: Path) -> None:
    exported(sources[0], tmp_path / "a.csv", "--columns", "payload,queue")
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == '"payload","queue"'


def test_an_empty_table_is_a_file_with_columns(tmp_path: Path) -> None:
    source = MAKERS["taskflux 3-empty"](tmp_path / "source").path
    for suffix in export.FORMATS:
        assert exported(source, tmp_path / f"empty{suffix}")["rows"] == 0
    assert pq.read_table(tmp_path / "empty.parquet").schema.names[0] == "source"


def test_row_groups_are_bounded_and_rows_keep_their_order(
    sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "ROWS", 2)
    exported(sources[1], tmp_path / "a.parquet", "--table", "entries")
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups > 1
    expected = read(sources[1], "entries").read_all().to_pylist()
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == expected


def test_an_existing_file_is_refused_and_kept_unless_it_may_be_replaced(
    sources: list[Path], tmp_path: Path
) -> None:
    target = tmp_path / "a.csv"
    target.write_text("precious")
    outcome = penstock("export", sources[0], "--to", target)
    assert (outcome.code, len(outcome.words), target.read_text()) == (1, 1, "precious")
    assert penstock("export", sources[0], "--to", target, "--overwrite").code == 0
    assert target.read_text() != "precious"
    assert penstock("export", sources[0], "--to", tmp_path, "--overwrite").code == 2


def test_wrong_names_and_paths_are_wrong_usage(sources: list[Path], tmp_path: Path) -> None:
    assert penstock("export", sources[0], "--to", tmp_path / "a.xlsx").code == 2
    assert penstock("export", tmp_path / "missing", "--to", tmp_path / "a.csv").code == 2
    assert penstock("export", sources[0], "--to", tmp_path / "a.csv", "--table", "x").code == 2
    assert penstock("export", sources[0], "--to", tmp_path / "no" / "a.csv").code == 1
    assert list(tmp_path.iterdir()) == []


def test_damage_that_hides_the_tasks_leaves_no_file(tmp_path: Path) -> None:
    files = THREE.files()
    name = next(name for name in files if name.endswith(".log"))
    damaged = write_files(tmp_path / "damaged", files | {name: flipped(files[name], 8 * 40)})
    for suffix in export.FORMATS:
        outcome = penstock("export", damaged, "--to", tmp_path / f"a{suffix}")
        assert (outcome.code, outcome.out, len(outcome.words)) == (1, "", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]
