"""How our code behaves in the Python processes that Spark plans and reads in."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from penstock.errors import PenstockError
from penstock.spark.daemon import MODULE

P = ParamSpec("P")
T = TypeVar("T")


_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""The variable by which Spark's processes decide whether an error is sent to the driver with its traceback."""


def in_a_sentence(method: Callable[P, T]) -> Callable[P, T]:
    """Let an error of ours reach the user as its sentence, without a traceback."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except PenstockError as error:
            if is_of_spark():
                # A process of Spark's exits after the error, so this hides no other traceback.
                os.environ[_HIDE_TRACEBACK] = "1"
            raise error.with_traceback(None) from None

    return call


def is_of_spark() -> bool:
    """Return whether Spark started this process to plan or to read."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith(("pyspark.", MODULE))


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
