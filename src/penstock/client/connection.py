"""One connection as a conversation, without the socket: requests in, bytes out; bytes in, answers out.

Owns request ids, what is outstanding, and the greeting. It reads no clock and never decides to repeat
anything: after an exception from here the connection is of no use. One caller at a time; locks are the
faces' business. The bytes are specified in docs/protocol.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import BadData, ConnectionFailed, ConnectionLost, ProtocolBroken
from penstock.protocol import version1
from penstock.protocol.frames import FRAME_SIZE_MAX, FrameReader
from penstock.protocol.version2 import (
    BATCH_MAX,
    MAJOR,
    MINOR,
    Ack,
    Answer,
    ChangeMembers,
    Cluster,
    ClusterInfo,
    Create,
    Delete,
    Delivered,
    Dequeue,
    Enqueue,
    Enqueued,
    Entries,
    Extend,
    Failed,
    Failure,
    Nack,
    Node,
    NodeInfo,
    Ok,
    Peek,
    Peeked,
    Ping,
    Purge,
    Purged,
    Read,
    Release,
    Request,
    Settled,
    Start,
    Stat,
    Stats,
    Subscribe,
    Transfer,
    Unsubscribe,
    decode_answer,
    encode_request,
)

_NUMBERS: Final = 2**32
"""Request ids are 32 bits wide and come round; 0 is the connection's own and no request's."""

FITTING: Final[dict[type[Request], tuple[type[Answer], ...]]] = {
    Enqueue: (Enqueued,),
    Dequeue: (Delivered,),
    Ack: (Settled,),
    Nack: (Settled,),
    Release: (Settled,),
    Extend: (Settled,),
    Start: (),
    Subscribe: (Ok, Delivered),
    Unsubscribe: (Ok,),
    Peek: (Peeked,),
    Purge: (Purged,),
    Create: (Ok,),
    Delete: (Ok,),
    Stat: (Stats,),
    Read: (Entries,),
    Node: (NodeInfo,),
    Ping: (Ok,),
    Cluster: (ClusterInfo,),
    ChangeMembers: (Ok,),
    Transfer: (Ok,),
}
"""What may answer what; ``Failed`` may answer everything."""


class _Outstanding(NamedTuple):
    """A request that was not answered to the end."""

    request: Request
    size: int  # bytes of its frame


class Connection:
    """What was said and what is still to be answered on one connection."""

    def __init__(self, *, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._frames = FrameReader(frame_size_max)
        self._last = 0  # the request id given out last
        self._outstanding: dict[int, _Outstanding] = {}
        self._abandoned: set[int] = set()  # outstanding, and nobody waits for it any more
        self._unclaimed: list[int] = []  # tokens of tasks that were delivered to nobody
        self._greeting = b""  # bytes of the greeting that are not whole yet
        self._authorized = False
        # True once the node has agreed to speak version 2; before that it answers nothing else.
        self.greeted = False
        # Bytes of frames that were sent and not answered.
        self.in_flight_size = 0

    @property
    def outstanding_count(self) -> int:
        return len(self._outstanding)

    def greet(self) -> bytes:
        """Return the first bytes of a connection. Frames may be sent right behind."""
        bootstrap = version1.Bootstrap(major=MAJOR, minor=MINOR, patch=0)
        return version1.encode_request(version1.Authorize()) + version1.encode_request(bootstrap)

    def send(self, request: Request) -> tuple[int, bytes]:
        """Return the id of a request and the bytes to send; from now on an answer is awaited."""
        number = self._next_number()
        data = encode_request(request, number)
        self._outstanding[number] = _Outstanding(request, len(data))
        self.in_flight_size += len(data)
        return number, data

    def start(self, start: Start) -> bytes:
        """Return the bytes of a report of started tasks, which has no answer."""
        return encode_request(start, 0)

    def _next_number(self) -> int:
        assert len(self._outstanding) < _NUMBERS - 1
        while True:
            self._last = (self._last + 1) % _NUMBERS
            if self._last and self._last not in self._outstanding:
                return self._last

    def abandon(self, number: int) -> None:
        """Wait no longer for a request; its answer is dropped, and tasks that it brings are released."""
        if number in self._outstanding:
            self._abandoned.add(number)

    def receive(self, data: bytes) -> list[tuple[int, Answer]]:
        """Return the answers that these bytes complete, with the ids of their requests.

        A subscription is answered many times, until its ``Unsubscribe`` is answered. Raises
        ``ProtocolBroken`` for bytes that mean nothing here, ``ConnectionFailed`` if the node refused
        the greeting and ``ConnectionLost`` if it says goodbye.
        """
        try:
            if not self.greeted:
                data = self._receive_greeting(bytes(data))
            frames = self._frames.receive(bytes(data)) if data else []
            answers = [(number, self._answer(kind, number, body)) for kind, number, body in frames]
        except BadData as error:
            raise ProtocolBroken(f"the node sent bytes that mean nothing: {error}") from error
        return [(number, answer) for number, answer in answers if self._is_awaited(number, answer)]

    def release_unclaimed(self) -> bytes:
        """Return bytes to send that release tasks which came for an abandoned request; mostly none."""
        if not self._unclaimed:
            return b""
        tokens, self._unclaimed = self._unclaimed[:BATCH_MAX], self._unclaimed[BATCH_MAX:]
        number, data = self.send(Release(tokens))
        self.abandon(number)
        return data

    # --- greeting ---

    def _receive_greeting(self, data: bytes) -> bytes:
        """Take the greeting's packets and return the bytes behind them."""
        data = self._greeting + data
        while data and not self.greeted:
            if data[0] not in b"abe":
                raise ProtocolBroken(
                    f"the server begins with byte {data[0]:02X}, which no Penstock node sends; check the port"
                )
            packet = version1.decode_response(data)
            if packet is None:
                break
            self._greeted(packet[0])
            data = data[packet[1] :]
        self._greeting = b"" if self.greeted else data
        return data if self.greeted else b""

    def _greeted(self, packet: version1.Response) -> None:
        match packet:
            case version1.Authorized(reason=None) if not self._authorized:
                self._authorized = True
            case version1.Bootstrapped(reason=None) if self._authorized:
                self.greeted = True
            case version1.Authorized(reason=str(text)) | version1.Bootstrapped(reason=str(text)):
                raise ConnectionFailed(f"the node refused this client: {text}")
            case version1.ErrorPacket():
                raise ConnectionFailed(f"the node refused this client: {packet.text}")
            case _:
                raise ProtocolBroken("the node greets in the wrong order")

    # --- answers ---

    def _answer(self, kind: int, number: int, body: bytes) -> Answer:
        """Return the answer in a frame, and forget its request unless it is a subscription."""
        answer = decode_answer(kind, body)
        asked = self._outstanding.get(number)
        if asked is None:
            if number == 0 and isinstance(answer, Failed):
                kind_of = ConnectionLost if answer.code == Failure.STOPPING else ProtocolBroken
                raise kind_of(f"the node ended the connection: {answer.text}")
            raise ProtocolBroken(f"the node answered request {number}, which was not asked")
        request = asked.request
        if not isinstance(answer, (*FITTING[type(request)], Failed)):
            raise ProtocolBroken(
                f"the node answered {type(request).__name__} with {type(answer).__name__}"
            )
        if not isinstance(request, Subscribe) or isinstance(answer, Failed):
            self._forget(number)
        if isinstance(request, Unsubscribe):
            self._forget(request.subscription)
        return answer

    def _forget(self, number: int) -> None:
        asked = self._outstanding.pop(number, None)
        if asked is not None:
            self.in_flight_size -= asked.size

    def _is_awaited(self, number: int, answer: Answer) -> bool:
        if number not in self._abandoned:
            return True
        if isinstance(answer, Delivered):
            self._unclaimed.extend(range(answer.token, answer.token + len(answer.ids)))
        if number not in self._outstanding:
            self._abandoned.discard(number)
        return False
