"""Snapshots on their way from one node to another, in chunks (docs/peers.md). No socket, no file, no clock of its own.

A transfer is named by the snapshot and by the term of the leader that sends it. Its receiver says from which byte on it
wants to have it, so one that broke off goes on where it was; a leader of a later term begins anew, and one of an earlier
term is refused. Nothing is installed before the whole is there and its checksum is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.errors import CorruptData
from penstock.protocol.peers import packets as p
from penstock.protocol.peers.packets import CHUNK_SIZE_MAX, Packet, Standing
from penstock.raft.configuration import decode_configuration, encode_configuration
from penstock.raft.messages import Kind, Message, Snapshot
from penstock.server.peers.translation import core_place, wire_place

CHUNKS_UNDER_WAY: Final = 2
"""One chunk is on the wire while the one before it is being written."""

RETRY_SECONDS: Final = 5.0
"""Without progress for this long, the receiver is asked anew how far it is."""

PATIENCE_SECONDS: Final = 60.0
"""Without progress for this long, a transfer has failed; the sync of a large snapshot must fit in."""


class SnapshotFile(Protocol):
    """The bytes of a snapshot that is to be sent; they stay as they are until ``close``."""

    @property
    def size(self) -> int: ...

    @property
    def checksum(self) -> int:
        """The CRC-32 (zlib's) of all bytes."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly so many bytes."""
        ...

    def close(self) -> None: ...


class SnapshotSource(Protocol):
    """Where snapshots to send come from."""

    def open(self, snapshot: Snapshot) -> SnapshotFile | None:
        """Return a snapshot's bytes, ``None`` if they are not there any more."""
        ...


class SnapshotSink(Protocol):
    """Where a snapshot that arrives is kept until it is whole."""

    def offset(self, snapshot: Snapshot, size: int, checksum: int) -> int | None:
        """Begin or resume a transfer: return how many bytes of this very one are held, 0 to begin anew.

        ``None``: there is no room for it now.
        """
        ...

    def write(self, offset: int, data: bytes) -> bool:
        """Keep bytes; return whether that was possible. If it was not, nothing is held any more."""
        ...

    def finish(self, then: Callable[[bool], None]) -> None:
        """Compare the whole with its checksum, sync it, and say whether it is right."""
        ...

    def abandon(self) -> None:
        """Forget what was held."""
        ...


# --- sending ---


class Sending:
    """A snapshot on its way to a peer."""

    def __init__(
        self,
        message: Message,
        file: SnapshotFile,
        write: Callable[[Packet], None],
        now: Callable[[], float],
        *,
        chunk_size: int = CHUNK_SIZE_MAX,
    ) -> None:
        assert message.snapshot is not None
        self.snapshot = message.snapshot
        self.leader_term = message.term
        self.outcome: bool | None = None  # how it ended
        self._file = file
        self._write = write
        self._now = now
        self._chunk_size = chunk_size
        self._index, self._term = wire_place(self.snapshot.index, self.snapshot.term)
        self._confirmed = 0  # what the receiver has
        self._next = 0  # where the next chunk begins
        self._is_begun = False  # whether the receiver has said where to begin
        self._rewound: int | None = None  # where it last asked for other bytes than it got
        self._moved = self._asked = now()

    def offer(self) -> None:
        """Ask the receiver from which byte on it wants to have the snapshot."""
        self._asked = self._now()
        self._is_begun = False
        self._write(
            p.Offer(
                leader_term=self.leader_term,
                index=self._index,
                term=self._term,
                size=self._file.size,
                checksum=self._file.checksum,
                configuration=encode_configuration(self.snapshot.configuration),
            )
        )

    def take(self, reply: p.OfferReply | p.ChunkReply) -> None:
        """Go on from an answer; one of another transfer says nothing. Raises ``CorruptData``."""
        named = reply.leader_term, reply.index, reply.term
        if self.outcome is not None or named != (self.leader_term, self._index, self._term):
            return
        if reply.standing is not Standing.GOES_ON:
            self.end(reply.standing is Standing.IS_WHOLE)
            return
        if not 0 <= reply.offset <= self._file.size:
            raise CorruptData("an offset outside the snapshot", found=str(reply.offset))
        if isinstance(reply, p.OfferReply):
            self._is_begun, self._rewound = True, None
            self._confirmed = self._next = reply.offset
            self._moved = self._now()
        elif self._is_begun:
            self._note_progress(reply.offset)
        self._fill_window()

    def _note_progress(self, offset: int) -> None:
        if offset > self._confirmed:
            self._confirmed, self._moved = offset, self._now()
            self._next = max(self._next, offset)
        elif offset == self._confirmed < self._next and offset != self._rewound:
            # It got a chunk that does not follow: one before it is lost. Said for each chunk under way, heeded once.
            self._next = self._rewound = offset

    def _fill_window(self) -> None:
        size, window = self._file.size, CHUNKS_UNDER_WAY * self._chunk_size
        while self._is_begun and self._next < size and self._next - self._confirmed < window:
            data = self._file.read(self._next, min(self._chunk_size, size - self._next))
            assert data, "a snapshot that is shorter than it says"
            self._write(
                p.Chunk(
                    leader_term=self.leader_term,
                    index=self._index,
                    term=self._term,
                    offset=self._next,
                    size=size,
                    data=data,
                )
            )
            self._next += len(data)

    def tick(self) -> None:
        """Ask again, or give up, if nothing has moved for long."""
        now = self._now()
        if self.outcome is not None:
            return
        if now - self._moved >= PATIENCE_SECONDS:
            self.end(False)
        elif now - max(self._moved, self._asked) >= RETRY_SECONDS:
            self.offer()

    def end(self, ok: bool) -> None:
        """Note the outcome, the first time."""
        if self.outcome is None:
            self.outcome = ok
            self._file.close()


# --- receiving ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What makes two offers one transfer."""

    leader_term: int
    snapshot: Snapshot
    size: int
    checksum: int


def transfer_of(offer: p.Offer) -> Transfer:
    """Return what an offer is about. Raises ``CorruptData``."""
    index, term = core_place(offer.index, offer.term)
    if index < 1 or term < 1 or offer.leader_term < term:
        raise CorruptData("a snapshot of nothing, or of a term that is yet to come")
    return Transfer(
        leader_term=offer.leader_term,
        snapshot=Snapshot(index, term, decode_configuration(offer.configuration)),
        size=offer.size,
        checksum=offer.checksum,
    )


def message_of_transfer(transfer: Transfer, *, sender: int, to: int) -> Message:
    """Return what the group is told of a snapshot that has arrived."""
    return Message(
        kind=Kind.SNAPSHOT,
        sender=sender,
        to=to,
        term=transfer.leader_term,
        snapshot=transfer.snapshot,
    )


Taken = Callable[[Transfer], bool]
"""Hands a snapshot that is whole to the group; returns whether that was possible."""


class Reception:
    """The one snapshot that a node is receiving. All links of a node share it: two leaders must not mix their bytes."""

    def __init__(self) -> None:
        self._leader_term = 0  # the latest that offered a snapshot
        self._current: Transfer | None = None
        self._offset = 0  # how much of it is there
        self._is_finishing = False  # whether it is being checked; nothing else begins meanwhile
        self._installed: Transfer | None = None  # the last one that the group was told of

    def offered(
        self, offer: p.Offer, sink: SnapshotSink, write: Callable[[Packet], None], taken: Taken
    ) -> None:
        """Answer an offer, now or when a check of the whole has ended. Raises ``CorruptData``."""
        transfer = transfer_of(offer)

        def reply(offset: int, standing: Standing) -> None:
            write(
                p.OfferReply(
                    leader_term=offer.leader_term,
                    index=offer.index,
                    term=offer.term,
                    offset=offset,
                    standing=standing,
                )
            )

        if offer.leader_term < self._leader_term:
            reply(0, Standing.IS_REFUSED)
        elif self._is_finishing:
            return  # who offers asks again
        elif transfer == self._installed:
            reply(transfer.size, Standing.IS_WHOLE)
        elif self._begin(transfer, sink):
            self._go_on(sink, reply, taken)
        # Else there is no room now. A refusal would be answered with another offer at once; who hears nothing asks
        # again after some seconds.

    def _begin(self, transfer: Transfer, sink: SnapshotSink) -> bool:
        """Turn to this transfer; return whether it can go on now."""
        if self._current is not None and self._leader_term < transfer.leader_term:
            sink.abandon()
        self._leader_term = transfer.leader_term
        offset = sink.offset(transfer.snapshot, transfer.size, transfer.checksum)
        if offset is None:
            self._current = None
            return False
        assert 0 <= offset <= transfer.size
        self._current, self._offset = transfer, offset
        return True

    def arrived(
        self, chunk: p.Chunk, sink: SnapshotSink, write: Callable[[Packet], None], taken: Taken
    ) -> None:
        """Take a chunk if it is the next one, and answer which is."""

        def reply(offset: int, standing: Standing) -> None:
            write(
                p.ChunkReply(
                    leader_term=chunk.leader_term,
                    index=chunk.index,
                    term=chunk.term,
                    offset=offset,
                    standing=standing,
                )
            )

        current = self._current
        if chunk.leader_term < self._leader_term:
            reply(0, Standing.IS_REFUSED)
        elif current is None or self._is_finishing or not _is_of(chunk, current):
            return  # late: its transfer has ended, or another took its place
        elif chunk.offset != self._offset:
            reply(self._offset, Standing.GOES_ON)
        elif sink.write(chunk.offset, chunk.data):
            self._offset += len(chunk.data)
            self._go_on(sink, reply, taken)
        else:
            self._current = None
            reply(0, Standing.IS_REFUSED)

    def _go_on(
        self, sink: SnapshotSink, reply: Callable[[int, Standing], None], taken: Taken
    ) -> None:
        current = self._current
        assert current is not None
        if self._offset < current.size:
            reply(self._offset, Standing.GOES_ON)
            return

        def ended(is_right: bool) -> None:
            self._is_finishing = False
            self._current = None
            if not is_right:
                sink.abandon()
            if is_right and taken(current):
                self._installed = current
                reply(current.size, Standing.IS_WHOLE)
            else:
                reply(0, Standing.IS_REFUSED)

        self._is_finishing = True
        sink.finish(ended)


def _is_of(chunk: p.Chunk, transfer: Transfer) -> bool:
    place = wire_place(transfer.snapshot.index, transfer.snapshot.term)
    named = (chunk.leader_term, chunk.index, chunk.term, chunk.size)
    return named == (transfer.leader_term, *place, transfer.size)
