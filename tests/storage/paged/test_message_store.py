"""The message store of paged queues: references, rollover, merges, and the slots that find messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData, StorageFailed
from penstock.formats.rabbitmq import message_store as records
from penstock.formats.rabbitmq.message_store import FRAMING_SIZE, Status
from penstock.formats.rabbitmq.places import TableMark, decode_table, encode_table, mark_of
from penstock.storage.paged.message_slots import NO_SLOT, MessageSlots, id_columns
from penstock.storage.paged.message_store import MessageStore
from penstock.storage.paged.tree_files import TreeFiles
from penstock.testing.disk import MemoryFiles, Operation
from support.paged_lives import message, message_id

ROOT = Path("/store")
LIMIT = 1000


def made(files: MemoryFiles | None = None, *, open_max: int = 8) -> MessageStore:
    files = MemoryFiles() if files is None else files
    files.make_directory(ROOT)
    return MessageStore(TreeFiles(files, ROOT, limit=open_max), ROOT, file_size_limit=LIMIT)


def write(store: MessageStore, numbers: list[int], size: int = 300) -> list[int]:
    ids = [message_id(n) for n in numbers]
    slots = store.write_many(ids, [message(n, size) for n in numbers])
    return [int(slot) for slot in slots]


def slots_of(*slots: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(slots, dtype=np.int64)


def recovered(files: MemoryFiles, ids: list[int], *, exactly: bool) -> MessageStore:
    """Return a store that a start made, with a reference to each of these messages."""
    before = {
        number: len(data)
        for path, data in files.image().items()
        if (number := records.parse_store_name(Path(path).name)) is not None
    }
    store = made(files)
    store.recover(before, 0, tables={}, exactly=exactly)
    found = store.find(id_columns([message_id(n) for n in ids]))
    assert (found != NO_SLOT).all()
    store.refer(found)
    store.settle()
    return store


def test_messages_are_read_in_the_order_that_is_asked_for() -> None:
    store = made()
    slots = write(store, [1, 2, 3, 4, 5])
    assert store.read_many(slots_of(slots[4], slots[0], slots[2])) == [
        message(5, 300), message(1, 300), message(3, 300),
    ]  # fmt: skip
    assert store.read_many(slots_of()) == []


def test_a_batch_is_one_write_for_each_file_it_fills() -> None:
    files = MemoryFiles()
    store = made(files)
    write(store, [1, 2, 3, 4, 5])
    writes = [o for o in files.operations if o.kind == "write"]
    assert [Path(o.path).name for o in writes] == ["0.rdq", "1.rdq"]


def test_a_file_ends_with_the_record_that_reaches_the_limit() -> None:
    files = MemoryFiles()
    store = made(files)
    write(store, [1, 2, 3, 4, 5, 6, 7])
    sizes = [len(data) for _, data in sorted(files.image().items())]
    # Three of them stay below the limit, the fourth goes beyond it.
    assert sizes == [4 * (300 + FRAMING_SIZE), 3 * (300 + FRAMING_SIZE)]
    assert store.lengths() == dict(enumerate(sizes))


def test_one_record_larger_than_the_limit_is_a_file() -> None:
    store = made()
    [slot] = write(store, [1], size=5 * LIMIT)
    write(store, [2])
    assert store.read_many(slots_of(slot)) == [message(1, 5 * LIMIT)]
    assert sorted(store.lengths()) == [0, 1]


def test_what_is_written_is_what_the_format_reads() -> None:
    files = MemoryFiles()
    write(made(files), [1, 2])
    data = files.image()[str(ROOT / "0.rdq")]
    pieces = list(records.scan(data))
    assert [piece.status for piece in pieces] == [Status.OK, Status.OK]
    assert [piece.message_id for piece in pieces] == [message_id(1), message_id(2)]


def test_an_id_that_is_there_is_counted_and_not_written_again() -> None:
    files = MemoryFiles()
    store = made(files)
    [first] = write(store, [1])
    size = len(files.image()[str(ROOT / "0.rdq")])
    assert write(store, [1, 1, 2])[:2] == [first, first]
    assert len(files.image()[str(ROOT / "0.rdq")]) == 2 * size
    store.remove_many(slots_of(first, first))
    assert store.read_many(slots_of(first)) == [message(1, 300)]
    assert len(store) == 2
    store.remove_many(slots_of(first))
    assert len(store) == 1
    assert store.live_size == size


def test_an_id_that_was_removed_is_written_again() -> None:
    store = made()
    store.remove_many(slots_of(*write(store, [1])))
    [slot] = write(store, [1])
    assert store.read_many(slots_of(slot)) == [message(1, 300)]
    assert store.file_size == 2 * store.live_size


def test_a_file_without_a_message_is_garbage_but_the_one_that_is_appended_to() -> None:
    files = MemoryFiles()
    store = made(files)
    slots = write(store, [1, 2, 3, 4, 5])
    store.remove_many(slots_of(*slots))
    assert store.garbage() == {0}
    assert str(ROOT / "0.rdq") in files.image(), "only a checkpoint lets a file go"
    store.forget({0})
    assert list(files.image()) == [str(ROOT / "1.rdq")]
    assert list(store.lengths()) == [1]


def test_files_with_more_than_half_garbage_are_merged_into_a_new_one() -> None:
    files = MemoryFiles()
    store = made(files)
    slots = write(store, list(range(1, 11)))
    store.remove_many(slots_of(*slots[0:3], *slots[5:8]))
    kept = [slots[3], slots[4], *slots[8:]]
    before = store.read_many(slots_of(*kept))
    copied = store.collect()
    assert copied == 2 * (300 + FRAMING_SIZE)
    assert store.garbage() == {0, 1}
    assert store.read_many(slots_of(*kept)) == before
    merged = files.image()[str(ROOT / "3.rdq")]
    assert [piece.message_id for piece in records.scan(merged)] == [message_id(4), message_id(5)]
    assert store.collect() == 0


def test_a_file_with_half_of_garbage_is_left() -> None:
    store = made()
    slots = write(store, [1, 2, 3, 4, 5])
    store.remove_many(slots_of(*slots[:2]))
    assert not store.has_garbage_to_collect
    assert store.collect() == 0


def test_a_merge_copies_no_more_than_it_may_or_one_record() -> None:
    store = made()
    slots = write(store, list(range(1, 10)), size=100)
    store.remove_many(slots_of(*slots[2:8]))
    assert store.collect(1) == 100 + FRAMING_SIZE
    assert store.collect(1) == 100 + FRAMING_SIZE
    assert store.collect(1) == 0
    assert store.read_many(slots_of(slots[0], slots[1])) == [message(1, 100), message(2, 100)]


def test_a_merge_gets_its_name_when_it_is_whole_and_synced() -> None:
    files = MemoryFiles()
    store = made(files)
    slots = write(store, [1, 2, 3, 4, 5])
    store.remove_many(slots_of(*slots[:3]))
    start = len(files.operations)
    store.collect()
    kinds = [o.kind for o in files.operations[start:]]
    assert kinds == ["create", "write", "sync", "sync_directory", "rename", "sync_directory"]


def test_a_start_finds_what_the_indexes_refer_to_and_forgets_the_rest() -> None:
    files = MemoryFiles()
    write(made(files), [1, 2, 3, 4, 5, 6])
    store = recovered(files, [2, 2, 6], exactly=True)
    assert len(store) == 2
    assert store.live_size == 2 * (300 + FRAMING_SIZE)
    found = store.find(id_columns([message_id(n) for n in (1, 2, 6)]))
    assert found[0] == NO_SLOT
    store.remove_many(found[1:])
    assert store.read_many(found[1:2]) == [message(2, 300)], "it has two references"
    # Numbers go on behind those that were used, and the newest file is appended to.
    write(store, [7])
    assert sorted(store.lengths()) == [0, 1]


@pytest.mark.parametrize("name", ["2.rdq", "0.rdt", "0.rdq.penstock-temporary"])
def test_a_start_at_a_checkpoint_removes_what_it_does_not_name(name: str) -> None:
    files = MemoryFiles()
    write(made(files), [1])
    image = files.image()
    lengths = {0: len(image[str(ROOT / "0.rdq")])}
    image[str(ROOT / name)] = b"left by a crash"
    again = MemoryFiles(image)
    store = made(again)
    store.recover(lengths, 1, tables={}, exactly=True)
    assert list(again.image()) == [str(ROOT / "0.rdq")]


def with_table() -> tuple[MemoryFiles, dict[int, TableMark]]:
    """Return a disk with a full file that has a table, and one that is appended to."""
    files = MemoryFiles()
    tree = TreeFiles(files, ROOT, limit=8)
    files.make_directory(ROOT)
    store = MessageStore(tree, ROOT, file_size_limit=LIMIT)
    write(store, [1, 2, 3, 4, 5, 6])
    tables = store.new_tables(9)
    tables.write(tree.take_unsynced())
    store.note_tables(tables)
    assert store.tables() == tables.made
    assert len(store.new_tables(9)) == 0
    return files, tables.made


def started(files: MemoryFiles, tables: dict[int, TableMark]) -> MessageStore:
    sizes = {number: len(files.image()[str(ROOT / f"{number}.rdq")]) for number in (0, 1)}
    store = made(files)
    store.recover(sizes, 2, tables=tables, exactly=True)
    found = store.find(id_columns([message_id(n) for n in range(1, 7)]))
    store.refer(found[found != NO_SLOT])
    store.settle()
    return store


def test_a_file_that_is_full_gets_a_table_and_is_not_read_by_a_start() -> None:
    files, tables = with_table()
    assert list(tables) == [0]
    image = files.image()
    image[str(ROOT / "0.rdq")] = bytes(len(image[str(ROOT / "0.rdq")]))
    store = started(MemoryFiles(image), tables)
    assert store.unread_tables == []
    assert len(store) == 6, "all of them, those of a file that nobody could read too"
    store = started(MemoryFiles(files.image()), tables)
    found = store.find(id_columns([message_id(n) for n in (4, 1, 6)]))
    assert store.read_many(found) == [message(n, 300) for n in (4, 1, 6)]


def test_a_wrong_table_of_a_store_file_is_not_believed() -> None:
    files, tables = with_table()
    image = files.image()
    path = str(ROOT / "0.places")
    good = decode_table(image[path])
    for column, value in ((0, 10**6), (1, 2**63), (1, 10**6)):
        wrong = good.columns[column].copy()
        wrong[1] = value
        columns = (*good.columns[:column], wrong, *good.columns[column + 1 :])
        for changed in (replace(good, columns=columns), replace(good, columns=columns[:3])):
            image[path] = encode_table(changed)
            for marks in (tables, {0: mark_of(image[path])}):
                store = started(MemoryFiles(image), marks)
                assert store.unread_tables == [ROOT / "0.places"]
                assert len(store) == 6


def test_a_table_that_no_checkpoint_knows_is_removed() -> None:
    files, _ = with_table()
    started(files, {})
    assert sorted(files.image()) == [str(ROOT / "0.rdq"), str(ROOT / "1.rdq")]


def test_a_table_goes_with_its_file() -> None:
    files, tables = with_table()
    store = started(files, tables)
    store.remove_many(store.find(id_columns([message_id(n) for n in (1, 2, 3, 4)])))
    assert store.tables() == {}
    store.forget(store.garbage())
    assert sorted(files.image()) == [str(ROOT / "1.rdq")]


def test_a_file_that_is_shorter_than_the_checkpoint_says_is_refused() -> None:
    files = MemoryFiles()
    write(made(files), [1])
    store = made(MemoryFiles(files.image()))
    with pytest.raises(CorruptData, match="shorter than the checkpoint"):
        store.recover({0: 400}, 1, tables={}, exactly=True)
    with pytest.raises(CorruptData, match="missing"):
        made(MemoryFiles()).recover({0: 0}, 1, tables={}, exactly=True)


def test_a_file_that_ends_before_a_message_is_told() -> None:
    files = MemoryFiles()
    store = made(files)
    [slot] = write(store, [1])
    file = files.open(ROOT / "0.rdq", write=True)
    file.truncate(100)
    with pytest.raises(CorruptData, match="ends before a message"):
        store.read_many(slots_of(slot))


def test_many_files_are_open_only_so_many_at_a_time() -> None:
    files = MemoryFiles()
    store = made(files, open_max=2)
    slots = write(store, list(range(1, 40)))
    assert len(store._tree._open) == 2
    # What was closed to make room had been synced.
    syncs = [o for o in files.operations if o.kind == "sync"]
    assert len(syncs) == len(store.lengths()) - 2
    assert store.read_many(slots_of(*slots)) == [message(n, 300) for n in range(1, 40)]


def test_after_a_failed_write_nothing_is_answered_any_more() -> None:
    files = MemoryFiles()
    store = made(files)
    [slot] = write(store, [1])

    def fail(operation: Operation) -> None:
        if operation.kind == "write":
            raise OSError(28, "No space left on device")

    files.fault = fail
    with pytest.raises(StorageFailed):
        write(store, [2])
    files.fault = None
    for action in (lambda: write(store, [3]), lambda: store.read_many(slots_of(slot)), store.sync):
        with pytest.raises(StorageFailed):
            action()


# --- slots -----------------------------------------------------------------------------------------

ids = st.integers(0, 30)
steps = st.lists(
    st.tuples(st.just("claim"), st.lists(ids, min_size=1, max_size=9))
    | st.tuples(st.just("release"), st.lists(ids, min_size=1, max_size=9)),
    max_size=40,
)


@given(steps, st.sampled_from(["big", "little"]))
def test_slots_count_references_as_a_dictionary_does(
    actions: list[tuple[str, list[int]]], order: str
) -> None:
    def columns(numbers: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        # Counters in any byte order must not crowd one part of the table.
        return id_columns([n.to_bytes(16, order) for n in numbers])  # type: ignore[arg-type]

    slots = MessageSlots()
    counts: dict[int, int] = {}
    for action, numbers in actions:
        if action == "claim":
            found, is_new = slots.claim(columns(numbers), counted=True)
            slots.length[found[is_new]] = 1
            for number in numbers:
                counts[number] = counts.get(number, 0) + 1
        else:
            chosen = [n for n in dict.fromkeys(numbers) if n in counts]
            gone = slots.release(slots.find(columns(chosen)))
            for number in chosen:
                counts[number] -= 1
            assert len(gone) == sum(counts[n] == 0 for n in chosen)
            counts = {n: c for n, c in counts.items() if c}
        found = slots.find(columns(list(range(31))))
        assert {n for n in range(31) if found[n] != NO_SLOT} == counts.keys()
        assert len(set(found[found != NO_SLOT].tolist())) == len(counts) == len(slots)


def test_slots_grow_and_are_used_again() -> None:
    slots = MessageSlots()
    many = id_columns([n.to_bytes(16, "big") for n in range(50_000)])
    found, is_new = slots.claim(many, counted=True)
    assert is_new.all()
    assert len(np.unique(found)) == len(found)
    assert (slots.find(many) == found).all()
    size = slots.memory_size
    assert size < 64 * len(many)
    assert len(slots.release(found[::2])) == 25_000
    again, _ = slots.claim(many[::2], counted=True)
    assert set(again.tolist()) == set(found[::2].tolist())
    assert slots.memory_size == size
