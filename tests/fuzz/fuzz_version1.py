"""Fuzzes the packets of version 1; run by ``scripts/fuzz``."""

from __future__ import annotations

from fuzz.driver import fuzz, instrumented

if __name__ == "__main__":
    fuzz(instrumented("fuzz.version1_check"))
