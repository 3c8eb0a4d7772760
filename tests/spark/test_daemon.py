"""Spark's Python workers begin with our modules loaded, and end with Spark."""

from __future__ import annotations

import subprocess
import sys
from socket import socket, socketpair

import pytest

from penstock.spark.daemon import MODULE, quiet

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
    assert {worker, "penstock.spark.source", "penstock.spark.taskflux.planning"} <= loaded
    assert ("penstock.spark.taskflux.scanning" in loaded) is reads


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
