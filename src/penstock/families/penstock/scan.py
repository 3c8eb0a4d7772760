"""The log of a target, entry by entry, with the damage between them.

Every record is checked: head checksum, body checksum, chain, index; terms and times must not fall. Behind damage the scan goes on
where ``search`` finds the next entry. docs/decisions/0005 tells a torn tail, which is harmless, from damage.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

from penstock.errors import BadData, PathRefused, TruncatedData
from penstock.families.damage import Damage, Severity
from penstock.families.penstock.location import StoredFile
from penstock.families.penstock.read import History, bad_file, load, unreadable
from penstock.families.penstock.search import Lost, continues, find_entry, run_end, whole_record
from penstock.families.penstock.search import reaches_end as leads_on
from penstock.formats.records.changes import Change, Stamp, decode_change
from penstock.formats.records.footer import Footer
from penstock.formats.records.header import (
    HEADER_SIZE,
    LOCAL_KIND_MIN,
    Header,
    Kind,
    check_body,
    decode_header,
)
from penstock.formats.records.read import Chain, End, Stop, walk
from penstock.formats.records.segment import FILE_HEADER_SIZE, decode_file_header
from penstock.storage.recovery import SECTOR, TORN_PIECE, lacks_a_piece


class Entry(NamedTuple):
    """A whole record of the log. A NamedTuple, because one is built for every record that is read."""

    file: StoredFile
    data: bytes  # of the file
    offset: int
    header: Header

    @property
    def stamp(self) -> Stamp:
        header = self.header
        return Stamp(header.index, header.term, header.time_ms, header.principal_id)

    def change(self) -> Change:
        """Return what the entry says. Raises ``BadRecord``."""
        start = self.offset + HEADER_SIZE
        return decode_change(self.header, self.data, start, self.offset + self.header.size)

    def record(self) -> bytes:
        return self.data[self.offset : self.offset + self.header.size]

    def damage(self, status: str, reason: str, severity: Severity) -> Damage:
        """Return a damage at this entry."""
        return Damage(
            path=self.file.path,
            offset=self.offset,
            size=self.header.size,
            status=status,
            reason=reason,
            severity=severity,
            kind="entry",
            index=self.header.index,
        )


class Sealed(NamedTuple):
    """The footer of a segment, behind its entries."""

    file: StoredFile
    data: bytes
    offset: int
    footer: Footer


Found = Entry | Damage | Sealed


def scan(history: History, *, behind: int = 0) -> Iterator[Found]:
    """Yield what the segments of a target hold, in order. Nothing stops it but the end.

    Segments that hold no entry behind the index ``behind`` are not read.
    """
    return _Scan(history).run(behind)


def scan_segment(history: History, file: StoredFile, chain: Chain | None) -> Iterator[Found]:
    """Yield what one segment of a target holds; ``chain`` is what its first entry must continue, if that is known."""
    one = _Scan(history)
    if chain is not None:
        one.chain, one.next_index = chain, chain.index + 1
    return one.run_one(file)


class _Scan:
    def __init__(self, history: History) -> None:
        self.history = history
        self.chain: Chain | None = None
        self.next_index: int | None = None  # None: whatever the first record says
        self.term = 0
        self.time_ms = 0
        self.data = b""

    def run(self, behind: int) -> Iterator[Found]:
        for file in self.history.target.segments:
            following = self._following(file)
            if following is not None and following <= behind + 1:
                self.history.progress(file.size)
                continue
            yield from self.run_one(file)

    def _following(self, file: StoredFile) -> int | None:
        """Return the first index of the segment behind one."""
        segments = self.history.target.segments
        place = segments.index(file)
        return segments[place + 1].number if place + 1 < len(segments) else None

    def run_one(self, file: StoredFile) -> Iterator[Found]:
        try:
            self.data = load(file, self.history.progress)
        except BadData as error:
            yield bad_file(file.path, error, "bad-segment", Severity.LOST, "log")
            self.chain = None
        except (OSError, PathRefused) as error:
            yield unreadable(file.path, error)
            self.chain = None
        else:
            is_last = file is self.history.target.segments[-1]
            yield from self._segment(file, self._following(file), is_last=is_last)

    # One segment.

    def _segment(
        self, file: StoredFile, following: int | None, *, is_last: bool
    ) -> Iterator[Found]:
        yield from self._begin(file)
        offset: int | None = FILE_HEADER_SIZE
        while offset is not None and offset < len(self.data):
            end = yield from self._entries(file, offset)
            if end.stop is not Stop.DAMAGE:
                if end.footer is not None:
                    yield Sealed(file, self.data, end.position, end.footer)
                return
            offset = yield from self._broken(file, end, following, is_last=is_last)

    def _begin(self, file: StoredFile) -> Iterator[Damage]:
        """Check the header of a segment, and whether its first index is the next one."""
        first = file.number
        try:
            header = decode_file_header(self.data)
        except BadData as error:
            severity = Severity.HARMLESS if self._is_fresh() else Severity.DAMAGED
            yield bad_file(file.path, error, "bad-header", severity, "log")
        else:
            yield from self._check_header(file, header.first_index, header.cluster_id)
            first = header.first_index if first is None else first
        if first is None:
            self.chain, self.next_index = None, None
            return
        if self.next_index is None:
            self.chain, self.next_index = self.history.chain_before(first), first
        elif first != self.next_index:
            yield self._misfit(file, self.next_index, first)
            self.chain, self.next_index = self.history.chain_before(first), first

    def _is_fresh(self) -> bool:
        """Return whether a segment may have been torn while it was made: nothing in it was promised."""
        is_new = self.next_index is None or self.next_index > self.history.promised
        return is_new and not self.data.strip(b"\x00")

    def _check_header(self, file: StoredFile, first: int, cluster_id: bytes) -> Iterator[Damage]:
        if file.number not in (None, first):
            reason = f"the file header says that the first entry is {first}"
            yield _damage(file, 16, "disagreement", reason, Severity.DAMAGED)
        identity = self.history.identity
        known = None if identity is None else identity.cluster_id
        if known is not None and known != cluster_id:
            reason = "the segment is of another cluster than the directory"
            details = {"expected": known.hex(), "found": cluster_id.hex()}
            yield _damage(file, 24, "disagreement", reason, Severity.DAMAGED, details=details)

    def _misfit(self, file: StoredFile, expected: int, first: int) -> Damage:
        if first > expected:
            reason = f"entries {expected} to {first - 1} are missing in front of this segment"
            return _damage(file, 0, "missing", reason, Severity.LOST, index=expected)
        reason = f"entries {first} to {expected - 1} are also in the segment before"
        return _damage(file, 0, "overlap", reason, Severity.DAMAGED, index=first)

    def _entries(self, file: StoredFile, offset: int) -> Generator[Found, None, End]:
        """Yield the entries that continue each other; return what ends them."""
        records = walk(self.data, offset=offset, chain=self.chain)
        while True:
            try:
                at, header = next(records)
            except StopIteration as done:
                end: End = done.value
                return end
            if self.next_index not in (None, header.index):  # only without a chain
                error = _out_of_order(at, header, self.next_index)
                return End(at, Stop.DAMAGE, None, error)
            entry = Entry(file, self.data, at, header)
            if header.term < self.term or header.time_ms < self.time_ms:
                yield from self._falling(entry)
            self.term, self.time_ms = header.term, header.time_ms
            self.chain, self.next_index = Chain(header.checksum, header.index), header.index + 1
            yield entry

    def _falling(self, entry: Entry) -> Iterator[Damage]:
        header = entry.header
        if header.term < self.term:
            reason = f"term {header.term} behind term {self.term}"
            yield entry.damage("falling-term", reason, Severity.DAMAGED)
        if header.time_ms < self.time_ms:
            reason = f"time {header.time_ms} behind time {self.time_ms}"
            yield entry.damage("falling-time", reason, Severity.DAMAGED)

    # Where a record does not continue the one before, or is none.

    def _broken(
        self, file: StoredFile, end: End, following: int | None, *, is_last: bool
    ) -> Generator[Found, None, int | None]:
        """Yield the damage at the end of a walk; return where the next entry begins, or None for the end of the segment."""
        at = end.position
        header = whole_record(self.data, at)
        if header is not None and header.kind < LOCAL_KIND_MIN:
            return (yield from self._unchained(file, at, header))
        is_footer = header is not None and header.kind == Kind.FOOTER
        if is_footer or (following is not None and following == self.next_index):
            yield self._of_error(file, end, "bad-footer", Severity.DAMAGED, len(self.data) - at)
            return None
        return (yield from self._not_whole(file, end, is_last=is_last))

    def _unchained(
        self, file: StoredFile, at: int, header: Header
    ) -> Generator[Found, None, int | None]:
        """Go on at a whole record that does not continue the one before: it is out of place, or others are missing."""
        wanted = self.next_index or 0
        is_stale = header.index < wanted or continues(self.data, at + header.size, self.chain)
        if is_stale or not leads_on(self.data, run_end(self.data, at)):
            reason = f"a record of entry {header.index} that does not belong here"
            found = f"{header.previous:08X}, index {header.index}"
            yield self._chain_damage(file, at, header.size, "bad-chain", reason, found)
            return at + header.size
        if header.index > wanted:
            reason, status = f"entries {wanted} to {header.index - 1} are missing", "missing"
        else:
            reason, status = "the entry does not continue the one before it", "bad-chain"
        yield self._chain_damage(file, at, None, status, reason, f"{header.previous:08X}")
        self.chain, self.next_index = None, header.index
        return at

    def _chain_damage(
        self, file: StoredFile, at: int, size: int | None, status: str, reason: str, found: str
    ) -> Damage:
        expected = "" if self.chain is None else f"{self.chain.checksum:08X}"
        details = {"expected": expected, "found": found}
        return _damage(
            file, at, status, reason, Severity.LOST, size=size, index=self.next_index, details=details
        )  # fmt: skip

    def _not_whole(
        self, file: StoredFile, end: End, *, is_last: bool
    ) -> Generator[Found, None, int | None]:
        at, data = end.position, self.data
        header = _header_at(data, at)
        start = at + 8 if header is None else at + header.size
        lost = Lost(at, self.next_index or 0)
        resumed = find_entry(data, lost, start) if start < len(data) else None
        status = _status(data, at, end, header)
        if is_last and lost.next_index > self.history.promised and self._is_torn(at, resumed):
            is_sure = self.history.synced is not None
            severity = Severity.HARMLESS if is_sure else Severity.LOST
            size = len(data.rstrip(b"\x00")) - at
            yield self._of_error(file, end, "torn" if status != "zeros" else "leftover", severity, size)  # fmt: skip
            return None
        size = (len(data.rstrip(b"\x00")) if resumed is None else resumed) - at
        yield self._of_error(file, end, status, Severity.LOST, size)
        self.chain = None
        if resumed is not None:
            self.next_index = decode_header(data, resumed).index
        return resumed

    def _is_torn(self, at: int, resumed: int | None) -> bool:
        """Return whether damage behind the sync point is what a crash leaves, by the table of decision 0005."""
        data = self.data
        if resumed is None or not data[at : at + 4].strip(b"\x00"):
            return True
        piece = SECTOR if self.history.synced is None else TORN_PIECE
        return lacks_a_piece(lambda start, size: data[start : start + size], at, resumed, piece)

    def _of_error(
        self, file: StoredFile, end: End, status: str, severity: Severity, size: int
    ) -> Damage:
        error = end.damage
        assert error is not None, "a walk that ends with damage has it"
        details = {"expected": error.expected, "found": error.found}
        return _damage(
            file,
            end.position,
            status,
            error.reason,
            severity,
            size=size,
            index=self.next_index,
            details={name: value for name, value in details.items() if value is not None},
        )


def _header_at(data: bytes, offset: int) -> Header | None:
    """Return the header at a place whose body may be damaged."""
    try:
        return decode_header(data, offset)
    except BadData:
        return None


def _status(data: bytes, at: int, end: End, header: Header | None) -> str:
    if isinstance(end.damage, TruncatedData):
        return "torn"
    if header is not None:
        try:
            check_body(data, at, header)
        except TruncatedData:
            return "torn"
        except BadData:
            return "bad-checksum"
        return "bad-record"
    return "bad-record" if data[at : at + 4].strip(b"\x00") else "zeros"


def _out_of_order(at: int, header: Header, expected: int | None) -> BadData:
    return BadData(
        "the index of the record does not follow",
        offset=at + 16,
        expected=str(expected),
        found=str(header.index),
    )


def _damage(
    file: StoredFile, offset: int, status: str, reason: str, severity: Severity, **fields: Any
) -> Damage:
    return Damage(
        path=file.path, offset=offset, status=status, reason=reason, severity=severity, **fields
    )
