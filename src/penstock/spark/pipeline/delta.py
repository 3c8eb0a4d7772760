"""The tables of a run as Delta tables: a log of what files belong to each, beside the Parquet that is there.

Needs the extra ``delta``. Nothing is copied, and no jar is needed: the library writes the log, Spark wrote the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import needing

if TYPE_CHECKING:
    from penstock.spark.pipeline.store import Staging

PARTITIONS = ("by_source", "state", "part", "by_queue")


def write_delta(staging: Staging) -> None:
    """Make every table of a run a Delta table as well. Raises ``DependencyMissing``."""
    with needing("delta", "a Delta table"):
        from deltalake import Schema, convert_to_deltalake
    import pyarrow as pa

    for table in sorted(path for path in staging.home.iterdir() if path.is_dir()):
        first = next(iter(sorted(table.rglob("*.parquet"))))
        names = [part.split("=")[0] for part in first.relative_to(table).parts[:-1]]
        schema = pa.schema([(name, pa.string()) for name in names]) if names else None
        convert_to_deltalake(
            str(table),
            partition_by=None if schema is None else Schema.from_arrow(schema),
            partition_strategy="hive" if names else None,
            mode="ignore",
        )
