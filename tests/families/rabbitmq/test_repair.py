"""Salvage of a broker's files: all that can be read is in the new directory, and that one is whole."""

from __future__ import annotations

import shutil
from base64 import b64decode
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, PathRefused
from penstock.families.rabbitmq.dump import dump
from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.read import Wanted
from penstock.families.rabbitmq.repair import STORE_FILE_SIZE, Repaired, repair
from penstock.families.rabbitmq.rows import tasks
from penstock.families.rabbitmq.verify import verify
from penstock.formats.rabbitmq import journal, queue_v2, segment
from penstock.formats.rabbitmq.journal import SequenceNumber
from penstock.formats.rabbitmq.messages import Content
from support.damage import flipped, random_damage
from support.rabbitmq_directories import (
    ENTRY_COUNT,
    NAMES,
    Directory,
    journaled,
    message,
    message_id,
    publish,
    stored,
    unpacked,
)
from support.rabbitmq_golden import DAMAGE

EVERYTHING = Wanted(as_of_us=0, transient=True, expired=True)
VHOST = "msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L"

Row = dict[str, Any]


def listed(path: Path) -> list[Row]:
    return list(tasks(resolve(path), EVERYTHING, report=lambda _: None))


def repaired(path: Path, out: Path) -> tuple[list[Row], Repaired]:
    result = Repaired()
    return list(repair(resolve(path), out, result)), result


def check(path: Path, out: Path) -> tuple[list[Row], Repaired]:
    """Repair a directory, and hold the result to what can be read of the source."""
    rows, result = repaired(path, out)
    before, after = listed(path), listed(out)
    if any(row["delivered"] is None for row in before):  # version 2 does not say
        before, after = ([row | {"delivered": None} for row in some] for some in (before, after))
    if result.mended["bad-sequence"]:  # such messages get numbers behind all others
        before, after = (
            sorted((row | {"seq": None} for row in some), key=repr) for some in (before, after)
        )
    assert after == before
    assert result.messages == len(before)
    odd = [row["status"] for row in verify(resolve(out))]  # of messages that survive a restart
    assert set(odd) <= {"bad-properties"}
    assert len(odd) <= result.odd_properties
    assert not list(out.parent.glob("*temporary*"))
    return rows, result


# --- what real brokers left ----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_real_directory_is_written_anew_with_every_message(tmp_path: Path, name: str) -> None:
    source = unpacked(name, tmp_path / "broker")
    files = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    rows, result = check(source, tmp_path / "out")
    assert {row["status"] for row in rows} == DAMAGE.get(name, set())
    assert result.left == len(rows)
    assert {path: path.read_bytes() for path in files} == files
    names = {path.name for path in (tmp_path / "out" / "msg_stores").rglob("*")}
    assert not any(name.endswith((".rdt", ".qi", ".qs", ".dets", ".ets")) for name in names)


def test_a_broker_deleted_every_queue_of_a_repaired_node_without_its_metadata(
    tmp_path: Path,
) -> None:
    """All but the message stores is copied: a broker deletes queues that its metadata does not name."""
    source = unpacked("c9_quorum_and_stream_kill9", tmp_path / "broker")
    (source / "link").symlink_to("nowhere")
    (source / "schema.DAT").chmod(0o640)
    _, result = check(source, tmp_path / "out")

    def others(node: Path) -> dict[str, bytes]:
        found = contents(node)
        return {name: data for name, data in found.items() if not name.startswith("msg_stores/")}

    assert others(tmp_path / "out") == others(source)
    assert len(others(source)) > 20
    assert (tmp_path / "out" / "link").readlink() == Path("nowhere")
    for name in ("schema.DAT", "quorum"):
        before, after = (source / name).stat(), (tmp_path / "out" / name).stat()
        assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert resolve(tmp_path / "out").others != ()
    assert any("same node name" in note for note in result.notes)


def test_a_result_has_nothing_left_to_mend(tmp_path: Path) -> None:
    source = unpacked("c8_damage_dup_flush", tmp_path / "broker")
    repaired(source, tmp_path / "first")
    assert list(verify(resolve(tmp_path / "first"))) == []  # not even what is harmless
    repaired(tmp_path / "first", tmp_path / "second")
    assert contents(tmp_path / "second") == contents(tmp_path / "first")


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_vhost_and_a_queue_are_written_as_vhosts(tmp_path: Path) -> None:
    source = unpacked("c3_large_store_limit1m_kill9", tmp_path / "broker")
    check(source / VHOST, tmp_path / "vhost")
    assert resolve(tmp_path / "vhost").kind == "vhost"
    queue = next(path for path in (source / VHOST / "queues").iterdir() if listed(path))
    _, result = check(queue, tmp_path / "queue")
    assert resolve(tmp_path / "queue").kind == "vhost"
    assert result.queues == 1
    (copied,) = (tmp_path / "queue" / "queues").iterdir()
    assert copied.name == queue.name
    assert listed(copied) == listed(queue)
    assert any("vhost was written" in note for note in result.notes)


def test_a_queue_of_version_2_becomes_one_of_version_1(tmp_path: Path) -> None:
    source = unpacked("c7_queue_v2_kill9", tmp_path / "broker")
    _, result = check(source, tmp_path / "out")
    assert any("version 1" in note for note in result.notes)
    stubs = [path.read_bytes() for path in (tmp_path / "out").rglob(".queue_name")]
    assert stubs
    assert not any(b"INDEX: v2" in stub for stub in stubs)


# --- made by hand --------------------------------------------------------------------------------


def test_only_what_is_still_there_is_written_and_shared_messages_once(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    for name in (b"one", b"two"):
        made.journal(
            made.queue(name),
            journaled(0, publish(0, b"in both", stored=True)),
            journaled(1, publish(1, b"acked", stored=True)),
            journal.encode_deliver(SequenceNumber(1)),
            journal.encode_ack(SequenceNumber(1)),
            journaled(ENTRY_COUNT + 2, publish(2, b"embedded")),
            journal.encode_deliver(SequenceNumber(ENTRY_COUNT + 2)),
            journaled(3, publish(3, b"transient", stored=True, is_persistent=False)),
        )
    made.store("4.rdq", stored(1, b"acked"), stored(7, b"of nobody"), stored(0, b"in both"))
    made.store("5.rdt", stored(0, b"in both"))
    made.store("0.rdq", stored(3, b"transient"), kind="transient")
    rows, result = check(made.path, tmp_path / "out")
    assert (rows, result.messages, result.queues) == ([], 6, 2)
    home = tmp_path / "out" / made.home.relative_to(made.path)
    assert contents(home / "msg_store_persistent") == {"0.rdq": stored(0, b"in both")}
    assert contents(home / "msg_store_transient") == {"0.rdq": stored(3, b"transient")}
    for queue in (home / "queues").iterdir():
        assert (queue / "journal.jif").read_bytes() == b""
        assert {path.name for path in queue.iterdir()} == {
            ".queue_name", "journal.jif", "0.idx", "1.idx",
        }  # fmt: skip
        assert (queue / "1.idx").read_bytes() == segment.encode_publish(
            2, publish(2, b"embedded")
        ) + segment.encode_deliver_or_ack(2)


def test_messages_keep_their_bytes(tmp_path: Path) -> None:
    """Terms with other atoms, both forms of properties, and properties that cannot be read."""
    broken = Content(stored_properties=b"\xff\xff", fragments=(b"bo", b"dy"))
    made = Directory(tmp_path / "broker")
    terms = [message(0, b"plain"), message(1, b"", content=broken)]
    records = [
        journal.encode_publish(
            SequenceNumber(number), journal.Publish(
                message_id=message_id(number), is_persistent=True, expiry_us=10**15, body_size=size, embedded=term,
            ),
        )
        for number, (term, size) in enumerate(zip(terms, (5, 4), strict=True))
    ]  # fmt: skip
    made.journal(made.queue(b"orders"), *records)
    rows, result = check(made.path, tmp_path / "out")
    assert (rows, result.odd_properties) == ([], 1)
    (written,) = (tmp_path / "out").rglob("0.idx")
    assert all(term in written.read_bytes() for term in terms)


def test_store_files_end_where_a_brokers_do(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    body, count = bytes(2**20), 20
    made.journal(
        made.queue(b"orders"),
        *(journaled(n, publish(n, body, stored=True)) for n in range(count)),
    )
    made.store("0.rdq", *(stored(n, body) for n in range(count)))
    check(made.path, tmp_path / "out")
    files = sorted((tmp_path / "out").rglob("*.rdq"))
    assert [path.name for path in files] == ["0.rdq", "1.rdq"]
    record = len(stored(0, body))
    assert STORE_FILE_SIZE <= files[0].stat().st_size < STORE_FILE_SIZE + record


def test_a_directory_without_names_is_written_without_names(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    queue = made.queue(b"orders")
    made.journal(queue, journaled(0, publish(0)))
    alone = tmp_path / "somewhere"
    shutil.copytree(queue, alone)
    (alone / ".queue_name").unlink()
    check(alone, tmp_path / "out")
    assert (tmp_path / "out" / "queues" / "somewhere" / "0.idx").is_file()


def test_a_place_that_is_taken_or_in_the_source_is_refused(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    made.journal(made.queue(b"orders"), journaled(0, publish(0)))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    for out in (tmp_path / "taken", made.path / "out", tmp_path / "no" / "out"):
        with pytest.raises(PathRefused):
            repaired(made.path, out)


# --- by property ---------------------------------------------------------------------------------

facts = st.fixed_dictionaries(
    {
        "sequence": st.integers(0, 4 * ENTRY_COUNT),
        "body": st.binary(max_size=12),
        "is_persistent": st.booleans(),
        "expiry_us": st.sampled_from((0, 10**15, 2 * 10**15)),
        "stored": st.booleans(),
        "end": st.sampled_from(("waiting", "delivered", "acked")),
        "flushed": st.booleans(),
    }
)
queues = st.dictionaries(
    st.tuples(st.sampled_from((b"a", b"b\xff")), st.none() | st.integers(0, 2)),
    st.lists(facts, min_size=1, max_size=8, unique_by=lambda fact: fact["sequence"]),
    min_size=1,
    max_size=3,
)


def build(path: Path, made_of: dict[tuple[bytes, int | None], list[Row]]) -> Directory:
    made = Directory(path)
    stores: dict[str, list[bytes]] = {"persistent": [], "transient": []}
    numbers = count()
    for (name, priority), messages in made_of.items():
        queue = made.queue(name, priority=priority)
        records: dict[int | None, list[bytes]] = {None: []}
        for fact in messages:
            number = next(numbers)  # two messages never have one id
            place = fact["sequence"] // ENTRY_COUNT if fact["flushed"] else None
            records.setdefault(place, []).extend(_records(number, fact))
            if fact["stored"]:
                kind = "persistent" if fact["is_persistent"] else "transient"
                stores[kind].append(stored(number, fact["body"]))
        made.journal(queue, *records.pop(None))
        for place, parts in records.items():
            assert place is not None
            made.segment(queue, place, *parts)
    for kind, parts in stores.items():
        made.store("0.rdq", *parts, kind=kind)
    return made


def _records(number: int, fact: Row) -> Iterator[bytes]:
    published = publish(
        number,
        fact["body"],
        expiry_us=fact["expiry_us"],
        stored=fact["stored"],
        is_persistent=fact["is_persistent"],
    )
    sequence = SequenceNumber(fact["sequence"])
    ends = ("waiting", "delivered", "acked").index(fact["end"])
    if fact["flushed"]:
        relative = fact["sequence"] % ENTRY_COUNT
        yield segment.encode_publish(relative, published)
        yield from [segment.encode_deliver_or_ack(relative)] * ends
    else:
        yield journaled(sequence, published)
        yield from (journal.encode_deliver(sequence), journal.encode_ack(sequence))[:ends]


@given(queues)
def test_every_directory_comes_out_whole(
    made_of: dict[tuple[bytes, int | None], list[Row]],
) -> None:
    with TemporaryDirectory() as place:
        made = build(Path(place) / "broker", made_of)
        rows, result = check(made.path, Path(place) / "out")
        assert rows == []
        waiting = [fact for facts in made_of.values() for fact in facts if fact["end"] != "acked"]
        assert result.messages == len(waiting)


@given(queues, st.integers(0, 2**32))
def test_of_every_damaged_directory_all_that_can_be_read_comes_out(
    made_of: dict[tuple[bytes, int | None], list[Row]], seed: int
) -> None:
    random = Random(seed)
    with TemporaryDirectory() as place:
        made = build(Path(place) / "broker", made_of)
        files = [path for path in sorted(made.path.rglob("*")) if path.is_file()]
        path = random.choice(
            [path for path in files if path.name[0] != "." and path.stat().st_size]
        )
        path.write_bytes(random_damage(random, path.read_bytes(), start=0))
        check(made.path, Path(place) / "out")


# --- stores and single files ---------------------------------------------------------------------


def rows_of(path: Path) -> list[tuple[str, Any]]:
    return [(row["status"], row.get("payload")) for row in dump(resolve(path))]


def test_whole_records_of_a_store_are_copied_under_the_same_names(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    first, second, third = (stored(n, b"body %d" % n) for n in range(3))
    broken = flipped(second, 8 * (len(second) - 1))  # its end marker
    path = made.store("7.rdq", first, broken, third, bytes(30), first, third[:20])
    made.store("8.rdt", second)
    rows, result = repaired(path.parent, tmp_path / "store")
    assert [row["status"] for row in rows] == ["bad-marker", "torn"]
    assert contents(tmp_path / "store") == {"7.rdq": first + third + first, "8.rdt": second}
    assert (result.records, result.left) == (4, 2)
    repaired(path, tmp_path / "file")
    assert contents(tmp_path / "file") == {"7.rdq": first + third + first}


def test_whole_records_of_an_index_file_are_copied(tmp_path: Path) -> None:
    made = Directory(tmp_path / "broker")
    queue = made.queue(b"orders")
    bad = message(1, b"body")[:-1] + b"\x01"
    embedded = publish(1)
    damaged = journal.Publish(
        message_id=embedded.message_id, is_persistent=True, expiry_us=0, body_size=4,
        embedded=bad[: len(bad) - 3],
    )  # fmt: skip
    records = [journaled(0, publish(0)), journal.encode_ack(SequenceNumber(0))]
    torn = journaled(2, publish(2))[:-1]
    path = made.journal(queue, *records, journaled(1, damaged), torn)
    rows, result = repaired(path, tmp_path / "out")
    assert [row["status"] for row in rows] == ["bad-message", "torn"]
    assert contents(tmp_path / "out") == {"journal.jif": b"".join(records)}
    assert result.records == 2
    parts = [segment.encode_publish(3, publish(3)), segment.encode_deliver_or_ack(3)]
    path = made.segment(queue, 2, *parts, b"\x00\x01")
    rows, _ = repaired(path, tmp_path / "segment")
    assert [row["status"] for row in rows] == ["bad-record"]
    assert contents(tmp_path / "segment") == {"2.idx": b"".join(parts)}


def test_whole_slots_and_records_of_version_2_are_copied(tmp_path: Path) -> None:
    source = unpacked("c7_queue_v2_kill9", tmp_path / "broker")
    index = next(path for path in sorted(source.rglob("*.qi")) if path.stat().st_size > 200)
    store = index.with_suffix(".qs")
    for path in (index, store):
        rows, _ = repaired(path, tmp_path / f"whole{path.suffix}")
        assert rows == []
        assert rows_of(tmp_path / f"whole{path.suffix}" / path.name) == rows_of(path)
    data = bytearray(index.read_bytes())
    data[queue_v2.HEADER_SIZE] = 9  # the status of the first slot
    index.write_bytes(bytes(data))
    rows, _ = repaired(index, tmp_path / "slots")
    assert [row["status"] for row in rows] == ["bad-status"]
    kept = (tmp_path / "slots" / index.name).read_bytes()
    assert (
        kept[queue_v2.HEADER_SIZE : queue_v2.HEADER_SIZE + queue_v2.SLOT.size].strip(b"\0") == b""
    )
    assert kept[queue_v2.HEADER_SIZE + queue_v2.SLOT.size :].rstrip(b"\0") == bytes(
        data[queue_v2.HEADER_SIZE + queue_v2.SLOT.size :]
    ).rstrip(b"\0")
    before = rows_of(store)
    store.write_bytes(flipped(store.read_bytes(), 8 * (queue_v2.HEADER_SIZE + 20)))
    rows, _ = repaired(store, tmp_path / "records")
    assert [row["status"] for row in rows] == ["bad-checksum"]
    assert rows_of(tmp_path / "records" / store.name) == before[1:]


def test_a_file_of_version_2_without_its_header_is_refused(tmp_path: Path) -> None:
    source = unpacked("c7_queue_v2_kill9", tmp_path / "broker")
    index = next(iter(sorted(source.rglob("*.qi"))))
    index.write_bytes(index.read_bytes()[:40])
    with pytest.raises(BadData):
        repaired(index, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_hole_in_an_index_of_version_2_takes_no_memory(tmp_path: Path) -> None:
    source = unpacked("c7_queue_v2_kill9", tmp_path / "broker")
    index = next(path for path in sorted(source.rglob("*.qi")) if path.stat().st_size > 200)
    rows = rows_of(index)
    with index.open("r+b") as file:
        file.truncate(2**34)
    left, _ = repaired(index, tmp_path / "out")
    assert left == []
    copied = tmp_path / "out" / index.name
    assert copied.stat().st_size < 2**20
    assert rows_of(copied) == rows


def test_the_bodies_in_a_salvaged_store_are_those_of_the_source(tmp_path: Path) -> None:
    source = unpacked("c8_damage_crashed_merge", tmp_path / "broker")
    store = source / VHOST / "msg_store_persistent"
    repaired(store, tmp_path / "out")
    whole = [b64decode(row["payload"]) for row in dump(resolve(store)) if row["status"] == "ok"]
    found = [b64decode(row["payload"]) for row in dump(resolve(tmp_path / "out"))]
    assert found == whole
