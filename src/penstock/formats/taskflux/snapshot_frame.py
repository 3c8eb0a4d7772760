"""The frame of a snapshot file: which layout it has, and whether its length and checksum fit (docs/formats/snapshot.md)."""

from __future__ import annotations

from penstock.binary import CHECKSUM_START, INT32, UINT32, checksum, hexadecimal
from penstock.errors import BadData, CorruptData, TruncatedData, UnknownFormat
from penstock.formats.taskflux.snapshot import (
    MARKER,
    MARKER_1,
    MARKER_1A,
    WINDOW,
    SnapshotLayout,
)
from penstock.formats.taskflux.snapshot_decode import ReadAt, check_length, decode_snapshot


def detect_layout(read: ReadAt, size: int) -> SnapshotLayout:
    """Return the layout of a snapshot file of ``size`` bytes. Raises ``BadData``.

    The marked layouts are told apart by length and checksum; a damaged file is of the layout whose
    length fits. Generation 1 has neither: there the layout is the one that accounts for the whole file.
    """
    start = read(0, 32)
    marker = start[:4]
    if marker in (MARKER_1, MARKER_1A):
        return _detect_unmarked(read, size, marker)
    if marker != MARKER:
        if len(marker) < 4 and any(m.startswith(marker) for m in (MARKER, MARKER_1, MARKER_1A)):
            raise TruncatedData("the file ends inside the marker", offset=len(marker))
        raise UnknownFormat(
            "not a snapshot",
            offset=0,
            expected=f"{hexadecimal(MARKER)} or {hexadecimal(MARKER_1)}",
            found=hexadecimal(marker),
        )
    fitting = [
        layout
        for layout in (SnapshotLayout.TWO_CODE, SnapshotLayout.THREE)
        if size >= layout.state_offset + 8
        and INT32.unpack_from(start, layout.state_offset - 4)[0] == size - layout.state_offset - 4
    ]
    # What looks like a length may be a part of the seed layout: the Int32 at 20 can be a limit of its
    # first queue. The one at 12 is its queue count, which is neither 0 nor as large as the file.
    if len(fitting) == 1 and (SnapshotLayout.TWO_CODE in fitting or start[12:16] == bytes(4)):
        return fitting[0]
    for layout in (*fitting, SnapshotLayout.TWO_SEED):
        if size >= layout.covered_offset + 8 and _checksum_matches(read, size, layout):
            return layout
    return fitting[0] if fitting else _likely_damaged(start)


def check_frame(read: ReadAt, size: int, layout: SnapshotLayout) -> None:
    """Raise ``CorruptData`` unless length and checksum fit the file, without decoding what it holds."""
    check_length(read, size, layout)
    if layout.is_checked:
        register = _checksum_of(read, size, layout)
        found = read(size - 4, 4) if size - 4 >= layout.state_offset else b""
        if found != UINT32.pack(register):
            raise CorruptData(
                "snapshot checksum does not match",
                offset=max(0, size - 4),
                expected=f"{register:08X}",
                found=found.hex().upper() or "the end of the file",
            )


def proven_part(read: ReadAt, size: int) -> tuple[SnapshotLayout, int] | None:
    """Return layout and size of the whole snapshot that a file of ``size`` bytes begins with, if bytes follow it.

    Only layouts that store the length of the state can tell; the checksum proves it.
    """
    start = read(0, 32)
    for layout in (SnapshotLayout.TWO_CODE, SnapshotLayout.THREE):
        if start[:4] != MARKER or len(start) < layout.state_offset:
            continue
        end = layout.state_offset + INT32.unpack_from(start, layout.state_offset - 4)[0] + 4
        is_inside = layout.state_offset + 4 <= end < size
        if is_inside and _checksum_matches(read, end, layout):
            return layout, end
    return None


def _detect_unmarked(read: ReadAt, size: int, marker: bytes) -> SnapshotLayout:
    candidates = [layout for layout in SnapshotLayout if layout.marker == marker]
    first_error: BadData | None = None
    # The layout that we write ourselves comes first, so that its errors are the ones reported.
    for layout in sorted(candidates, key=lambda layout: layout is not SnapshotLayout.ONE_COUNTED):
        try:
            for _ in decode_snapshot(read, size, layout):
                pass
        except BadData as error:
            first_error = first_error or error
        else:
            return layout
    assert first_error is not None
    raise first_error


def _likely_damaged(start: bytes) -> SnapshotLayout:
    """Choose the layout whose header could be true, so that damage is reported in its terms."""
    if len(start) >= 24 and start[4:8] == bytes(4) and start[12:16] == bytes(4):
        return SnapshotLayout.THREE
    return SnapshotLayout.TWO_SEED


def _checksum_of(read: ReadAt, size: int, layout: SnapshotLayout) -> int:
    """Return the checksum that the file should hold at its end; the bytes pass as a stream."""
    register, offset, end = CHECKSUM_START, layout.covered_offset, size - 4
    while offset < end and (piece := read(offset, min(WINDOW, end - offset))):
        register = checksum(piece, register)
        offset += len(piece)
    return register


def _checksum_matches(read: ReadAt, size: int, layout: SnapshotLayout) -> bool:
    return UINT32.pack(_checksum_of(read, size, layout)) == read(size - 4, 4)
