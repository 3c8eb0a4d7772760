"""The directory that a node in this process is given: what cannot be one is refused with what to do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import aio
from support.command import penstock as command

NO_DIRECTORY: list[Any] = ["", b"", b"node", None, 5, "a\0b"]
"""Values that name no directory."""


def refused_by_the_system(tmp_path: Path) -> list[Path]:
    """Return paths at which no directory can be made or opened."""
    file = tmp_path / "file"
    file.write_bytes(b"contents")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "node")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    return [
        file,
        file / "below",
        tmp_path / "dangling",
        tmp_path / "loop",
        tmp_path / ("x" * 300),
        Path("/proc/penstock"),  # no process may make a directory there, not even one of root
        Path("/proc/penstock/node"),
    ]


@pytest.mark.parametrize("path", NO_DIRECTORY)
def test_a_value_that_names_no_directory_makes_no_node_in_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(penstock.InvalidValue):
        penstock.open(path)
    with pytest.raises(penstock.InvalidValue):
        penstock.connect("127.0.0.1:1", spool="" if path is None else path)

    async def spool() -> None:
        async with aio.connect("127.0.0.1:1", spool="" if path is None else path):
            pass

    with pytest.raises(penstock.InvalidValue):
        asyncio.run(spool())
    assert os.listdir(tmp_path) == []


def test_a_path_that_the_system_refuses_is_a_penstock_error(tmp_path: Path) -> None:
    for path in refused_by_the_system(tmp_path):
        with pytest.raises(penstock.PathRefused):
            penstock.open(path)
        with pytest.raises(penstock.PathRefused):
            penstock.connect("127.0.0.1:1", spool=path)
    assert (tmp_path / "file").read_bytes() == b"contents"
    assert sorted(os.listdir(tmp_path)) == ["dangling", "file", "loop"]


def test_commands_refuse_an_empty_directory_and_make_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node.toml").write_text('data = ""\n')
    for words in (
        ["serve", "--data", ""],
        ["serve", "--config", "node.toml"],
        ["dev-cluster", "--data", ""],
        ["spool", "put", "", "--queue", "q", "x"],
    ):
        outcome = command(*words)
        assert (outcome.code, outcome.out) == (2, ""), words
        assert "Traceback" not in outcome.err
    assert os.listdir(tmp_path) == ["node.toml"]


def test_commands_refuse_what_the_system_refuses_in_one_line(tmp_path: Path) -> None:
    for path in refused_by_the_system(tmp_path):
        for words in (
            ["serve", "--listen", "127.0.0.1:0", "--data", str(path)],
            ["spool", "put", str(path), "--queue", "q", "x"],
        ):
            outcome = command(*words)
            assert (outcome.code, outcome.out, len(outcome.words)) == (1, "", 1), outcome
            assert str(tmp_path) in outcome.err or "/proc/penstock" in outcome.err
