"""How our code behaves in the Python processes that Spark plans and reads in."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

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


@cache
def settle() -> None:
    """Take what is loaded by now out of garbage collection, once in a process; called behind its first read.

    Spark collects behind every task, and walks each time through all that numba and Arrow keep: a fifth of a read.
    """
    gc.collect()
    gc.freeze()
