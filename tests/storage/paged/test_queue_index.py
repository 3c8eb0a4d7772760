"""The index of a paged queue: what it writes where, when it flushes, and what a start makes of it.

Numbers of sections are those of the description of RabbitMQ's format that docs/formats/rabbitmq.md follows.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import CorruptData, DirectoryLocked, PathRefused, StorageFailed
from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.read import Wanted
from penstock.families.rabbitmq.rows import tasks
from penstock.families.rabbitmq.verify import verify
from penstock.formats.rabbitmq import journal, segment
from penstock.formats.rabbitmq.checkpoint import (
    SEQUENCE_END,
    decode_checkpoint,
    encode_checkpoint,
)
from penstock.formats.rabbitmq.journal import Kind, Piece
from penstock.formats.rabbitmq.messages import Content as MessageContent
from penstock.formats.rabbitmq.messages import Message, encode_message
from penstock.formats.rabbitmq.places import decode_table, encode_table, mark_of
from penstock.storage.files import OsFiles
from penstock.storage.paged import directory as paged_directory
from penstock.storage.paged.directory import LATEST, AtMark, PagedDirectory
from penstock.storage.paged.limits import IndexLimits
from penstock.storage.paged.queue_index import QueueIndex
from penstock.testing.disk import MemoryFiles, Operation
from support.paged_lives import Content, content_of, message, message_id

ROOT = Path("/paged")
LIMITS = IndexLimits(entry_count=8, journal_entries_max=100, embed_below=100)
NAME = b"orders"


def opened(files: MemoryFiles, at_mark: AtMark = LATEST, **limits: Any) -> PagedDirectory:
    return PagedDirectory(
        files,
        ROOT,
        at_mark=at_mark,
        limits=IndexLimits(
            entry_count=limits.get("entry_count", 8),
            journal_entries_max=limits.get("journal_entries_max", 100),
            embed_below=limits.get("embed_below", 100),
        ),
    )


def publish(queue: QueueIndex, sizes: list[int], *, first: int | None = None) -> list[bytes]:
    first = queue.next_sequence if first is None else first
    messages = [message(first + n, size) for n, size in enumerate(sizes)]
    ids = [message_id(first + n + 1) for n in range(len(sizes))]
    queue.publish_many(first, ids, messages, [len(one) for one in messages])
    return messages


def file_of(files: MemoryFiles, queue: QueueIndex, name: str) -> bytes | None:
    return files.image().get(str(queue.directory / name))


def segment_pieces(files: MemoryFiles, queue: QueueIndex, number: int) -> list[Piece]:
    data = file_of(files, queue, f"{number}.idx")
    assert data is not None
    return list(segment.scan(data, segment=number, entry_count=8))


def test_a_message_is_in_the_index_or_in_the_store_as_its_body_is_below_the_limit() -> None:
    # Section 6.4.
    files = MemoryFiles()
    store = opened(files)
    queue = store.open_queue(1, NAME)
    messages = publish(queue, [99, 100, 50])
    store.sync()
    data = file_of(files, queue, "journal.jif")
    assert data is not None
    pieces = [p for p in journal.scan(data) if p.sequence < SEQUENCE_END]
    assert [(p.kind, p.length, p.body_size) for p in pieces] == [
        (Kind.PUBLISH_PERSISTENT, 99, 99),
        (Kind.PUBLISH_PERSISTENT, 0, 100),
        (Kind.PUBLISH_PERSISTENT, 50, 50),
    ]
    assert len(store.store) == 1
    assert queue.read_many([0, 1, 2]) == messages
    assert queue.read_many([2, 0]) == [messages[2], messages[0]]


def test_a_message_is_read_wherever_it_is() -> None:
    files = MemoryFiles()
    store = opened(files)
    queue = store.open_queue(1, NAME)
    messages = publish(queue, [20, 200, 30])
    queue.flush()
    messages += publish(queue, [40, 300])
    assert queue.read_many([4, 3, 2, 1, 0]) == messages[::-1]
    assert queue.read_many([]) == []
    queue.publish_many(queue.next_sequence, [], [], [])
    queue.deliver_many([])
    queue.ack_many([])
    assert len(queue) == 5


def test_every_action_makes_the_journal_dirty_and_beyond_the_limit_it_needs_a_flush() -> None:
    # Section 9, rule B: strictly more than the limit.
    store = opened(MemoryFiles(), journal_entries_max=4)
    queue = store.open_queue(1, NAME)
    publish(queue, [10, 10])
    queue.deliver_many([0])
    queue.ack_many([0])
    assert queue.dirty_count == 4
    assert not queue.needs_flush
    queue.deliver_many([1])
    assert queue.needs_flush
    queue.flush()
    assert queue.dirty_count == 0
    assert not queue.needs_flush


def test_the_default_limits_are_those_that_the_documentation_names() -> None:
    limits = IndexLimits()
    assert (limits.entry_count, limits.journal_entries_max, limits.embed_below) == (
        16_384, 65_536, 4096,
    )  # fmt: skip


def test_a_flush_spreads_messages_over_segments_by_number() -> None:
    files = MemoryFiles()
    queue = opened(files).open_queue(1, NAME)
    publish(queue, [10] * 3, first=6)
    queue.flush()
    assert [p.sequence for p in segment_pieces(files, queue, 0)] == [6, 7]
    assert [p.sequence for p in segment_pieces(files, queue, 1)] == [8]
    assert len(queue) == 3


def test_what_was_published_and_acked_since_the_last_flush_is_never_written_to_a_segment() -> None:
    # Section 5, rule 4.
    files = MemoryFiles()
    queue = opened(files).open_queue(1, NAME)
    publish(queue, [10, 10])
    queue.deliver_many([0])
    queue.ack_many([0])
    queue.flush()
    assert [p.sequence for p in segment_pieces(files, queue, 0)] == [1]


def test_an_ack_is_written_behind_a_deliver_even_if_there_was_none() -> None:
    # The second record of a message is its ack; a broker wants a deliver before it.
    files = MemoryFiles()
    queue = opened(files).open_queue(1, NAME)
    publish(queue, [10, 10, 10])
    queue.flush()
    queue.ack_many([0])
    queue.deliver_many([1])
    queue.flush()
    kinds = [(p.kind, p.sequence) for p in segment_pieces(files, queue, 0)[3:]]
    assert kinds == [(Kind.DELIVER_OR_ACK, n) for n in (0, 1, 0)]


def test_a_message_that_is_delivered_often_is_never_taken_for_acked() -> None:
    files = MemoryFiles()
    store = opened(files)
    queue = store.open_queue(1, NAME)
    publish(queue, [10, 10])
    for _ in range(3):
        queue.deliver_many([0])
        queue.flush()
        store.checkpoint()
        store.close()
        store = opened(files)
        queue = store.open_queue(1, NAME)
        queue.deliver_many([0])
        store.sync()
    assert sorted(content_of(queue)) == [0, 1]
    assert [held.is_delivered for held in content_of(queue).values()] == [True, False]


def test_a_fully_acked_segment_goes_with_the_next_checkpoint() -> None:
    files = MemoryFiles()
    store = opened(files)
    queue = store.open_queue(1, NAME)
    publish(queue, [10] * 12)
    queue.flush()
    store.checkpoint()
    queue.ack_many(list(range(8)))
    queue.flush()
    assert file_of(files, queue, "0.idx"), "the checkpoint still needs it"
    store.checkpoint()
    assert file_of(files, queue, "0.idx") is None
    queue.ack_many(list(range(8, 12)))
    queue.flush()
    store.checkpoint()
    assert file_of(files, queue, "1.idx") is None
    assert file_of(files, queue, "journal.jif") == b""
    # Numbers are not used again, and the segment comes back if it is needed.
    assert queue.next_sequence == 12
    publish(queue, [10])
    queue.flush()
    assert [p.sequence for p in segment_pieces(files, queue, 1)] == [12]


def test_numbers_are_not_used_again_after_a_start() -> None:
    files = MemoryFiles()
    store = opened(files)
    queue = store.open_queue(1, NAME)
    publish(queue, [10] * 3)
    queue.ack_many([0, 1, 2])
    queue.flush()
    store.checkpoint()
    store.close()
    assert opened(files).open_queue(1, NAME).next_sequence == 3


def test_a_checkpoint_empties_a_journal_that_was_flushed_and_keeps_a_short_one() -> None:
    files = MemoryFiles()
    store = opened(files)
    queue = store.open_queue(1, NAME)
    publish(queue, [10] * 3)
    store.checkpoint()
    assert file_of(files, queue, "journal.jif")
    assert file_of(files, queue, "0.idx") is None
    queue.flush()
    publish(queue, [10])
    store.checkpoint()
    assert file_of(files, queue, "journal.jif") == b""
    assert len(segment_pieces(files, queue, 0)) == 4


def test_a_sync_is_one_write_and_one_sync_a_journal() -> None:
    files = MemoryFiles()
    store = opened(files)
    queues = [store.open_queue(number, b"queue %d" % number) for number in (1, 2, 3)]
    store.sync()
    start = len(files.operations)
    for queue in queues[:2]:
        for _ in range(5):
            publish(queue, [10, 20])
        queue.deliver_many([0, 1])
        queue.ack_many([0])
    store.sync()
    kinds = [o.kind for o in files.operations[start:]]
    # The seal is a write of its own.
    assert kinds == ["write"] * 4 + ["sync"] * 2


def test_messages_reach_the_disk_before_the_journal_that_refers_to_them() -> None:
    files = MemoryFiles()
    store = opened(files)
    queue = store.open_queue(1, NAME)
    store.sync()
    start = len(files.operations)
    publish(queue, [500])
    store.sync()
    synced = [Path(o.path).name for o in files.operations[start:] if o.kind == "sync"]
    assert synced == ["0.rdq", "journal.jif"]


def test_a_queue_that_is_deleted_gives_its_messages_back_and_its_files_after_the_checkpoint() -> (
    None
):
    files = MemoryFiles()
    store = opened(files)
    queue = store.open_queue(1, NAME)
    other = store.open_queue(2, b"other")
    publish(queue, [500, 10])
    publish(other, [500])
    publish(queue, [600])
    assert len(store.store) == 2, "two messages have one id"
    store.checkpoint()
    store.delete_queue(1)
    assert len(store.store) == 1
    assert other.read_many([0]) == [message(0, 500)]
    assert store.find_queue(1) is None
    assert file_of(files, queue, "journal.jif") is not None
    store.checkpoint()
    assert not [path for path in files.image() if path.startswith(str(queue.directory))]
    store.close()
    assert [q.number for q in opened(files).queues] == [2]


def test_a_queue_may_be_made_again_under_its_name_before_a_checkpoint() -> None:
    files = MemoryFiles()
    store = opened(files)
    publish(store.open_queue(1, NAME), [10])
    store.sync()
    store.delete_queue(1)
    again = store.open_queue(2, NAME)
    assert len(again) == 0
    publish(again, [20])
    store.sync()
    store.close()
    assert list(content_of(opened(files).open_queue(2, NAME))) == [0]


def test_the_stored_number_of_entries_in_a_segment_counts() -> None:
    files = MemoryFiles()
    store = opened(files, entry_count=4)
    publish(store.open_queue(1, NAME), [10] * 10)
    store.sync()
    store.close()
    store = opened(files, entry_count=16)
    queue = store.open_queue(1, NAME)
    queue.flush()
    assert sorted(p for p in files.image() if p.endswith(".idx")) == [
        str(queue.directory / f"{n}.idx") for n in (0, 1, 2)
    ]


def test_messages_in_memory_take_few_bytes_each() -> None:
    files = MemoryFiles()
    store = PagedDirectory(files, ROOT, at_mark=LATEST, limits=IndexLimits())
    queue = store.open_queue(1, NAME)
    count = 100_000
    one = message(1, 20)
    for first in range(0, count, 5000):
        ids = [message_id(first + n + 1) for n in range(5000)]
        queue.publish_many(first, ids, [one] * 5000, [20] * 5000)
    queue.flush()
    assert queue.memory_size < 16 * count
    store.checkpoint()
    store.close()
    again = PagedDirectory(files, ROOT, at_mark=LATEST).open_queue(1, NAME)
    assert len(again) == count
    assert again.memory_size < 16 * count
    assert again.read_many([0, 77_777, count - 1]) == [one] * 3


# --- starting ------------------------------------------------------------------------------------


def test_a_start_at_a_mark_gives_that_state_whatever_was_written_since() -> None:
    files = MemoryFiles()
    store = opened(files, None)
    queue = store.open_queue(1, NAME)
    publish(queue, [10, 200, 10])
    queue.deliver_many([2])
    queue.flush()
    store.checkpoint(5)
    expected = content_of(queue)
    publish(queue, [10, 300])
    queue.deliver_many([0, 1])
    queue.ack_many([0, 1, 2])
    queue.flush()
    store.open_queue(2, b"later")
    store.delete_queue(1)
    store.close()
    again = opened(files, 5)
    assert again.mark == 5
    assert [q.number for q in again.queues] == [1]
    queue = again.open_queue(1, NAME)
    assert content_of(queue) == expected
    assert queue.next_sequence == 3


def test_until_a_checkpoint_counts_a_start_can_ask_for_it_or_for_the_one_before() -> None:
    for at_mark, expected in ((5, [0]), (9, [0, 1])):
        files = MemoryFiles()
        store = opened(files, None)
        queue = store.open_queue(1, NAME)
        publish(queue, [10])
        store.checkpoint(5)
        publish(queue, [200])
        store.begin_checkpoint(9)()
        publish(queue, [10])
        store.close()
        assert list(content_of(opened(files, at_mark).open_queue(1, NAME))) == expected


def test_a_store_goes_on_while_another_thread_writes_its_checkpoint(tmp_path: Path) -> None:
    limits = IndexLimits(entry_count=64, journal_entries_max=50, embed_below=100, buffer_size=500)
    store = PagedDirectory(OsFiles(), tmp_path, at_mark=None, limits=limits)
    queue = store.open_queue(1, NAME)
    expected = {}
    for mark in range(1, 6):
        publish(queue, [20, 200] * 40)
        thread = Thread(target=store.begin_checkpoint(mark))
        expected = content_of(queue)
        thread.start()
        for _ in range(20):
            publish(queue, [20, 200])
            queue.ack_many([next(iter(content_of(queue)))])
            queue.flush()
        thread.join()
        store.finish_checkpoint()
    store.close()
    again = PagedDirectory(OsFiles(), tmp_path, at_mark=5)
    assert content_of(again.open_queue(1, NAME)) == expected
    again.close()


def test_a_start_at_another_mark_is_refused_and_changes_nothing() -> None:
    files = MemoryFiles()
    store = opened(files, None)
    publish(store.open_queue(1, NAME), [10])
    store.checkpoint(5)
    store.close()
    image = files.image()
    for at_mark in (None, 4, 6):
        with pytest.raises(CorruptData, match="not those of the snapshot"):
            opened(files, at_mark)
    assert files.image() == image


def test_where_no_checkpoint_was_finished_every_mark_is_empty() -> None:
    files = MemoryFiles()
    store = opened(files, 7)
    publish(store.open_queue(1, NAME), [10, 200])
    store.begin_checkpoint(9)()
    store.close()
    assert list(opened(files, 7).queues) == []


def test_a_directory_is_not_used_in_both_ways() -> None:
    alone, under = MemoryFiles(), MemoryFiles()
    store = opened(alone)
    store.open_queue(1, NAME)
    store.sync()
    store.close()
    with pytest.raises(PathRefused, match="belongs to no node"):
        opened(alone, None)
    store = opened(under, None)
    store.open_queue(1, NAME)
    store.checkpoint(3)
    store.close()
    with pytest.raises(PathRefused, match="belongs to a node"):
        opened(under)


def test_two_processes_cannot_open_one_directory() -> None:
    files = MemoryFiles()
    opened(files)
    with pytest.raises(DirectoryLocked):
        opened(files)


def two_segments() -> tuple[MemoryFiles, Path]:
    files = MemoryFiles()
    store = opened(files)
    queue = store.open_queue(1, NAME)
    publish(queue, [10] * 9)
    queue.flush()
    store.checkpoint()
    publish(queue, [10, 200])
    store.checkpoint()
    store.close()
    return files, queue.directory


@pytest.mark.parametrize("name", ["0.idx", "1.idx", "journal.jif"])
def test_a_file_that_is_shorter_than_the_checkpoint_says_is_refused(name: str) -> None:
    files, directory = two_segments()
    image = files.image()
    path = str(directory / name)
    for left in (image[path][:-1], None):
        damaged = {p: d for p, d in image.items() if p != path}
        if left is not None:
            damaged[path] = left
        with pytest.raises(CorruptData, match="shorter than the checkpoint says"):
            opened(MemoryFiles(damaged))


def test_records_that_cannot_be_within_what_was_synced_are_refused() -> None:
    files, directory = two_segments()
    for name, reason in (("0.idx", "of a segment"), ("journal.jif", "of a journal")):
        image = files.image()
        path = str(directory / name)
        image[path] = bytes(len(image[path]))
        image.pop(str(directory / "0.places"))
        with pytest.raises(CorruptData, match=reason):
            opened(MemoryFiles(image))


def test_a_damaged_checkpoint_is_told_with_its_file() -> None:
    files, _ = two_segments()
    image = files.image()
    path = str(ROOT / "penstock.checkpoint")
    image[path] = image[path][:-1] + bytes((image[path][-1] ^ 1,))
    with pytest.raises(CorruptData, match=r"penstock\.checkpoint, offset \d+: the checksum"):
        opened(MemoryFiles(image))


def test_a_message_that_is_in_no_store_file_is_told() -> None:
    files, _ = two_segments()
    image = files.image()
    path = str(ROOT / "msg_store_persistent" / "0.rdq")
    image[path] = bytes(len(image[path]))
    with pytest.raises(CorruptData, match="in no store file"):
        opened(MemoryFiles(image))


def test_after_a_failed_sync_nothing_is_answered_any_more() -> None:
    files = MemoryFiles()
    store = opened(files)
    queue = store.open_queue(1, NAME)
    store.sync()
    publish(queue, [10])

    def fail(operation: Operation) -> None:
        if operation.kind == "sync":
            raise OSError(5, "Input/output error")

    files.fault = fail
    with pytest.raises(StorageFailed):
        store.sync()
    files.fault = None
    actions = (
        store.sync,
        store.checkpoint,
        lambda: queue.read_many([0]),
        lambda: queue.ack_many([0]),
        lambda: queue.deliver_many([0]),
        lambda: publish(queue, [10]),
        lambda: store.open_queue(2, b"other"),
    )
    for action in actions:
        with pytest.raises(StorageFailed):
            action()
    store.close()


def test_what_is_left_of_queues_that_a_checkpoint_does_not_know_is_removed(tmp_path: Path) -> None:
    store = PagedDirectory(OsFiles(), tmp_path, at_mark=None)
    publish(store.open_queue(1, NAME), [10, 5000])
    store.checkpoint(3)
    later = store.open_queue(2, b"later")
    publish(later, [10] * 3)
    later.flush()
    store.delete_queue(1)
    assert list(later.directory.iterdir())
    store.close()
    store = PagedDirectory(OsFiles(), tmp_path, at_mark=3)
    assert list(later.directory.iterdir()) == []
    assert list(content_of(store.open_queue(1, NAME))) == [0, 1]
    assert list(content_of(store.open_queue(2, b"later"))) == []
    store.close()


# --- under a log ---------------------------------------------------------------------------------


def test_under_a_log_a_message_is_written_once_and_the_journal_stays_empty() -> None:
    files = MemoryFiles()
    store = opened(files, None)
    queue = store.open_queue(1, NAME)
    messages = publish(queue, [50] * 20 + [500])
    queue.deliver_many([0, 1])
    queue.ack_many([0, 9])
    queue.flush()
    store.checkpoint(5)
    assert file_of(files, queue, "journal.jif") == b""
    written = sum(
        len(operation.data)
        for operation in files.operations
        if operation.kind == "write" and operation.path.endswith((".idx", ".rdq"))
    )
    # 34 bytes of head in a segment, 25 around a message of the store, 2 for each deliver and ack.
    assert written == sum(map(len, messages)) + 21 * 34 + 25 + 5 * 2
    kinds = [(p.kind, p.sequence) for p in segment_pieces(files, queue, 0)]
    assert kinds == [
        *((Kind.PUBLISH_PERSISTENT, n) for n in range(8)),
        *((Kind.DELIVER_OR_ACK, n) for n in (0, 1, 0)),
    ]


def test_under_a_log_messages_wait_to_be_written_together_and_are_read_before() -> None:
    files = MemoryFiles()
    store = PagedDirectory(
        files, ROOT, at_mark=None, limits=IndexLimits(entry_count=8, buffer_size=1000)
    )
    queue = store.open_queue(1, NAME)

    def segment_writes() -> int:
        done = files.operations
        return sum(one.kind == "write" and one.path.endswith(".idx") for one in done)

    messages = [publish(queue, [80])[0] for _ in range(6)]
    assert segment_writes() == 0
    assert queue.dirty_count == 6
    assert queue.memory_size > 6 * 80
    messages += [publish(queue, [80])[0] for _ in range(6)]
    assert segment_writes() == 2, "one write a segment"
    messages += publish(queue, [70])
    assert queue.read_many([12, 0]) == [messages[12], messages[0]]
    assert segment_writes() == 3
    assert len(content_of(queue)) == 13


def test_under_a_log_what_is_acked_while_it_waits_leaves_no_segment() -> None:
    files = MemoryFiles()
    store = opened(files, None)
    queue = store.open_queue(1, NAME)
    publish(queue, [10])
    queue.ack_many([0])
    store.checkpoint(1)
    assert file_of(files, queue, "0.idx") is None
    publish(queue, [20])
    store.begin_checkpoint(2)()
    queue.ack_many([1])
    store.finish_checkpoint()
    publish(queue, [30])
    store.checkpoint(3)
    store.close()
    assert list(content_of(opened(files, 3).open_queue(1, NAME))) == [2]


def test_a_journal_that_an_earlier_version_left_under_a_log_is_taken_over() -> None:
    files = MemoryFiles()
    store = opened(files)  # one that stands alone writes what the earlier version wrote
    queue = store.open_queue(1, NAME)
    publish(queue, [10] * 9)
    queue.flush()
    store.checkpoint()
    publish(queue, [20, 200])
    queue.ack_many([1])
    queue.deliver_many([9])
    store.checkpoint()
    expected = content_of(queue)
    store.close()
    # Under a log the number of a queue is part of its directory's name.
    directory = str(queue.directory)
    image = {
        name.replace(directory, f"{directory}-1"): data for name, data in files.image().items()
    }
    assert image[f"{directory}-1/journal.jif"]
    path = str(ROOT / "penstock.checkpoint")
    image[path] = encode_checkpoint(replace(decode_checkpoint(image[path]), mark=7))
    files = MemoryFiles(image)
    store = opened(files, 7)
    queue = store.open_queue(1, NAME)
    assert content_of(queue) == expected
    publish(queue, [30])
    queue.ack_many([9])
    expected = content_of(queue)
    store.checkpoint(8)
    assert file_of(files, queue, "journal.jif") == b""
    store.close()
    assert content_of(opened(files, 8).open_queue(1, NAME)) == expected


# --- tables of places ----------------------------------------------------------------------------


def with_tables() -> tuple[dict[str, bytes], Content]:
    """Return a disk with two full segments and one that is not, and what is on it."""
    files = MemoryFiles()
    store = opened(files, None)
    queue = store.open_queue(1, NAME)
    publish(queue, [10] * 8 + [20, 500, 30, 40, 50, 60, 70, 80] + [10] * 3)
    queue.ack_many([2])
    store.checkpoint(5)
    queue.ack_many([9, 3])
    queue.deliver_many([4, 10])
    store.checkpoint(6)
    expected = content_of(queue)
    store.close()
    return files.image(), expected


def table_names(image: dict[str, bytes]) -> list[str]:
    return sorted(Path(path).name for path in image if path.endswith(".places"))


def test_full_segments_get_a_table_with_a_checkpoint_and_never_another() -> None:
    files = MemoryFiles()
    store = opened(files, None)
    queue = store.open_queue(1, NAME)
    publish(queue, [10] * 17)
    assert table_names(files.image()) == []
    store.checkpoint(1)
    assert table_names(files.image()) == ["0.places", "1.places"]
    before = [file_of(files, queue, name) for name in ("0.places", "1.places")]
    queue.ack_many([1, 8])
    publish(queue, [10] * 7)
    store.checkpoint(2)
    assert table_names(files.image()) == ["0.places", "1.places", "2.places"]
    assert [file_of(files, queue, name) for name in ("0.places", "1.places")] == before


def test_a_start_reads_of_a_segment_with_a_table_only_what_stands_behind_it() -> None:
    image, expected = with_tables()
    for number in (0, 1):
        path = next(path for path in image if path.endswith(f"/{number}.idx"))
        length = decode_table(image[path.replace(".idx", ".places")]).length
        assert 0 < length < len(image[path])
        image[path] = bytes(length) + image[path][length:]  # nobody who read it would take that
    store = opened(MemoryFiles(image), 6)
    assert store.unread_tables == []
    queue = store.open_queue(1, NAME)
    found = [
        (sequence, expiry, size, delivered)
        for part in queue.unacked()
        for sequence, expiry, size, delivered in zip(
            part.sequence.tolist(),
            part.expiry_us.tolist(),
            part.body_size.tolist(),
            part.is_delivered.tolist(),
            strict=True,
        )
    ]
    assert found == [
        (sequence, held.expiry_us, held.body_size, held.is_delivered)
        for sequence, held in expected.items()
    ]


def test_a_table_goes_with_its_segment_and_with_its_queue() -> None:
    image, _ = with_tables()
    files = MemoryFiles(image)
    store = opened(files, 6)
    queue = store.open_queue(1, NAME)
    queue.ack_many([n for n in content_of(queue) if n < 8])
    store.checkpoint(7)
    assert table_names(files.image()) == ["1.places"]
    store.delete_queue(1)
    store.checkpoint(8)
    assert table_names(files.image()) == []


def damaged(data: bytes) -> Iterator[bytes]:
    """Yield a table with each byte changed, cut everywhere, and too long."""
    for at in range(len(data)):
        yield data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :]
        yield data[:at]
    yield data + b"\0"


@pytest.mark.parametrize("name", ["0.places", "1.places"])
def test_a_damaged_or_missing_table_costs_nothing_but_a_look_at_the_file(name: str) -> None:
    image, expected = with_tables()
    path = next(path for path in image if path.endswith(name))
    for data in [None, *damaged(image[path])]:
        broken = dict(image)
        if data is None:
            del broken[path]
        else:
            broken[path] = data
        files = MemoryFiles(broken)
        store = opened(files, 6)
        assert [str(one) for one in store.unread_tables] == [path]
        assert content_of(store.open_queue(1, NAME)) == expected
        if data is None:
            store.checkpoint(7)
            store.close()
            assert opened(files, 7).unread_tables == [], "it was made anew"


def test_a_table_of_another_segment_or_queue_is_not_taken_for_this_ones() -> None:
    image, expected = with_tables()
    first, second = (next(p for p in image if p.endswith(f"{n}.places")) for n in (0, 1))
    store = opened(MemoryFiles(image | {first: image[second], second: image[first]}), 6)
    assert len(store.unread_tables) == 2
    assert content_of(store.open_queue(1, NAME)) == expected


def test_a_sound_table_that_says_what_cannot_be_is_not_believed() -> None:
    image, expected = with_tables()
    path = next(path for path in image if path.endswith("0.places"))
    table = decode_table(image[path])
    checkpoint = decode_checkpoint(image[str(ROOT / "penstock.checkpoint")])
    for column, value in ((0, 8), (1, 3), (2, 10**6), (3, 10**6), (3, 2**63), (5, 2**40)):
        wrong = table.columns[column].copy()
        wrong[3] = value
        columns = (*table.columns[:column], wrong, *table.columns[column + 1 :])
        for changed in (replace(table, columns=columns), replace(table, columns=columns[:7])):
            data = encode_table(changed)
            queue = checkpoint.queues[0]
            queue = replace(queue, tables=queue.tables | {0: mark_of(data)})
            vouched = encode_checkpoint(replace(checkpoint, queues=(queue,)))
            broken = image | {path: data, str(ROOT / "penstock.checkpoint"): vouched}
            store = opened(MemoryFiles(broken), 6)
            assert [str(one) for one in store.unread_tables] == [path]
            assert content_of(store.open_queue(1, NAME)) == expected


def test_a_checkpoint_makes_so_many_tables_at_most_and_the_next_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paged_directory, "TABLES_MAX", 2)
    files = MemoryFiles()
    store = opened(files, None)
    for number in (1, 2):
        publish(store.open_queue(number, b"queue %d" % number), [10] * 24, first=0)
    for mark, count in ((1, 2), (2, 4), (3, 6), (4, 6)):
        store.checkpoint(mark)
        assert len(table_names(files.image())) == count


def test_a_queue_deleted_while_its_tables_are_made_leaves_none() -> None:
    files = MemoryFiles()
    store = opened(files, None)
    publish(store.open_queue(1, NAME), [10] * 9)
    write = store.begin_checkpoint(1)
    store.delete_queue(1)
    write()
    store.finish_checkpoint()
    assert table_names(files.image()) == ["0.places"]
    store.checkpoint(2)
    assert table_names(files.image()) == []


# --- tools ---------------------------------------------------------------------------------------


def term(number: int, body: bytes) -> bytes:
    return encode_message(
        Message(
            vhost=b"penstock",
            exchange=b"",
            routing_keys=(NAME,),
            content=MessageContent(stored_properties=bytes.fromhex("100002"), fragments=(body,)),
            id=message_id(number),
            is_persistent=True,
        )
    )


def test_our_tools_read_the_directory_as_a_vhost_of_rabbitmq(tmp_path: Path) -> None:
    limits = IndexLimits(entry_count=8, embed_below=100)
    store = PagedDirectory(OsFiles(), tmp_path / "paged", at_mark=LATEST, limits=limits)
    queue = store.open_queue(1, NAME)
    bodies = [b"body %d " % n * (1 + 40 * (n % 2)) for n in range(20)]
    terms = [term(n + 1, body) for n, body in enumerate(bodies)]
    ids = [message_id(n + 1) for n in range(20)]
    queue.publish_many(0, ids[:12], terms[:12], [len(body) for body in bodies[:12]])
    queue.ack_many([0, 3])
    queue.flush()
    store.checkpoint()
    queue.publish_many(12, ids[12:], terms[12:], [len(body) for body in bodies[12:]])
    queue.deliver_many([1, 2])
    queue.ack_many([1, 5])
    store.sync()
    store.close()
    told: list[object] = []
    location = resolve(tmp_path / "paged")
    assert location.kind == "vhost"
    rows = list(tasks(location, Wanted(as_of_us=0, expired=True), report=told.append))
    assert [b64decode(row["payload"]) for row in rows] == [
        body for n, body in enumerate(bodies) if n not in (0, 1, 3, 5)
    ]
    assert {row["queue"] for row in rows} == {NAME.decode()}
    assert all(row["severity"] == "harmless" for row in verify(location)), "seals are passed over"


# --- a model -------------------------------------------------------------------------------------


class PagedQueueModel(RuleBasedStateMachine):
    """A queue against a plain dictionary, through flushes, checkpoints, merges and restarts."""

    @initialize(alone=st.booleans())
    def begin(self, alone: bool) -> None:
        self.files = MemoryFiles()
        self.mark: AtMark = LATEST if alone else None
        self.held: dict[int, tuple[bytes, bytes, bool]] = {}
        self.is_begun = False
        self.open()

    def open(self) -> None:
        self.store = PagedDirectory(
            self.files,
            ROOT,
            at_mark=self.mark,
            limits=IndexLimits(
                entry_count=8, journal_entries_max=30, embed_below=60, buffer_size=200
            ),
            store_file_limit=400,
        )
        self.queue = self.store.open_queue(1, NAME)

    @rule(sizes=st.lists(st.integers(10, 150), min_size=1, max_size=12), gap=st.integers(0, 9))
    def publish(self, sizes: list[int], gap: int) -> None:
        first = self.queue.next_sequence + gap
        messages = publish(self.queue, sizes, first=first)
        for n, one in enumerate(messages, first):
            self.held[n] = (message_id(n + 1), one, False)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.held)), max_size=5, unique=True))
        self.queue.deliver_many(chosen)
        for n in chosen:
            self.held[n] = (*self.held[n][:2], True)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.held)), max_size=20, unique=True))
        self.queue.ack_many(np.array(chosen, dtype=np.int64))
        for n in chosen:
            del self.held[n]

    @rule()
    def flush(self) -> None:
        self.queue.flush()

    @rule(budget=st.integers(1, 500))
    def collect(self, budget: int) -> None:
        self.store.store.collect(budget)

    @precondition(lambda self: not self.is_begun)
    @rule()
    def begin_checkpoint(self) -> None:
        if self.mark is not LATEST:
            self.mark = 0 if self.mark is None else self.mark + 1
        self.store.begin_checkpoint(-1 if self.mark is LATEST else self.mark or 0)()
        self.is_begun = True

    @precondition(lambda self: self.is_begun)
    @rule()
    def finish_checkpoint(self) -> None:
        self.store.finish_checkpoint()
        self.is_begun = False

    @precondition(lambda self: not self.is_begun)
    @rule()
    def restart(self) -> None:
        if self.mark is LATEST:
            self.store.sync()
        else:
            self.begin_checkpoint()
            self.finish_checkpoint()
        self.store.close()
        self.open()

    @invariant()
    def holds_the_same(self) -> None:
        found = content_of(self.queue)
        same = {n: (h.message_id, h.message, h.is_delivered) for n, h in found.items()}
        assert same == self.held
        assert self.store.store.live_size <= self.store.store.file_size


PagedQueueModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_a_paged_queue_is_a_dictionary = PagedQueueModel.TestCase
