"""The process that Spark forks its Python workers from, with what each of them would have to load already there.

Spark starts a Python process for every step of planning a read, and each went through the same imports. Only for
workers on this machine (``sessions``): elsewhere nothing of ours need be there when Spark starts them.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final

MODULE: Final = "penstock.spark.daemon"


def preload(worker: str) -> None:
    """Load what a worker of this kind needs."""
    # A fork keeps one thread, and numpy's linear algebra begins some when it is loaded, unless told that one is
    # enough; Spark has a task for every core already.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for module in (worker, "penstock.spark.source", "penstock.spark.taskflux.planning"):
        importlib.import_module(module)
    if worker == "pyspark.worker":
        importlib.import_module("penstock.spark.taskflux.scanning")


def main() -> None:
    from pyspark.daemon import manager

    preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    manager()


if __name__ == "__main__":
    main()
