"""Judging the end of a log after a crash: a torn tail is cut and said, damage stops the start.

The difference is what was promised. Entries up to the commit index in the file, and up to the sync point
beside it, were on the disk; one of them that is not whole now is damage. Behind them a crash may
have left anything that was being written: docs/decisions/0005 gives the reasons for each verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.binary import hexadecimal
from penstock.errors import CorruptData
from penstock.formats.taskflux.log import RECORD_MARKER, LogLayout, Status
from penstock.storage.files import File
from penstock.storage.log import SyncPointFile, foreign_write
from penstock.storage.log_end import Behind, EndRule, end_of_data, find_record_in_file, read_data
from penstock.storage.reading import Walked

SECTOR: Final = 512
"""The unit in which a disk keeps or loses what was not synced."""

TORN_PIECE: Final = 64
"""A sector that was torn itself lacks at least so much of its end, or was cleared by at least so much."""

_ADVICE: Final = "nothing was changed: restore the file, or salvage with 'penstock repair'"


REWRITE_SIZE: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A torn tail: what recovery removes, and says that it did."""

    path: Path
    offset: int
    size: int
    reason: str
    # Whole records behind the end marker of a log of TaskFlux: stale, or hidden by a marker that was zeroed.
    is_undecided: bool = False

    def __str__(self) -> str:
        return f"{self.path}, offset {self.offset}: cut {self.size} bytes of a torn tail ({self.reason})"


def judge_tail(
    file: File,
    path: Path,
    layout: LogLayout,
    walked: Walked,
    *,
    first: int,
    sure: int,
    is_ours: bool,
    term: int,
) -> Cut | None:
    """Decide what stands where a walk ended: nothing, a torn tail, or damage, which raises ``CorruptData``.

    ``first`` is the index of the file's first record, ``sure`` the last index that was surely synced. ``is_ours``: a
    sync point was kept from the beginning, so that all but the last seconds is sure. ``term`` is that of the last entry
    before the file, or of the snapshot.
    """
    position, size = walked.records.end, file.size()
    index = first + len(walked.records)
    reason = "the log ends here" if walked.stop is None else walked.stop.word
    if index <= sure:
        raise _damage(file, path, position, f"entry {index} was synced but is not whole ({reason})")
    if not layout.is_marked and walked.stop not in (None, Status.TORN):
        raise _damage(file, path, position, f"entry {index} cannot be true ({reason})")
    stop = end_of_data(file, position, size) if layout.is_marked else size
    if stop == position:
        return None
    if walked.stop is None:
        # With a sync point nothing behind the end marker was ever promised; without one the bytes must tell.
        rule = EndRule(required=sure + 1 - first, is_exact=is_ours, term=term)
        found = rule.judge(
            file,
            layout,
            position=position,
            size=size,
            count=len(walked.records),
            term=walked.records.last_term,
        )
        if found.behind is Behind.DAMAGE:
            raise _damage(
                file, path, position,
                f"entry {index} is not whole (zeros), but whole records follow at {found.resumed}",
            )  # fmt: skip
        return Cut(
            path=path,
            offset=position,
            size=stop - position,
            reason=f"{found.behind.value} bytes behind the end",
            is_undecided=found.behind is Behind.UNDECIDED,
        )
    if layout.is_marked:
        # With less to go by, more must be missing before a tail is given up that has whole records in it.
        piece = TORN_PIECE if is_ours else SECTOR
        resumed = find_record_in_file(file, layout, position + 1, size)
        if resumed is not None and not lacks_a_piece(file.read, position, resumed, piece):
            raise _damage(
                file, path, position,
                f"entry {index} is not whole ({reason}), but whole records follow at {resumed}",
            )  # fmt: skip
    return Cut(path=path, offset=position, size=stop - position, reason=reason)


def erase(file: File, cut: Cut) -> None:
    """Make a torn tail zero and return when it is; what is zero stays untouched, so holes stay holes."""
    for offset, data in read_data(file, cut.offset, cut.offset + cut.size):
        rest = data.lstrip(b"\x00")
        if rest:
            start = offset + len(data) - len(rest)
            file.write(start, [bytes(len(rest.rstrip(b"\x00")))])
    file.sync()


def write_again(file: File, start: int, stop: int) -> None:
    """Write what a file shows in a stretch once more, so that the next sync says something about it.

    After a sync that failed the system may show what never reached the disk, and call it clean: a sync by the next
    process would then succeed and prove nothing.
    """
    for offset in range(start, stop, REWRITE_SIZE):
        file.write(offset, [file.read(offset, min(REWRITE_SIZE, stop - offset))])


def _damage(file: File, path: Path, position: int, what: str) -> CorruptData:
    return CorruptData(
        f"{what}; {_ADVICE}",
        path=str(path),
        offset=position,
        expected=f"a whole record ({hexadecimal(RECORD_MARKER)} …)",
        found=hexadecimal(file.read(position, 16)) or "the end of the file",
    )


def lacks_a_piece(read: Callable[[int, int], bytes], start: int, stop: int, piece: int) -> bool:
    """Return whether a sector in the stretch ends in zeros, as before the write that was torn, or begins with them.

    A disk writes the sectors of one batch in any order, so a power cut can lose the first and keep the
    last; and of a sector that is torn itself the beginning is new. Where records are cleared the new is zeros.
    Bits that turned over leave no such trace.
    """
    for end in range(start - start % SECTOR + SECTOR, stop + 1, SECTOR):
        begin = max(start, end - piece)
        if not read(begin, end - begin).strip(b"\x00"):
            return True
        if end + piece <= stop and not read(end, piece).strip(b"\x00"):
            return True
    return False


def refuse_shortened(
    file: File, path: Path, layout: LogLayout, walked: Walked, *, first: int, known: SyncPointFile
) -> None:
    """Raise ``ForeignWrite`` for a log that ends, as a whole one does, before entries that were synced.

    A follower of TaskFlux removes entries that its leader does not have. Records behind the end mark, or a commit
    index beyond it, show damage instead.
    """
    end, synced = first + len(walked.records), known.point.synced
    is_beyond = walked.commit is not None and walked.commit >= len(walked.records)
    if walked.stop is not None or end > synced or is_beyond:
        return
    if find_record_in_file(file, layout, walked.records.end, file.size()) is not None:
        return
    raise foreign_write(
        "the log ends before entries that were synced",
        known.path,
        path=path,
        offset=walked.records.end,
        expected=f"entries up to {synced}",
        found=f"entries up to {end - 1}",
    )
