"""Our files and live nodes as Spark tables (docs/spark.md). Needs the extra ``spark``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import needing

if TYPE_CHECKING:
    from penstock.spark.beats.variant import with_event as with_event
    from penstock.spark.sessions import session as session
    from penstock.spark.source import register as register

__all__ = ["register", "session", "with_event"]


def __getattr__(name: str) -> object:
    # What needs Spark loads when it is first asked for: options and columns are checked without it.
    if name in __all__:
        with needing("spark", f"penstock.spark.{name}"):
            import pyspark.sql.datasource  # noqa: F401 - which needs pyarrow and pandas, too
    if name == "register":
        from penstock.spark.source import register

        return register
    if name == "session":
        from penstock.spark.sessions import session

        return session
    if name == "with_event":
        from penstock.spark.beats.variant import with_event

        return with_event
    raise AttributeError(name)
