"""Variants of TaskFlux's files as whole directories: which layouts stand side by side (docs/formats/README.md)."""

from __future__ import annotations

from enum import Enum
from typing import Final

from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import LogLayout
from penstock.formats.taskflux.metadata import MetadataLayout
from penstock.formats.taskflux.snapshot import SnapshotLayout


class Variant(Enum):
    """A variant: its name, and the layouts of log, metadata and snapshot.

    ``ONE`` and ``TWO`` are read from the two documents; programs wrote the others.
    """

    ONE = ("1", LogLayout.ONE_B, MetadataLayout.ONE_FLAG, SnapshotLayout.ONE_COUNTED)
    ONE_A = ("1a", LogLayout.ONE_A, MetadataLayout.ONE_A, SnapshotLayout.ONE_A)
    ONE_B = ("1b", LogLayout.ONE_B, MetadataLayout.ONE_B, SnapshotLayout.ONE_B)
    ONE_C = ("1c", LogLayout.ONE_C, MetadataLayout.ONE_B, SnapshotLayout.ONE_C)
    TWO = ("2", LogLayout.TWO, MetadataLayout.TWO_SEED, SnapshotLayout.TWO_SEED)
    TWO_CODE = ("2-code", LogLayout.TWO, MetadataLayout.TWO_CODE, SnapshotLayout.TWO_CODE)
    TWO_MIXED = ("2-mixed", LogLayout.TWO, MetadataLayout.ONE_B, SnapshotLayout.ONE_C)
    THREE = ("3", LogLayout.THREE, MetadataLayout.THREE, SnapshotLayout.THREE)

    def __init__(
        self, word: str, log: LogLayout, metadata: MetadataLayout, snapshot: SnapshotLayout
    ) -> None:
        self.word = word
        self.log = log
        self.metadata = metadata
        self.snapshot = snapshot
        self.generation = log.generation


WRITTEN: Final = {
    Generation.ONE: Variant.ONE,
    Generation.TWO: Variant.TWO,
    Generation.THREE: Variant.THREE,
}
"""What a new directory of a generation gets; docs/decisions/0003 says why generation 1 gets its 17-byte metadata."""

VARIANTS: Final = {
    f"taskflux-{variant.word}": variant for variant in Variant if variant is not Variant.TWO_MIXED
}
"""The variants that a conversion writes, by the names that people type."""
