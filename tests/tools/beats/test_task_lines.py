"""Events in bulk are printed byte for byte as they are one by one, whatever they hold and wherever damage stands."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.beats.event import Event, encode_event
from penstock.formats.beats.frame import encode_frames
from penstock.formats.beats.segment import Options, PayloadFormat
from penstock.formats.beats.task_event import encode_tasks
from penstock.tools.beats.location import resolve
from penstock.tools.beats.task_lines import line_of
from penstock.tools.beats.tasks import tasks, tasks_in_lines
from penstock.tools.beats.trouble import Trouble
from support.beats_spools import BAD_END, KEY, PLAIN, TORN, VECTORS, sealed, spool, stored
from support.damage import overwritten, random_damage

pytest.importorskip("numba")


def check(path: Path, *, queue: str | None = None, key: bytes | None = KEY) -> bytes:
    """Hold the lines of a spool, and what is told, to the rows."""
    location = resolve(path)
    told: list[Trouble] = []
    told_in_bulk: list[Trouble] = []
    rows = list(tasks(location, key=key, tell=told.append, queue=queue))
    lines = b"".join(
        bytes(some)
        for some in tasks_in_lines(location, key=key, tell=told_in_bulk.append, queue=queue)
    )
    assert lines == b"".join(map(line_of, rows))
    assert told_in_bulk == told
    return lines


def check_payloads(payloads: list[bytes], options: Options | None = None) -> bytes:
    with TemporaryDirectory() as place:
        data = sealed(payloads, options=Options(0) if options is None else options, key=KEY)
        return check(spool(Path(place) / "a queue, tōrō", {7: data}))


def cbor(**fields: Any) -> bytes:
    event = Event(timestamp=1, flags=1, meta={}, fields=fields)
    return encode_event(event, PayloadFormat.CBOR)


# --- values --------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
PLAIN_VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats()
    | st.decimals(allow_nan=False, allow_infinity=False, places=4).map(float)
    | TEXTS
    | st.binary(max_size=20)
    | st.binary(max_size=6).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
)
VALUES = st.recursive(
    PLAIN_VALUES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS.filter(bool), inner, max_size=4)
    ),
    max_leaves=12,
)
MAPS = st.dictionaries(
    TEXTS.filter(bool) | st.sampled_from(["queue", "key", "payload", "ttl_ms", "delay_ms"]),
    VALUES,
    max_size=5,
)
EVENTS = st.builds(
    Event,
    timestamp=st.integers(-(2**63), 2**63 - 1),
    flags=st.integers(0, 2**32 - 1),
    meta=MAPS,
    fields=MAPS,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, max_size=8))
def test_any_event_is_printed_as_it_is_one_by_one(events: list[Event]) -> None:
    check_payloads([encode_event(event, PayloadFormat.CBOR) for event in events])


@settings(max_examples=60, deadline=None)
@given(
    event=EVENTS,
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_any_bytes_are_an_event_or_none_in_bulk_as_one_by_one(
    event: Event, changes: list[tuple[int, int]]
) -> None:
    payload = bytearray(encode_event(event, PayloadFormat.CBOR))
    for place, byte in changes:
        payload[place % len(payload)] = byte
    check_payloads([bytes(payload), PLAIN[16:83]])


@pytest.mark.parametrize(
    "fields",
    [
        {"\x7f\x00\x1f\b\f\n\r\t\"\\/": "é\u2028\U0001f600\ud7ff\ue000"},
        {"floats": [0.0, -0.0, 1.0, -1.5, 0.1, 98.6, 1e-4, 9.9e-5, 123456789012345.0, 1e15, 1e22, 0.30000000000000004]},
        {"floats": [5e-324, 1.7976931348623157e308, float("nan"), float("inf"), float("-inf")]},
        {"integers": [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]},
        {"integers": [-1, -24, -25, -256, -257, -(2**32), -(2**63), -(2**63) - 1, -(2**64)]},
        {"bytes": [b"", b"a", b"ab", b"abc", bytes(range(256))]},
        {"text": "\udcff\udc80"},
        {"deep": [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]},
        {"wide": dict.fromkeys(map(str, range(100)))},
        {str(number): number for number in range(100)},
    ],
)  # fmt: skip
def test_odd_values_are_printed_as_they_are_one_by_one(fields: dict[str, Any]) -> None:
    check_payloads([PLAIN[16:83], cbor(**fields), PLAIN[95:212]])


@pytest.mark.parametrize(
    "payload",
    [
        b"\xa4\x69timestamp\x00\x65flags\x00\x64meta\xa0\x66fields\xa2\x61a\x01\x61a\x02",  # a key twice
        b"\xa4\x65flags\x00\x69timestamp\x00\x64meta\xa0\x66fields\xa0",  # another order
        b"\xa2\x69timestamp\x00\x66fields\xa0",
        b"\xa5\x69timestamp\x00\x65flags\x00\x64meta\xa0\x66fields\xa0\x61x\x00",
        b"\xa4\x69timestamp\x00\x65flags\x00\x64meta\xf6\x66fields\xa0",
        b"\xa4\x69timestamp\x00\x65flags\x00\x64meta\xa0\x66fields\xbf\x61a\x01\xff",  # indefinite
        b"\xa4\x69timestamp\x00\x65flags\x00\x64meta\xa0\x66fields\xa1\x61a\xf7",  # undefined
        b"\xa4\x69timestamp\x00\x65flags\x00\x64meta\xa0\x66fields\xa1\x61a\xf9\x3c\x00",  # half a float
        b"\xa4\x69timestamp\x00\x65flags\x00\x64meta\xa0\x66fields\xa1\x61a\xfa\x3f\xc0\x00\x00",  # single
        b"\xa4\x69timestamp\x00\x65flags\x00\x64meta\xa0\x66fields\xa1\x61a\xfa\x3d\xcc\xcc\xcd",
        b"\xa4\x69timestamp\x00\x65flags\x00\x64meta\xa0\x66fields\xa1\x61a\xc0\x61a",  # a tag
        b"\xa4\x69timestamp\x00\x65flags\x00\x64meta\xa0\x66fields\xa1\x61a\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xa4\x69timestamp\x00\x65flags\x00\x64meta\xa0\x66fields\xa1\x61a\x7a\x7f\xff\xff\xff",
        b"\xa4\x69timestamp\x00\x65flags\x00\x64meta\xa0\x66fields\xa0trailing",
        b'{"timestamp":1,"flags":0,"meta":{},"fields":{}}',
        b"\xa4\x69timestamp",
    ],
)
def test_what_is_not_plain_is_left_to_the_decoder(payload: bytes) -> None:
    check_payloads([PLAIN[16:83], payload, PLAIN[95:212]])


def test_tasks_of_ours_are_told_from_other_events() -> None:
    payloads = encode_tasks(
        "orders", [b"one", bytes(range(256)), b""], [0, -(2**63), 2**63 - 1], timestamp=5
    )
    payloads += encode_tasks("", [b"x"], [1], timestamp=-1, delay_ms=3, ttl_ms=2**40)
    metas: list[dict[str, Any]] = [
        {"queue": "q", "key": 1, "ttl_ms": None},
        {"queue": "q", "key": 1, "ttl_ms": -1},
        {"queue": "q", "key": 1, "delay_ms": "soon"},
        {"queue": "q", "key": True},
        {"queue": 1, "key": 1},
        {"queue": "q"},
        {"key": 1},
        {"key": -7, "queue": 'a "queue"', "other": [1, {"queue": "inner", "key": 3}]},
    ]
    for meta in metas:
        for fields in ({"payload": b"p"}, {"payload": "p"}, {"payload": b"p", "x": 1}, {"x": b"p"}):
            event = Event(timestamp=0, flags=0, meta=meta, fields=fields)
            payloads.append(encode_event(event, PayloadFormat.CBOR))
    check_payloads(payloads)


@pytest.mark.parametrize("queue", ["orders", "bills", "here", "", "tōrō", "\udcff"])
def test_a_queue_is_chosen_in_bulk_too(tmp_path: Path, queue: str) -> None:
    payloads = [PLAIN[16:83]]
    for name in ("orders", "bills", "tōrō", "", "\udcff", "orders"):
        payloads += encode_tasks(name, [b"x"], [0], timestamp=0)
    path = spool(tmp_path / "here", {0: sealed(payloads), 1: VECTORS["v0_json"]})
    assert check(path, queue=queue)
    assert not check(path, queue="other")


# --- segments ------------------------------------------------------------------------------------


def test_every_kind_of_segment_is_printed_the_same(tmp_path: Path) -> None:
    names = [name for name in VECTORS if name.startswith("v")]
    segments: dict[int | str, bytes] = {n: VECTORS[name] for n, name in enumerate(names)}
    path = spool(tmp_path / "queue", segments | {50: TORN, 51: BAD_END, 52: PLAIN[:5]})
    for key in (KEY, None, bytes(16)):
        assert check(path, key=key)


@pytest.mark.parametrize("options", [Options(0), Options.COMPRESSED, Options(3)])
def test_what_waits_is_behind_the_position(tmp_path: Path, options: Options) -> None:
    payloads = [cbor(number=number) for number in range(3000)]
    path = spool(tmp_path / "queue", {0: sealed(payloads, options=options, key=KEY), 1: PLAIN})
    for count in (0, 1, 1500, 3000):
        offset = 12 + len(encode_frames(payloads[:count]))
        (path / "state.dat").write_bytes(stored(0, offset, count))
        assert check(path).count(b"\n") == 3002 - count


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), options=st.sampled_from([Options(bits) for bits in range(4)]))
def test_damage_is_met_in_bulk_as_one_by_one(seed: int, options: Options) -> None:
    random = Random(seed)
    payloads = [cbor(number=number) for number in range(random.randrange(30))]
    data = sealed(payloads, options=options, key=KEY, count=random.choice((0, None)))
    with TemporaryDirectory() as place:
        path = spool(Path(place) / "queue", {0: random_damage(random, data, start=28), 1: PLAIN})
        check(path)


def test_a_frame_larger_than_what_is_read_at_a_time_is_printed(tmp_path: Path) -> None:
    payloads = [PLAIN[16:83], cbor(large="ü" * 3_000_000), PLAIN[95:212]]
    data = sealed(payloads)
    for name, changed in (("whole", data), ("damaged", overwritten(data, 200, b"\xff"))):
        assert check(spool(tmp_path / name, {0: changed}))
