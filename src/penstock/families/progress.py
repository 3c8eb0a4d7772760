"""How long work tells how far it has come."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


def no_progress(_size: int) -> None:
    """Show nothing."""
