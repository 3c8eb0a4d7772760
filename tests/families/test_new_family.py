"""A family is one directory and one line: a test adds one to a copy of the package, and asks every command for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

import penstock
from support import lines_family
from support.node_process import NodeProcess

TASKS = b"lines 1\norders\t2\tthe letter\norders\t1\tthe invoice\nmail\t7\tthe reply\n"
DAMAGED = TASKS + b"orders\tx\tlost\n"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one more directory and one more line."""
    root = tmp_path_factory.mktemp("package")
    source = Path(penstock.__file__).parent
    shutil.copytree(source, root / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(Path(lines_family.__file__).parent, root / "penstock" / "families" / "lines")
    registry = root / "penstock" / "families" / "registry.py"
    text = registry.read_text()
    assert text.count('    "rabbitmq",\n') == 1
    registry.write_text(text.replace('    "rabbitmq",\n', '    "lines",\n    "rabbitmq",\n'))
    return root


def run(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(package)}
    program = [sys.executable, "-m", "penstock.cli.main", *words]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def payloads(done: subprocess.CompletedProcess[str]) -> list[bytes]:
    return [b64decode(row["payload"]) for row in rows(done)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.lines"
    path.write_bytes(TASKS)
    return path


def test_every_command_reads_a_new_family(package: Path, file: Path, tmp_path: Path) -> None:
    (row,) = rows(run(package, "inspect", str(file)))
    assert (row["family"], row["tasks"], row["damage"]) == ("lines", 3, [])
    assert len(rows(run(package, "dump", str(file)))) == 3
    assert payloads(run(package, "tasks", str(file))) == [
        b"the reply",
        b"the invoice",
        b"the letter",
    ]
    assert payloads(run(package, "tasks", str(file), "--queue", "mail")) == [b"the reply"]
    whole = run(package, "verify", str(file))
    assert (whole.returncode, whole.stdout) == (0, "")
    (row,) = rows(
        run(package, "convert", str(file), "--to", "lines-1", "--out", str(tmp_path / "new"))
    )
    assert row["tasks"] == 3
    refused = run(
        package, "convert", str(file), "--to", "taskflux-3", "--out", str(tmp_path / "no")
    )
    assert (refused.returncode, refused.stdout) == (1, "")


def test_damage_of_a_new_family_decides_the_exit_codes(package: Path, tmp_path: Path) -> None:
    file = tmp_path / "tasks.lines"
    file.write_bytes(DAMAGED)
    for words in (["verify"], ["inspect"], ["dump"], ["tasks"], ["repair", "--out", str(tmp_path / "out")]):  # fmt: skip
        assert run(package, words[0], str(file), *words[1:]).returncode == 1, words
    assert (tmp_path / "out" / "tasks.lines").read_bytes().count(b"\n") == 4
    (row,) = rows(run(package, "verify", str(file)))
    assert (row["status"], row["offset"]) == ("bad-line", len(TASKS))


def test_flags_and_refusals_come_from_the_declaration(package: Path, file: Path) -> None:
    assert "--largest-key" in run(package, "tasks", "--help").stdout
    assert "--largest-key" not in run(package, "verify", "--help").stdout
    assert payloads(run(package, "tasks", str(file), "--largest-key", "1")) == [b"the invoice"]
    foreign = run(package, "tasks", str(file), "--vhost", "/")
    assert foreign.returncode == 2
    assert "--vhost" in foreign.stderr
    assert run(package, "tasks", str(file), "--largest-key", "x").returncode == 2


def test_tasks_of_a_new_family_are_enqueued_once(package: Path, file: Path, tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node").wait_listening() as node:
        for _ in range(2):
            done = run(package, "enqueue", "--from", str(file), "--node", node.address)
            assert done.returncode == 0, done.stderr
        with penstock.connect(node.address) as client:
            assert [task.payload for task in client.peek("orders", 9)] == [b"the invoice", b"the letter"]  # fmt: skip


@pytest.mark.spark
def test_spark_reads_a_new_family(package: Path, file: Path) -> None:
    program = """
import sys
import penstock.spark
from penstock.spark.sessions import session
spark, _ = session("local[1]", quiet=True)
penstock.spark.register(spark)
reader = spark.read.format("penstock").option("table", "tasks")
for rows in (reader.load(sys.argv[1]), reader.option("largestKey", 1).load(sys.argv[1])):
    print([(row.queue, row.key, bytes(row.payload)) for row in rows.select("queue", "key", "payload").collect()])
spark.stop()
"""
    environment = os.environ | {"PYTHONPATH": str(package)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "[('mail', 7, b'the reply'), ('orders', 1, b'the invoice'), ('orders', 2, b'the letter')]",
        "[('orders', 1, b'the invoice')]",
    ], done.stderr[:3000]
