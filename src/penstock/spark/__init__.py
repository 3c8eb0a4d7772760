"""Files and live nodes as Spark tables (docs/spark.md). Needs the extra ``spark``.

Every name is imported when it is first used: options and columns are checked without Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import needing

if TYPE_CHECKING:
    from penstock.spark.events import with_event
    from penstock.spark.java import Java
    from penstock.spark.sessions import session
    from penstock.spark.source import register

__all__ = ["Java", "register", "session", "with_event"]

_HOMES: Final = {
    "Java": "penstock.spark.java",
    "register": "penstock.spark.source",
    "session": "penstock.spark.sessions",
    "with_event": "penstock.spark.events",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "Java":
        with needing("spark", f"penstock.spark.{name}"):
            import pyspark.sql.datasource  # noqa: F401 - which needs pyarrow and pandas, too
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
