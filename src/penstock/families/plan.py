"""The splits of a read: which paths it names, how families cut their files, how small splits share a task."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from penstock.errors import CorruptData, PathMissing, PathRefused
from penstock.families.damage import Damage
from penstock.families.family import Split
from penstock.families.options import Operation
from penstock.families.payloads import stored_columns, with_payload_columns
from penstock.families.registry import families, open_files
from penstock.families.tables import (
    PAYLOAD_JSON,
    PAYLOAD_TEXT,
    Kind,
    Mode,
    ReadOptions,
    Table,
    schema_of,
    shown_path,
)
from penstock.storage.files import opened

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_MAX: Final = 10_000
"""Pieces that one task reads at most, however small: its list of them travels with it."""


def plan(options: ReadOptions) -> list[list[Split]]:
    """Return the splits that make up a read, grouped into tasks. Raises ``PenstockError``."""
    splits: list[Split] = []
    for path in () if options.filters.is_empty else expand(options.paths):
        try:
            splits += open_files(path, Operation.TABLES, options.own).plan(options)
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


def read_splits(
    splits: Sequence[Split], options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some splits, one after the other."""
    known = families()
    is_made = not {PAYLOAD_TEXT, PAYLOAD_JSON}.isdisjoint(columns)
    stored = stored_columns(columns) if is_made else columns
    for split in splits:
        try:
            batches = known[split.family].read(split, options, stored)
            yield from with_payload_columns(batches, columns) if is_made else batches
        except OSError as error:  # a node may have removed a file since the read was planned
            raise refusal(Path(split.source), error) from None


ROW_SIZE: Final = 1
"""What a split of a few rows counts for in a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagePlan:
    """Damage that planning met, each with its path as the rows have it."""

    found: tuple[tuple[str, Damage], ...]


def plan_damage(
    family: str, source: str, found: Iterable[Damage], options: ReadOptions
) -> list[Split]:
    """Return the split of damage whose rows are wanted, or that must fail the read."""
    is_shown = options.table is Table.ENTRIES and options.filters.is_open
    if not is_shown and options.mode is not Mode.FAILFAST:
        return []
    shown = ((shown_path(source, each.path), each) for each in found)
    wanted = tuple(each for each in shown if options.filters.wants_path(each[0]))
    plan = DamagePlan(found=wanted)
    return [Split(family=family, source=source, size=ROW_SIZE, plan=plan)] if wanted else []


def read_damage(
    split: Split, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of planned damage."""
    for shown, damage in split.plan.found:
        yield from damage_rows(split.family, split.source, shown, damage, options, columns)


def damage_rows(
    family: str,
    source: str,
    shown: str,
    damage: Damage,
    options: ReadOptions,
    columns: Sequence[str],
    *,
    log_index: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a row about what cannot be read, unless it is to be left out. Raises ``CorruptData``.

    ``log_index`` is that of the entry that should be there, of a log whose reader knows it.
    """
    import pyarrow as pa

    if options.mode is Mode.FAILFAST and damage.is_lost:
        raise CorruptData(
            why(damage.status, damage.reason), path=str(damage.path), offset=damage.offset
        )
    if options.mode is Mode.DROPMALFORMED or options.table is not Table.ENTRIES:
        return
    row = {
        "source": source,
        "family": family,
        "kind": Kind.DAMAGE,
        "path": shown,
        "offset": damage.offset,
        "size": damage.size,
        "log_index": log_index,
        "payload": damage.data or None,
        "status": damage.status,
        "reason": damage.reason,
        "severity": damage.severity,
    }
    schema = pa.schema([schema_of(options.table).field(name) for name in columns])
    yield pa.RecordBatch.from_pylist([row], schema=schema)


def why(status: str, reason: str | None) -> str:
    """Return why a read fails."""
    return f"{status}: {reason}; mode PERMISSIVE reads on and reports it"
