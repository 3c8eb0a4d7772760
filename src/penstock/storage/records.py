"""Where the records of one log file are, and of which term: 8 bytes an entry and a few per term."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from penstock.formats.taskflux.log import LogLayout
from penstock.model import Entry, Index, Term
from penstock.storage.files import File

STRETCH_SIZE: Final = 2**20
"""How much of a log is read at a time when all of it is wanted."""


class Stretch(NamedTuple):
    """Consecutive entries in one buffer: payload ``i`` of entry ``first + i`` is ``data[starts[i]:ends[i]]``."""

    first: int
    data: bytes
    starts: list[int]
    ends: list[int]


class Records:
    """The places of a file's whole records, in order; a record's number is its place in the file."""

    __slots__ = ("_run_starts", "_run_terms", "end", "offsets")

    def __init__(self, start: int) -> None:
        self.offsets = array("q")
        self.end = start  # where the next record goes
        self._run_starts: list[int] = []  # number of the first record of each run of one term
        self._run_terms: list[int] = []

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def last_term(self) -> int:
        return self._run_terms[-1] if self._run_terms else 0

    def extend(self, offsets: Sequence[int], terms: Sequence[int], end: int) -> None:
        """Add records that end at ``end``; terms never fall."""
        last = self.last_term
        if terms and terms[-1] != last:
            for number, term in enumerate(terms, len(self.offsets)):
                if term != last:
                    self._run_starts.append(number)
                    self._run_terms.append(term)
                    last = term
        self.offsets.extend(offsets)
        self.end = end

    def extend_term(self, offsets: Sequence[int], term: int, end: int) -> None:
        """Add records of one term, not below the last one's, that end at ``end``."""
        if term != self.last_term:
            self._run_starts.append(len(self.offsets))
            self._run_terms.append(term)
        self.offsets.extend(offsets)
        self.end = end

    def places(self, layout: LogLayout, payloads: Sequence[bytes]) -> tuple[Sequence[int], int]:
        """Return where records of these payloads will begin behind the last one, and where they end."""
        kinds = set(map(len, payloads))
        if len(kinds) == 1:
            step = layout.record_header.size + kinds.pop()
            end = self.end + step * len(payloads)
            return range(self.end, end, step), end
        sizes = map(layout.record_header.size.__add__, map(len, payloads))
        offsets = list(accumulate(sizes, initial=self.end))
        return offsets, offsets.pop()

    def term(self, number: int) -> int:
        return self._run_terms[bisect_right(self._run_starts, number) - 1]

    def limit(self, number: int) -> int:
        """Return where the record with this number ends."""
        return self.offsets[number + 1] if number + 1 < len(self.offsets) else self.end

    def cut(self, number: int) -> None:
        """Forget the records from ``number`` on."""
        if number < len(self.offsets):
            self.end = self.offsets[number]
            del self.offsets[number:]
            kept = bisect_right(self._run_starts, number - 1)
            del self._run_starts[kept:]
            del self._run_terms[kept:]

    def read(
        self, file: File, layout: LogLayout, *, base: int, start: int, stop: int, size_max: int
    ) -> list[Entry]:
        """Return the entries with numbers from ``start`` on: at least one, up to ``stop`` or ``size_max``.

        ``base`` is the index of the file's first record.
        """
        begin = self.offsets[start]
        fitting = len(self.offsets)
        if self.end > begin + size_max:
            fitting = bisect_right(self.offsets, begin + size_max, lo=start) - 1
        stop = min(stop, max(start + 1, fitting))
        data = file.read(begin, self.limit(stop - 1) - begin)
        header = layout.record_header.size
        return [
            Entry(
                index=Index(base + number),
                term=Term(self.term(number)),
                payload=data[self.offsets[number] - begin + header : self.limit(number) - begin],
            )
            for number in range(start, stop)
        ]

    def stretches(
        self, file: File, layout: LogLayout, *, base: int, start: int, stop: int
    ) -> Iterator[Stretch]:
        """Yield the payloads of records ``start`` to ``stop`` without making an object of each."""
        header = layout.record_header.size
        while start < stop:
            begin = self.offsets[start]
            end = min(stop, max(start + 1, bisect_right(self.offsets, begin + STRETCH_SIZE) - 1))
            data = file.read(begin, self.limit(end - 1) - begin)
            bounds = [offset - begin for offset in self.offsets[start:end]]
            bounds.append(len(data))
            yield Stretch(
                base + start, data, [offset + header for offset in bounds[:-1]], bounds[1:]
            )
            start = end
