"""Figures that a test run prints at its end, so that counts are seen and not only asserted."""

from __future__ import annotations

lines: list[str] = []


def report(line: str) -> None:
    """Print ``line`` in the summary of the run."""
    lines.append(line)
