"""Fuzzes the readers of generation 4; run by ``scripts/fuzz``."""

from __future__ import annotations

from fuzz.driver import fuzz, instrumented

if __name__ == "__main__":
    fuzz(instrumented("fuzz.records_check"))
