"""What a spool writes by default is what Beats 8.4 and later read, as a strict reader of just that subset shows.

Recommendation 12 of the format's description. The reader (support/strict_beats.py) shares no code with the product.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.formats.beats.event import Event, encode_event
from penstock.formats.beats.segment import Options, PayloadFormat
from penstock.formats.beats.task_event import encode_tasks
from penstock.storage.spool import Spool, SpoolSettings
from support.spool_lives import KEY
from support.strict_beats import NotForBeats, StrictEvent, read_spool

SETTINGS = SpoolSettings(max_size=2**20, segment_size=4096, ack_window=10)


def event(number: int) -> bytes:
    fields = {
        "message": "l\u00ednea " * (number % 40),
        "n": -number,
        "f": number / 3,
        "raw": b"\xff" * (number % 7),
        "nested": {"list": [None, True, {"deep": [1, 2]}], "bad": "\udcff"},
    }
    made = Event(10**18 + number, number % 2, {"_id": f"e-{number}"}, fields)
    return encode_event(made, PayloadFormat.CBOR)


def numbers(events: list[StrictEvent]) -> list[int]:
    return [one.timestamp - 10**18 for one in events]


def test_all_that_a_spool_holds_after_any_life_is_read_by_beats(tmp_path: Path) -> None:
    random = Random(7)
    published = acknowledged = 0
    for _ in range(25):
        with Spool(tmp_path, SETTINGS) as spool:
            for _ in range(random.randint(0, 4)):
                count = random.randint(1, 12)
                spool.publish([event(published + n) for n in range(count)])
                published += count
            for _ in range(random.randint(0, 5)):
                batch = spool.read(random.randint(1, 9), timeout=0)
                if batch is not None:
                    spool.acknowledge(batch)
                    acknowledged += len(batch)
            if random.random() < 0.3 and (batch := spool.read(3, timeout=0)) is not None:
                spool.save(sending=batch.end)  # leaves our trailer behind the 28 bytes
        assert numbers(read_spool(tmp_path)) == list(range(acknowledged, published))
    assert acknowledged > 50


def test_our_tasks_are_events_that_beats_reads(tmp_path: Path) -> None:
    with Spool(tmp_path, SETTINGS) as spool:
        spool.publish(
            encode_tasks("orders", [b"one", b"\xff"], [5, -1], timestamp=10**18, delay_ms=9)
        )
    first, second = read_spool(tmp_path)
    assert first.meta == {"queue": "orders", "key": 5, "delay_ms": 9}
    assert (first.fields, first.flags, first.timestamp) == ({"payload": b"one"}, 1, 10**18)
    assert second.fields == {"payload": b"\xff"}


NEGATIVE = [
    -1, -24, -25, -128, -129, -200, -256, -257, -32_768, -32_769, -65_536, -65_537,
    -(2**31), -(2**31) - 1, -(2**32), -(2**32) - 1, -(2**63),
]  # fmt: skip


def test_beats_does_not_misread_negative_numbers_that_we_wrote(tmp_path: Path) -> None:
    """Beats reads -200 as 56 if it is written in its shortest form."""
    tasks = encode_tasks("q", [b"x"] * len(NEGATIVE), NEGATIVE, timestamp=10**18)
    fields = Event(-200, 0, {"n": NEGATIVE}, {"n": {"n": NEGATIVE}})
    with Spool(tmp_path, SETTINGS) as spool:
        spool.publish([*tasks, encode_event(fields, PayloadFormat.CBOR)])
    *found, last = read_spool(tmp_path)
    assert [one.meta["key"] for one in found] == NEGATIVE
    assert (last.timestamp, last.meta, last.fields) == (-200, fields.meta, fields.fields)


def test_a_spool_that_was_torn_is_read_by_beats_once_it_was_opened_and_closed(
    tmp_path: Path,
) -> None:
    with Spool(tmp_path, SETTINGS) as spool:
        spool.publish([event(n) for n in range(3)])
    path = tmp_path / "0.seg"
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(4) + data[8:-5])
    with pytest.raises(NotForBeats):
        read_spool(tmp_path)
    Spool(tmp_path, SETTINGS).close()
    assert numbers(read_spool(tmp_path)) == [0, 1]


@pytest.mark.parametrize("options", [Options.COMPRESSED, Options.ENCRYPTED, Options.PROTOBUF])
def test_what_is_written_with_options_is_not_for_beats(tmp_path: Path, options: Options) -> None:
    settings = SpoolSettings(max_size=2**20, segment_size=4096, options=options, key=KEY)
    with Spool(tmp_path, settings) as spool:
        spool.publish([event(1)])
    with pytest.raises(NotForBeats, match=f"options {int(options)}"):
        read_spool(tmp_path)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\xbf\xff", "an indefinite length"),
        (b"\xa1\x60\x01", "an empty key"),
        (b"\xa1\x01\x01", "a key that is no text"),
        (b"\xa1\x61a\xc1\x01", "a tag"),
        (b"\xa1\x61a\xf9\x3c\x00", "neither a float"),
        (b"\xa1\x61a\x18\x01", "longer than it need be"),
        (b"\xa1\x61a", "ends too early"),
        (b"\xa0", "an event with"),
        (b"\x80", "no map"),
        (b"{}", "no map|a tag|ends too early|bytes behind"),
    ],
)
def test_the_strict_reader_is_strict(tmp_path: Path, payload: bytes, words: str) -> None:
    with Spool(tmp_path, SETTINGS) as spool:
        spool.publish([payload])
    with pytest.raises(NotForBeats, match=words):
        read_spool(tmp_path)
