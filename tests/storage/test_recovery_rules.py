"""The rules of a start, one after the other: what is made, mended, refused or removed.

The numbers R1 to R12 are those of the recovery rules; R13, the compaction, has test_compaction.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.binary import checksum
from penstock.errors import BadData, CorruptData, UnknownFormat, UnsupportedVersion
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.log import (
    RECORD_MARKER,
    LogLayout,
    encode_header,
    encode_record,
    segment_name,
)
from penstock.formats.taskflux.metadata import encode_metadata
from penstock.formats.taskflux.snapshot import encode_snapshot
from penstock.formats.taskflux.snapshot_decode import decode_snapshot
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import DEFAULT_QUEUE, NO_LIMITS, HardState, NodeId, QueueHead, TaskId, Term
from penstock.storage.directory import NodeDirectory
from penstock.storage.files import TEMPORARY_SUFFIX, OsFiles
from penstock.storage.metadata import MetadataStore
from penstock.storage.reading import walk_file
from penstock.storage.recovery import judge_tail
from penstock.storage.segmented_log import SegmentedLog
from penstock.storage.single_log import SingleLog
from penstock.storage.snapshot import SnapshotStore
from penstock.testing.disk import MemoryFiles
from support.log_stores import SMALL, LogStore, append, content, point, sync_point_file

HOME = Path("/node")
LOG = HOME / "log.raft"
INITIAL_2 = encode_header(LogLayout.TWO)
INITIAL_3 = encode_header(LogLayout.THREE)
GENERATIONS = [Generation.TWO, Generation.THREE]


def record(payload: bytes, term: int = 1, layout: LogLayout = LogLayout.TWO) -> bytes:
    return encode_record(layout, term=term, payload=payload)


def open_2(data: bytes, **others: bytes) -> SingleLog:
    image = {str(LOG): data} | {str(HOME / name): found for name, found in others.items()}
    return SingleLog(MemoryFiles(image), LOG, None, SMALL)


# R1: a file that is missing or empty is made with what a new node has.


@pytest.mark.parametrize("image", [{}, {str(LOG): b""}])
def test_r1_a_missing_or_empty_log_is_begun_without_entries(image: dict[str, bytes]) -> None:
    files = MemoryFiles(image)
    log = SingleLog(files, LOG, None, SMALL)
    assert (log.first, log.end, log.committed, log.cuts) == (0, 0, -1, [])
    data = files.image()[str(LOG)]
    assert data.startswith(bytes.fromhex("1276AD55 00000001 FFFFFFFF 00000000"))
    assert not data[12:].strip(b"\x00")


@pytest.mark.parametrize("image", [{}, {str(HOME / segment_name(0)): b""}])
def test_r1_a_missing_or_empty_segment_is_begun_without_entries(image: dict[str, bytes]) -> None:
    files = MemoryFiles(image)
    log = SegmentedLog(files, HOME, None, SMALL)
    assert (log.first, log.end, log.committed, log.cuts) == (0, 0, -1, [])
    data = files.image()[str(HOME / segment_name(0))]
    assert data == INITIAL_3.ljust(SMALL.soft, b"\x00")


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("image", [{}, {str(HOME / "raft.metadata"): b""}])
def test_r1_missing_or_empty_metadata_is_term_1_without_a_vote(
    generation: Generation, image: dict[str, bytes]
) -> None:
    files = MemoryFiles(image)
    store = MetadataStore(files, HOME / "raft.metadata", WRITTEN[generation].metadata)
    assert store.state == HardState(term=Term(1), vote=None)
    expected = encode_metadata(HardState(), WRITTEN[generation].metadata)
    assert files.image() == {str(HOME / "raft.metadata"): expected}


@pytest.mark.parametrize("image", [{}, {str(HOME / "raft.snapshot"): b""}])
def test_r1_a_missing_or_empty_snapshot_is_none(image: dict[str, bytes]) -> None:
    store = SnapshotStore(MemoryFiles(image), HOME / "raft.snapshot")
    assert store.header is None
    assert store.point is None


# R2: a header that a crash cut short is made anew; anything else that is too short is refused.


def test_r2_a_log_header_cut_short_by_a_crash_is_made_anew() -> None:
    for size in range(12):
        log = open_2(INITIAL_2[:size])
        assert (log.end, log.committed) == (0, -1)


def test_r2_a_segment_header_cut_short_by_a_crash_is_made_anew() -> None:
    for size in range(8):
        files = MemoryFiles({str(HOME / segment_name(7)): INITIAL_3[:size]})
        log = SegmentedLog(files, HOME, point(6), SMALL)
        assert (log.first, log.end) == (7, 7)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_r2_metadata_cut_short_at_its_birth_is_made_anew(generation: Generation) -> None:
    path = HOME / "raft.metadata"
    initial = encode_metadata(HardState(), WRITTEN[generation].metadata)
    for size in range(16):
        files = MemoryFiles({str(path): initial[:size]})
        assert MetadataStore(files, path, WRITTEN[generation].metadata).state == HardState()


def test_r2_a_short_header_with_other_bytes_is_refused_and_kept() -> None:
    for size in range(1, 12):
        data = INITIAL_2[: size - 1] + bytes([INITIAL_2[size - 1] ^ 0x40])
        files = MemoryFiles({str(LOG): data})
        with pytest.raises(BadData) as caught:
            SingleLog(files, LOG, None, SMALL)
        assert caught.value.path == str(LOG)
        assert files.image()[str(LOG)] == data


@pytest.mark.parametrize("generation", GENERATIONS)
def test_r2_metadata_cut_short_after_a_vote_is_refused(generation: Generation) -> None:
    path = HOME / "raft.metadata"
    whole = encode_metadata(HardState(term=Term(3), vote=NodeId(2)), WRITTEN[generation].metadata)
    first_difference = 12 if generation is Generation.TWO else 16
    for size in range(first_difference, len(whole)):
        if size == 16 and generation is Generation.TWO:
            continue  # the form without a checksum that programs of that time wrote
        files = MemoryFiles({str(path): whole[:size]})
        with pytest.raises(BadData) as caught:
            MetadataStore(files, path, WRITTEN[generation].metadata)
        assert caught.value.path == str(path)
        assert files.image() == {str(path): whole[:size]}


def test_r2_an_empty_log_is_refused_if_its_entries_were_synced() -> None:
    for data in (b"", INITIAL_2[:5], INITIAL_2[:11]):
        image = {str(LOG): data, str(HOME / "penstock.synced"): sync_point_file(4)}
        files = MemoryFiles(image)
        with pytest.raises(CorruptData, match="missing or empty") as caught:
            SingleLog(files, LOG, None, SMALL)
        assert caught.value.path == str(LOG)
        assert files.image() == image
        SingleLog(MemoryFiles(image), LOG, point(4), SMALL)  # the snapshot has them all


def test_r2_a_missing_chain_is_refused_if_its_entries_were_synced() -> None:
    synced = {str(HOME / "penstock.synced"): sync_point_file(4)}
    for image in (synced, synced | {str(HOME / segment_name(0)): INITIAL_3[:3]}):
        files = MemoryFiles(image)
        with pytest.raises(CorruptData, match="missing or empty"):
            SegmentedLog(files, HOME, None, SMALL)
        assert files.image() == image


# R3: a wrong marker or version is refused with both values.


@pytest.mark.parametrize("generation", GENERATIONS)
def test_r3_every_file_with_a_wrong_marker_is_refused_by_name(generation: Generation) -> None:
    files = _node(generation)
    names = [path for path in files.image() if "penstock." not in path]
    assert len(names) == 3
    for path in names:
        image = files.image()
        image[path] = b"\x00\x01\x02\x03" + image[path][4:]
        with pytest.raises(BadData) as caught:
            NodeDirectory(MemoryFiles(image), HOME, generation=generation)
        assert caught.value.path == path
        assert caught.value.offset == 0
        assert caught.value.found == "00 01 02 03"
        assert caught.value.expected


@pytest.mark.parametrize("generation", GENERATIONS)
def test_r3_every_file_of_another_version_is_refused_by_name(generation: Generation) -> None:
    files = _node(generation)
    for path in [p for p in files.image() if p.endswith((".log", "log.raft", "metadata"))]:
        image = files.image()
        changed = image[path][:4] + bytes.fromhex("00000002") + image[path][8:]
        if path.endswith("metadata"):
            changed = changed[:-4] + checksum(changed[4:-4]).to_bytes(4, "big")
        image[path] = changed
        with pytest.raises(UnsupportedVersion) as caught:
            NodeDirectory(MemoryFiles(image), HOME, generation=generation)
        assert (caught.value.path, caught.value.offset) == (path, 4)
        assert (caught.value.expected, caught.value.found) == ("1", "2")


def _node(generation: Generation) -> MemoryFiles:
    """Return a small directory with entries, a vote and a snapshot."""
    files = MemoryFiles()
    node = NodeDirectory(files, HOME, generation=generation, limits=SMALL)
    append(node.log, 1, b"a", b"b", b"c")
    node.log.sync()
    node.metadata.replace(HardState(term=Term(2), vote=NodeId(1)))
    head = QueueHead(name=DEFAULT_QUEUE, policy=NO_LIMITS, last_id=TaskId(1), count=1)
    pieces = encode_snapshot(point(1), 1, [(head, [(1, 0, b"task")])], WRITTEN[generation].snapshot)
    node.save_snapshot(point(1), pieces)
    node.close()
    return files


# R4: the walk stops at the first record that is not whole, whatever is wrong with it.

BROKEN = {
    "bad-marker": b"\x01" + record(b"x")[1:],
    "torn": record(b"x" * 9)[:-1],
    "bad-length": record(b"x")[:12] + b"\xff\xff\xff\xff" + b"x",
    "bad-checksum": record(b"x")[:-1] + b"y",
    "bad-term": record(b"x")[:4] + bytes(4) + record(b"x")[8:],
    "falling-term": record(b"x", term=1),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_r4_the_first_record_that_is_not_whole_ends_the_log(reason: str) -> None:
    whole = INITIAL_2 + record(b"first", term=2) + record(b"second", term=2)
    log = open_2(whole + BROKEN[reason])
    assert content(log) == {0: (2, b"first"), 1: (2, b"second")}
    assert [(cut.offset, cut.reason) for cut in log.cuts] == [(len(whole), reason)]


def test_r4_a_length_beyond_the_file_is_torn_not_allocated() -> None:
    huge = RECORD_MARKER + bytes.fromhex("00000001 00000000 7FFFFFFF")
    log = open_2(INITIAL_2 + record(b"first") + huge + bytes(100))
    assert content(log) == {0: (1, b"first")}
    assert [cut.reason for cut in log.cuts] == ["torn"]


# R5: a torn tail is cut: zeros in its place, synced, and said.


@pytest.mark.parametrize("generation", GENERATIONS)
def test_r5_a_torn_tail_becomes_zeros_that_are_synced(generation: Generation) -> None:
    files = MemoryFiles()
    store = LogStore(generation=generation, files=files, directory=HOME)
    log = store.open()
    append(log, 1, b"kept")
    log.sync()
    append(log, 1, b"torn" * 10)
    path = LOG if generation is Generation.TWO else HOME / segment_name(0)
    image = files.image()
    start = image[str(path)].index(b"torn") - (16 if generation is Generation.TWO else 20)
    image[str(path)] = image[str(path)].replace(b"torn" * 10, b"torn" * 9 + b"xxxx")
    after = MemoryFiles(image)
    again = LogStore(generation=generation, files=after, directory=HOME).open()
    assert [(cut.path, cut.offset) for cut in again.cuts] == [(path, start)]
    assert not after.image()[str(path)][start:].strip(b"\x00")
    kinds = [(o.kind, o.offset) for o in after.operations if o.path == str(path)]
    assert kinds[:2] == [("write", start), ("sync", 0)]


def test_r5_a_batch_whose_first_sector_was_lost_is_a_torn_tail() -> None:
    # A disk writes the sectors of a batch in any order: whole records may stand behind the gap.
    whole = INITIAL_2 + record(b"first")
    batch = record(b"a" * 2000) + record(b"b" * 100)
    torn = batch[:400] + bytes(1024) + batch[1424:]
    log = open_2(whole + torn + bytes(64))
    assert content(log) == {0: (1, b"first")}
    assert [cut.offset for cut in log.cuts] == [len(whole)]


@pytest.mark.parametrize(
    "end", [2 * 512, 512 + 64], ids=["a batch: the end", "a truncation: the beginning"]
)
def test_r5_a_sector_that_was_torn_itself_is_a_torn_tail_where_a_sync_point_was_kept(
    end: int,
) -> None:
    whole = INITIAL_2 + record(b"first")
    batch = record(b"a" * 1000) + record(b"b" * 100)
    lost = slice(end - 64 - len(whole), end - len(whole))
    torn = bytearray(batch)
    torn[lost] = bytes(64)
    log = open_2(whole + torn + bytes(64), **{"penstock.synced": sync_point_file(0)})
    assert content(log) == {0: (1, b"first")}
    assert [cut.offset for cut in log.cuts] == [len(whole)]
    # Without one, or with fewer bytes missing, it may be what somebody was promised.
    with pytest.raises(CorruptData, match="whole records follow"):
        open_2(whole + torn + bytes(64))
    torn[lost.start] = torn[lost.stop - 1] = ord("a")
    with pytest.raises(CorruptData, match="whole records follow"):
        open_2(whole + torn + bytes(64), **{"penstock.synced": sync_point_file(0)})


# R6: a bad record that is committed, or that whole records follow, is damage.


def test_r6_a_bad_record_that_is_committed_is_refused() -> None:
    data = encode_header(LogLayout.TWO, commit=1) + record(b"a") + BROKEN["bad-checksum"]
    with pytest.raises(CorruptData, match="was synced but is not whole"):
        open_2(data)


@pytest.mark.parametrize("reason", [r for r in BROKEN if r != "falling-term"])
def test_r6_a_bad_record_before_whole_ones_is_refused(reason: str) -> None:
    data = INITIAL_2 + record(b"a") + BROKEN[reason] + record(b"b")
    with pytest.raises(CorruptData, match="whole records follow") as caught:
        open_2(data)
    assert caught.value.offset == len(INITIAL_2 + record(b"a"))


def test_r6_the_sync_point_counts_like_the_commit_index() -> None:
    data = INITIAL_2 + record(b"a") + BROKEN["bad-checksum"]
    assert len(content(open_2(data, **{"penstock.synced": sync_point_file(0)}))) == 1
    with pytest.raises(CorruptData, match="was synced but is not whole"):
        open_2(data, **{"penstock.synced": sync_point_file(1)})


# R7: committed entries that are missing stop the start.


def test_r7_fewer_records_than_are_committed_are_refused() -> None:
    whole = record(b"a") + record(b"b")
    open_2(encode_header(LogLayout.TWO, commit=1) + whole)
    with pytest.raises(CorruptData) as caught:
        open_2(encode_header(LogLayout.TWO, commit=2) + whole + bytes(40))
    assert caught.value.path == str(LOG)


# R8: generation 1 has no checksum; its torn tail is a record that runs past the end.


def test_r8_a_generation_1_record_past_the_end_is_torn() -> None:
    whole = encode_header(LogLayout.ONE_B) + record(b"abc", layout=LogLayout.ONE_B)
    torn = record(b"defg", layout=LogLayout.ONE_B)
    for size in range(1, len(torn)):
        cut = _judge_1(whole + torn[:size])
        assert cut == (len(whole), size, "torn")
    assert _judge_1(whole) is None


@pytest.mark.parametrize("term", [0, -1, 1])
def test_r8_a_generation_1_term_that_falls_or_is_below_1_is_damage(term: int) -> None:
    whole = encode_header(LogLayout.ONE_B) + record(b"abc", term=2, layout=LogLayout.ONE_B)
    bad = term.to_bytes(4, "big", signed=True) + bytes.fromhex("00000001 41")
    with pytest.raises(CorruptData, match="cannot be true"):
        _judge_1(whole + bad)


def _judge_1(data: bytes) -> tuple[int, int, str] | None:
    file = MemoryFiles({str(LOG): data}).open(LOG, write=False)
    walked = walk_file(file, LOG, LogLayout.ONE_B)
    cut = judge_tail(file, LOG, LogLayout.ONE_B, walked, first=0, sure=-1, is_ours=False, term=0)
    return None if cut is None else (cut.offset, cut.size, cut.reason)


# R9: a node that cannot read its vote does not start; a new vote replaces the file as a whole.


@pytest.mark.parametrize("generation", GENERATIONS)
def test_r9_metadata_with_a_wrong_checksum_or_an_impossible_value_is_refused(
    generation: Generation,
) -> None:
    path = HOME / "raft.metadata"
    whole = encode_metadata(HardState(term=Term(3), vote=NodeId(2)), WRITTEN[generation].metadata)
    term = slice(8, 12) if generation is Generation.TWO else slice(8, 16)
    impossible = bytearray(whole)
    impossible[term] = bytes(term.stop - term.start)
    impossible[-4:] = checksum(impossible[4:-4]).to_bytes(4, "big")
    for data in (whole[:-1] + bytes([whole[-1] ^ 1]), bytes(impossible), whole + b"\x00" * 5):
        files = MemoryFiles({str(path): data})
        with pytest.raises(BadData) as caught:
            MetadataStore(files, path, WRITTEN[generation].metadata)
        assert caught.value.path == str(path)
        assert caught.value.offset is not None
        assert files.image() == {str(path): data}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_r9_a_vote_is_written_beside_synced_renamed_and_its_name_synced(
    generation: Generation,
) -> None:
    files = MemoryFiles()
    path = HOME / "raft.metadata"
    store = MetadataStore(files, path, WRITTEN[generation].metadata)
    del files.operations[:]
    store.replace(HardState(term=Term(7), vote=NodeId(3)))
    sibling = str(path) + TEMPORARY_SUFFIX
    found = [(o.kind, o.path, o.target) for o in files.operations if o.kind != "truncate"]
    assert found == [
        ("create", sibling, ""),
        ("write", sibling, ""),
        ("sync", sibling, ""),
        ("rename", sibling, str(path)),
        ("sync_directory", str(HOME), ""),
    ]


# R10: a snapshot that is not whole stops the start before anything is changed.


@pytest.mark.parametrize("generation", GENERATIONS)
def test_r10_a_snapshot_that_is_damaged_stops_the_start_before_the_log_is_touched(
    generation: Generation,
) -> None:
    image = _node(generation).image()
    path = next(path for path in image if path.endswith(".snapshot"))
    whole = image[path]
    for damaged in (
        whole[:-1],
        whole[:-1] + bytes([whole[-1] ^ 1]),
        whole[:30] + bytes([whole[30] ^ 1]) + whole[31:],
        whole + b"\x01",
        whole[:3],
    ):
        files = MemoryFiles(image | {path: damaged})
        with pytest.raises(BadData) as caught:
            NodeDirectory(files, HOME, generation=generation, limits=SMALL)
        assert caught.value.path == path
        assert caught.value.offset is not None
        assert files.image() == image | {path: damaged}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_r10_a_snapshot_of_an_impossible_entry_stops_the_start(generation: Generation) -> None:
    image = _node(generation).image()
    path = next(path for path in image if path.endswith(".snapshot"))
    width = 4 if generation is Generation.TWO else 8
    for field in (slice(4, 4 + width), slice(4 + width, 4 + 2 * width)):
        damaged = bytearray(image[path])
        damaged[field] = b"\xff" * width
        if generation is Generation.TWO:
            damaged[-4:] = checksum(damaged[4:-4]).to_bytes(4, "big")
        with pytest.raises(CorruptData) as caught:
            NodeDirectory(MemoryFiles(image | {path: bytes(damaged)}), HOME, limits=SMALL)
        assert (caught.value.path, caught.value.offset) == (path, 4)


# R11: what a crash left half-written is removed.


@pytest.mark.parametrize("generation", GENERATIONS)
def test_r11_temporary_files_are_removed_at_start(generation: Generation) -> None:
    image = _node(generation).image()
    leftovers = {path + TEMPORARY_SUFFIX: b"half" for path in image}
    files = MemoryFiles(image | leftovers)
    NodeDirectory(files, HOME, generation=generation, limits=SMALL).close()
    assert set(files.image()) == set(image)


def test_r11_other_files_beside_ours_are_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "data"
    (home / "log").mkdir(parents=True)
    for name in ("notes.txt", "log/readme", "log/1.log", "log/12345678901234567890.log"):
        (home / name).write_bytes(b"mine")
    NodeDirectory(OsFiles(), tmp_path, limits=SMALL).close()
    for name in ("notes.txt", "log/readme", "log/1.log", "log/12345678901234567890.log"):
        assert (home / name).read_bytes() == b"mine"


# R12: a snapshot that contradicts itself is damage, even if its checksum matches.

_QUEUE = bytes.fromhex("00000001 FFFFFFFF FFFFFFFF 00 00000000")


@pytest.mark.parametrize(
    ("queues", "reason"),
    [
        ([b"\x01a" + _QUEUE], "the default queue is missing"),
        ([b"\x00" + _QUEUE, b"\x00" + _QUEUE], "stands twice"),
        ([b"\x00" + b"\x00\x00\x00\x09" + _QUEUE[4:]], "9"),
    ],
    ids=["no default queue", "a name twice", "an unknown implementation"],
)
def test_r12_a_snapshot_that_contradicts_itself_is_damage(queues: list[bytes], reason: str) -> None:
    covered = bytes.fromhex("00000002 00000002") + len(queues).to_bytes(4, "big") + b"".join(queues)
    data = bytes.fromhex("B6380FC9") + covered + checksum(covered).to_bytes(4, "big")
    path = HOME / "raft.snapshot"
    store = SnapshotStore(MemoryFiles({str(path): data}), path)
    assert store.header is not None
    file = store.open()
    with pytest.raises(CorruptData, match=reason):
        list(decode_snapshot(file.read, file.size(), store.header.layout))


def test_a_snapshot_of_no_known_kind_is_refused() -> None:
    path = HOME / "raft.snapshot"
    with pytest.raises(UnknownFormat) as caught:
        SnapshotStore(MemoryFiles({str(path): b"something else entirely"}), path)
    assert (caught.value.path, caught.value.offset) == (str(path), 0)
