"""What a start makes of a damaged log file: a torn tail is cut and said, damage is refused.

The vectors are the example of docs/formats/log.md with one change each. All of them go through real
files.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadData, CorruptData, UnsupportedVersion
from penstock.formats.taskflux.sync_point import FILE_NAME as SYNC_POINT
from penstock.storage.files import OsFiles
from penstock.storage.log import LogLimits
from penstock.storage.recovery import Cut
from penstock.storage.segmented_log import SegmentedLog
from penstock.storage.single_log import SingleLog
from support.log_stores import (
    EXAMPLE_2,
    EXAMPLE_3,
    SEGMENT,
    AnyLog,
    append,
    content,
    flipped,
    sync_point_file,
)

LIMITS = LogLimits(soft=1024, hard=2048, growth=1024)
PAYLOADS_2 = [EXAMPLE_2[28:65], EXAMPLE_2[81:103], EXAMPLE_2[119:141]]
PAYLOADS_3 = [EXAMPLE_3[28:65], EXAMPLE_3[85:107], EXAMPLE_3[127:143]]
TERMS = [1, 1, 2]


def open_2(directory: Path, data: bytes, synced: int | None = None) -> SingleLog:
    """Open a generation 2 log with these bytes, and with a sync point if one is given."""
    path = directory / "log.raft"
    path.write_bytes(data)
    _put_sync_point(directory, synced)
    return SingleLog(OsFiles(), path, None, LIMITS)


def open_3(directory: Path, data: bytes, synced: int | None = None) -> SegmentedLog:
    """Open a generation 3 log whose only segment has these bytes."""
    (directory / SEGMENT).write_bytes(data)
    _put_sync_point(directory, synced)
    return SegmentedLog(OsFiles(), directory, None, LIMITS)


def _put_sync_point(directory: Path, synced: int | None) -> None:
    companion = directory / SYNC_POINT
    companion.unlink(missing_ok=True)
    if synced is not None:
        companion.write_bytes(sync_point_file(synced))


def check_content(log: AnyLog, payloads: list[bytes], count: int) -> None:
    assert content(log) == {n: (TERMS[n], payloads[n]) for n in range(count)}


def check_cut(log: AnyLog, path: Path, original: bytes, offset: int) -> None:
    """The cut is reported once, the file is as before up to ``offset`` and zero behind it."""
    assert [(cut.path, cut.offset) for cut in log.cuts] == [(path, offset)]
    data = path.read_bytes()
    assert data[:offset] == original[:offset]
    assert not data[offset:].strip(b"\x00")
    assert f"{path}, offset {offset}: cut" in str(log.cuts[0])


def check_goes_on(log: AnyLog, directory: Path, payloads: list[bytes], count: int) -> None:
    """A mended log takes entries, and the next start finds nothing to mend."""
    append(log, 3, b"next")
    log.sync()
    log.close()
    kind = SingleLog if isinstance(log, SingleLog) else SegmentedLog
    path = directory / "log.raft" if kind is SingleLog else directory
    again = kind(OsFiles(), path, None, LIMITS)
    assert again.cuts == []
    expected = {n: (TERMS[n], payloads[n]) for n in range(count)}
    assert content(again) == expected | {count: (3, b"next")}
    again.close()


def check_refusal(error: BadData, path: Path, offset: int | None = None) -> None:
    """A refusal names file, offset, what was expected and what was found, also in words."""
    assert error.path == str(path)
    assert error.offset is not None
    assert error.expected
    assert error.found
    if offset is not None:
        assert error.offset == offset
    for part in (str(path), f"offset {error.offset}", error.expected, error.found):
        assert part in str(error)


def refuse_2(directory: Path, data: bytes, offset: int, synced: int | None = None) -> BadData:
    """Opening is refused for this place, and the log file stays as it was, byte for byte."""
    with pytest.raises(BadData) as caught:
        open_2(directory, data, synced)
    path = directory / "log.raft"
    check_refusal(caught.value, path, offset)
    assert path.read_bytes() == data
    return caught.value


def refuse_3(directory: Path, data: bytes, offset: int, synced: int | None = None) -> BadData:
    with pytest.raises(BadData) as caught:
        open_3(directory, data, synced)
    path = directory / SEGMENT
    check_refusal(caught.value, path, offset)
    assert path.read_bytes() == data
    return caught.value


# Generation 2: the commit index in the header says that entries 0 and 1 must be there.


def test_a_log_without_its_end_marker_is_whole(tmp_path: Path) -> None:
    log = open_2(tmp_path, EXAMPLE_2[:-4])
    check_content(log, PAYLOADS_2, 3)
    assert log.cuts == []
    assert (log.first, log.end, log.committed) == (0, 3, 1)
    check_goes_on(log, tmp_path, PAYLOADS_2, 3)


def test_a_last_record_cut_short_is_a_torn_tail(tmp_path: Path) -> None:
    log = open_2(tmp_path, EXAMPLE_2[:-5])
    check_content(log, PAYLOADS_2, 2)
    check_cut(log, tmp_path / "log.raft", EXAMPLE_2, 103)
    check_goes_on(log, tmp_path, PAYLOADS_2, 2)


def test_a_last_record_cut_anywhere_is_a_torn_tail(tmp_path: Path) -> None:
    for size in range(104, 141):
        log = open_2(tmp_path, EXAMPLE_2[:size])
        check_content(log, PAYLOADS_2, 2)
        check_cut(log, tmp_path / "log.raft", EXAMPLE_2, 103)
        log.close()


def test_a_committed_record_cut_anywhere_is_refused(tmp_path: Path) -> None:
    for size in range(13, 103):
        offset = 12 if size < 65 else 65
        error = refuse_2(tmp_path, EXAMPLE_2[:size], offset)
        assert isinstance(error, CorruptData)


def test_a_flipped_bit_in_an_uncommitted_last_payload_is_a_torn_tail(tmp_path: Path) -> None:
    for bit in range(119 * 8, 141 * 8):
        log = open_2(tmp_path, flipped(EXAMPLE_2, bit))
        check_content(log, PAYLOADS_2, 2)
        check_cut(log, tmp_path / "log.raft", EXAMPLE_2, 103)
        log.close()


def test_a_flipped_bit_in_a_last_payload_that_was_synced_is_refused(tmp_path: Path) -> None:
    for bit in range(119 * 8, 141 * 8):
        refuse_2(tmp_path, flipped(EXAMPLE_2, bit), 103, synced=2)


def test_a_flipped_bit_in_a_committed_payload_is_refused(tmp_path: Path) -> None:
    for bit in range(81 * 8, 103 * 8):
        refuse_2(tmp_path, flipped(EXAMPLE_2, bit), 65)


def test_a_commit_index_behind_the_last_record_is_refused(tmp_path: Path) -> None:
    data = EXAMPLE_2[:8] + bytes.fromhex("00000003") + EXAMPLE_2[12:]
    with pytest.raises(CorruptData) as caught:
        open_2(tmp_path, data)
    check_refusal(caught.value, tmp_path / "log.raft")
    assert (tmp_path / "log.raft").read_bytes() == data


def test_a_commit_index_at_the_last_record_is_fine(tmp_path: Path) -> None:
    log = open_2(tmp_path, EXAMPLE_2[:8] + bytes.fromhex("00000002") + EXAMPLE_2[12:])
    assert log.committed == 2


def test_an_impossible_commit_index_is_refused(tmp_path: Path) -> None:
    error = refuse_2(tmp_path, EXAMPLE_2[:8] + bytes.fromhex("FFFFFFFE") + EXAMPLE_2[12:], 8)
    assert (error.expected, error.found) == ("-1 or more", "-2")


def test_a_wrong_marker_is_refused(tmp_path: Path) -> None:
    error = refuse_2(tmp_path, bytes.fromhex("1276AD56") + EXAMPLE_2[4:], 0)
    assert (error.expected, error.found) == ("12 76 AD 55", "12 76 AD 56")


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    error = refuse_2(tmp_path, EXAMPLE_2[:4] + bytes.fromhex("00000002") + EXAMPLE_2[8:], 4)
    assert isinstance(error, UnsupportedVersion)
    assert (error.expected, error.found) == ("1", "2")


def test_zeros_behind_a_log_change_nothing(tmp_path: Path) -> None:
    data = EXAMPLE_2 + bytes(2**20)
    log = open_2(tmp_path, data)
    check_content(log, PAYLOADS_2, 3)
    assert log.cuts == []
    assert (tmp_path / "log.raft").read_bytes() == data


def test_garbage_in_place_of_the_end_marker_is_a_torn_tail(tmp_path: Path) -> None:
    data = EXAMPLE_2[:141] + bytes.fromhex("01020304")
    log = open_2(tmp_path, data)
    check_content(log, PAYLOADS_2, 3)
    check_cut(log, tmp_path / "log.raft", EXAMPLE_2, 141)
    check_goes_on(log, tmp_path, PAYLOADS_2, 3)


def test_old_records_behind_the_end_marker_are_cut_and_said(tmp_path: Path) -> None:
    # TaskFlux leaves the rest of a longer tail behind the end marker of a shorter one.
    data = EXAMPLE_2 + EXAMPLE_2[103:141]
    log = open_2(tmp_path, data)
    check_content(log, PAYLOADS_2, 3)
    check_cut(log, tmp_path / "log.raft", EXAMPLE_2, 141)
    check_goes_on(log, tmp_path, PAYLOADS_2, 3)


# Generation 3: no commit index in the file, so only the sync point beside it vouches for an entry.


def test_a_segment_without_its_end_marker_is_whole(tmp_path: Path) -> None:
    for synced in (None, 2):
        log = open_3(tmp_path, EXAMPLE_3[:-4], synced)
        check_content(log, PAYLOADS_3, 3)
        assert log.cuts == []
        assert (log.first, log.end, log.committed) == (0, 3, -1)
        log.close()


@pytest.mark.parametrize("synced", [None, -1, 0, 1])
def test_the_last_record_of_a_segment_that_nobody_vouches_for_is_a_torn_tail(
    tmp_path: Path, synced: int | None
) -> None:
    for size in range(108, 143):
        log = open_3(tmp_path, EXAMPLE_3[:size], synced)
        check_content(log, PAYLOADS_3, 2)
        check_cut(log, tmp_path / SEGMENT, EXAMPLE_3, 107)
        log.close()
    log = open_3(tmp_path, EXAMPLE_3[:142], synced)
    check_goes_on(log, tmp_path, PAYLOADS_3, 2)


def test_a_segment_cut_in_a_record_that_was_synced_is_refused(tmp_path: Path) -> None:
    for size in range(9, 143):
        offset = 8 if size < 65 else 65 if size < 107 else 107
        refuse_3(tmp_path, EXAMPLE_3[:size], offset, synced=2)


def test_a_segment_cut_in_an_early_record_loses_what_nobody_vouches_for(tmp_path: Path) -> None:
    log = open_3(tmp_path, EXAMPLE_3[:100])
    check_content(log, PAYLOADS_3, 1)
    check_cut(log, tmp_path / SEGMENT, EXAMPLE_3, 65)
    check_goes_on(log, tmp_path, PAYLOADS_3, 1)


def test_a_flipped_bit_in_the_last_payload_of_a_segment_is_judged_by_the_sync_point(
    tmp_path: Path,
) -> None:
    for bit in range(127 * 8, 143 * 8):
        data = flipped(EXAMPLE_3, bit)
        for synced in (None, 1):
            log = open_3(tmp_path, data, synced)
            check_content(log, PAYLOADS_3, 2)
            check_cut(log, tmp_path / SEGMENT, EXAMPLE_3, 107)
            log.close()
        refuse_3(tmp_path, data, 107, synced=2)


def test_a_flipped_bit_before_whole_records_of_a_segment_is_refused(tmp_path: Path) -> None:
    for bit in range(85 * 8, 107 * 8):
        for synced in (None, -1, 1):
            refuse_3(tmp_path, flipped(EXAMPLE_3, bit), 65, synced)


def test_a_segment_with_a_wrong_marker_or_version_is_refused(tmp_path: Path) -> None:
    refuse_3(tmp_path, bytes.fromhex("1276AD56") + EXAMPLE_3[4:], 0)
    error = refuse_3(tmp_path, EXAMPLE_3[:4] + bytes.fromhex("00000002") + EXAMPLE_3[8:], 4)
    assert isinstance(error, UnsupportedVersion)


def test_zeros_behind_a_segment_change_nothing(tmp_path: Path) -> None:
    data = EXAMPLE_3 + bytes(2**20)
    log = open_3(tmp_path, data, 2)
    check_content(log, PAYLOADS_3, 3)
    assert log.cuts == []
    assert (tmp_path / SEGMENT).read_bytes() == data


@pytest.mark.parametrize("synced", [None, 2])
def test_garbage_behind_a_segment_is_a_torn_tail(tmp_path: Path, synced: int | None) -> None:
    log = open_3(tmp_path, EXAMPLE_3[:143] + bytes.fromhex("01020304"), synced)
    check_content(log, PAYLOADS_3, 3)
    check_cut(log, tmp_path / SEGMENT, EXAMPLE_3, 143)
    check_goes_on(log, tmp_path, PAYLOADS_3, 3)


def test_a_zeroed_record_marker_does_not_hide_entries_that_were_synced(tmp_path: Path) -> None:
    # Four zeros are an end marker: without the sync point two entries would be gone.
    data = EXAMPLE_3[:65] + bytes(4) + EXAMPLE_3[69:]
    for synced in (1, 2):
        refuse_3(tmp_path, data, 65, synced)
    data = EXAMPLE_2[:103] + bytes(4) + EXAMPLE_2[107:]
    refuse_2(tmp_path, data, 103, synced=2)


def test_a_sync_point_with_two_bad_slots_vouches_for_nothing(tmp_path: Path) -> None:
    (tmp_path / SEGMENT).write_bytes(EXAMPLE_3[:142])
    (tmp_path / SYNC_POINT).write_bytes(b"\xff" * 1024)
    log = SegmentedLog(OsFiles(), tmp_path, None, LIMITS)
    check_content(log, PAYLOADS_3, 2)


def test_a_cut_says_where_how_much_and_why() -> None:
    cut = Cut(path=Path("/d/log.raft"), offset=103, size=37, reason="torn")
    assert str(cut) == "/d/log.raft, offset 103: cut 37 bytes of a torn tail (torn)"
