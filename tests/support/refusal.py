"""An error of ours as a value, for tests that take either outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from penstock.errors import BadData

P = ParamSpec("P")
T = TypeVar("T")


def attempted(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | BadData:
    """Return what ``function`` returns, or the ``BadData`` that it raises; nothing else is caught."""
    try:
        return function(*args, **kwargs)
    except BadData as error:
        return error
