"""The spool with one thread: what goes in comes out once and in order, within its bounds, across restarts."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import (
    DirectoryLocked,
    InvalidValue,
    PathRefused,
    PayloadTooLarge,
    SpoolFull,
    StorageFailed,
)
from penstock.formats.beats.segment import Options, PayloadFormat, decode_header
from penstock.formats.beats.state import Position, decode_state
from penstock.storage.spool import Spool, SpoolBatch, SpoolSettings, WhenFull
from penstock.testing.disk import MemoryFile, MemoryFiles, Operation
from support.spool_lives import KEY, ROOT, read_all

ALL_OPTIONS = [Options(value) for value in range(8)]


def small(**changes: object) -> SpoolSettings:
    known: dict[str, object] = {"max_size": 20_000, "segment_size": 4096, "key": KEY}
    return SpoolSettings(**{**known, **changes})  # type: ignore[arg-type]


def taken(spool: Spool, count_max: int = 1000, **how: object) -> SpoolBatch:
    batch = spool.read(count_max, timeout=0, **how)  # type: ignore[arg-type]
    assert batch is not None
    return batch


def payloads_of(batches: list[SpoolBatch]) -> list[bytes]:
    return [one for batch in batches for one in batch.payloads]


def segments(files: MemoryFiles) -> list[str]:
    return [name for name in files.names(ROOT) if ".seg" in name]


def size_on_disk(files: MemoryFiles) -> int:
    return sum(len(data) for path, data in files.image().items() if path.endswith(".seg"))


def drain(spool: Spool) -> list[bytes]:
    batches = read_all(spool)
    for batch in batches:
        spool.acknowledge(batch)
    return payloads_of(batches)


# --- in and out ---


@pytest.mark.parametrize("options", ALL_OPTIONS, ids=str)
def test_payloads_come_out_in_order_across_segments_and_restarts(
    options: Options, tmp_path: Path
) -> None:
    settings = SpoolSettings(max_size=2**20, segment_size=4096, options=options, key=KEY)
    published = []
    with Spool(tmp_path, settings) as spool:
        for start in range(0, 60, 6):
            batch = [b"%d " % n * 50 for n in range(start, start + 6)]
            spool.publish(batch)
            published += batch
        first = taken(spool, 5)
        assert first.payloads == published[:5]
        expected = PayloadFormat.PROTOBUF if options & Options.PROTOBUF else PayloadFormat.CBOR
        assert first.payload_format is expected
        spool.acknowledge(first)
    with Spool(tmp_path, settings) as spool:
        assert drain(spool) == published[5:]
        assert spool.stat().segments == 1
    with Spool(tmp_path, settings) as spool:
        assert spool.read(1, timeout=0) is None


@given(
    sizes=st.lists(st.lists(st.integers(1, 1500), min_size=1, max_size=8), max_size=12),
    count_max=st.integers(1, 20),
    options=st.sampled_from(ALL_OPTIONS),
)
def test_any_payloads_come_out_as_they_went_in(
    sizes: list[list[int]], count_max: int, options: Options
) -> None:
    settings = SpoolSettings(max_size=2**20, segment_size=4096, options=options, key=KEY)
    files = MemoryFiles()
    published = [bytes([n % 256]) * size for batch in sizes for n, size in enumerate(batch)]
    with Spool(ROOT, settings, files=files) as spool:
        for batch in sizes:
            spool.publish([bytes([n % 256]) * size for n, size in enumerate(batch)])
        assert payloads_of(read_all(spool, count_max)) == published
    with Spool(ROOT, settings, files=files) as spool:
        assert payloads_of(read_all(spool, count_max)) == published


def test_what_is_published_later_is_read_from_the_segment_that_grows() -> None:
    with Spool(ROOT, small(), files=MemoryFiles()) as spool:
        for round_ in range(30):
            spool.publish([b"%d" % round_ * 40])
            assert taken(spool).payloads == [b"%d" % round_ * 40]
            assert spool.read(1, timeout=0) is None


def test_a_batch_stands_in_one_segment_and_says_where() -> None:
    with Spool(ROOT, small(), files=MemoryFiles()) as spool:
        spool.publish([b"x" * 1000] * 5)
        batches = read_all(spool)
    assert [len(batch) for batch in batches] == [4, 1]
    assert batches[0].start == Position(0, 12, 0)
    assert batches[0].end == Position(0, 12 + 4 * 1012, 4)
    assert (batches[1].start, batches[1].end) == (Position(1, 12, 0), Position(1, 1024, 1))


def test_a_segment_is_closed_with_its_count_and_files_are_the_owners_alone(tmp_path: Path) -> None:
    with Spool(tmp_path / "new" / "spool", small()) as spool:
        spool.publish([b"a", b"b"])
        segment = tmp_path / "new" / "spool" / "0.seg"
        assert decode_header(segment.read_bytes()).count == 0
    assert decode_header(segment.read_bytes()).count == 2
    assert stat.S_IMODE(segment.stat().st_mode) == 0o600
    assert stat.S_IMODE(segment.parent.stat().st_mode) == 0o700


def test_an_empty_publication_writes_nothing() -> None:
    files = MemoryFiles()
    with Spool(ROOT, small(), files=files) as spool:
        spool.publish([])
        assert segments(files) == []


def test_one_write_and_one_sync_are_all_that_a_batch_costs() -> None:
    files = MemoryFiles()
    with Spool(ROOT, small(), files=files) as spool:
        spool.publish([b"first"])
        before = len(files.operations)
        spool.publish([b"%d" % n for n in range(100)])
        assert [operation.kind for operation in files.operations[before:]] == ["write", "sync"]


# --- bounds ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_size": 10_000, "segment_size": None}, "a segment holds 4096 to 268435456"),
        ({"max_size": 8000}, "has no room for two segments of 4096"),
        ({"write_ahead": 0}, "write_ahead is at least 1"),
        ({"ack_window": -1}, "ack_window at least 0"),
        ({"key": b"short"}, "a key has 16 bytes, not 5"),
        ({"key": None, "options": Options.ENCRYPTED}, "encryption needs a key"),
    ],
)
def test_settings_that_no_spool_can_keep_are_refused(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidValue, match=words):
        small(**changes)


def test_a_segment_is_a_tenth_of_the_whole_unless_said() -> None:
    assert SpoolSettings(max_size=10**6).size_of_segment == 10**5
    assert SpoolSettings().size_of_segment == 2**30 // 10


def test_payloads_that_do_not_fit_are_refused_and_the_largest_fits() -> None:
    settings = small()
    with Spool(ROOT, settings, files=MemoryFiles()) as spool:
        with pytest.raises(InvalidValue, match="at least one byte"):
            spool.publish([b"a", b""])
        with pytest.raises(PayloadTooLarge, match=f"{settings.payload_max} fit in a segment"):
            spool.publish([b"x" * (settings.payload_max + 1)])
        with pytest.raises(SpoolFull, match="bytes at once; a spool of this size takes"):
            spool.publish([b"x" * 3000] * 7)
        assert spool.read(1, timeout=0) is None
        spool.publish([b"x" * settings.payload_max])
        spool.publish([b"x" * settings.payload_max])
        assert spool.stat().segments == 2


@pytest.mark.parametrize("options", ALL_OPTIONS[:4], ids=str)
@pytest.mark.parametrize("max_size", [8192, 20_000, 41_000])
def test_a_spool_never_grows_beyond_its_size_and_takes_more_once_it_was_emptied(
    options: Options, max_size: int
) -> None:
    files = MemoryFiles()
    settings = small(max_size=max_size, options=options, when_full=WhenFull.REFUSE)
    largest = min(settings.payload_max, (settings.publication_max - 2 * 12) // 2)
    with Spool(ROOT, settings, files=files) as spool:
        for size in (200, 900, 1800, largest):
            refused = 0
            while not refused:
                try:
                    spool.publish([bytes(size), bytes(max(1, size // 2))])
                except SpoolFull:
                    refused += 1
                assert size_on_disk(files) <= max_size
            assert size_on_disk(files) > max_size // 4 or options & Options.COMPRESSED
            drain(spool)
            # What is allowed at once fits into an empty spool, whatever its newest segment has in it.
            spool.publish([bytes(largest), bytes(largest)])
            assert size_on_disk(files) <= max_size
            drain(spool)


def test_a_full_spool_says_so_at_once_if_nobody_wants_to_wait() -> None:
    with Spool(ROOT, small(), files=MemoryFiles()) as spool:
        for _ in range(4):
            spool.publish([b"x" * 4000])
        with pytest.raises(SpoolFull, match=r"holds 16096 of 20000 bytes and has no room for"):
            spool.publish([b"x" * 4000], timeout=0)
        spool.publish([b"x"], timeout=0)
        spool.acknowledge(taken(spool))
        spool.publish([b"x" * 3900], timeout=0)


def test_the_oldest_segment_is_dropped_to_make_room_where_that_is_wanted() -> None:
    notes: list[str] = []
    files = MemoryFiles()
    settings = small(when_full=WhenFull.DROP_OLDEST)
    with Spool(ROOT, settings, files=files, tell=notes.append) as spool:
        for n in range(12):
            spool.publish([b"%d" % n * 1500], timeout=0)
            assert size_on_disk(files) <= settings.max_size
        left = [one[:2] for one in payloads_of(read_all(spool))]
        assert left == [(b"%d" % n * 2)[:2] for n in range(12)][-len(left) :]
        assert spool.stat().dropped == 12 - len(left) > 0
        assert "dropped with about 2 tasks in it to make room" in notes[0]
    with Spool(ROOT, settings, files=files) as spool:
        assert [one[:2] for one in payloads_of(read_all(spool))] == left


def test_batches_of_a_dropped_segment_may_be_acknowledged_and_its_reader_goes_on() -> None:
    with Spool(ROOT, small(when_full=WhenFull.DROP_OLDEST), files=MemoryFiles()) as spool:
        spool.publish([b"0" * 1000] * 3)
        first = taken(spool, 1)
        for n in range(1, 7):
            spool.publish([b"%d" % n * 1000] * 3)
        assert spool.stat().dropped > 0
        second = taken(spool)
        assert second.start.segment > first.start.segment
        before = spool.stat().position
        spool.acknowledge(first)
        assert spool.stat().position == before
        spool.acknowledge(second)
        assert spool.stat().position > before


# --- acknowledging ---


def test_batches_are_acknowledged_in_any_order_and_only_a_run_from_the_oldest_counts() -> None:
    files = MemoryFiles()
    with Spool(ROOT, small(), files=files) as spool:
        spool.publish([b"%d" % n for n in range(9)])
        batches = read_all(spool, 3)
        spool.acknowledge(batches[2])
        spool.acknowledge(batches[1])
        assert spool.stat().position == Position(0)
        assert spool.stat().acknowledged == 0
        spool.acknowledge(batches[0])
        spool.acknowledge(batches[0])
        assert spool.stat().acknowledged == 9
    with Spool(ROOT, small(), files=files) as spool:
        assert read_all(spool) == []


def test_what_was_read_and_not_acknowledged_comes_again_after_a_restart() -> None:
    files = MemoryFiles()
    with Spool(ROOT, small(), files=files) as spool:
        spool.publish([b"%d" % n for n in range(9)])
        batches = read_all(spool, 3)
        spool.acknowledge(batches[0])
        spool.acknowledge(batches[2])
    with Spool(ROOT, small(), files=files) as spool:
        assert payloads_of(read_all(spool)) == [b"%d" % n for n in range(3, 9)]


def test_a_segment_goes_when_all_of_it_was_acknowledged_and_the_newest_stays() -> None:
    files = MemoryFiles()
    with Spool(ROOT, small(), files=files) as spool:
        spool.publish([b"x" * 2000] * 6)
        assert segments(files) == ["0.seg", "1.seg", "2.seg"]
        batches = read_all(spool, 1)
        for number, batch in enumerate(batches):
            spool.acknowledge(batch)
            assert len(segments(files)) == max(1, 3 - (number + 1) // 2)
        assert segments(files) == ["2.seg"]
        spool.publish([b"x" * 2000] * 2)
        taken(spool)
        assert segments(files) == ["3.seg"], (
            "what had nothing left goes when the reader has left it"
        )


@pytest.mark.parametrize("window", [0, 1, 5])
def test_the_position_is_saved_whenever_the_window_is_passed(window: int) -> None:
    files = MemoryFiles()
    with Spool(ROOT, small(ack_window=window), files=files) as spool:
        spool.publish([b"%d" % n for n in range(20)])
        for batch in read_all(spool, 1):
            spool.acknowledge(batch)
            state = decode_state(files.image()[str(ROOT / "state.dat")])
            assert 0 <= batch.end.index - state.position.index <= window


def test_rewinding_gives_everything_again_that_is_not_acknowledged() -> None:
    with Spool(ROOT, small(), files=MemoryFiles()) as spool:
        spool.publish([b"%d" % n * 500 for n in range(10)])
        batches = read_all(spool, 2)
        spool.acknowledge(batches[0])
        spool.acknowledge(batches[2])
        spool.rewind()
        spool.acknowledge(batches[1])
        again = read_all(spool, 100)
        assert payloads_of(again) == [b"%d" % n * 500 for n in range(2, 10)]
        for batch in again:
            spool.acknowledge(batch)
        spool.rewind()
        assert spool.read(1, timeout=0) is None
        spool.publish([b"more"])
        assert taken(spool).payloads == [b"more"]


def test_a_round_that_was_being_sent_is_read_again_to_its_very_end() -> None:
    files = MemoryFiles()
    spool = Spool(ROOT, small(), files=files)
    spool.publish([b"%d" % n for n in range(5)])
    spool.acknowledge(taken(spool, 1))
    sent = taken(spool, 2)
    spool.save(sending=sent.end)
    spool.publish([b"more"] * 5)
    with Spool(ROOT, small(), files=MemoryFiles(files.image())) as again:
        assert again.sending == sent.end
        batch = taken(again, 100, until=again.sending)
        assert (batch.start, batch.end, batch.payloads) == (sent.start, sent.end, [b"1", b"2"])
        assert again.read(100, timeout=5, until=again.sending) is None, "nothing is left of it"
        assert taken(again, 1).payloads == [b"3"]
        again.acknowledge(batch)
        again.save()
    with Spool(ROOT, small(), files=MemoryFiles(files.image())) as again:
        assert again.sending == sent.end
        assert taken(again, 1, until=again.sending).payloads == [b"1"]
        assert taken(again, 9, until=again.sending).payloads == [b"2"]
    spool.acknowledge(sent)
    spool.save(sending=None)
    spool.close()
    with Spool(ROOT, small(), files=files) as again:
        assert again.sending is None


# --- opening and closing ---


def test_a_directory_is_open_once(tmp_path: Path) -> None:
    with Spool(tmp_path, small()), pytest.raises(DirectoryLocked):
        Spool(tmp_path, small())
    Spool(tmp_path, small()).close()


def test_a_link_in_place_of_a_segment_is_refused(tmp_path: Path) -> None:
    with Spool(tmp_path / "spool", small()) as spool:
        spool.publish([b"a"])
    (tmp_path / "spool" / "0.seg").rename(tmp_path / "elsewhere")
    (tmp_path / "spool" / "0.seg").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PathRefused):
        Spool(tmp_path / "spool", small())


def test_a_closed_spool_does_nothing_more() -> None:
    files = MemoryFiles()
    spool = Spool(ROOT, small(), files=files)
    spool.publish([b"a"])
    batch = taken(spool)
    spool.close()
    spool.close()
    before = len(files.operations)
    attempts: list[Callable[[], object]] = [
        lambda: spool.publish([b"b"]),
        lambda: spool.read(1),
        lambda: spool.acknowledge(batch),
        spool.save,
    ]
    for attempt in attempts:
        with pytest.raises(InvalidValue, match="the spool is closed"):
            attempt()
    assert len(files.operations) == before


def test_an_error_inside_is_not_hidden_by_a_disk_that_fails_at_close() -> None:
    def fail(operation: Operation) -> None:
        raise OSError(5, "Input/output error", operation.path)

    def live(files: MemoryFiles, error: Exception | None) -> None:
        with Spool(ROOT, small(), files=files) as spool:
            spool.publish([b"a"])
            files.fault = fail
            if error is not None:
                raise error

    with pytest.raises(ZeroDivisionError):
        live(MemoryFiles(), ZeroDivisionError())
    with pytest.raises(StorageFailed):
        live(MemoryFiles(), None)


@pytest.mark.parametrize("options", ALL_OPTIONS[:4], ids=str)
@pytest.mark.parametrize("at", ["write", "sync", "create"])
def test_a_write_that_is_interrupted_is_taken_back_and_the_spool_goes_on(
    options: Options, at: str
) -> None:
    files = MemoryFiles()
    spool = Spool(ROOT, small(options=options), files=files)
    spool.publish([b"before" * 300])

    def interrupt(operation: Operation) -> None:
        if operation.kind == at:
            files.fault = None
            raise KeyboardInterrupt

    files.fault = interrupt
    with pytest.raises(KeyboardInterrupt):
        spool.publish([b"lost" * 600] * 2)
    spool.publish([b"behind"])
    assert payloads_of(read_all(spool)) == [b"before" * 300, b"behind"]
    spool.close()
    notes: list[str] = []
    with Spool(ROOT, small(options=options), files=files, tell=notes.append) as spool:
        assert payloads_of(read_all(spool)) == [b"before" * 300, b"behind"]
    assert notes == []


def test_the_numbers_tell_how_a_spool_stands() -> None:
    with Spool(ROOT, small(), files=MemoryFiles()) as spool:
        spool.publish([b"x" * 88] * 3)
        spool.acknowledge(taken(spool, 2))
        stat_ = spool.stat()
    assert (stat_.segments, stat_.size, stat_.size_max) == (1, 312, 20_000)
    assert (stat_.published, stat_.acknowledged, stat_.dropped, stat_.damaged) == (3, 2, 0, 0)
    assert stat_.position == Position(0, 212, 2)


def test_where_only_the_newest_segment_could_be_dropped_the_producer_is_refused() -> None:
    files = MemoryFiles()
    with Spool(ROOT, small(max_size=40_000, segment_size=16_000), files=files) as spool:
        spool.publish([b"x" * 15_000])
    settings = small(max_size=16_000, when_full=WhenFull.DROP_OLDEST)
    with Spool(ROOT, settings, files=files) as spool:
        with pytest.raises(SpoolFull, match="has no room for"):
            spool.publish([b"y" * 3000])
        spool.acknowledge(taken(spool))
        spool.publish([b"y" * 3000])
        assert taken(spool).payloads == [b"y" * 3000]


def test_a_disk_that_cannot_be_read_is_said_and_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Spool(ROOT, small(), files=MemoryFiles()) as spool:
        spool.publish([b"a"])

        def fail(self: MemoryFile, offset: int, size: int) -> bytes:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as broken:
            broken.setattr(MemoryFile, "read", fail)
            for _ in range(2):
                with pytest.raises(StorageFailed, match=r"0\.seg: cannot be read: Input/output"):
                    spool.read(1, timeout=0)
        assert taken(spool, 1).payloads == [b"a"]
        spool.publish([b"b"])
        with monkeypatch.context() as broken:
            broken.setattr(MemoryFile, "read", fail)
            with pytest.raises(StorageFailed, match=r"0\.seg: cannot be read: Input/output"):
                spool.read(1, timeout=0)
        assert taken(spool, 1).payloads == [b"b"]


def test_a_segment_that_somebody_else_has_removed_counts_as_removed(tmp_path: Path) -> None:
    with Spool(tmp_path, small()) as spool:
        spool.publish([b"x" * 3000] * 2)
        batches = read_all(spool)
        (tmp_path / "0.seg").unlink()
        for batch in batches:
            spool.acknowledge(batch)
        spool.publish([b"more"])
        assert taken(spool).payloads == [b"more"]
