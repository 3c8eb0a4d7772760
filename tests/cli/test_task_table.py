"""``--table``: tasks for people, with payloads as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import open as penstock_node
from penstock.cli import task_table
from support.command import penstock


def written(path: Path, payloads: list[bytes]) -> Path:
    with penstock_node(str(path)) as node:
        node.create_queue("mail")
        node.enqueue_many("mail", payloads, keys=range(len(payloads)))
    return path


def test_payloads_are_text_where_they_are_utf_8_and_marked_base64_where_not(tmp_path: Path) -> None:
    node = written(tmp_path / "node", ["grüße".encode(), b"\xff\x00", b"[red]a\x1b[0m\n"])
    shown = penstock("tasks", node, "--table")
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.out.splitlines()]
    assert [row for row in cells if row] == [
        ["mail", "0", "1", "grüße"],
        ["mail", "1", "2", "base64:/wA="],
        ["mail", "2", "3", r"[red]a\x1b[0m\n"],
    ]
    assert (shown.code, shown.err) == (0, "")


def test_a_payload_that_is_too_long_for_a_line_is_cut(tmp_path: Path) -> None:
    shown = penstock("tasks", written(tmp_path / "node", [b"x" * 10_000]), "--table")
    (row,) = [line for line in shown.out.splitlines() if "mail" in line]
    assert "x…" in row
    assert len(shown.out.splitlines()) == 5


def test_many_rows_become_several_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_table, "ROWS_MAX", 2)
    shown = penstock("tasks", written(tmp_path / "node", [b"a", b"b", b"c"]), "--table")
    assert shown.out.count("payload") == 2
    assert [name in shown.out for name in "abc"] == [True] * 3


def test_no_tasks_are_no_table(tmp_path: Path) -> None:
    shown = penstock("tasks", written(tmp_path / "node", []), "--table")
    assert (shown.code, shown.out, shown.err) == (0, "", "")
