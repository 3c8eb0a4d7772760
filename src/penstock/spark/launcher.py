"""The program that our own session has Spark start its Python processes with: it puts our daemon in Spark's place.

``spark.python.daemon.module`` names the daemon of the processes that read. Spark 4.3 plans in other processes, and starts
their daemon as ``python -m pyspark.daemon`` whatever the setting says. Our daemon loads what they need once, and lets
them end quietly: on a Unix socket Spark's own prints a ``BrokenPipeError`` with its traceback for each that was idle for
a minute, and sometimes at a stop.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from penstock.spark.daemon import MODULE
from penstock.spark.java import kept, write_program

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
