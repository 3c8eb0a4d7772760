"""Every ``--help`` ends with examples, and every example runs as it is typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from penstock.cli.main import app
from penstock.formats.taskflux.generation import Generation
from support.command import penstock
from support.damage import flipped
from support.directories import build
from support.node_files import write_files
from support.samples import THREE

COMMANDS = [
    command.callback.__name__ for command in app.registered_commands if command.callback is not None
]


def examples(command: str) -> list[str]:
    """Return the examples at the end of a command's help."""
    outcome = penstock(command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    _, _, last = outcome.out.partition("Examples:\n")
    return [line.strip() for line in last.splitlines() if line.strip()]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with what the examples speak of."""
    build(tmp_path / "node", Generation.THREE, snapshot_after=2)
    build(tmp_path / "old", Generation.TWO)
    files = THREE.files()
    name = next(name for name in files if name.endswith(".log"))
    write_files(tmp_path / "damaged", files | {name: flipped(files[name], 8 * 40)})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_are_those_of_files_at_rest() -> None:
    assert COMMANDS == ["inspect", "dump", "tasks", "verify", "repair", "convert"]
    outcome = penstock("--help")
    assert outcome.code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in outcome.out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_ends_with_examples_that_run(
    workplace: Path, command: str
) -> None:
    lines = examples(command)
    assert lines
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["penstock", command]
        outcome = penstock(*words[1:])
        assert outcome.code == (1 if "damaged" in words else 0), outcome.err
        assert "Traceback" not in outcome.err
        if "--table" not in words:
            assert all(isinstance(row, dict) for row in outcome.rows)
        if "--out" in words:
            assert (workplace / words[words.index("--out") + 1]).is_dir()


@pytest.mark.parametrize("command", COMMANDS)
def test_both_ways_to_ask_for_help_say_the_same(command: str) -> None:
    assert penstock(command, "-h") == penstock(command, "--help")
