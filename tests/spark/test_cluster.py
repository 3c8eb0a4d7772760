"""A real cluster on this machine: a master and two workers, with our package shipped to them, one of which dies.

All of it is one application, started once: six Javas are enough for a small machine. Its driver is
``support/cluster_job.py``; here its results are held against a reader without a Spark.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import pyarrow.parquet as pq
import pyspark
import pytest

import penstock
from penstock.formats.kernel import compiled
from penstock.spark.java import prepare
from support import cluster_job
from support.at_rest import identified
from support.report import report
from support.spark_tables import MEMORY, Row, read_rows, reader_of

pytestmark = [pytest.mark.spark, pytest.mark.heavy]

SPARK_HOME = Path(pyspark.__file__).parent
PATIENCE_SECONDS = 120
"""Far more than anything takes; a test that waits so long has failed."""


# --- the cluster ---------------------------------------------------------------------------------


@dataclass
class Daemon:
    """A master or a worker, in a process group with its executors: killed together, like a machine."""

    process: subprocess.Popen[bytes]
    home: Path

    @property
    def log(self) -> str:
        return (self.home / "log").read_text()

    def kill(self, sign: signal.Signals = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)


@dataclass
class Cluster:
    """A master and its workers."""

    root: Path
    environment: dict[str, str]
    daemons: list[Daemon] = field(default_factory=list)
    url: str = ""
    page: str = ""

    def start(self) -> None:
        master = self._daemon("master", "master.Master", "--host", "127.0.0.1", "--port", "0")
        pattern = r"Starting Spark master at (spark://\S+)[\s\S]*started at (http://\S+)"
        self.url, self.page = wait_for(lambda: re.search(pattern, master.log), master).groups()
        for number in (1, 2):
            name = f"worker{number}"
            size = ("--cores", "1", "--memory", "512m", "--work-dir", str(self.root / name))
            self._daemon(name, "worker.Worker", "--host", "127.0.0.1", *size, self.url)
        wait_for(lambda: self.alive() == 2, master)

    def _daemon(self, name: str, kind: str, *words: str) -> Daemon:
        home = self.root / name
        home.mkdir()
        program = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with open(home / "log", "wb") as log:
            process = subprocess.Popen(
                [*program, "--webui-port", "0", *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.daemons.append(Daemon(process, home))
        return self.daemons[-1]

    def alive(self) -> int:
        with urlopen(f"{self.page}/json/", timeout=30) as answer:
            return int(json.load(answer)["aliveworkers"])

    def stop(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for daemon in reversed(self.daemons):
                daemon.kill(sign)


def wait_for(condition: Callable[[], Any], *alive: Daemon) -> Any:
    """Return what a condition comes to, once it is something, as long as some processes live."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        for daemon in alive:
            assert daemon.process.poll() is None, daemon.log
        assert time.monotonic() < end, "waited in vain\n" + "\n".join(d.log for d in alive)
        time.sleep(0.02)
    return found


# --- what it works on ----------------------------------------------------------------------------


def fill(path: Path) -> None:
    """Let a node work for a while."""
    random = Random(7)
    with penstock.open(path) as node:
        for name in ("mail", "orders"):
            node.create_queue(name)
        for number in range(60):
            queue = random.choice(["mail", "orders"])
            payloads = [b"task %d of %d" % (i, number) for i in range(random.randrange(1, 9))]
            node.enqueue_many(queue, payloads, keys=[random.randrange(4) for _ in payloads])
            for delivery in node.dequeue_many(queue, random.randrange(1, 5)):
                node.ack(delivery) if random.random() < 0.7 else node.nack(delivery)
    # What is kept free for later would be thousands of empty tasks.
    last = read_rows(path)[-1]
    os.truncate(path / last["path"], last["offset"] + last["size"])


def ship(path: Path) -> Path:
    """Pack our package as people do for Spark."""
    home = Path(penstock.__file__).parent
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(home.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, file.relative_to(home.parent))
    return path


def bare_python(path: Path) -> Path:
    """Make a Python that has what we need and not us: directories of a path hold no links to others."""
    site, python = sysconfig.get_path("purelib"), getattr(sys, "_base_executable", sys.executable)
    variable = f'PYTHONPATH="$PYTHONPATH${{PYTHONPATH:+:}}"{shlex.quote(site)}'
    path.write_text(f'#!/bin/sh\n{variable} exec {shlex.quote(python)} "$@"\n')
    path.chmod(0o755)
    return path


def variables(root: Path) -> dict[str, str]:
    """Return a plain environment, with nothing of ours in it."""
    made = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
    prepare(made)
    (root / "home").mkdir()
    return made | {
        "HOME": str(root / "home"),
        "SPARK_HOME": str(SPARK_HOME),
        "PYSPARK_PYTHON": str(bare_python(root / "python")),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
    }


# --- the application -----------------------------------------------------------------------------


@dataclass
class Application:
    """What came of one application during which a worker was killed."""

    node: Path
    at: int
    out: Path
    lost: Path  # the home of the worker that was killed
    lost_parts: set[str]  # the tasks that it had begun

    def table(self, name: str) -> list[Row]:
        rows: list[Row] = pq.read_table(self.out / f"{name}.parquet").to_pylist()
        return rows

    def marks(self) -> list[tuple[str, Path]]:
        return marks(self.out)


def marks(out: Path) -> list[tuple[str, Path]]:
    """Return which task ran where, by the place of its package under the home of its worker."""
    found = sorted(path for path in (out / "marks").glob("*") if path.suffix != ".part")
    return [(path.name.partition("-")[0], Path(path.read_text())) for path in found]


@pytest.fixture(scope="module")
def application() -> Iterator[Application]:
    with TemporaryDirectory(dir=MEMORY) as place, contextlib.ExitStack() as stack:
        root = Path(place)
        node, out = root / "node", root / "out"
        out.mkdir()
        fill(node)
        cluster = Cluster(root, variables(root))
        stack.callback(cluster.stop)
        begun = time.monotonic()
        cluster.start()
        up = time.monotonic()
        at = max(row["log_index"] for row in read_rows(node) if row["log_index"] is not None) // 2
        words = [cluster.url, str(node), str(ship(root / "penstock.zip")), str(out), str(at)]
        driver = start_driver(words, cluster, root)
        stack.callback(driver.kill)
        tasks = len(reader_of(node, splitSize=cluster_job.SPLIT).partitions())
        victim = wait_for(lambda: find_victim(cluster, out, tasks), driver)
        killed = time.monotonic()
        victim.kill()
        wait_for(lambda: cluster.alive() == 1, driver)
        lost = {part for part, place in marks(out) if place.is_relative_to(victim.home)}
        (out / "sign").touch()
        assert driver.process.wait(PATIENCE_SECONDS) == 0, driver.log
        report(
            f"cluster: up in {up - begun:.1f} s, a worker killed {killed - up:.1f} s later,"
            f" the result {time.monotonic() - killed:.1f} s after that"
        )
        yield Application(node, at, out, victim.home, lost)


def start_driver(words: list[str], cluster: Cluster, root: Path) -> Daemon:
    home = root / "driver"
    home.mkdir()
    with open(home / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(cluster_job.__file__), *words],
            env=cluster.environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Daemon(process, home)


def find_victim(cluster: Cluster, out: Path, tasks: int) -> Daemon | None:
    """Return the worker that has done most, once all tasks have begun: the last ones wait, one on each worker."""
    workers = cluster.daemons[1:]
    ran = Counter(
        worker.home
        for _, place in marks(out)
        for worker in workers
        if place.is_relative_to(worker.home)
    )
    if len(ran) < len(workers) or ran.total() < tasks:
        return None
    return max(workers, key=lambda worker: ran[worker.home])


# --- what must hold ------------------------------------------------------------------------------


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(
        rows, key=lambda row: str((row["path"], row["offset"], sorted(row.items(), key=str)))
    )


def test_the_tables_are_those_that_a_reader_in_this_process_has(application: Application) -> None:
    found, expected = application.table("entries"), read_rows(application.node)
    assert len(found) > 300
    assert in_order(found) == in_order(expected)


def test_a_moment_is_what_a_replay_in_order_comes_to(application: Application) -> None:
    rows = application.table("tasks")
    found = sorted((r["queue"], r["key"], r["task_id"], r["payload"]) for r in rows)
    expected = [
        (n, key, i, data) for n, i, key, data in identified(application.node, application.at)
    ]
    assert expected
    assert found == sorted(expected)


def test_the_package_is_the_one_that_was_shipped(application: Application) -> None:
    homes = {place for _, place in application.marks()}
    assert len(homes) == 2
    for home in homes:
        assert home.parts[-3:] == ("penstock.zip", "penstock", "__init__.py")


def test_the_result_is_right_though_a_worker_was_killed_in_the_middle(
    application: Application,
) -> None:
    expected: dict[tuple[str, str], list[int]] = {}
    for row in read_rows(application.node):
        sums = expected.setdefault((row["op"], row["queue"]), [0, 0, 0])
        sums[0] += 1
        sums[1] += row["log_index"] or 0
        sums[2] += len(row["payload"] or b"")
    found = {
        (row["op"], row["queue"]): [row["rows"], row["indexes"] or 0, row["bytes"] or 0]
        for row in application.table("summed")
    }
    assert found == expected


def test_what_the_killed_worker_had_done_was_done_again_by_the_other(
    application: Application,
) -> None:
    ran_elsewhere = {
        part for part, place in application.marks() if not place.is_relative_to(application.lost)
    }
    assert len(application.lost_parts) > 1, "one task under way, and the results of others"
    assert application.lost_parts <= ran_elsewhere


# --- kernels in a zip, without a cluster ---------------------------------------------------------


@pytest.mark.parametrize("is_writable", [True, False])
def test_a_kernel_in_a_zip_is_compiled_also_where_its_code_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writable: bool
) -> None:
    """It failed in the first task of a worker whose user has no home."""
    name = f"shipped_{is_writable}".lower()
    with zipfile.ZipFile(tmp_path / "shipped.zip", "w") as archive:
        archive.writestr(f"{name}.py", "def double(x):\n    return x + x\n")
    monkeypatch.syspath_prepend(tmp_path / "shipped.zip")
    cache = tmp_path / "cache"
    if not is_writable:
        cache.touch()  # permissions would not stop root
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert compiled(importlib.import_module(name).double)(21) == 42
    assert bool(list(cache.rglob("*.nbc"))) is is_writable
