"""The rows that the options of a read select.

A planner uses the filters to skip files. It may keep a file that it cannot judge, because the scanner drops every row
that the filters do not select.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.families.options import ReadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The rows wanted; ``None``: all."""

    first: int | None = None  # the lowest log index
    last: int | None = None  # the highest
    queues: frozenset[str] | None = None
    ops: frozenset[str] | None = None
    paths: frozenset[str] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no row can be wanted."""
        if self.first is not None and self.last is not None and self.first > self.last:
            return True
        return any(
            values is not None and not values for values in (self.queues, self.ops, self.paths)
        )

    @property
    def is_open(self) -> bool:
        """Whether also a row is wanted that has no index, op or queue, as damage may not."""
        wanted = (self.first, self.last, self.queues, self.ops)
        return all(values is None for values in wanted)

    def wants_indexes(self, first: int, end: int | None) -> bool:
        """Whether entries from ``first`` up to ``end`` (``None``: unknown) may hold one that is wanted."""
        if self.last is not None and first > self.last:
            return False
        return self.first is None or end is None or end > self.first


def from_options(options: ReadOptions) -> Filters:
    """Return the filters that options make."""
    return Filters(
        first=options.starting_index,
        last=options.ending_index,
        queues=options.queues,
        ops=options.ops,
        paths=options.files,
    )
