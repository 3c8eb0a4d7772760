"""Runs one check under atheris: coverage of our own code guides what is tried next.

Atheris is no dependency of the project: ``scripts/fuzz`` installs it where this runs, and nothing here
imports it before that.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Check = Callable[[bytes], None]
Mutator = Callable[[bytes, int, int], bytes]


def load_atheris() -> Any:
    """Return the module; it has no stubs."""
    return importlib.import_module("atheris")


def instrumented(module: str) -> Any:
    """Import a module of checks, and with it the protocol, so that atheris sees every branch taken."""
    with load_atheris().instrument_imports(include=["penstock"]):
        return importlib.import_module(module)


def fuzz(checks: Any, mutator: Mutator | None = None) -> None:
    """Fuzz ``checks.check`` from ``checks.SEEDS``; the first argument is the corpus, the rest libFuzzer's.

    Never returns: libFuzzer ends the process, with a status other than 0 after a failure.
    """
    corpus = Path(sys.argv[1])
    for number, seed in enumerate(checks.SEEDS):
        (corpus / f"seed-{number:03}").write_bytes(seed)
    atheris = load_atheris()
    if mutator is None:
        atheris.Setup(sys.argv, checks.check)
    else:
        atheris.Setup(sys.argv, checks.check, custom_mutator=mutator)
    atheris.Fuzz()
