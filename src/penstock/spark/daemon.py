"""The process that Spark forks its Python workers from, with what each of them would have to load already there.

Spark starts a Python process for every step of planning a read, and each went through the same imports. Only for
workers on this machine (``sessions``): elsewhere nothing of ours need be there when Spark starts them.

It also keeps workers quiet whose connection Spark closes, as it does after each ``show`` and ``first`` and when a worker
was idle for a minute: Spark's own daemon prints a traceback, as if it were an error.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from socket import socket
from typing import Final, TypeAlias

from penstock.errors import DependencyMissing

MODULE: Final = "penstock.spark.daemon"

Work: TypeAlias = Callable[[socket, bool], int]


def preload(worker: str) -> None:
    """Load what a worker of this kind needs."""
    # A fork keeps one thread, and numpy's linear algebra begins some when it is loaded, unless told that one is
    # enough; Spark has a task for every core already.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    importlib.import_module(worker)
    if worker == "pyspark.sql.worker.lookup_data_sources":
        return  # lists installed sources, and never runs ours
    importlib.import_module("penstock.spark.source")
    from penstock.families.registry import FAMILIES

    for family in FAMILIES:
        # Only for speed: a family may have other modules, or need an extra that is missing.
        with suppress(ImportError, DependencyMissing):
            importlib.import_module(f"penstock.families.{family}.tables.plan")
            if worker == "pyspark.worker":
                importlib.import_module(f"penstock.families.{family}.tables.scan")


def quiet(work: Work) -> Work:
    """Return the work of a worker, which ends without a word when Spark has enough rows and hangs up."""

    def work_quietly(sock: socket, authenticated: bool) -> int:
        try:
            return work(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1  # this worker ends, and Spark starts another one for the next task

    return work_quietly


def report_unless_hung_up(unraisable: sys.UnraisableHookArgs) -> None:
    """Report an exception in a finalizer, unless Spark has closed the connection.

    Since Python 3.13 a buffered file reports what its last flush raises.
    """
    if not isinstance(unraisable.exc_value, BrokenPipeError | ConnectionResetError):
        sys.__unraisablehook__(unraisable)


def main() -> None:
    from pyspark import daemon

    sys.unraisablehook = report_unless_hung_up
    preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment]
    daemon.manager()


if __name__ == "__main__":
    main()
