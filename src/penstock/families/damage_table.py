"""Damage as rows of tables: planned where the files are found to be damaged, read like every other split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import CorruptData
from penstock.families.columns import Kind, Table, schema_of
from penstock.families.damage import Damage
from penstock.families.description import shown_path
from penstock.families.family import Split
from penstock.families.filters import Filters
from penstock.families.options import Mode, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

ROW_SIZE: Final = 1
"""What a split of a few rows counts for in a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagePlan:
    """Damage that planning met, each with its path as the rows have it."""

    found: tuple[tuple[str, Damage], ...]


def plan_damage(
    family: str, source: str, found: Iterable[Damage], options: ReadOptions, filters: Filters
) -> list[Split]:
    """Return the split of damage whose rows are wanted, or that must fail the read."""
    is_shown = options.table is Table.ENTRIES and filters.is_open
    if not is_shown and options.mode is not Mode.FAILFAST:
        return []
    shown = ((shown_path(source, each.path), each) for each in found)
    wanted = tuple(each for each in shown if filters.paths is None or each[0] in filters.paths)
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
) -> Iterator[pa.RecordBatch]:
    """Yield a row about what cannot be read, unless it is to be left out. Raises ``CorruptData``."""
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
        "payload": damage.data or None,
        "properties": None if damage.is_lost else [("harmless", "true")],
        "status": damage.status,
        "reason": damage.reason,
    }
    schema = pa.schema([schema_of(options.table).field(name) for name in columns])
    yield pa.RecordBatch.from_pylist([row], schema=schema)


def why(status: str, reason: str | None) -> str:
    """Return why a read fails."""
    return f"{status}: {reason}; mode PERMISSIVE reads on and reports it"
