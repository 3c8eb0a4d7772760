"""Spools into directories of nodes, into spools that Beats reads, and into requests that are numbered alike every time."""

from __future__ import annotations

import shutil
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CannotConvert, PathRefused
from penstock.families.beats.convert import Converted, Respooled, convert, respool
from penstock.families.beats.family import SegmentVersion
from penstock.families.beats.ingest import queue_name, read_requests
from penstock.families.beats.location import resolve
from penstock.families.beats.rows import tasks
from penstock.families.damage import Damage
from penstock.families.taskflux.location import resolve as resolve_node
from penstock.families.taskflux.read import read_history
from penstock.families.taskflux.replay import replay
from penstock.formats.beats.event import Event, encode_event
from penstock.formats.beats.segment import Header, Options, PayloadFormat, decode_header
from penstock.formats.beats.task_event import encode_tasks
from penstock.model import QueueName
from penstock.protocol.version1 import PAYLOAD_SIZE_MAX
from penstock.protocol.version2 import Enqueue
from support.beats_spools import (
    BAD_PAYLOAD,
    KEY,
    PLAIN,
    TORN,
    VECTORS,
    A,
    B,
    payloads_of,
    sealed,
    some_events,
    spool,
    stored,
)

Row = dict[str, Any]
Held = dict[str, list[tuple[int, bytes]]]


def converted(
    path: Path,
    out: Path,
    to: str = "taskflux-3",
    *,
    key: bytes | None = None,
    queue: QueueName | None = None,
) -> tuple[Held, Converted, list[Damage]]:
    found_damage: list[Damage] = []
    done = convert(resolve(path), to, out, key=key, report=found_damage.append, queue=queue)
    state = replay(read_history(resolve_node(out)))
    held: Held = {
        name: [(key, payload) for _, key, payload in queue.in_order()]
        for name, queue in state.queues.by_name.items()
        if len(queue)
    }
    return held, done, found_damage


# --- to a node's directory -----------------------------------------------------------------------


@pytest.mark.parametrize("to", ["taskflux-2", "taskflux-3"])
def test_tasks_go_to_their_queues_and_other_events_to_one(tmp_path: Path, to: str) -> None:
    payloads = encode_tasks("orders", [b"late", b"soon"], [9, -1], timestamp=0)
    payloads += encode_tasks("bills", [b"bill"], [0], timestamp=0, delay_ms=1000)
    payloads += encode_tasks("", [b"default"], [0], timestamp=0)
    path = spool(tmp_path / "queue", {0: sealed(payloads), 1: PLAIN})
    held, done, found_damage = converted(path, tmp_path / "out", to)
    assert held == {
        "orders": [(-1, b"soon"), (9, b"late")],
        "bills": [(0, b"bill")],
        "": [(0, b"default")],
        "queue": [(0, PLAIN[16:83]), (0, PLAIN[95:212])],
    }
    assert (done.tasks, done.queues, done.terms_dropped, found_damage) == (6, 4, 1, [])


def test_only_what_waits_is_converted(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: PLAIN, 1: PLAIN}, stored(1, 91, 1))
    held, _, _ = converted(path, tmp_path / "out")
    assert held == {"queue": [(0, PLAIN[95:212])]}


def test_the_queue_of_events_that_name_none_can_be_chosen(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: PLAIN})
    held, _, _ = converted(path, tmp_path / "out", queue=QueueName("logs"))
    assert list(held) == ["logs"]


def test_damage_is_told_and_the_rest_converted(tmp_path: Path) -> None:
    no_event = sealed([b"no event"])
    path = spool(tmp_path / "queue", {0: BAD_PAYLOAD, 1: no_event, 2: TORN})
    held, done, found_damage = converted(path, tmp_path / "out")
    assert held == {"queue": [(0, PLAIN[95:212]), (0, b"no event"), (0, PLAIN[16:83])]}
    assert [damage.status for damage in found_damage] == ["bad-checksum", "bad-event", "torn"]
    assert done.tasks == 3


def test_a_payload_that_no_node_takes_is_left_out(tmp_path: Path) -> None:
    large = encode_tasks("large", [bytes(PAYLOAD_SIZE_MAX + 1), b"x"], [0, 0], timestamp=0)
    held, done, found_damage = converted(
        spool(tmp_path / "queue", {0: sealed(large)}), tmp_path / "out"
    )
    assert (held, done.left.too_large) == ({"large": [(0, b"x")]}, 1)
    assert [damage.status for damage in found_damage] == ["too-large"]


@pytest.mark.parametrize("key", [None, bytes(16)])
def test_a_segment_without_its_key_is_refused_and_nothing_is_written(
    tmp_path: Path, key: bytes | None
) -> None:
    path = spool(tmp_path / "queue", {0: PLAIN, 1: VECTORS["v2_cbor_aes"]})
    location, out, two = resolve(path), tmp_path / "out", SegmentVersion.TWO
    with pytest.raises(PathRefused, match=r"1\.seg: .*key"):
        convert(location, "taskflux-3", out, key=key, report=lambda _: None)
    with pytest.raises(PathRefused, match=r"1\.seg: .*key"):
        respool(location, two, out, key=key, report=lambda _: None)
    assert [found.name for found in tmp_path.iterdir()] == ["queue"]


def test_generation_1_is_refused(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: PLAIN})
    with pytest.raises(CannotConvert, match="taskflux-2 or taskflux-3"):
        converted(path, tmp_path / "out", "taskflux-1")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("orders", "orders"),
        ("a~b%c", "a~b%c"),
        ("two words", "two%20words"),
        ("tōrō", "t%C5%8Dr%C5%8D"),
        ("!penstock.notes", "%21penstock.notes"),
        ("", ""),
    ],
)
def test_what_a_queue_may_not_be_called_is_escaped(text: str, name: str) -> None:
    assert queue_name(text) == name


# --- to a spool that Beats reads -----------------------------------------------------------------

KINDS = [(0, Options(0)), (1, Options(0)), *((2, Options(bits)) for bits in range(8))]


def respooled(
    path: Path, out: Path, to: SegmentVersion = SegmentVersion.TWO
) -> tuple[list[Row], Respooled, list[Damage]]:
    found_damage: list[Damage] = []
    done = respool(resolve(path), to, out, key=KEY, report=found_damage.append)
    rows = list(tasks(resolve(out), key=None, report=lambda _: None))
    return rows, done, found_damage


@pytest.mark.parametrize("to", list(SegmentVersion))
@pytest.mark.parametrize(("version", "options"), KINDS)
def test_every_kind_of_segment_becomes_a_plain_one_of_cbor(
    tmp_path: Path, version: int, options: Options, to: SegmentVersion
) -> None:
    source = Header(version, 0, options)
    data = sealed(
        payloads_of(some_events(40), source), version=version, options=options, count=0, key=KEY
    )
    path = spool(tmp_path / "queue", {8: data}, stored(8, 0, 0))
    rows, done, found_damage = respooled(path, tmp_path / "out", to)
    before = list(tasks(resolve(path), key=KEY, report=lambda _: None))
    assert [row["event"] for row in rows] == [row["event"] for row in before]
    assert (done.frames, done.segments, found_damage) == (40, 1, [])
    written = (tmp_path / "out" / "8.seg").read_bytes()
    assert decode_header(written) == Header(int(to), 40)
    for row in rows:
        payload = b64decode(row["payload"])
        assert payload[:11] == b"\xa4\x69timestamp"
        assert payload in written


def test_the_position_stands_before_the_same_event(tmp_path: Path) -> None:
    path = spool(
        tmp_path / "queue", {0: VECTORS["v0_json"], 1: VECTORS["v2_cbor_lz4"]}, stored(0, 116, 1)
    )
    rows, _, _ = respooled(path, tmp_path / "out")
    assert [row["event"] for row in rows] == [B, A, B]
    assert (tmp_path / "out" / "state.dat").read_bytes() == stored(0, 91, 1)


def test_an_event_that_beats_cannot_read_is_told_and_left_out(tmp_path: Path) -> None:
    odd = Event(timestamp=0, flags=0, meta={}, fields={"": 1})
    payload = encode_event(odd, PayloadFormat.JSON)
    data = sealed([payload, b"{}", VECTORS["v0_json"][8:108]], version=0)
    rows, done, found_damage = respooled(spool(tmp_path / "queue", {0: data}), tmp_path / "out")
    assert [row["event"] for row in rows] == [A]
    assert [damage.status for damage in found_damage] == ["not-encodable", "bad-event"]
    assert (done.frames, done.left_unencodable) == (1, 1)


# --- requests to a node --------------------------------------------------------------------------


def requests_of(
    path: Path, *, producer: str | None = None, queue: QueueName | None = None
) -> tuple[list[Enqueue], Counter[QueueName]]:
    too_large: Counter[QueueName] = Counter()
    found = read_requests(
        resolve(path),
        key=KEY,
        report=lambda _: None,
        otherwise=queue,
        too_large=too_large,
        producer=producer,
    )
    return list(found), too_large


def numbers(requests: list[Enqueue]) -> list[int]:
    return [request.producer.sequence for request in requests if request.producer is not None]


def mixed(count: int) -> list[bytes]:
    """Return tasks of three queues in turn, one of which has terms that change."""
    payloads = []
    for number in range(count):
        queue = ["one", "two", "three"][number % 3]
        ttl_ms = number // 30 if queue == "three" else None
        payloads += encode_tasks(
            queue, [b"%d" % number], [number % 2], timestamp=number, ttl_ms=ttl_ms
        )
    return payloads


def test_requests_hold_each_task_once_and_in_the_order_of_its_queue(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {3: sealed(mixed(2500)), 4: sealed(mixed(10)), 5: PLAIN})
    requests, _ = requests_of(path)
    for number, queue in enumerate(("one", "two", "three")):
        payloads = [p for r in requests if r.queue == queue for p in r.payloads]
        expected = [*range(number, 2500, 3), *range(number, 10, 3)]
        assert [int(payload) for payload in payloads] == expected
    assert numbers(requests) == sorted(set(numbers(requests)))
    assert max(len(request.payloads) for request in requests) <= 1000
    terms = {request.ttl_ms for request in requests if request.queue == "three"}
    assert terms == set(range(84))
    assert requests[-1].queue == "queue"


def test_requests_are_the_same_in_every_run_and_place(tmp_path: Path) -> None:
    path = spool(tmp_path / "queue", {0: sealed(mixed(1200)), 1: TORN})
    first, _ = requests_of(path)
    shutil.copytree(path, tmp_path / "copy")
    again, _ = requests_of(tmp_path / "copy", queue=QueueName("queue"))
    assert again == first
    other, _ = requests_of(path, producer="other")
    assert [r.payloads for r in other] == [r.payloads for r in first]
    assert {r.producer.id for r in other if r.producer} != {
        r.producer.id for r in first if r.producer
    }


def test_a_moved_position_takes_tasks_away_and_changes_no_number(tmp_path: Path) -> None:
    payloads = mixed(30)
    path = spool(tmp_path / "queue", {0: sealed(payloads)})
    before, _ = requests_of(path)
    end = 12 + sum(len(payload) + 12 for payload in payloads[:5])
    (path / "state.dat").write_bytes(stored(0, end, 5))
    after, _ = requests_of(path)
    assert numbers(after) == numbers(before)
    assert [len(r.payloads) for r in after] == [8, 8, 9]
    assert [len(r.payloads) for r in before] == [10, 10, 10]


def test_another_spool_has_another_producer(tmp_path: Path) -> None:
    producers = set()
    for number in range(3):
        payloads = encode_tasks("one", [b"%d" % number], [0], timestamp=0)
        requests, _ = requests_of(spool(tmp_path / str(number), {0: sealed(payloads)}))
        producers |= {request.producer.id for request in requests if request.producer}
    assert len(producers) == 3


def test_large_payloads_make_requests_of_their_own(tmp_path: Path) -> None:
    sizes = [700_000, 700_000, 10, PAYLOAD_SIZE_MAX + 1, 10]
    payloads = encode_tasks("q", [bytes(size) for size in sizes], [0] * 5, timestamp=0)
    requests, too_large = requests_of(spool(tmp_path / "queue", {0: sealed(payloads)}))
    assert [[len(p) for p in r.payloads] for r in requests] == [[700_000], [700_000, 10], [10]]
    assert too_large == {"q": 1}


def test_nothing_to_send_is_no_request(tmp_path: Path) -> None:
    assert requests_of(spool(tmp_path / "queue", {0: TORN[:20]})) == ([], Counter())
    with pytest.raises(PathRefused, match="wrong key"):
        requests_of(
            spool(
                tmp_path / "locked",
                {0: sealed([b"x"] * 9, options=Options.ENCRYPTED, key=bytes(16))},
            )
        )
