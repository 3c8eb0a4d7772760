"""The limits of a paged directory that users set, with their defaults (docs/formats/paged.md#settings)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.errors import InvalidValue
from penstock.formats.rabbitmq.messages import EMBED_BELOW
from penstock.formats.rabbitmq.segment import ENTRY_COUNT_MAX, check_entry_count
from penstock.model import INT32_MAX

JOURNAL_ENTRIES_MAX: Final = 65_536
"""Actions since the last flush of a queue: the number in RabbitMQ's document. RabbitMQ since 3.5.5 has half of it."""

FILE_SIZE_LIMIT: Final = 16 * 2**20
"""A store file that has reached this size is not appended to: RabbitMQ's default."""

FILE_SIZE_END: Final = 2**32
"""Offsets in store files have 32 bits."""

BUFFER_SIZE: Final = 256 * 2**10
"""Bytes of journal that may wait in memory to be written together."""

MEMORY_SHARE: Final = 10
"""The default budget is this part of the memory: heaps, connections and the states of paged tasks need the rest."""

MEMORY_MIN: Final = 2**16
"""Below this budget nearly every action would flush a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLimits:
    """How an index is cut up."""

    entry_count: int = ENTRY_COUNT_MAX  # sequence numbers of a segment; stored, never changed
    journal_entries_max: int = JOURNAL_ENTRIES_MAX
    embed_below: int = EMBED_BELOW  # messages with smaller bodies are in the index; 0: none is
    buffer_size: int = BUFFER_SIZE

    def __post_init__(self) -> None:
        check_entry_count(self.entry_count)
        assert self.journal_entries_max >= 0
        assert self.embed_below >= 0


def usable_memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may use: the machine's, or less if a cgroup sets a limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits(root)])


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Yield the memory limits of the process's cgroups and of those above them, versions 1 and 2."""
    mounted = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            top, name = mounted, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = mounted / "memory", "memory.limit_in_bytes"
        else:
            continue
        # A container may see its own group as the root and still be told a path outside of it.
        parts = [part for part in path.split("/") if part != ".."]
        for depth in range(len(parts) + 1):
            text = _read(top.joinpath(*parts[:depth], name)).strip()
            if text.isdecimal():  # version 2 has "max" for none
                yield int(text)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""


def default_memory() -> int:
    """Return the default of ``PagedLimits.memory``."""
    return max(MEMORY_MIN, usable_memory() // MEMORY_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedLimits:
    """What users set for a paged directory. Raises ``InvalidValue``."""

    journal_entries_max: int = JOURNAL_ENTRIES_MAX  # RabbitMQ: queue_index_max_journal_entries
    store_file_size: int = FILE_SIZE_LIMIT  # RabbitMQ: msg_store_file_size_limit
    memory: int = field(default_factory=default_memory)  # bytes for unflushed actions

    def __post_init__(self) -> None:
        _check("queue_index_max_journal_entries", self.journal_entries_max, 1, INT32_MAX)
        _check("msg_store_file_size_limit", self.store_file_size, 1, FILE_SIZE_END - 1)
        if self.memory < MEMORY_MIN:
            raise InvalidValue(f"the memory for paged queues is {MEMORY_MIN} bytes or more")


def _check(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise InvalidValue(f"{name} is {lowest} to {highest}")
