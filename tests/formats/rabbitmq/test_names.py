"""Names of vhosts and queues: directories, ``.queue_name`` and ``.config``."""

from __future__ import annotations

import tarfile
from hashlib import md5
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData, InvalidValue, TruncatedData
from penstock.formats.rabbitmq.names import (
    ENTRY_COUNT_DEFAULT,
    ENTRY_COUNT_NEW,
    StoredQueue,
    decode_config,
    decode_queue_name,
    encode_config,
    encode_queue_name,
    old_queue_directory,
    queue_directory,
    vhost_directory,
)
from support.damage import cuts, flipped
from support.refusal import attempted

GOLDEN = Path(__file__).parents[2] / "golden" / "rabbitmq"
CONFIG = b"%% This file is auto-generated! Edit at your own risk!\n{segment_entry_count, 2048}."


def files(name: str) -> list[tuple[str, bytes]]:
    """Return the directory and the bytes of every file of this name that a broker left."""
    found = []
    with tarfile.open(GOLDEN / "c4_props_ttl_priority_kill9.tar.gz") as archive:
        for member in archive.getmembers():
            if Path(member.name).name == name and "vhosts" in member.name:
                file = archive.extractfile(member)
                assert file is not None
                found.append((Path(member.name).parent.name, file.read()))
    assert found
    return found


# --- directories ---------------------------------------------------------------------------------


def test_the_directories_of_known_names_are_known() -> None:
    assert vhost_directory(b"/") == "628WB79CIFDYO9LJI6DKMI09L"
    assert queue_directory(b"/", b"q1") == "6GR38JRPIL3M68J7JM8E1SMBO"


def test_every_directory_of_a_broker_is_the_hash_of_the_names_inside() -> None:
    for directory, data in files(".vhost"):
        assert vhost_directory(data) == directory
    queues = files(".queue_name")
    for directory, data in queues:
        queue = decode_queue_name(data, directory=directory)
        assert queue == decode_queue_name(data)
        assert queue.directory == directory
        assert encode_queue_name(queue) == data
    # One directory a priority, 0 to the highest, in each of the two vhosts.
    priorities = [decode_queue_name(data).priority for _, data in queues if b"p_prio" in data]
    assert sorted(x for x in priorities if x is not None) == sorted([0, 1, 2, 3, 4, 5] * 2)


def test_before_3_7_the_hash_is_that_of_a_term() -> None:
    term = "83 6804 6400087265736F75726365 6D000000012F 6400057175657565 6D000000027131"
    expected = md5(bytes.fromhex(term), usedforsecurity=False).digest()
    assert int(old_queue_directory(b"/", b"q1"), 36) == int.from_bytes(expected, "big")


# --- .queue_name ---------------------------------------------------------------------------------

NAMES = [
    (b"VHOST: /\nQUEUE: q1\n", StoredQueue(vhost=b"/", queue=b"q1")),
    (b"VHOST: /\nQUEUE: v2_jobs\nINDEX: v2\n", StoredQueue(vhost=b"/", queue=b"v2_jobs", version=2)),
    (b"VHOST: a b\nQUEUE: p\x00\x05\n", StoredQueue(vhost=b"a b", queue=b"p", priority=5)),
    (b"VHOST: \nQUEUE: \n", StoredQueue(vhost=b"", queue=b"")),
    (b"VHOST: /\nQUEUE: \xff\xe2\x80\xa8\x0b\x85\n", StoredQueue(vhost=b"/", queue=b"\xff\xe2\x80\xa8\x0b\x85")),
]  # fmt: skip


@pytest.mark.parametrize(("data", "queue"), NAMES)
def test_names_are_read_and_written_byte_for_byte(data: bytes, queue: StoredQueue) -> None:
    assert decode_queue_name(data) == queue
    assert encode_queue_name(queue) == data


@pytest.mark.parametrize("version", [1, 2])
def test_a_priority_that_is_a_line_feed_is_a_priority(version: int) -> None:
    for priority in range(256):
        queue = StoredQueue(vhost=b"/", queue=b"p", priority=priority, version=version)
        assert decode_queue_name(encode_queue_name(queue)) == queue
    assert encode_queue_name(StoredQueue(vhost=b"/", queue=b"p", priority=10)).endswith(b"p\0\n\n")


def test_the_directory_tells_names_apart_that_look_alike() -> None:
    """A vhost may have any name; the broker takes line feeds out of those of queues only."""
    first = StoredQueue(vhost=b"a", queue=b"b\nQUEUE: c")
    second = StoredQueue(vhost=b"a\nQUEUE: b", queue=b"c")
    data = encode_queue_name(first)
    assert encode_queue_name(second) == data
    assert decode_queue_name(data, directory=first.directory) == first
    assert decode_queue_name(data, directory=second.directory) == second
    assert decode_queue_name(data) == decode_queue_name(data, directory="0") == first


names = st.binary(max_size=40).filter(lambda raw: raw[-2:-1] != b"\0" and b"\n" not in raw)


@given(
    st.builds(
        StoredQueue,
        vhost=names,
        queue=names.filter(len),
        priority=st.none() | st.integers(0, 255),
        version=st.sampled_from([1, 2]),
    )
)
def test_every_queue_comes_back(queue: StoredQueue) -> None:
    assert decode_queue_name(encode_queue_name(queue)) == queue


def test_a_name_cut_anywhere_is_truncated_or_a_shorter_name() -> None:
    for cut in cuts(b"VHOST: /\nQUEUE: q\n"):
        with pytest.raises(TruncatedData):
            decode_queue_name(cut)
    data = b"VHOST: /\nQUEUE: q\nINDEX: v2\n"
    whole = [
        cut for cut in cuts(data) if not isinstance(attempted(decode_queue_name, cut), BadData)
    ]
    assert whole == [b"VHOST: /\nQUEUE: q\n"]  # as if of version 1: the file has no checksum


def test_a_flipped_bit_in_a_name_gives_a_name_or_bad_data() -> None:
    for data, _ in NAMES:
        for bit in range(8 * len(data)):
            attempted(decode_queue_name, flipped(data, bit))


@given(st.binary(max_size=60))
def test_garbage_gives_a_name_or_bad_data(data: bytes) -> None:
    for start in (b"", b"VHOST: ", b"VHOST: /\nQUEUE: "):
        attempted(decode_queue_name, start + data)
        attempted(decode_config, start + data)


def test_another_text_is_not_the_name_of_a_queue() -> None:
    with pytest.raises(CorruptData):
        decode_queue_name(b"QUEUE: q\nVHOST: /\n")


def test_values_that_no_file_holds_are_refused() -> None:
    for wrong in ({"priority": 256}, {"priority": -1}, {"version": 3}):
        with pytest.raises(InvalidValue):
            StoredQueue(vhost=b"/", queue=b"q", **wrong)


# --- .config -------------------------------------------------------------------------------------


def test_the_config_of_a_broker_is_read_and_written_byte_for_byte() -> None:
    assert {data for _, data in files(".config")} == {CONFIG}
    assert decode_config(CONFIG) == ENTRY_COUNT_NEW
    assert encode_config(ENTRY_COUNT_NEW) == CONFIG


@given(st.integers(1, ENTRY_COUNT_DEFAULT))
def test_every_config_comes_back(count: int) -> None:
    assert decode_config(encode_config(count)) == count


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", ENTRY_COUNT_DEFAULT),
        (b"%% nothing\n", ENTRY_COUNT_DEFAULT),
        (b"% {segment_entry_count, 7}.\n", ENTRY_COUNT_DEFAULT),
        (b"% {segment_entry_count, 7}.\n{segment_entry_count,8}.\n", 8),
        (b"{other, 1}.\r\n{ segment_entry_count ,\n 16384 } .", 16384),
    ],
)
def test_a_config_is_read_with_tolerance(data: bytes, count: int) -> None:
    assert decode_config(data) == count


@pytest.mark.parametrize("count", [b"0", b"16385", b"99999999999999999999"])
def test_an_entry_count_that_14_bits_cannot_number_is_refused(count: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_config(b"{segment_entry_count, " + count + b"}.")


def test_a_cut_or_flipped_config_gives_a_count_or_bad_data() -> None:
    for cut in cuts(CONFIG):
        assert decode_config(cut) in {ENTRY_COUNT_NEW, ENTRY_COUNT_DEFAULT}
    for bit in range(8 * len(CONFIG)):
        attempted(decode_config, flipped(CONFIG, bit))
