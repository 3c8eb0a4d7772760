"""A pipeline that is killed, and its Java with it: the old tables stay whole, and the next run ends as if nothing was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from penstock.spark.pipeline.run import run
from penstock.spark.pipeline.store import Store
from spark.pipeline.test_run import comparable, live

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MAIN = "from penstock.cli.main import main; main()"
MOMENTS = [
    "reading",
    "entries",
    "working",
    "lives",
    "tasks",
    "depth",
    "damage",
    "divergence",
    "making",
]


def kill_when_it_says(word: str, source: Path, out: Path) -> None:
    """Run the command and kill it, with all its children, when a line begins with ``word``."""
    words = ["pipeline", "run", "--in", str(source), "--out", str(out), "--incremental"]
    settings = ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"]
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.argv[0] = 'penstock'\n{MAIN}", *words, *settings],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            if line.startswith(f"penstock: {word}".encode()):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, f"it never said {word!r}"


@pytest.mark.heavy  # a Java for each: a minute or two
@pytest.mark.parametrize("word", MOMENTS)
def test_a_killed_run_changes_nothing_and_the_next_one_goes_on(
    spark: SparkSession, tmp_path: Path, word: str
) -> None:
    source, out = tmp_path / "node", tmp_path / "out"
    live(source, Random(3), 30, generation=3)
    first = run(spark, [str(source)], out)
    before = {name: comparable(spark, first, name) for name in first.rows}
    live(source, Random(4), 30, generation=3)

    kill_when_it_says(word, source, out)

    current = Store(out).current()
    assert current is not None
    assert current.home == first.run.home
    assert {name: comparable(spark, first, name) for name in first.rows} == before
    resumed = run(spark, [str(source)], out, incremental=True)
    assert resumed.continued == [str(source)]
    whole = run(spark, [str(source)], tmp_path / "whole")
    for name in whole.rows:
        assert comparable(spark, resumed, name) == comparable(spark, whole, name), name
