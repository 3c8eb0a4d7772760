"""The directories that the tables of a pipeline are laid out by: one for each source, and in it one for each queue."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody who reads Spark code knows it

if TYPE_CHECKING:
    from pyspark.sql import Column

BY_SOURCE: Final = "by_source"
BY_QUEUE: Final = "by_queue"
QUEUE_DIRECTORY_MAX: Final = 60
"""Characters of a queue's name that fit into a directory's name of 255 bytes, however they are encoded."""
_NO_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""The directory that Spark reads as null."""


def source_directory(name: str) -> str:
    """Return the name of a source's partitions: short, readable, and no other's."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in Path(name).name)[-40:]
    return f"{safe or 'source'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def queue_directory() -> Column:
    """Return the partition value of a row's queue: its name after an underscore, or its beginning and a hash.

    A directory's name has at most 255 bytes, of which a character of a queue's name may take four once it is encoded
    or escaped. The underscore keeps Spark from reading the default queue's empty name, a number or a date as
    something else.
    """
    queue = F.col("queue")
    is_plain = (F.length(queue) <= QUEUE_DIRECTORY_MAX) & (queue != _NO_PARTITION[1:])
    readable = F.regexp_replace(F.substring(queue, 1, 40), "[^A-Za-z0-9_.-]", "_")
    hashed = F.concat(readable, F.lit("~"), F.substring(F.sha2(queue, 256), 1, 16))
    return F.concat(F.lit("_"), F.when(is_plain, queue).otherwise(hashed))
