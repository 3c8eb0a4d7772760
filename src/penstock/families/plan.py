"""The families of files that tables are made of: what each has to offer, and which one a path belongs to.

A family is a package here: how its files are cut into splits (on the driver, by names, sizes and headers alone),
and how a split is read into columns (on an executor). Nothing else of the source knows a family by name.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote

from penstock.errors import PathMissing, PathRefused, PenstockError, UnknownFormat
from penstock.families.description import Source
from penstock.families.filters import Filters
from penstock.families.follow import Follower
from penstock.families.options import ReadOptions
from penstock.families.taskflux.location import opened

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_MAX: Final = 10_000
"""Pieces that one task reads at most, however small: its list of them travels with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Part of a source that is read by one call. ``plan`` is its family's own, and can be pickled."""

    family: str
    source: str
    size: int  # bytes, by which small splits are grouped and a job is balanced
    plan: Any


class Family(Protocol):
    """What a family has to offer."""

    name: str

    def recognise(self, path: Path) -> Any | None:
        """Return what stands at a path, or ``None`` if it is nothing of this family.

        Raises ``PenstockError`` for what is of this family and cannot be read at all.
        """
        ...

    def describe(self, source: str, found: Any, *, uncommitted: bool) -> Source:
        """Return what a pipeline needs to know before it reads."""
        ...

    def plan(self, source: str, found: Any, options: ReadOptions, filters: Filters) -> list[Split]:
        """Cut what was found into splits; what the filters rule out is left out."""
        ...

    def read(
        self, split: Split, options: ReadOptions, filters: Filters, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield a split's rows, these columns of them."""
        ...

    def follow(self, path: Path, options: ReadOptions) -> Follower:
        """Return what a stream of a path follows. Raises ``PenstockError`` for what has no order, or cannot be asked."""
        ...


def families() -> dict[str, Family]:
    """Return the families by name."""
    from penstock.families.beats.family import Beats
    from penstock.families.rabbitmq.family import RabbitMQ
    from penstock.families.taskflux.family import TaskFlux

    # Brokers' files and spools are known by their names; TaskFlux's family says what is wrong with all that nobody
    # knows.
    known: tuple[Family, ...] = (RabbitMQ(), Beats(), TaskFlux())
    return {family.name: family for family in known}


def plan(options: ReadOptions, filters: Filters) -> list[list[Split]]:
    """Return the splits that make up a read, grouped into tasks. Raises ``PenstockError``."""
    splits: list[Split] = []
    for path in expand(options.paths):
        try:
            family, found = find(path)
            splits += family.plan(str(path), found, options, filters)
        except OSError as error:
            raise refusal(path, error) from None
    return group(splits, options.split_size)


def expand(patterns: Sequence[str]) -> list[Path]:
    """Return the paths that patterns stand for, each once. Raises ``PathMissing`` for one without any."""
    found: dict[str, Path] = {}
    for pattern in patterns:
        matches = _matches(pattern)
        if not matches:
            raise PathMissing(f"{pattern}: no such file or directory; check the path")
        for match in matches:
            # The same place under two names would be read twice.
            found.setdefault(os.path.realpath(match), Path(match).absolute())
    return list(found.values())


def _matches(pattern: str) -> list[str]:
    """Return what a path or pattern stands for; a name with the signs of a pattern in it goes first."""
    for local in _local(pattern):
        matches = [local] if os.path.lexists(local) else sorted(glob.glob(local))
        if matches:
            return matches
    return []


def _local(pattern: str) -> list[str]:
    """Return the local paths that a pattern may mean. Raises ``PathRefused`` for one on another machine."""
    scheme, separator, rest = pattern.partition(":")
    if not separator or not _SCHEME.fullmatch(scheme) or os.path.lexists(pattern):
        return [pattern]
    if scheme.lower() != "file" or (rest.startswith("//") and not rest.startswith("///")):
        if not rest.startswith("/"):
            return [pattern]  # a name with a colon in it
        raise PathRefused(f"{pattern}: only local paths are read; mount or copy it first")
    path = rest.removeprefix("//")
    return [path, unquote(path)]  # Spark takes such a path as it stands, everybody else decodes it


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


def refusal(path: Path, error: OSError) -> PathRefused:
    """Return what the system said about a source, as a sentence."""
    name = error.filename if isinstance(error.filename, str) else path
    return PathRefused(f"{name}: {error.strerror or error}; check that it is there and readable")


def find(path: Path) -> tuple[Family, Any]:
    """Return the family that a path belongs to, and what it found there."""
    problem: PenstockError | None = None
    for family in families().values():
        try:
            found = family.recognise(path)
        except (PathRefused, UnknownFormat) as error:
            problem = error
            continue
        if found is not None:
            return family, found
    raise problem or PathRefused(
        f"{path}: nothing that Penstock knows; name a directory of its files"
    )


def edges(path: Path, start: int, end: int, split_size: int) -> Iterator[int]:
    """Yield where the splits of a file begin, but for those that would begin in a hole and hold nothing else.

    What a file was given in advance would be many tasks that find nothing. The split before takes it over, so
    that no byte is left out whatever the file system says; zeros that were written are no hole, and are cut as data.
    """
    edge = start
    yield edge
    with opened(path) as file:
        while (edge := edge + split_size) < end:
            data = file.next_data(edge)
            if data is None or data >= end:
                return
            edge += (data - edge) // split_size * split_size
            yield edge


def group(splits: Sequence[Split], size_max: int) -> list[list[Split]]:
    """Put small splits together, in order, into groups of about one size."""
    groups: list[list[Split]] = []
    size = 0
    for split in splits:
        if not groups or size + split.size > size_max or len(groups[-1]) >= GROUP_MAX:
            groups.append([])
            size = 0
        groups[-1].append(split)
        size += split.size
    return groups
