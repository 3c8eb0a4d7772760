"""Damage: what a reader cannot trust, with its place and its severity; the same for every family.

Readers report damage and go on; they do not raise it. docs/formats/damage.md is the contract: which rows each command
prints, and which severities set its exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from penstock.errors import PathRefused
from penstock.families.family import Row, encode_payload


class Severity(StrEnum):
    """What damage costs."""

    LOST = "lost"
    """A task, message, event or entry, or a part of one, is missing or cannot be read."""
    DAMAGED = "damaged"
    """The files are not as a program leaves them. Nothing is known to be missing."""
    HARMLESS = "harmless"
    """A crash or normal operation leaves this. Nothing is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One damaged place of a file."""

    path: Path
    offset: int | None = None  # None: the whole file, or a place that the family does not know
    size: int | None = None
    status: str
    reason: str
    severity: Severity
    kind: str = "damage"  # the kind of its row
    segment: int | None = None  # the number of the segment that it is in
    index: int | None = None  # entries, or frames of the segment, before it
    sequence: int | None = None  # the number of the message in its queue
    data: bytes = b""  # the first of its bytes
    details: Mapping[str, Any] = field(default_factory=dict)  # further fields of its row

    @property
    def is_lost(self) -> bool:
        return self.severity is Severity.LOST

    @property
    def is_harmless(self) -> bool:
        return self.severity is Severity.HARMLESS

    @property
    def words(self) -> str:
        """The damage in one line for people."""
        where = f"{self.path}" if self.offset is None else f"{self.path}, offset {self.offset}"
        size = "" if self.size is None else f", {self.size} bytes"
        return f"{where}{size}: {self.reason}"


Report = Callable[[Damage], None]
"""Called by a reader with each damage that it finds."""


def ignore(damage: Damage) -> None:
    """Report nothing: damage in a store matters to some readers only if a message is missing."""
    del damage


def words_of(error: OSError | PathRefused) -> str:
    """Return why a file cannot be read, without its path, which a damage has already."""
    return str((error.strerror if isinstance(error, OSError) else None) or error)


def place_row(
    family: str, path: Path, kind: str, offset: int | None, size: int | None, status: str
) -> Row:
    """Return the names that every row about a place has, in their order."""
    return {
        "family": family,
        "kind": kind,
        "path": str(path),
        "offset": offset,
        "size": size,
        "status": status,
    }


def damage_row(family: str, damage: Damage) -> Row:
    """Return the row of a damage."""
    row = place_row(
        family, damage.path, damage.kind, damage.offset, damage.size, damage.status
    ) | fault_fields(damage.reason, damage.severity)
    if damage.segment is not None:
        row |= {"segment": damage.segment, "index": damage.index}
    elif damage.index is not None:
        row["index"] = damage.index
    if damage.sequence is not None:
        row["seq"] = damage.sequence
    row |= damage.details
    return row | {"payload": encode_payload(damage.data)} if damage.data else row


def fault_fields(reason: str, severity: Severity) -> Row:
    """Return the names that a row about a place has if its status is not ``ok``."""
    return {"reason": reason, "severity": str(severity)}


def is_damage(row: Row) -> bool:
    """Return whether a row sets the exit code of the commands that print damage."""
    return row.get("severity") in (Severity.LOST, Severity.DAMAGED)


@dataclass(slots=True)
class DamageCount:
    """How many rows of damage a command has printed."""

    damaged: int = 0  # lost or damaged
    harmless: int = 0

    def add(self, row: Row) -> None:
        """Count a row; one without a severity is not counted."""
        self.damaged += is_damage(row)
        self.harmless += row.get("severity") == Severity.HARMLESS

    @property
    def words(self) -> str:
        """The counts for people."""
        damaged = f"{self.damaged} damaged places"
        return f"{damaged}, {self.harmless} harmless ones" if self.harmless else damaged
