"""From spool to node, in order, each task once (docs/spool.md).

A round is read, its end is saved, its requests are sent, and only when all of them are answered it is acknowledged. A crash
anywhere in between leads to the same requests with the same numbers again, which a node that has them does not take twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.client.blocking import Client
from penstock.errors import (
    ConnectionFailed,
    DirectoryLocked,
    InvalidValue,
    PolicyViolated,
    QueueFull,
    RequestRefused,
    SequenceForgotten,
    SpoolFull,
)
from penstock.formats.beats.segment import PayloadFormat, segment_name
from penstock.formats.beats.state import Position
from penstock.model import QueueName
from penstock.protocol.version2 import Enqueue
from penstock.spooling.identity import IdentityFile
from penstock.spooling.refused import set_aside, tell_refused
from penstock.spooling.rounds import INDEX_MAX, Parcel, Round
from penstock.spooling.task_reader import TaskReader
from penstock.storage.files import Files, OsFiles
from penstock.storage.spool import Spool, SpoolBatch
from penstock.storage.spool_opening import segment_paths

READ_COUNT: Final = 128
"""Frames that are read at a time. A round is full by its size only when one of these has been added."""

PASSING: Final = (ConnectionFailed, RequestRefused, SpoolFull, DirectoryLocked)
"""What keeps a round from being sent now; the same round may be sent later."""


@dataclass(slots=True)
class _UnderWay:
    """A round that is being sent."""

    batches: list[SpoolBatch]
    round: Round
    waves: deque[list[Parcel]] = field(default_factory=deque)  # not yet answered
    refused: dict[int, str] = field(default_factory=dict)  # why, by place
    is_saved: bool = False

    def __post_init__(self) -> None:
        self.waves.extend(self.round.waves())
        self.refused.update(self.round.unsendable)

    @property
    def end(self) -> Position:
        return self.batches[-1].end

    @property
    def payload_format(self) -> PayloadFormat:
        return self.batches[0].payload_format

    def forget_refusals(self, wave: list[Parcel]) -> None:
        """Begin a wave anew: one that broke is sent again, and its answers may be others."""
        if self.refused:
            for parcel in wave:
                for place in parcel.places:
                    self.refused.pop(place, None)

    def refused_payloads(self) -> list[bytes]:
        payloads = [payload for batch in self.batches for payload in batch.payloads]
        return [payloads[place] for place in sorted(self.refused)]


class Forwarder:
    """Sends what an open spool holds. One thread at a time uses it."""

    def __init__(
        self,
        spool: Spool,
        connect: Callable[[], Client],
        *,
        others: QueueName | None = None,
        files: Files | None = None,
        tell: Callable[[str], None],
    ) -> None:
        """Begin before anything is published.

        ``connect``: makes a client that tries nothing again by itself. ``others``: a queue for events not ours.
        """
        self._spool = spool
        self._connect = connect
        self._client: Client | None = None
        self._others = others
        self._files = files or OsFiles()
        self._tell = tell
        self._identity = IdentityFile(self._files, spool.path)
        self._reader = TaskReader()
        self._is_begun = False  # whether it is known which round comes first, and whose it is
        self._ahead: SpoolBatch | None = None  # read, and of no round yet
        self._under_way: _UnderWay | None = None
        self._is_saved = True  # nothing was acknowledged since the state was saved
        self.refused = 0  # tasks that were set aside
        self._first_new = 1 + max(segment_paths(self._files, spool.path), default=-1)
        # Tasks that were published since this began, and have arrived or were set aside.
        self.arrived = 0

    def forward(self) -> int:
        """Send the next round, or the one that could not be sent before, and return how many tasks it held.

        0 if there is nothing to send. Raises one of ``PASSING`` if it is to be tried again later; whatever else it
        raises is for good: ``StorageFailed``, ``BadData``, ``OSError``, ``InvalidValue`` for an event not ours.
        """
        if self._under_way is None:
            self._under_way = self._next_round()
        under_way = self._under_way
        if under_way is None:
            return 0
        if not under_way.is_saved:
            self._spool.save(sending=under_way.end)  # Whoever repeats this round must know its end.
            under_way.is_saved = True
        while under_way.waves:
            self._send(under_way, under_way.waves[0])
            under_way.waves.popleft()
        if under_way.refused:
            self._set_aside(under_way)
        # The oldest last: the position, which may be saved at any time, never stands within a round.
        for batch in reversed(under_way.batches):
            self._spool.acknowledge(batch)
        self._under_way = None
        self._is_saved = False
        if under_way.end.segment >= self._first_new:
            self.arrived += under_way.round.count
        return under_way.round.count

    def rest(self) -> None:
        """Save that nothing is under way, so that a crash much later repeats nothing that a node has forgotten."""
        if self._under_way is None and not self._is_saved:
            self._spool.save(sending=None)
            self._is_saved = True

    def close(self) -> None:
        """Let the connection go. What is under way is sent again by the next one that opens the spool."""
        if self._client is not None:
            self._client.close()

    # --- rounds ---

    def _next_round(self) -> _UnderWay | None:
        if not self._is_begun:
            resumed = self._resume()
            if resumed is not None:
                return resumed
        if self._identity.identity.others != self._others:
            self._identity.renew(self._others)
        batches: list[SpoolBatch] = []
        round_: Round | None = None
        while (batch := self._next_batch()) is not None:
            tasks = self._reader.read(batch.payloads, batch.payload_format, others=self._others)
            is_next = not batches or batch.start.segment == batches[0].start.segment
            if not is_next or (batches and len(tasks) < len(batch)):
                self._ahead = batch
                break
            if len(tasks) < len(batch):
                self._read_shorter(batch, len(tasks))
                continue
            round_ = round_ or Round(batch.start)
            round_.add(tasks)
            batches.append(batch)
            if round_.is_full:
                break
        return None if round_ is None else _UnderWay(batches, round_)

    def _next_batch(self) -> SpoolBatch | None:
        batch, self._ahead = self._ahead, None
        return self._spool.read(READ_COUNT, timeout=0) if batch is None else batch

    def _read_shorter(self, batch: SpoolBatch, count: int) -> None:
        """Read the tasks again that stand before an event not ours. Raises ``InvalidValue`` if there are none."""
        if count == 0:
            self._ahead = batch
            place = (
                f"{self._spool.path / segment_name(batch.start.segment)}, frame {batch.start.index}"
            )
            raise InvalidValue(
                f"{place}: is no task of ours; name the queue that events of others go to"
            )
        self._spool.rewind()
        self._ahead = self._spool.read(count, timeout=0)

    def _resume(self) -> _UnderWay | None:
        """Return the round that was under way when the spool was left; without one, begin a new producer."""
        end = self._spool.sending
        if end is not None and self._ahead is None:
            self._ahead = self._spool.read(INDEX_MAX, timeout=0, until=end)
        batch = self._ahead
        if batch is not None and batch.end == end and self._identity.read(self._tell):
            others = self._identity.identity.others
            tasks = self._reader.read(batch.payloads, batch.payload_format, others=others)
            if len(tasks) == len(batch):
                self._is_begun, self._ahead = True, None
                round_ = Round(batch.start)
                round_.add(tasks)
                return _UnderWay([batch], round_, is_saved=True)
        if end is not None:
            self._tell(
                f"{self._spool.path}: what was being sent is sent anew, and may arrive twice"
            )
        try:
            self._identity.renew(self._others)
        except SpoolFull:
            # The old one does as well, unless somebody has changed the files; and only sending makes room.
            if not self._identity.read(self._tell):
                raise
        self._is_begun = True
        return None

    # --- requests ---

    def _send(self, under_way: _UnderWay, wave: list[Parcel]) -> None:
        """Send requests of different queues, and find out which tasks are refused for good."""
        under_way.forget_refusals(wave)
        identity, now_ns = self._identity.identity, time.time_ns()
        divided: list[Parcel] = []
        whole: list[Parcel] = []
        for parcel in wave:
            is_divided = identity.is_divided(parcel.number, under_way.end)
            (divided if is_divided else whole).append(parcel)
        requests = [parcel.request(identity.producer, now_ns=now_ns) for parcel in whole]
        if requests and self._refusal(requests) is not None:
            # One of them, and it is not said which; those that were taken are not taken again.
            for parcel, request in zip(whole, requests, strict=True):
                self._send_alone(under_way, parcel, request)
        for parcel in divided:
            self._send_singly(under_way, parcel)

    def _send_alone(self, under_way: _UnderWay, parcel: Parcel, request: Enqueue) -> None:
        reason = self._refusal([request])
        if reason is None:
            return
        if len(parcel) == 1:
            under_way.refused[parcel.places[0]] = reason
            return
        # Noted before the first of them is sent: were the request sent whole again, and taken now, they would double.
        self._identity.divide(parcel.number, under_way.end)
        self._send_singly(under_way, parcel)

    def _send_singly(self, under_way: _UnderWay, parcel: Parcel) -> None:
        """Send task by task, one after the other as order demands, so that only those are refused that must be."""
        producer = self._identity.identity.single_producer
        for single in parcel.singles():
            reason = self._refusal([single.request(producer, now_ns=time.time_ns())])
            if reason is not None:
                under_way.refused[single.places[0]] = reason

    def _refusal(self, requests: list[Enqueue]) -> str | None:
        """Send requests of different queues. Return why one of them will never be taken, ``None`` if all were."""
        if self._client is None:
            self._client = self._connect()
        try:
            self._client.enqueue_numbered(requests)
        except QueueFull:
            raise
        except (PolicyViolated, InvalidValue) as error:
            return str(error)
        except SequenceForgotten as error:
            self._identity.renew(self._identity.identity.others)
            self._tell(f"{self._spool.path}: {error}; it is sent anew, and may arrive twice")
            raise
        return None

    def _set_aside(self, under_way: _UnderWay) -> None:
        payloads = under_way.refused_payloads()
        path, settings = self._spool.path, self._spool.settings
        set_aside(self._files, path, settings, payloads, under_way.payload_format)
        tell_refused(self._tell, path, under_way.refused.values(), count=len(payloads))
        self.refused += len(payloads)
        under_way.refused.clear()
