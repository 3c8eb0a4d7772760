"""How our code behaves in the Python processes that Spark plans and reads in."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from penstock.errors import PenstockError

P = ParamSpec("P")
T = TypeVar("T")


def in_a_sentence(method: Callable[P, T]) -> Callable[P, T]:
    """Let an error of ours leave without the way that it came: Spark shows all of it to the user."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return call


_TRACKED_MAX: Final = 10_000
"""Objects that may be walked through behind every task; loading numba and Arrow leaves a hundred thousand."""


def settle() -> None:
    """Take what is loaded by now out of garbage collection; called behind every read, for any may load more.

    Spark collects behind every task, and would walk each time through all that numba and Arrow keep: that can take
    longer than the read.
    """
    if len(gc.get_objects()) > _TRACKED_MAX:
        gc.collect()
        gc.freeze()
