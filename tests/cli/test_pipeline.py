"""The pipeline's commands: what is wrong is said before Spark starts, and what they print is what others print."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import open as penstock_node
from penstock.cli.pipeline import _check
from penstock.formats.taskflux.generation import Generation
from support.directories import build
from support.rabbitmq_directories import unpacked
from support.table_runs import begun_elsewhere

MAIN = "import sys; sys.argv[0] = 'penstock'\nfrom penstock.cli.main import main; main()"


def penstock(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["run", "--in", "nowhere", "--out", "out"], 2, "nowhere: no such file or directory"),
        (["run", "--in", "empty", "--out", "out"], 1, "no files that Penstock knows"),
        (["run", "--in", "node", "--out", "out", "--format", "csv"], 2, "--format"),
        (["run", "--in", "node", "--out", "out", "--conf", "nonsense"], 2, "not KEY=VALUE"),
        (["run", "--out", "out"], 2, "--in"),
        (["tasks", "--in", "node", "--at", "-2"], 2, "--at"),
        (["tasks", "--in", "node", "--at", "9"], 1, "beyond the log, which ends at entry 8"),
        (["snapshot", "--in", "node", "--at", "9", "--out", "out"], 1, "ends at entry 8"),
        (["audit", "node", "nowhere"], 2, "nowhere"),
        (["migrate", "--from", "node", "--to", "127.0.0.1:1"], 1, "no node answers at 127.0.0.1:1"),
        (["migrate", "--from", "node", "--to", "no/such/place:1"], 1, "neither HOST:PORT nor"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    build(tmp_path / "node", Generation.THREE)
    (tmp_path / "empty").mkdir()
    done = penstock("pipeline", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "Spark" not in done.stderr, "it was not started"
    assert not (tmp_path / "out").exists()


def test_quorum_queues_and_streams_are_reported_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(unpacked("c9_quorum_and_stream_kill9", tmp_path / "rabbit"))
    assert not _check([root], {}).is_complete
    assert "2 queues are not classic and left out: quorum 'qq'" in capsys.readouterr().err
    assert _check([root], {"classic_only": True}).is_complete


def test_a_run_beside_another_is_refused_and_names_the_holder_of_the_lock(tmp_path: Path) -> None:
    build(tmp_path / "node", Generation.THREE)
    with begun_elsewhere(tmp_path / "out") as (process, staging):
        done = penstock("pipeline", "run", "--in", "node", "--out", "out", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        (said,) = done.stderr.splitlines()
        assert f"process {process.pid} on host {platform.node()}" in said
        assert "Spark" not in said, "it was not started"
        assert staging.is_dir()


@pytest.mark.heavy  # a Java of its own; the README's blocks run the same command
@pytest.mark.spark
def test_a_run_leaves_tables_and_a_page(tmp_path: Path) -> None:
    build(tmp_path / "node", Generation.THREE)
    ran = penstock(
        "pipeline", "run", "--in", "node", "--out", "out", "--format", "delta", cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["rows"]["tasks"] == 5
    page = (tmp_path / told["report"]).read_text()
    assert "orders" in page
    from deltalake import DeltaTable

    files = DeltaTable(tmp_path / told["tables"] / "tasks").file_uris()
    assert files, "each table is one of Delta's too"


@pytest.mark.heavy
@pytest.mark.spark
def test_time_travel_prints_what_a_replay_prints(tmp_path: Path) -> None:
    build(tmp_path / "node", Generation.THREE)
    at = penstock("pipeline", "tasks", "--in", "node", "--at", "5", "--quiet", cwd=tmp_path)
    assert at.returncode == 0, at.stderr
    assert at.stdout == penstock("tasks", "node", "--at", "5", cwd=tmp_path).stdout


@pytest.mark.spark
@pytest.mark.parametrize(
    ("queue", "code", "said"),
    [
        (
            "nobody",
            1,
            ["penstock: there is no queue 'nobody'; omit --queue to see all queues"],
        ),
        ("empty", 0, []),
    ],
)
def test_a_misspelled_queue_printed_no_tasks_with_exit_0_and_an_empty_one_errors_of_spark(
    tmp_path: Path, queue: str, code: int, said: list[str]
) -> None:
    with penstock_node(str(tmp_path / "node")) as node:
        node.create_queue("empty")
    done = penstock("pipeline", "tasks", "--in", "node", "--queue", queue, "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    lines = done.stderr.splitlines()
    assert [line for line in lines if not line.startswith("WARNING: Using incubator")] == said
