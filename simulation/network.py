"""Connections between simulated hosts, as TCP has them: bytes in order until the connection breaks, then none.

What was sent before a break may arrive in part, and after what was sent on the next connection: that is the only
reordering there is. A cut holds bytes back in one direction; a connection that waits too long breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from simulation.clock import MILLISECOND, SECOND, Gate, Timeline

CONNECT_TIMEOUT: Final = 1 * SECOND
"""How long an opener waits for somebody who does not answer."""

CUT_PATIENCE: Final = (SECOND // 2, 4 * SECOND)
"""Between these a connection whose bytes do not get through is given up."""

CRASH_NOTICE_MAX: Final = SECOND // 2
"""Within this, others learn that the host they talked to is gone."""


@dataclass(slots=True, kw_only=True)
class Weather:
    """What happens to bytes on their way; chances are per write."""

    delay_min: int = 200
    delay_mean: int = 1 * MILLISECOND
    reset: float = 0.0
    clog: float = 0.0  # the whole link stands still for a while
    clog_max: int = 5 * SECOND
    flip: float = 0.0  # one bit, on links between nodes only: what clients speak has no checksum


class End:
    """One side of a connection. Its owner sets ``on_data`` and ``on_lost``; neither is called inside ``write``."""

    __slots__ = (
        "_arrival",
        "_held",
        "_lost_from",
        "_network",
        "broken_at",
        "gate",
        "host",
        "is_open",
        "number",
        "on_data",
        "on_lost",
        "other",
        "peer",
    )

    other: End

    def __init__(self, network: Network, host: str, peer: str, number: int) -> None:
        self._network = network
        self.number = number  # of the connection: both ends have the same
        self.host = host
        self.peer = peer
        self.gate = network.gate(host)
        self.is_open = True
        self.broken_at: int | None = None  # when either side first knew of the end
        self.on_data: Callable[[bytes], None] = _ignore
        self.on_lost: Callable[[], None] = _nothing
        self._arrival = 0  # when the last bytes that were sent arrive
        self._held: list[bytes] = []  # arrived at a cut
        self._lost_from = -1  # bytes that would arrive later than this are lost; -1: none

    def write(self, data: bytes) -> None:
        if self.is_open:
            self._network.carry(self, data)

    def close(self) -> None:
        """End the connection in order: what was sent arrives, then the other side learns of the end."""
        if self.is_open:
            self.is_open = False
            self._network.finish(self, self._arrival)

    def abandon(self) -> None:
        """End without a word to the owner: its host is gone."""
        self.is_open = False
        self.on_data, self.on_lost = _ignore, _nothing

    # For the network.

    def note_break(self) -> None:
        """Note that the connection ends now, if it has not begun to before."""
        if self.broken_at is None:
            self.broken_at = self.other.broken_at = self._network.timeline.now

    def delay_until(self, time: int) -> None:
        """Let nothing of this side arrive before ``time``."""
        self._arrival = time

    def send_at(self, time: int, data: bytes) -> None:
        if time > self._arrival:
            self._arrival = time
        self._network.timeline.at(self._arrival, partial(self._arrive, data))

    def lose_tail(self, random: Random) -> int:
        """Lose what arrives behind some moment from now on; return that moment."""
        now = self._network.timeline.now
        self._lost_from = random.randint(now, max(now, self._arrival))
        return self._lost_from

    def _arrive(self, data: bytes) -> None:
        if 0 <= self._lost_from <= self._network.timeline.now:
            return
        if self._held or self._network.is_cut(self.host, self.peer):
            self._held.append(data)
            return
        self.other.take(data)

    def release(self) -> None:
        """Let what a cut has held go on."""
        held, self._held = self._held, []
        for data in held:
            self.send_at(self._network.timeline.now + 1, data)

    def take(self, data: bytes) -> None:
        if not self.is_open:
            return
        if self.gate.is_shut:
            self.gate.run(partial(self._hand_over, data))
        else:
            self.on_data(data)

    def _hand_over(self, data: bytes) -> None:
        if self.is_open:
            self.on_data(data)

    def lose(self) -> None:
        """Learn that the connection is gone."""
        if self.is_open:
            self.is_open = False
            self.tell_lost()

    def tell_lost(self) -> None:
        self.gate.run(self._hand_loss_over)

    def _hand_loss_over(self) -> None:
        on_lost = self.on_lost
        self.on_data, self.on_lost = _ignore, _nothing
        on_lost()


class Network:
    """All links. Hosts are names; an address is a host and a port, ``"n1:9000"``."""

    def __init__(self, timeline: Timeline, random: Random) -> None:
        self.timeline = timeline
        self.weather = Weather()
        self.resets = 0
        self._connections = 0
        self.flips = 0
        self._random = random
        self._listeners: dict[str, Callable[[End], None]] = {}
        self._ends: dict[str, dict[End, None]] = {}  # by host, in the order in which they were made
        self._cuts: dict[tuple[str, str], int] = {}  # how many reasons there are for each
        self._clogged: dict[tuple[str, str], int] = {}  # until when
        self._gates: dict[str, Gate] = {}

    def gate(self, host: str) -> Gate:
        return self._gates.setdefault(host, Gate())

    # What hosts do.

    def listen(self, address: str, accept: Callable[[End], None]) -> None:
        self._listeners[address] = accept

    def connect(
        self, host: str, address: str, opened: Callable[[End], None], failed: Callable[[], None]
    ) -> None:
        """Try to connect; one of the two is called in a while."""
        target = host_of(address)
        timeline, random = self.timeline, self._random
        if self.is_cut(host, target) or self.is_cut(target, host):
            timeline.after(CONNECT_TIMEOUT, partial(self.gate(host).run, failed))
            return
        there = self._delay(host, target)
        timeline.after(
            there,
            partial(self._answer, host, address, opened, failed, random.randrange(SECOND)),
        )

    def _answer(
        self,
        host: str,
        address: str,
        opened: Callable[[End], None],
        failed: Callable[[], None],
        lateness: int,
    ) -> None:
        target, timeline = host_of(address), self.timeline
        back = self._delay(target, host)
        accept = self._listeners.get(address)
        if accept is None or self.is_cut(target, host):
            delay = back if accept is None else CONNECT_TIMEOUT + lateness
            timeline.after(delay, partial(self.gate(host).run, failed))
            return
        self._connections += 1
        number = self._connections
        near, far = End(self, host, target, number), End(self, target, host, number)
        near.other, far.other = far, near
        for end in (near, far):
            self._ends.setdefault(end.host, {})[end] = None
        # Nothing that the acceptor says overtakes this.
        far.delay_until(timeline.now + back)
        timeline.after(
            back, partial(self.gate(host).run, partial(self._open, near, opened, failed))
        )
        self.gate(target).run(partial(accept, far))

    def _open(self, near: End, opened: Callable[[End], None], failed: Callable[[], None]) -> None:
        if near.is_open:
            opened(near)
        else:
            failed()  # the other side was gone again before we knew that it was there

    def crash(self, host: str) -> None:
        """Take a host away: nobody listens there, and those who talked to it find out in a while."""
        for address in [a for a in self._listeners if host_of(a) == host]:
            del self._listeners[address]
        for end in self._ends.pop(host, {}):
            end.note_break()
            if end.is_open:
                end.abandon()
                moment = end.lose_tail(self._random)
                notice = self._random.randrange(CRASH_NOTICE_MAX)
                self.timeline.at(moment + notice, partial(self._lose, end.other))

    # Bytes.

    def carry(self, end: End, data: bytes) -> None:
        weather, random = self.weather, self._random
        if weather.reset and random.random() < weather.reset:
            self.reset(end)
            return
        if weather.clog and random.random() < weather.clog:
            until = self.timeline.now + random.randrange(1, weather.clog_max)
            self._clogged[end.host, end.peer] = until
        if weather.flip and is_between_nodes(end) and random.random() < weather.flip:
            data = self._flipped(data)
        arrival = self.timeline.now + self._delay(end.host, end.peer)
        if self._clogged:
            arrival = max(arrival, self._clogged.get((end.host, end.peer), 0))
        end.send_at(arrival, data)

    def _flipped(self, data: bytes) -> bytes:
        self.flips += 1
        changed = bytearray(data)
        changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)

    def _delay(self, host: str, peer: str) -> int:  # noqa: ARG002 - links may differ one day
        weather = self.weather
        drawn = self._random.random()
        # Mostly about the mean, sometimes up to eight times as long; an exponential costs three times as much.
        return weather.delay_min + int(8 * weather.delay_mean * drawn * drawn * drawn * drawn)

    def reset(self, end: End) -> None:
        """Break a connection: what is under way is lost from some byte on, in both directions."""
        if not end.is_open:
            return
        self.resets += 1
        end.note_break()
        self._forget(end)
        moment = end.lose_tail(self._random)
        end.is_open = False
        self.timeline.after(1, end.tell_lost)
        self.timeline.at(moment + self._delay(end.host, end.peer), partial(self._lose, end.other))

    def reset_some(self, host: str) -> None:
        """Break one connection of a host."""
        ends = [end for end in self._ends.get(host, {}) if end.is_open]
        if ends:
            self.reset(self._random.choice(ends))

    def finish(self, end: End, arrival: int) -> None:
        end.note_break()
        self._forget(end)
        moment = max(arrival, self.timeline.now) + self._delay(end.host, end.peer)
        self.timeline.at(moment, partial(self._lose, end.other))

    def _lose(self, end: End) -> None:
        if self.is_cut(end.peer, end.host):
            self.timeline.after(SECOND, partial(self._lose, end))  # the news is held back as well
            return
        self._forget(end)
        end.lose()

    def _forget(self, end: End) -> None:
        self._ends.get(end.host, {}).pop(end, None)

    # Cuts.

    def is_cut(self, host: str, peer: str) -> bool:
        return bool(self._cuts) and (host, peer) in self._cuts

    def cut(self, host: str, peer: str) -> None:
        """Let nothing through from one host to another. Connections between them break after a while."""
        link = host, peer
        self._cuts[link] = self._cuts.get(link, 0) + 1
        for end in list(self._ends.get(host, {})):
            if end.peer == peer:
                self.timeline.after(
                    self._random.randint(*CUT_PATIENCE), partial(self._give_up, end)
                )

    def _give_up(self, end: End) -> None:
        if end.is_open and self.is_cut(end.host, end.peer):
            self.reset(end)

    def heal(self, host: str, peer: str) -> None:
        """Take one reason for a cut away."""
        link = host, peer
        left = self._cuts.pop(link, 0) - 1
        if left > 0:
            self._cuts[link] = left
            return
        for end in list(self._ends.get(host, {})):
            if end.peer == peer:
                end.release()

    def heal_all(self) -> None:
        """End every cut, clog and bad weather."""
        self.weather = Weather()
        self._clogged.clear()
        for link in list(self._cuts):
            self._cuts[link] = 1
            self.heal(*link)


def host_of(address: str) -> str:
    return address.partition(":")[0]


def is_between_nodes(end: End) -> bool:
    return end.host[0] == "n" and end.peer[0] == "n"


def _ignore(data: bytes) -> None:
    pass


def _nothing() -> None:
    pass
