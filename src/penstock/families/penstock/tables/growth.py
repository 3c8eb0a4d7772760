"""A log of generation 4 that may grow while it is read: how far it can be relied on, and where its entries are.

``GrowingLog`` lives on the driver and looks at the files again whenever it is asked. It goes no further than the commit floor:
another leader may replace what is behind it. Where the files do not say, whole entries count.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from penstock.errors import Compacted, CorruptData, PathRefused
from penstock.families.family import Split
from penstock.families.penstock.family import NAME as FAMILY
from penstock.families.penstock.location import resolve
from penstock.families.penstock.read import survey
from penstock.families.penstock.tables.plan import RecordsPlan, Segment, survey_segments
from penstock.families.penstock.tables.records import Batch, read_records
from penstock.families.plan import refusal
from penstock.families.tables import Filters, shown_path
from penstock.formats.records.footer import Mark
from penstock.formats.records.read import Chain
from penstock.formats.records.segment import FILE_HEADER_SIZE


class Place(NamedTuple):
    """Where an entry is: the file, what it continues, its term, and where it ends."""

    path: Path
    offset: int
    previous: Chain
    term: int
    end: int
    checksum: int


class GrowingLog:
    """The log of one directory, or a part of it."""

    def __init__(self, path: Path) -> None:
        """Find the files. Raises ``PathRefused``."""
        self._path = path.absolute()
        target = resolve(self._path)
        if target.kind in ("snapshots", "snapshot"):
            raise PathRefused(
                f"{path}: a stream is of a log, not of {target.kind}; name the node's directory"
            )
        self._history = survey(target)
        self._places: dict[int, Place] = {}  # the last entries that were looked for

    @property
    def name(self) -> str:
        return str(self._path)

    def look(self) -> tuple[int, int]:
        """Look at the files. Return the first index that they have, and the last that will not change any more."""
        try:
            self._history = survey(resolve(self._path))
        except OSError as error:
            raise refusal(self._path, error) from None
        segments = self._history.target.segments
        if not segments:
            return 1, 0
        first = segments[0].number or 1
        floor = self._history.commit_floor if self._history.synced is not None else None
        return first, max(first - 1, self._last_whole() if floor is None else floor)

    def term(self, index: int) -> int:
        """Return an entry's term. Raises ``CorruptData`` if damage hides it, ``Compacted`` if it is gone."""
        return self._find(index).term

    def close(self) -> None:
        self._places.clear()

    def plan(self, first: int, last: int) -> list[Split]:
        """Return the entries from ``first`` to ``last``, by file: the same splits for the same two, always."""
        splits: list[Split] = []
        filters = Filters(first=first, last=last)
        for segment in survey_segments(self._history, filters, self.name):
            number = segment.file.number or 1
            low = max(first, number)
            begin = self._find(low)
            high = min(last, self._last_of(segment, last))
            plan = RecordsPlan(
                path=str(segment.file.path),
                shown=shown_path(self.name, segment.file.path),
                start=begin.offset,
                stop=self._find(high).end,
                checksum=begin.previous.checksum,
                index=begin.previous.index,
                names=segment.names,
                first=low,
                last=high,
            )
            splits.append(Split(family=FAMILY, source=self.name, size=1, plan=plan))
        return splits

    def _last_of(self, segment: Segment, last: int) -> int:
        """Return the last index of a segment, or ``last`` if it is the newest one."""
        segments = self._history.target.segments
        following = segments[segments.index(segment.file) + 1 :]
        number = following[0].number if following else None
        return last if number is None else number - 1

    # Looking for entries.

    def _find(self, index: int) -> Place:
        """Return where an entry is: looked for from the nearest mark, or from the entry that was found before it."""
        if index in self._places:
            return self._places[index]
        for segment in survey_segments(self._history, Filters(first=index, last=index), self.name):
            for batch in read_records(_from_mark(segment, self.name, index), self.name):
                if not isinstance(batch, Batch) or index > batch.records.index[-1]:
                    continue
                place = _place(segment.file.path, batch, index)
                if len(self._places) > 16:
                    self._places.clear()
                self._places[index] = place
                return place
        first = self._history.target.segments[0].number if self._history.target.segments else None
        if first is None or index < first:
            raise Compacted(f"{self.name}: entry {index} is not in the log any more")
        raise CorruptData(
            f"entry {index} is not where the log must have it: the file is damaged, or not the one it was;"
            " see 'penstock verify'",
            path=self.name,
        )

    def _last_whole(self) -> int:
        last = 0
        segments = list(survey_segments(self._history, Filters(), self.name))
        for segment in segments[-1:]:
            last = (segment.file.number or 1) - 1
            for batch in read_records(_from_mark(segment, self.name, 2**62), self.name):
                if not isinstance(batch, Batch):
                    break
                last = int(batch.records.index[-1])
        return last


def _from_mark(segment: Segment, source: str, index: int) -> RecordsPlan:
    """Return a plan that begins at or before an entry."""
    marks = [] if segment.footer is None else [m for m in segment.footer.marks if m.index <= index]
    mark = marks[-1] if marks else Mark(FILE_HEADER_SIZE, segment.file.number or 1, 0)
    chain = Chain(mark.previous, mark.index - 1)
    if mark.offset == FILE_HEADER_SIZE:
        chain = segment.chain or Chain(None, mark.index - 1)
    return RecordsPlan(
        path=str(segment.file.path),
        shown=shown_path(source, segment.file.path),
        start=mark.offset,
        stop=None if segment.footer is None else segment.end,
        checksum=chain.checksum,
        index=chain.index,
        names=(),
    )


def _place(path: Path, batch: Batch, index: int) -> Place:
    records = batch.records
    row = index - int(records.index[0])
    offset = int(records.offset[row])
    previous = int.from_bytes(batch.data[offset + 44 : offset + 48].tobytes(), "little")
    return Place(
        path=path,
        offset=batch.base + offset,
        previous=Chain(previous, index - 1),
        term=int(records.term[row]),
        end=batch.base + offset + int(records.size[row]),
        checksum=int(records.checksum[row]),
    )
