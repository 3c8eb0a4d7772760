"""What users' tests need: a node in this process, a clock that stands still, and a disk that fails.

With pytest installed, the fixture ``penstock_node`` (``penstock.testing.plugin``) is available without an import.
docs/testing-your-code.md describes all of it. Each name is imported when it is first used: pytest imports this
package in every run of an environment that has Penstock.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.testing.clock import ManualClock
    from penstock.testing.disk import MemoryFiles
    from penstock.testing.node import InProcessNode

__all__ = ["InProcessNode", "ManualClock", "MemoryFiles"]

_HOMES: Final = {
    "InProcessNode": "penstock.testing.node",
    "ManualClock": "penstock.testing.clock",
    "MemoryFiles": "penstock.testing.disk",
}
"""Where a public name is defined."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
