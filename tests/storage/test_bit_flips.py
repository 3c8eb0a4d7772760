"""Every bit of every file of a small directory turned over once, at rest.

A start then recovers everything, or refuses and names file and offset. What may change unnoticed are the
few fields that nothing checks (docs/formats/log.md): the term of an entry, up to the metadata's, and the
commit index. Index and term of a generation 3 snapshot have a copy in the sync point. Wherever the bit was,
an entry that the sync point covers never disappears in silence.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.errors import BadData
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import RECORD_MARKER
from penstock.formats.taskflux.snapshot import encode_snapshot
from penstock.formats.taskflux.snapshot_decode import Batch, decode_snapshot
from penstock.formats.taskflux.sync_point import FILE_NAME as SYNC_POINT
from penstock.formats.taskflux.sync_point import SLOT_SIZE
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import (
    DEFAULT_QUEUE,
    NO_LIMITS,
    HardState,
    Index,
    NodeId,
    QueueHead,
    SnapshotPoint,
    TaskId,
    Term,
)
from penstock.storage.directory import NodeDirectory
from penstock.storage.log import LogLimits
from penstock.testing.disk import Image, MemoryFiles
from support.log_stores import Content, append, content, flipped, point
from support.report import report

ROOT = Path("/node")
LIMITS = LogLimits(soft=128, hard=256, growth=96)
SLOT_USED = 68
GENERATIONS = [Generation.TWO, Generation.THREE]


@dataclass(frozen=True)
class Seen:
    """What a start found."""

    entries: Content
    committed: int
    state: HardState
    snapshot: SnapshotPoint | None
    tasks: tuple[bytes, ...]
    cuts: int


def build(generation: Generation, *, in_compaction: bool = False) -> Image:
    """Return a directory after some life: two terms, a snapshot, a vote, everything synced."""
    files = MemoryFiles()
    node = NodeDirectory(files, ROOT, generation=generation, limits=LIMITS)
    append(node.log, 1, *(b"entry %d" % n for n in range(5)))
    node.log.sync()
    node.log.set_committed(Index(3))
    append(node.log, 2, b"", b"entry 6")
    node.metadata.replace(HardState(term=Term(2), vote=NodeId(3)))
    node.log.sync()
    begin = len(files.operations)
    head = QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(2), count=2)
    tasks = [(1, 5, b"one"), (2, -5, b"two")]
    at = point(2)
    node.save_snapshot(at, encode_snapshot(at, 1, [(head, tasks)], WRITTEN[generation].snapshot))
    if in_compaction:
        renamed = next(
            n for n, o in enumerate(files.operations)
            if n >= begin and o.target.endswith(".snapshot")
        )  # fmt: skip
        return files.after(renamed + 1).image()
    append(node.log, 2, b"entry 7" * 4)
    node.log.sync()
    node.close()
    return files.image()


def start(image: Image, generation: Generation) -> Seen:
    """Open a directory and read all of it, as a node does that rebuilds its state."""
    node = NodeDirectory(MemoryFiles(image), ROOT, generation=generation, limits=LIMITS)
    tasks: list[bytes] = []
    if node.snapshot.header is not None:
        file = node.snapshot.open()
        for event in decode_snapshot(file.read, file.size(), node.snapshot.header.layout):
            if isinstance(event, Batch):
                tasks.extend(payload for _, _, payload in event.tasks)
    return Seen(
        entries=content(node.log),
        committed=node.log.committed,
        state=node.metadata.state,
        snapshot=node.snapshot.point,
        tasks=tuple(tasks),
        cuts=len(node.cuts),
    )


def outcome(image: Image, generation: Generation) -> Seen | BadData:
    """Return what a start found, or why it refused."""
    try:
        return start(image, generation)
    except BadData as error:
        return error


def unchecked(path: str, data: bytes, generation: Generation) -> set[int]:
    """Return the offsets of the fields of a file that nothing checks."""
    if not path.endswith(("log.raft", ".log")):
        return set()
    width = 4 if generation is Generation.TWO else 8
    found = set(range(8, 12)) if generation is Generation.TWO else set()
    place = data.find(RECORD_MARKER)
    while place >= 0:
        found.update(range(place + 4, place + 4 + width))
        place = data.find(RECORD_MARKER, place + 1)
    return found


def bits_of(path: str, data: bytes) -> list[int]:
    """Return all bits of a file; of the sync point's padding, which nobody reads, one in each byte."""
    bits = range(len(data) * 8)
    if not path.endswith(SYNC_POINT):
        return list(bits)
    return [bit for bit in bits if bit // 8 % SLOT_SIZE < SLOT_USED or bit % 8 == 0]


def judge(image: Image, before: Seen, path: str, bit: int, generation: Generation) -> str:
    """Turn one bit over, start, and return how that ended."""
    damaged = image | {path: flipped(image[path], bit)}
    after = outcome(damaged, generation)
    if isinstance(after, BadData):
        assert after.path in image, after
        assert after.offset is not None, after
        return "refused"
    if after == before:
        return "recovered"
    if after.cuts and (after.entries, after.snapshot) == (before.entries, before.snapshot):
        return "cut behind the end"
    where = f"{path}, bit {bit}: {before} became {after}"
    assert bit // 8 in unchecked(path, image[path], generation), where
    if path.endswith(".snapshot"):
        assert (after.state, after.tasks) == (before.state, before.tasks), where
        return "unnoticed in a snapshot's index or term"
    assert {n: p for n, (_, p) in after.entries.items()} == {
        n: p for n, (_, p) in before.entries.items()
    }, where
    if after.entries != before.entries:
        assert after.committed == before.committed, where
        return "unnoticed in a term"
    return "unnoticed in the commit index"


@pytest.mark.parametrize("in_compaction", [False, True], ids=["at rest", "in a compaction"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_flipped_bit_anywhere_is_recovered_from_refused_or_in_a_field_without_a_checksum(
    generation: Generation, in_compaction: bool
) -> None:
    image = build(generation, in_compaction=in_compaction)
    before = start(image, generation)
    assert before.cuts == 0
    counts: Counter[str] = Counter()
    for path, data in image.items():
        for bit in bits_of(path, data):
            counts[judge(image, before, path, bit, generation)] += 1
    words = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    title = "in a compaction" if in_compaction else "at rest"
    report(f"generation {generation} {title}, {sum(counts.values())} flipped bits: {words}")
    assert counts["refused"] > 0
