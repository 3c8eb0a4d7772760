"""The scripts in ``examples/`` do what they say: their functions in the session of all tests, one as people run it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from support.node_process import NodeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
TIME_TRAVEL, AUDIT, DASHBOARD = "time_travel", "audit_replicas", "live_dashboard"
MIGRATION = "migrate_rabbitmq"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.heavy  # a Java of its own
def test_time_travel_runs_as_its_first_lines_say_and_tells_what_the_queues_held() -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLES / f"{TIME_TRAVEL}.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    first, second = ran.stdout.split("After entry")[1:]
    held, _, done = second.partition("Done between")
    words = re.compile(r"invoice|welcome|password|newsletter")
    assert words.findall(first) == ["password", "invoice", "welcome"]
    assert words.findall(held) == ["welcome", "newsletter"]
    assert words.findall(done) == ["invoice", "password"]
    assert re.search(r"after entry \d+ mail held 2 tasks", done)


@pytest.mark.heavy
def test_the_audit_tells_the_flipped_bit_and_the_other_entry(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load(AUDIT)
    copies = example.make_copies(spark, tmp_path)
    assert example.main(spark, copies) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("3 copies, compared up to entry ")
    damage = re.fullmatch(
        r"damage: entry (\d+) in two/data/log/\d+\.log, byte \d+: (\S+)", lines[1]
    )
    other = re.fullmatch(
        r"divergence: three after entry (\d+) is not as one: the entry differs in payload", lines[2]
    )
    assert damage is not None
    assert other is not None
    assert damage[2] == "bad-checksum"
    assert int(damage[1]) < int(other[1])
    assert lines[3:] == ["the copies need a look"]


@pytest.mark.heavy
def test_the_audit_of_whole_copies_says_that_all_is_well(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load(AUDIT)
    one = example.make_copies(spark, tmp_path)[0]
    assert example.main(spark, [one]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "all is well"


@pytest.mark.heavy
def test_the_dashboard_shows_at_each_trigger_what_waits(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import penstock

    load(DASHBOARD).main(spark, tmp_path, 3)
    shown = capsys.readouterr().out.split("--- trigger ")[1:]
    assert len(shown) >= 3
    last = {
        name: (int(depth), len(bar))
        for name, depth, bar in re.findall(r"(\w+) +(\d+) (#*)", shown[-1])
    }
    with penstock.open(tmp_path / "node") as node:
        waiting = {stat.name: stat.count for stat in node.queues() if stat.name}
    assert last == {name: (count, count) for name, count in waiting.items()}
    assert any(waiting.values())


def test_the_migration_puts_a_brokers_messages_into_a_node_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load(MIGRATION)
    rabbit = example.make_rabbit(tmp_path / "rabbit")
    with NodeProcess(tmp_path / "node").wait_listening() as node:
        for _ in range(2):
            example.main(spark, rabbit, node.address)
            assert capsys.readouterr().out.splitlines() == [
                "moving 3 tasks of 1 queues",
                "3 tasks of 1 queues are in the node",
                "mail: key -5, b'text/plain', b'password'",
                "mail: key 0, b'text/plain', b'invoice'",
                "mail: key 0, b'text/plain', b'newsletter'",
            ]


@pytest.mark.parametrize("name", [TIME_TRAVEL, AUDIT, DASHBOARD, MIGRATION])
def test_an_example_is_short_and_says_how_it_is_run(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) < 80
    assert f".venv/bin/python examples/{name}.py" in (load(name).__doc__ or "")


def test_every_example_is_tested() -> None:
    names = {
        TIME_TRAVEL,
        AUDIT,
        DASHBOARD,
        MIGRATION,
        "paged_store",
    }  # the last in tests/test_paged.py
    assert {path.stem for path in EXAMPLES.glob("*.py")} == names
