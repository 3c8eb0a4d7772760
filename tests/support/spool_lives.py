"""Lives of a spool on a recording disk, with an account of what was published, acknowledged and saved, and when.

A payload begins with its number. Numbers grow in the order of publication, so that what a spool gives back
tells by itself what is lost, doubled or out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from penstock.errors import SpoolFull, StorageFailed
from penstock.formats.beats.segment import Options
from penstock.formats.beats.state import Position
from penstock.storage.spool import Spool, SpoolBatch, SpoolSettings
from penstock.testing.disk import MemoryFiles

ROOT = Path("/spool")
KEY = bytes(range(16))
WINDOW = 6
PLAIN, LZ4, AES = Options(0), Options.COMPRESSED, Options.ENCRYPTED

Sizes = list[int]


def settings(options: Options = PLAIN, *, window: int = WINDOW) -> SpoolSettings:
    return SpoolSettings(
        max_size=2**20, segment_size=4096, options=options, key=KEY, ack_window=window
    )


def payload(number: int, size: int) -> bytes:
    """Return a payload of ``size`` bytes, at least 4. Half of it cannot be compressed."""
    chance = Random(number).randbytes(size // 2)
    return (number.to_bytes(4, "big") + chance).ljust(size, b"~")[:size]


def number_of(one: bytes) -> int:
    return int.from_bytes(one[:4], "big")


def open_spool(
    files: MemoryFiles, options: Options = PLAIN, *, tell: Callable[[str], None] | None = None
) -> Spool:
    return Spool(ROOT, settings(options), files=files, tell=tell or (lambda _: None))


def read_all(spool: Spool, count_max: int = 1000) -> list[SpoolBatch]:
    found = []
    while (batch := spool.read(count_max, timeout=0)) is not None:
        found.append(batch)
    return found


def numbers_in(batches: list[SpoolBatch]) -> list[int]:
    return [number_of(one) for batch in batches for one in batch.payloads]


@dataclass
class Event:
    """Something that was done, from which operation to which; ``end`` is far away while it is under way."""

    kind: str  # open, publish, read, acknowledge, save, close
    begin: int
    published: int  # payloads in all, this one included
    acknowledged: int  # without a gap, this one included
    end: int = 10**9
    sending: Position | None = None
    is_refused: bool = False


class LifeOver(Exception):
    """The disk has failed; only a start anew helps."""


class Life:
    """Drives a real ``Spool`` and keeps its own account. Raises ``LifeOver`` after ``StorageFailed``."""

    def __init__(self, options: Options = PLAIN, files: MemoryFiles | None = None) -> None:
        self.options = options
        self.files = files or MemoryFiles()
        self.notes: list[str] = []
        self.events: list[Event] = []
        self.published = 0
        self.acknowledged = 0
        self.refused: set[int] = set()
        self._out: list[tuple[SpoolBatch, int]] = []  # batches and the number behind them
        self._acked: set[int] = set()  # of batches
        self.spool: Spool

    def open(self) -> None:
        self._out.clear()
        self._acked.clear()
        with self._event("open"):
            self.spool = open_spool(self.files, self.options, tell=self.notes.append)

    @contextmanager
    def _event(self, kind: str, *, sending: Position | None = None) -> Iterator[Event]:
        event = Event(kind, len(self.files.operations), self.published, self.acknowledged)
        event.sending = sending
        self.events.append(event)
        try:
            yield event
        except SpoolFull:
            event.is_refused = True
        except StorageFailed as error:
            raise LifeOver from error
        event.end = len(self.files.operations)

    def publish(self, sizes: Sizes) -> None:
        first = self.published
        self.published += len(sizes)
        with self._event("publish") as event:
            self.spool.publish([payload(first + n, size) for n, size in enumerate(sizes)])
        if event.is_refused:
            self.refused.update(range(first, self.published))

    def read(self, count_max: int) -> None:
        with self._event("read"):
            batch = self.spool.read(count_max, timeout=0)
        if batch is not None:
            self._out.append((batch, number_of(batch.payloads[-1]) + 1))

    def acknowledge(self, which: int = 0) -> None:
        """Acknowledge a batch that is out, by its place among those that are not acknowledged."""
        waiting = [(b, end) for b, end in self._out if b.number not in self._acked]
        if not waiting:
            return
        batch, _ = waiting[which % len(waiting)]
        self._acked.add(batch.number)
        while self._out and self._out[0][0].number in self._acked:
            self.acknowledged = self._out.pop(0)[1]
        with self._event("acknowledge"):
            self.spool.acknowledge(batch)

    def save(self, *, sending: bool = False) -> None:
        """Save the position; with ``sending``, and that the oldest batch is being sent."""
        waiting = [batch for batch, _ in self._out if batch.number not in self._acked]
        end = waiting[0].end if sending and waiting and waiting[0] is self._out[0][0] else None
        with self._event("save", sending=end):
            self.spool.save(sending=end)

    def rewind(self) -> None:
        self.spool.rewind()
        self._out.clear()
        self._acked.clear()

    def reopen(self) -> None:
        with self._event("close"):
            self.spool.close()
        self.open()


@dataclass
class Promise:
    """What must hold when the power is cut at some moment."""

    must: set[int]  # is there
    may: set[int]  # can be there, nothing else can
    floor: int  # nothing below it comes back
    sending: list[Position | None]  # one of these


def promise(life: Life, operations: int) -> Promise:
    """Return what must hold after so many operations."""
    done = begun = acked = acked_begun = floor = 0
    sending: list[Position | None] = [None]
    for event in life.events:
        if event.begin > operations:
            break
        is_done = event.end <= operations
        begun, acked_begun = event.published, event.acknowledged
        if is_done:
            done, acked = event.published, event.acknowledged
            floor = max(floor, acked - WINDOW)
        if event.is_refused:
            continue
        if event.kind in ("save", "close") and is_done:
            floor = max(floor, acked)
        if event.kind == "save":
            sending = [event.sending] if is_done else [*sending, event.sending]
        elif event.kind in ("acknowledge", "close", "open"):
            # Where the position moves, what was being sent is no longer.
            sending = [*sending, None]
    # What an acknowledgement under way forgets or does not is both right.
    refused = {n for n in life.refused if n < done}
    must = set(range(acked_begun, done)) - refused
    may = set(range(floor, begun)) - refused
    return Promise(must, may, floor, sending)


def check_image(life: Life, files: MemoryFiles, operations: int, *, goes_on: bool) -> list[int]:
    """Open what a cut left, and hold it to what was promised. Return the numbers that it gave."""
    promised = promise(life, operations)
    before = files.image()
    notes: list[str] = []
    spool = open_spool(files, life.options, tell=notes.append)
    _check_said(before, files.image(), notes)
    _check_sending(spool, promised)
    batches = read_all(spool, 3)
    found = numbers_in(batches)
    _check_found(found, promised)
    if goes_on:
        _check_that_it_goes_on(spool, files, life.options, batches, found)
    else:
        spool.close()
    return found


def _check_found(found: list[int], promised: Promise) -> None:
    assert found == sorted(set(found)), "out of order, or twice"
    there = set(found)
    assert promised.must <= there, f"lost: {sorted(promised.must - there)[:5]}"
    extra = sorted(there - promised.may)
    assert not extra, f"came back or was never kept: {extra[:5]}, floor {promised.floor}"


def _check_said(before: dict[str, bytes], after: dict[str, bytes], notes: list[str]) -> None:
    """Whatever lost bytes or its name is spoken of, unless it was acknowledged."""
    for path, data in before.items():
        is_cut = path in after and len(after[path]) < len(data) and path.endswith(".seg")
        is_aside = path not in after and path + ".damaged" in after
        if is_cut or is_aside:
            assert any(path in note for note in notes), f"{path} was cut and nobody said so"


def _check_sending(spool: Spool, promised: Promise) -> None:
    sending = spool.sending
    assert sending in promised.sending, "a batch is said to be sent that is not"
    if sending is not None:
        batch = spool.read(10**6, timeout=0, until=sending)
        assert batch is not None
        assert batch.end == sending, "the batch that was being sent cannot be read again"
        spool.rewind()


def _check_that_it_goes_on(
    spool: Spool, files: MemoryFiles, options: Options, batches: list[SpoolBatch], found: list[int]
) -> None:
    """A recovered spool takes payloads, acknowledges in any order, and gives back exactly what is left."""
    more = list(range(10**6, 10**6 + 9))
    spool.publish([payload(number, 900) for number in more])
    for batch in batches[1:]:
        spool.acknowledge(batch)
    spool.close()
    # All but the first batch was acknowledged, and that one holds them back.
    spool = open_spool(files, options)
    batches = read_all(spool)
    assert numbers_in(batches) == [*found, *more]
    for batch in batches:
        spool.acknowledge(batch)
    spool.close()
    spool = open_spool(files, options)
    assert read_all(spool) == []
    assert spool.stat().segments == 1, "sent, and still there"
    spool.publish([b"\xff\xff\xff\xff"])
    assert numbers_in(read_all(spool)) == [0xFFFFFFFF]
    spool.close()


def live(life: Life) -> None:
    """Do everything that can happen to a spool, in few enough steps to cut it everywhere."""
    life.open()
    life.publish([40, 300, 20])
    life.read(2)
    life.acknowledge()
    life.publish([1500, 1500])
    life.read(10)
    life.publish([900, 900, 700, 30])
    life.read(3)
    life.read(3)
    life.acknowledge(1)
    life.save()
    life.acknowledge(0)
    life.save(sending=True)
    life.publish([100] * 3)
    life.acknowledge()
    life.read(2)
    life.save(sending=True)
    life.reopen()
    life.publish([2000, 2000, 2000, 2000])
    life.read(4)
    life.read(4)
    life.acknowledge()
    life.rewind()
    life.read(1)
    life.read(100)
    life.acknowledge(1)
    life.publish([600] * 5)
    life.acknowledge()
    for _ in range(3):
        life.read(100)
        life.acknowledge()
    life.save()
    life.publish([3000])
    life.reopen()
    life.read(1)
    life.acknowledge()
    life.publish([50, 60])
    life.read(1)
    life.acknowledge()
    life.reopen()
    life.publish([70])


def scripted(options: Options = PLAIN) -> Life:
    life = Life(options)
    live(life)
    return life


def draining(options: Options = PLAIN) -> Life:
    """A life of a spool that is empty at every start: only numbers tell its segments apart."""
    life = Life(options)
    life.open()
    for _ in range(3):
        life.publish([100, 100])
        life.read(2)
        life.acknowledge()
        life.reopen()
        life.read(1)
        life.reopen()
    life.publish([100, 100])
    return life


def random_life(seed: int, options: Options = PLAIN, *, length: int = 40) -> Life:
    """A life drawn by ``seed``."""
    life = Life(options)
    live_at_random(life, Random(seed), length)
    return life


def live_at_random(life: Life, random: Random, length: int) -> None:
    life.open()
    for _ in range(length):
        choice = random.random()
        if choice < 0.35:
            sizes = [random.choice((4, 30, 200, 700, 1900)) for _ in range(random.randint(1, 6))]
            life.publish(sizes)
        elif choice < 0.6:
            life.read(random.choice((1, 2, 5, 30)))
        elif choice < 0.82:
            life.acknowledge(random.choice((0, 0, 1, 2)))
        elif choice < 0.9:
            life.save(sending=random.random() < 0.7)
        elif choice < 0.94:
            life.rewind()
        else:
            life.reopen()
