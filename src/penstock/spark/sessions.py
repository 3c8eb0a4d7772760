"""A Spark session with the settings that our tables want, and with our daemon in the place of Spark's own.

``spark.python.daemon.module`` names the daemon of the processes that read. Spark 4.3 plans in other processes, and starts
their daemon as ``python -m pyspark.daemon`` whatever the setting says. So Spark gets a launcher as its Python, which puts our
daemon there, too. Our daemon loads what they need once, and lets them end quietly: on a Unix socket Spark's own prints a
``BrokenPipeError`` with its traceback for each that was idle for a minute, and sometimes at a stop.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from penstock.spark.daemon import MODULE
from penstock.spark.java import Java, kept, prepare, write_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Those that a user's own ``extraJavaOptions`` come behind, wherever they were given.
_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions"
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Arrow checks the bounds of every value that Spark takes from a batch, though Spark keeps to them itself.

Without that the JVM's part of a read of all columns took 8.8 s of processor time instead of 10.8 s.
"""

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A retried task is the rule on a cluster; on one machine it should not be the end either.
    "spark.task.maxFailures": "4",
    # Rows come from Python by these, not by TCP on the loopback address, in pieces that are not small. Beside other
    # work that took a third off the time of a read of all columns.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.buffer.size": str(2**20),
}


def session(
    master: str | None = None,
    *,
    name: str = "penstock",
    settings: dict[str, str] | None = None,
    quiet: bool = False,
) -> tuple[SparkSession, Java]:
    """Return a Spark session in which the format ``penstock`` is registered, and the Java that runs it.

    ``master``: by default all cores of this machine. ``name``: the name of the application. ``settings``: further
    Spark configuration. ``quiet``: Spark logs only errors. Raises ``DependencyMissing`` if there is no suitable
    Java.
    """
    is_local = _is_on_this_machine(master)
    java = prepare(is_local=is_local)
    has_own_daemon = master is None or master.startswith("local")
    choose_python(is_local=has_own_daemon)
    from pyspark.sql import SparkSession

    from penstock.spark.source import register

    cores = os.cpu_count() or 1
    builder = SparkSession.builder.appName(name).master(master or f"local[{cores},4]")
    chosen = _SETTINGS | (settings or {})
    if is_local:
        # Elsewhere the cores of this machine say nothing, and Spark's own number is cut down as it runs.
        chosen.setdefault("spark.sql.shuffle.partitions", str(2 * cores))
        chosen.setdefault("spark.driver.bindAddress", "127.0.0.1")
        chosen.setdefault("spark.driver.host", "127.0.0.1")
    if has_own_daemon:
        chosen.setdefault("spark.python.daemon.module", MODULE)
    for key in _JAVA_OPTIONS:
        chosen[key] = f"{_ARROW} {chosen.get(key, '')}".strip()
    if quiet:
        log = Path(__file__).with_name("log4j2.properties").as_uri()
        chosen[_JAVA_OPTIONS[0]] += f" -Dlog4j2.configurationFile={log}"
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark, java


def _is_on_this_machine(master: str | None) -> bool:
    """Return whether driver and workers can talk over the loopback address, as those of a local cluster do."""
    if master is None or master.startswith("local"):
        return True
    return urlsplit(master).hostname in ("127.0.0.1", "localhost", "::1")


# --- the launcher --------------------------------------------------------------------------------

_PROGRAM: Final = """#!/bin/sh
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -m {module} "$@"
fi
exec {python} "$@"
"""
_NAME: Final = "penstock-python"
_VARIABLES: Final = "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"


def choose_python(environment: MutableMapping[str, str] | None = None, *, is_local: bool) -> None:
    """Name the Python of Spark's processes in the variables that Spark reads; a choice of the user's stays.

    ``is_local``: all of them run on this machine. Others do not have the launcher.
    """
    environment = os.environ if environment is None else environment
    for name in _VARIABLES:
        given = environment.get(name, sys.executable)
        if given == sys.executable or Path(given).name == _NAME:
            environment[name] = _launcher(environment) if is_local else sys.executable


def _launcher(environment: MutableMapping[str, str]) -> str:
    """Return the path of the launcher of this Python, or this Python itself where no program can be written."""
    text = _PROGRAM.format(module=MODULE, python=shlex.quote(sys.executable))
    home = f"python/{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    program = kept(environment, home, lambda home: write_program(home / _NAME, text))
    return str(program) if os.access(program, os.X_OK) else sys.executable
