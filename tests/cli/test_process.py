"""The command as a process: pipes that close, disks that are full, a terminal, and what it imports."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import penstock as package
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout, encode_header, encode_record
from penstock.model import DEFAULT_QUEUE, AddTask
from support.command import COMMAND, penstock, process, run
from support.directories import build
from support.node_files import payload_of, write_files
from support.samples import THREE
from support.shell import read_terminal


def long_log(tmp_path: Path) -> Path:
    """Return a log whose dump does not fit into a pipe."""
    payload = payload_of(AddTask(queue=DEFAULT_QUEUE, key=1, payload=b"task"))
    record = encode_record(LogLayout.TWO, term=1, payload=payload)
    header = encode_header(LogLayout.TWO, commit=2999)
    return write_files(tmp_path, {"log.raft": header + record * 3000}) / "log.raft"


def test_a_reader_that_goes_away_ends_the_command_in_silence(tmp_path: Path) -> None:
    path = long_log(tmp_path)
    for word in ("dump", "tasks"):
        line = shlex.join([*COMMAND, word, str(path)])
        outcome = run(["sh", "-c", f"{line} | head -1"])
        assert (outcome.code, outcome.err, len(outcome.rows)) == (0, "", 1)
        running = subprocess.Popen(
            [*COMMAND, word, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert running.stdout is not None
        running.stdout.close()
        assert running.stderr is not None
        assert running.stderr.read() == b""
        running.stderr.close()
        assert running.wait() == -signal.SIGPIPE


def test_a_full_disk_is_said_and_exits_1(tmp_path: Path) -> None:
    path = long_log(tmp_path)
    for name in (path, THREE.write(tmp_path / "short")):  # with and without a write before the end
        outcome = run(["sh", "-c", shlex.join([*COMMAND, "dump", str(name)]) + " >/dev/full"])
        assert outcome.code == 1
        assert outcome.words == ["penstock: the system: No space left on device"]


def test_a_bar_is_drawn_for_those_who_wait_and_see_it(tmp_path: Path) -> None:
    root = build(tmp_path / "node", Generation.THREE, snapshot_after=2)
    ours, theirs = pty.openpty()
    code = (
        "import sys, penstock.cli.output as output; output.PATIENCE_S = 0;"
        "from penstock.cli.main import main; sys.argv[0] = 'penstock'; main()"
    )
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    running = subprocess.Popen(
        [sys.executable, "-c", code, "dump", root],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    assert running.stdout is not None
    out = running.stdout.read().decode()
    running.stdout.close()
    assert running.wait() == 0
    drawn = read_terminal(ours)
    assert "reading" in drawn
    assert "━" in drawn
    assert "\x1b" not in out
    assert [json.loads(line)["status"] for line in out.splitlines()] == ["ok"] * 11


def test_without_a_terminal_nothing_is_drawn(tmp_path: Path) -> None:
    outcome = process("tasks", THREE.write(tmp_path))
    assert (outcome.code, outcome.err, len(outcome.rows)) == (0, "", 3)


def test_neither_the_package_nor_the_command_imports_anything_heavy() -> None:
    code = (
        "import sys, penstock; print(sorted(sys.modules));"
        "import penstock.cli.main; print(sorted(sys.modules))"
    )
    outcome = run([sys.executable, "-c", code])
    assert outcome.code == 0
    alone, command = (set(eval(line)) for line in outcome.out.splitlines())
    heavy = {"numpy", "numba", "pyarrow", "pyspark", "pandas", "uvloop"}
    assert not heavy & command
    assert not {"typer", "rich"} & alone
    loops = {"asyncio", "penstock.client.blocking", "penstock.server.serve", "rich.live"}
    assert loops & command <= {"rich.live"}  # which rich.progress brings along


def test_the_version_is_that_of_the_package() -> None:
    outcome = penstock("--version")
    assert (outcome.code, outcome.out) == (0, f"penstock {package.__version__}\n")
