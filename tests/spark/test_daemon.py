"""Spark's Python workers begin with our modules loaded, and end with Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from select import select
from socket import AF_UNIX, SOCK_STREAM, socket, socketpair

import pytest

from penstock.spark.daemon import MODULE, quiet
from penstock.spark.sessions import choose_python

LISTED = f"""
import sys
from {MODULE} import preload
preload(sys.argv[1])
sys.stdout.write(" ".join(sorted(sys.modules)))
"""


@pytest.mark.parametrize(
    ("worker", "reads"),
    [("pyspark.worker", True), ("pyspark.sql.worker.plan_data_source_read", False)],
)
def test_a_worker_finds_loaded_what_it_needs(worker: str, reads: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LISTED, worker], capture_output=True, text=True, check=True
    )
    loaded = set(ended.stdout.split())
    assert {worker, "penstock.spark.source", "penstock.families.taskflux.tables.plan"} <= loaded
    assert ("penstock.families.taskflux.tables.scan" in loaded) is reads


def end_of(module: str) -> int:
    """Start a daemon, wait until it listens, let its input end, and return what it ends with."""
    with subprocess.Popen(
        [sys.executable, "-m", module, "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdin is not None
        assert int.from_bytes(daemon.stdout.read(4), "big") > 1023
        daemon.stdin.close()
        return daemon.wait(60)


def test_it_listens_and_ends_as_sparks_own_does() -> None:
    assert end_of(MODULE) == end_of("pyspark.daemon")


PLANNERS = [
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
]


@pytest.mark.parametrize("planner", PLANNERS)
def test_an_idle_planner_of_spark_printed_a_traceback(tmp_path: Path, planner: str) -> None:
    """Spark closes the Unix socket of a planner that was idle for a minute; its answer to that met a broken pipe."""
    environment = dict(os.environ) | {
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(tmp_path),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    environment.pop("PYSPARK_PYTHON", None)
    choose_python(environment, is_local=True)
    with subprocess.Popen(
        [environment["PYSPARK_PYTHON"], "-m", "pyspark.daemon", planner],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        size = int.from_bytes(daemon.stdout.read(4), "big")
        path = daemon.stdout.read(size).decode()
        with socket(AF_UNIX, SOCK_STREAM) as spark:
            spark.connect(path)
            worker = os.pidfd_open(int.from_bytes(spark.recv(4), "big"))
        assert select([worker], [], [], 60)[0], "the worker ends with its connection"
        os.close(worker)
        daemon.stdin.close()
        assert daemon.stderr.read() == b""


@pytest.mark.parametrize(
    ("given", "is_local", "is_launcher"),
    [(None, True, True), (sys.executable, True, True), (None, False, False)],
)
def test_the_session_starts_our_daemon_in_place_of_sparks(
    tmp_path: Path, given: str | None, is_local: bool, is_launcher: bool
) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    if given is not None:
        environment["PYSPARK_PYTHON"] = given
    choose_python(environment, is_local=is_local)
    assert (environment["PYSPARK_PYTHON"] != sys.executable) is is_launcher
    choose_python(environment, is_local=False)
    assert environment["PYSPARK_PYTHON"] == sys.executable, "other machines have no launcher"


def test_a_python_that_the_user_chose_stays(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PYSPARK_PYTHON": "/opt/python"}
    choose_python(environment, is_local=True)
    assert environment["PYSPARK_PYTHON"] == "/opt/python"


def test_a_worker_that_spark_hangs_up_on_ends_without_a_word() -> None:
    own, other = socketpair()
    other.close()

    def write(sock: socket, _: bool) -> int:
        while True:
            sock.sendall(bytes(1024))

    with own:
        assert quiet(write)(own, True) == 1


def test_what_else_goes_wrong_in_a_worker_is_not_hidden() -> None:
    def fail(_: socket, __: bool) -> int:
        raise ValueError("a mistake")

    with socket() as sock, pytest.raises(ValueError, match="a mistake"):
        quiet(fail)(sock, True)
