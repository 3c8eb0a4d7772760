"""Snapshots as whole files: what the streams of the format module are for these tests."""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import BadData
from penstock.formats.taskflux.snapshot import Patch, SnapshotLayout, StoredTask, encode_snapshot
from penstock.formats.taskflux.snapshot_decode import Batch, ReadAt, SnapshotHeader, decode_snapshot
from penstock.formats.taskflux.snapshot_frame import detect_layout
from penstock.model import QueueHead, SnapshotPoint
from support.taskflux_strategies import Queues


class Snapshot(NamedTuple):
    """All that a snapshot file says."""

    layout: SnapshotLayout
    point: SnapshotPoint
    queues: Queues


def reader_of(data: bytes) -> ReadAt:
    """Return the bytes of a file by offset and size, as a file on the disk gives them."""
    return lambda offset, size: data[offset : offset + size]


def encoded(point: SnapshotPoint, queues: Queues, layout: SnapshotLayout) -> bytes:
    """Return the file that the encoder makes, patched as it asks."""
    pieces = encode_snapshot(point, len(queues), queues, layout)
    written: list[bytes] = []
    patch: Patch | None = None
    while True:
        try:
            written.append(next(pieces))
        except StopIteration as done:
            patch = done.value
            break
    data = b"".join(written)
    if patch is None:
        return data
    assert data[patch.offset : patch.offset + 4] == bytes(4)
    return data[: patch.offset] + patch.data + data[patch.offset + len(patch.data) :]


def decoded(data: bytes, layout: SnapshotLayout | None = None) -> Snapshot:
    """Return all that a file says, of the layout given or found. Raises ``BadData``."""
    read = reader_of(data)
    layout = layout or detect_layout(read, len(data))
    point: SnapshotPoint | None = None
    queues: list[tuple[QueueHead, list[StoredTask]]] = []
    for part in decode_snapshot(read, len(data), layout):
        match part:
            case SnapshotHeader():
                assert part.layout is layout
                point = part.point
            case QueueHead():
                queues.append((part, []))
            case Batch():
                queues[-1][1].extend(part.tasks)
    assert point is not None
    return Snapshot(layout, point, queues)


def is_read(data: bytes, layout: SnapshotLayout | None = None) -> bool:
    """Return whether a file decodes to its end."""
    try:
        decoded(data, layout)
    except BadData:
        return False
    return True
