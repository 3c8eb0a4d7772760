"""What the page says of its own making, beside the tables: which sources were read, when, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """One source: a directory or file that was loaded."""

    source: str
    family: str = ""
    generation: str = ""  # in words, as ``penstock inspect`` has them
    first_index: int | None = None  # of the log; None if it holds no entry
    last_index: int | None = None
    entries: int = 0
    size: int = 0  # bytes of its files

    def __post_init__(self) -> None:
        assert self.entries >= 0
        assert self.size >= 0

    @property
    def reach(self) -> str:
        """From where to where the log goes, in words; nothing if it holds no entry."""
        if self.first_index is None or self.last_index is None:
            return ""
        return f"{self.first_index} … {self.last_index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the head and the foot of the page say."""

    title: str
    made_at: datetime | None  # None where two runs over the same files must give the same page
    sources: tuple[SourceFacts, ...]  # the page keeps this order
    seconds: float | None  # that reading took
    version: str

    def __post_init__(self) -> None:
        assert self.made_at is None or self.made_at.tzinfo is not None, "a time without a zone"
