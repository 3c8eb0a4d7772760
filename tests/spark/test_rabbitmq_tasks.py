"""The table of tasks of a broker's directory: what real ones must hold, and what ``penstock tasks`` says of all others."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from shutil import copytree
from typing import Any

import pytest

from penstock.errors import BadData, CannotConvert, InvalidValue, PathRefused
from penstock.families.damage import Report
from penstock.families.options import format_time_us
from penstock.families.rabbitmq.location import resolve
from penstock.families.rabbitmq.read import Bodies, Wanted, read_queue
from penstock.families.rabbitmq.rows import envelope_of
from penstock.families.rabbitmq.store_map import StoreMap, build_map
from penstock.families.rabbitmq.tables import state
from penstock.families.rabbitmq.tables.plan import QueuePlan
from penstock.formats.rabbitmq.envelope import encode_envelope
from penstock.formats.rabbitmq.journal import SequenceNumber, encode_ack
from penstock.formats.rabbitmq.segment import encode_publish
from penstock.storage.files import OpenFiles
from support.rabbitmq_directories import (
    ENTRY_COUNT,
    NAMES,
    Directory,
    journaled,
    publish,
    stored,
    unpacked,
)
from support.rabbitmq_tables import as_said, check_truth, listed, random_directory
from support.spark_tables import pieces_of, read_rows, reader_of

Row = dict[str, Any]
EPOCH = "1970-01-01"


def tasks(path: Path, **how: Any) -> list[Row]:
    return read_rows(path, table="tasks", **how)


def envelopes(path: Path, wanted: Wanted) -> list[bytes]:
    """Return the payloads that an import makes."""
    found = []
    for vhost in resolve(path).vhosts:
        with OpenFiles() as files:
            bodies = Bodies(vhost=vhost, files=files, report=lambda _: None)
            for queue in vhost.queues:
                for held in read_queue(queue, bodies, wanted, report=lambda _: None):
                    envelope = envelope_of(vhost, queue, held, lambda _: None)
                    found.append(encode_envelope(envelope, held.message.content.body))
    return found


# --- which tasks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_real_directory_yields_what_its_clients_know_must_be_there(
    tmp_path: Path, name: str
) -> None:
    root = unpacked(name, tmp_path)
    check_truth(tasks(root, asOf=EPOCH, properties="envelope"), name)
    check_truth(tasks(root, asOf=EPOCH, properties="envelope", splitSize="16k"), name)


@pytest.mark.parametrize("seed", range(30))
def test_random_directories_hold_what_the_tools_list(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    root = random_directory(random, tmp_path / "node", damage=random.random() < 0.5)
    wanted = Wanted(
        as_of_us=random.choice((0, random.getrandbits(45))),
        transient=random.random() < 0.5,
        expired=random.random() < 0.5,
    )
    options = {
        "asOf": format_time_us(wanted.as_of_us),
        "includeTransient": str(wanted.transient),
        "includeExpired": str(wanted.expired),
    }
    expected = listed(root, wanted)
    for split in (None, 1024, 100):
        found = tasks(root, split=split, **options)
        assert len(found) == len(expected)
        for ours, theirs in zip(map(as_said, found), expected, strict=True):
            assert {name: ours[name] for name in theirs} == theirs
    enclosed = tasks(root, properties="envelope", columns=["payload"], **options)
    assert [row["payload"] for row in enclosed] == envelopes(root, wanted)


def test_a_queue_that_is_cut_into_parts_is_read_once(tmp_path: Path) -> None:
    """The journal is read with every part: it speaks of all of them, and of segments that have no file yet."""
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    for number in (0, 2, 3, 7):
        made.segment(
            queue,
            number,
            *(encode_publish(n, publish(100 * number + n)) for n in range(ENTRY_COUNT)),
        )
    made.journal(
        queue,
        encode_ack(SequenceNumber(2 * ENTRY_COUNT)),
        journaled(5 * ENTRY_COUNT, publish(5000, b"between", stored=True)),
        journaled(9 * ENTRY_COUNT, publish(9000, b"behind")),
    )
    made.store("0.rdq", stored(5000, b"between"))
    reader = reader_of(made.path, table="tasks", split=4000)
    plans = [piece.plan for piece in pieces_of(reader) if isinstance(piece.plan, QueuePlan)]
    assert len(plans) > 2
    assert (plans[0].first, plans[-1].end) == (0, None)
    assert all(one.end == other.first for one, other in pairwise(plans))
    whole, cut = tasks(made.path), tasks(made.path, split=4000)
    assert cut == whole
    assert len(whole) == 4 * ENTRY_COUNT - 1 + 2
    assert [row["task_id"] for row in whole] == sorted(row["task_id"] for row in whole)


def test_a_map_of_a_store_is_built_once_for_all_queues_and_anew_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Directory(tmp_path / "node")
    for name in (b"a", b"b", b"c"):
        made.journal(made.queue(name), journaled(0, publish(1, b"first", stored=True)))
    made.store("0.rdq", stored(1, b"first"))
    built: list[tuple[Path, ...]] = []

    def build(paths: tuple[Path, ...], report: Report) -> StoreMap:
        built.append(paths)
        return build_map(paths, report)

    monkeypatch.setattr(state, "build_map", build)
    assert [row["payload"] for row in tasks(made.path)] == [b"first"] * 3
    assert len(built) == 1
    made.store("1.rdq", stored(2, b"second"))
    made.journal(made.queue(b"a"), journaled(0, publish(2, b"second", stored=True)))
    assert [row["payload"] for row in tasks(made.path)] == [b"second", b"first", b"first"]
    assert len(built) == 2


def test_only_the_queues_and_vhosts_that_are_asked_for_are_read(tmp_path: Path) -> None:
    for vhost in (b"/", b"other"):
        made = Directory(tmp_path / "node", vhost)
        for name in (b"a", b"b"):
            made.journal(made.queue(name), journaled(0, publish(0, vhost + name)))
    bodies = [row["payload"] for row in tasks(tmp_path / "node")]
    assert bodies == [b"/a", b"/b", b"othera", b"otherb"]
    assert [row["payload"] for row in tasks(tmp_path / "node", queues="b")] == [b"/b"]
    assert [row["payload"] for row in tasks(tmp_path / "node", queues="other~a")] == [b"othera"]
    assert [row["payload"] for row in tasks(tmp_path / "node", vhost="other")] == bodies[2:]


# --- what is refused -----------------------------------------------------------------------------


def test_a_message_that_is_missing_is_left_out_or_fails_the_job(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    made.journal(made.queue(b"a"), journaled(0, publish(0, stored=True)), journaled(1, publish(1)))
    assert [row["task_id"] for row in tasks(made.path)] == [1]
    with pytest.raises(BadData, match="missing: the index knows this message"):
        tasks(made.path, mode="FAILFAST")


@pytest.mark.parametrize("kind", ["msg_store_persistent", "msg_store_persistent/0.rdq"])
def test_a_store_does_not_say_what_is_in_a_queue(tmp_path: Path, kind: str) -> None:
    made = Directory(tmp_path / "node")
    made.store("0.rdq", stored(0, b"body"))
    with pytest.raises(PathRefused, match="does not say which messages are still in a queue"):
        tasks(made.home / kind)


def test_two_directories_that_are_one_queue_are_refused(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    queue = made.queue(b"orders")
    made.journal(queue, journaled(0, publish(0)))
    copytree(queue, queue.with_name("copy"))
    with pytest.raises(CannotConvert, match="are both queue 'orders'; load one of them"):
        tasks(made.path)
    assert len(tasks(queue)) == 1


def test_there_is_no_earlier_state(tmp_path: Path) -> None:
    made = Directory(tmp_path / "node")
    made.journal(made.queue(b"a"), journaled(0, publish(0)))
    with pytest.raises(InvalidValue, match="no state before; omit option at"):
        tasks(made.path, at="4")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"asOf": "yesterday"}, "option asOf is 'yesterday'; it takes a time such as"),
        ({"includeTransient": "1"}, "option includeTransient is '1'; it takes true or false"),
        ({"properties": "no"}, "option properties is 'no'; it takes envelope or drop"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    tmp_path: Path, options: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidValue, match=words):
        tasks(tmp_path, **options)
