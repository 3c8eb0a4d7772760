"""Snapshots in chunks: resumed, restarted, refused, and never installed in part."""

from __future__ import annotations

from random import Random

import pytest

from penstock.errors import CorruptData
from penstock.protocol.peers import Packet, Standing
from penstock.protocol.peers import packets as p
from penstock.raft.configuration import encode_configuration
from penstock.raft.messages import Kind, Snapshot
from penstock.server.peers import transfers
from penstock.server.peers.transfers import Reception, Sending, Transfer, transfer_of
from server.peers.wired import (
    THREE,
    BytesFile,
    Clock,
    Node,
    Shelf,
    Tray,
    Wire,
    introduce,
    snapshot_message,
)

MIB = 2**20
SNAPSHOT = Snapshot(8, 2, THREE)
DATA = Random(7).randbytes(3 * MIB + 5)


def pair(data: bytes = DATA, snapshot: Snapshot = SNAPSHOT) -> tuple[Node, Node]:
    return Node(1, Shelf((snapshot, data))), Node(2)


def connected(sender: Node, receiver: Node) -> Wire:
    introduce(sender, receiver)
    wire = Wire(sender, receiver)
    wire.carry()
    assert wire.outgoing.is_ready
    return wire


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 5])
def test_a_snapshot_of_any_size_arrives_whole(size: int) -> None:
    sender, receiver = pair(DATA[:size])
    wire = connected(sender, receiver)
    assert wire.outgoing.send(snapshot_message(SNAPSHOT))
    wire.carry()
    assert bytes(receiver.tray.held) == DATA[:size]
    assert receiver.tray.checks == [True]
    assert receiver.stepped == [snapshot_message(SNAPSHOT)]
    assert sender.ended == [(2, True)]
    assert [file.is_closed for file in sender.shelf.opened] == [True]


def test_no_more_than_two_chunks_are_under_way() -> None:
    sender, receiver = pair()
    wire = connected(sender, receiver)
    wire.outgoing.send(snapshot_message(SNAPSHOT))
    most = 0
    while wire.there or wire.back:
        wire.incoming.receive(bytes(wire.there[:1000]))
        del wire.there[:1000]
        wire.outgoing.receive(bytes(wire.back))
        wire.back.clear()
        most = max(most, len(wire.there))
    assert 2 * MIB < most < 2 * MIB + 1000
    assert sender.ended == [(2, True)]


def test_a_transfer_that_broke_off_goes_on_where_it_was() -> None:
    sender, receiver = pair()
    wire = connected(sender, receiver)
    wire.outgoing.send(snapshot_message(SNAPSHOT))
    while len(receiver.tray.held) < 2 * MIB:
        wire.incoming.receive(bytes(wire.there))
        wire.there.clear()
        wire.outgoing.receive(bytes(wire.back))
        wire.back.clear()
    wire.close()
    assert sender.ended == [(2, False)]
    again = connected(sender, receiver)
    again.outgoing.send(snapshot_message(SNAPSHOT))
    again.carry()
    assert receiver.tray.writes == [0, MIB, 2 * MIB, 3 * MIB]
    assert bytes(receiver.tray.held) == DATA
    assert sender.ended == [(2, False), (2, True)]


def test_a_leader_of_a_later_term_begins_anew_and_the_earlier_one_is_refused() -> None:
    old, receiver = pair()
    new = Node(3, Shelf((SNAPSHOT, DATA)))
    first = connected(old, receiver)
    first.outgoing.send(snapshot_message(SNAPSHOT, term=3))
    first.incoming.receive(bytes(first.there))
    first.there.clear()
    first.outgoing.receive(bytes(first.back))
    first.back.clear()
    first.incoming.receive(bytes(first.there[: MIB + 100]))
    del first.there[: MIB + 100]
    assert len(receiver.tray.held) == MIB
    second = connected(new, receiver)
    second.outgoing.send(snapshot_message(SNAPSHOT, term=4))
    second.incoming.receive(bytes(second.there))
    second.there.clear()
    assert len(receiver.tray.held) == 0, "it went on with what another leader had sent"
    first.carry()
    assert old.ended == [(2, False)]
    assert not receiver.tray.checks
    second.carry()
    assert new.ended == [(2, True)]
    assert bytes(receiver.tray.held) == DATA
    assert [message.term for message in receiver.stepped] == [4]


def test_bytes_that_are_not_what_was_promised_are_not_installed() -> None:
    sender, receiver = pair()
    wire = connected(sender, receiver)
    wire.outgoing.send(snapshot_message(SNAPSHOT))
    sender.shelf.opened[0].data = bytes(len(DATA))
    wire.carry()
    assert receiver.tray.checks == [False]
    assert receiver.stepped == []
    assert sender.ended == [(2, False)]
    assert receiver.tray.held == b"", "the wrong bytes are still held"


def test_a_snapshot_that_is_gone_is_reported_as_failed() -> None:
    sender, receiver = Node(1), Node(2)
    wire = connected(sender, receiver)
    assert wire.outgoing.send(snapshot_message(SNAPSHOT))
    assert sender.ended == [(2, False)]
    assert not wire.there


def test_a_newer_snapshot_takes_the_place_of_the_one_under_way() -> None:
    newer = Snapshot(12, 3, THREE)
    sender, receiver = pair()
    sender.shelf.kept[newer] = DATA[::-1]
    wire = connected(sender, receiver)
    wire.outgoing.send(snapshot_message(SNAPSHOT))
    wire.incoming.receive(bytes(wire.there))
    wire.there.clear()
    wire.outgoing.send(snapshot_message(newer))
    wire.carry()
    assert receiver.stepped == [snapshot_message(newer)]
    assert bytes(receiver.tray.held) == DATA[::-1]
    assert sender.ended == [(2, True)]
    assert [file.is_closed for file in sender.shelf.opened] == [True, True]


def test_a_receiver_without_room_is_silent_and_asked_again_after_some_seconds() -> None:
    sender, receiver = pair()
    wire = connected(sender, receiver)
    receiver.tray.is_without_room = True
    wire.outgoing.send(snapshot_message(SNAPSHOT))
    wire.carry()
    assert sender.ended == []  # a refusal would lead to another offer at once
    receiver.tray.is_without_room = False
    sender.clock.seconds += transfers.RETRY_SECONDS
    wire.outgoing.tick()
    wire.carry()
    assert bytes(receiver.tray.held) == DATA
    assert sender.ended == [(2, True)]


def test_a_receiver_that_runs_out_of_room_ends_the_transfer_and_takes_the_next() -> None:
    sender, receiver = pair()
    wire = connected(sender, receiver)
    wire.outgoing.send(snapshot_message(SNAPSHOT))
    while len(receiver.tray.held) < MIB:
        wire.incoming.receive(bytes(wire.there))
        wire.there.clear()
        wire.outgoing.receive(bytes(wire.back))
        wire.back.clear()
    receiver.tray.is_without_room = True
    wire.carry()
    assert sender.ended == [(2, False)]
    assert receiver.stepped == []
    receiver.tray.is_without_room = False
    wire.outgoing.send(snapshot_message(SNAPSHOT))
    wire.carry()
    assert bytes(receiver.tray.held) == DATA
    assert sender.ended == [(2, False), (2, True)]


def test_the_same_message_again_does_not_disturb_its_transfer() -> None:
    sender, receiver = pair()
    wire = connected(sender, receiver)
    wire.outgoing.send(snapshot_message(SNAPSHOT))
    wire.outgoing.send(snapshot_message(SNAPSHOT))
    wire.carry()
    assert len(sender.shelf.opened) == 1
    assert sender.ended == [(2, True)]


def test_the_group_is_told_only_when_the_whole_was_checked() -> None:
    sender, receiver = pair()
    receiver.tray.is_slow = True
    wire = connected(sender, receiver)
    wire.outgoing.send(snapshot_message(SNAPSHOT))
    wire.carry()
    assert (receiver.stepped, sender.ended) == ([], [])
    sender.clock.seconds = transfers.RETRY_SECONDS
    wire.outgoing.tick()  # asks again; nothing is begun while the check lasts
    wire.carry()
    assert len(receiver.tray.waiting) == 1
    receiver.tray.waiting.pop()()
    wire.carry()
    assert receiver.stepped == [snapshot_message(SNAPSHOT)]
    assert sender.ended == [(2, True)]


def test_a_link_that_ends_during_the_check_tells_nobody_and_the_next_one_does() -> None:
    sender, receiver = pair()
    receiver.tray.is_slow = True
    wire = connected(sender, receiver)
    wire.outgoing.send(snapshot_message(SNAPSHOT))
    wire.carry()
    wire.close()
    receiver.tray.waiting.pop()()
    assert receiver.stepped == []
    receiver.tray.is_slow = False
    again = connected(sender, receiver)
    again.outgoing.send(snapshot_message(SNAPSHOT))
    again.carry()
    assert receiver.stepped == [snapshot_message(SNAPSHOT)]
    assert receiver.tray.writes == [0, MIB, 2 * MIB, 3 * MIB], "it was sent twice"


def test_an_offer_of_what_was_installed_is_answered_without_another_transfer() -> None:
    sender, receiver = pair()
    for _ in range(2):
        wire = connected(sender, receiver)
        wire.outgoing.send(snapshot_message(SNAPSHOT))
        wire.carry()
    assert sender.ended == [(2, True), (2, True)]
    assert receiver.tray.checks == [True]
    assert len(receiver.stepped) == 1


def test_a_silent_receiver_is_asked_again_and_then_given_up() -> None:
    clock, said = Clock(), list[Packet]()
    file = BytesFile(DATA)
    sending = Sending(snapshot_message(SNAPSHOT), file, said.append, clock)
    sending.offer()
    assert len(said) == 1
    clock.seconds = transfers.RETRY_SECONDS - 0.1
    sending.tick()
    assert len(said) == 1
    clock.seconds = transfers.RETRY_SECONDS
    sending.tick()
    assert [type(packet) for packet in said] == [p.Offer, p.Offer]
    clock.seconds = transfers.PATIENCE_SECONDS
    sending.tick()
    assert sending.outcome is False
    assert file.is_closed


def reply(offset: int, *, standing: Standing = Standing.GOES_ON, term: int = 3) -> p.ChunkReply:
    return p.ChunkReply(leader_term=term, index=7, term=2, offset=offset, standing=standing)


def begun(offset: int = 0) -> tuple[Sending, list[Packet]]:
    said: list[Packet] = []
    sending = Sending(snapshot_message(SNAPSHOT), BytesFile(DATA), said.append, Clock())
    sending.offer()
    sending.take(
        p.OfferReply(leader_term=3, index=7, term=2, offset=offset, standing=Standing.GOES_ON)
    )
    said.pop(0)
    return sending, said


def offsets(said: list[Packet]) -> list[int]:
    return [packet.offset for packet in said if isinstance(packet, p.Chunk)]


def test_a_lost_chunk_is_sent_again_once_for_all_that_came_behind_it() -> None:
    sending, said = begun()
    assert offsets(said) == [0, MIB]
    sending.take(reply(0))  # the second one came first
    assert offsets(said) == [0, MIB, 0, MIB]
    sending.take(reply(0))  # said for another that was under way
    assert offsets(said) == [0, MIB, 0, MIB]
    sending.take(reply(MIB))
    assert offsets(said)[4:] == [2 * MIB]


def test_late_and_foreign_answers_change_nothing() -> None:
    sending, said = begun(MIB)
    assert offsets(said) == [MIB, 2 * MIB]
    foreign = [reply(2 * MIB, term=2), reply(0, standing=Standing.IS_REFUSED, term=2)]
    for one in (reply(0), *foreign):
        sending.take(one)
    assert offsets(said) == [MIB, 2 * MIB]
    assert sending.outcome is None
    sending.take(reply(0, standing=Standing.IS_REFUSED))
    sending.take(reply(2 * MIB))  # behind the end
    assert offsets(said) == [MIB, 2 * MIB]
    assert sending.outcome is False


@pytest.mark.parametrize("offset", [-1, len(DATA) + 1])
def test_an_offset_outside_the_snapshot_is_refused(offset: int) -> None:
    sending, _ = begun()
    with pytest.raises(CorruptData):
        sending.take(reply(offset))


def offer(**fields: int) -> p.Offer:
    known = {"leader_term": 3, "index": 7, "term": 2, "size": 5, "checksum": 0}
    return p.Offer(**(known | fields), configuration=encode_configuration(THREE))


@pytest.mark.parametrize(
    "wrong", [{"index": -1, "term": 1}, {"index": -2}, {"term": 0}, {"leader_term": 1}]
)
def test_an_offer_of_what_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(CorruptData):
        transfer_of(offer(**wrong))


def test_an_offer_with_a_configuration_that_is_none_is_refused() -> None:
    with pytest.raises(CorruptData):
        transfer_of(
            p.Offer(leader_term=3, index=7, term=2, size=5, checksum=0, configuration=b"[]")
        )


def test_a_chunk_at_the_wrong_offset_is_answered_with_the_right_one() -> None:
    reception, tray, said = Reception(), Tray(), list[Packet]()

    def take(_: Transfer) -> bool:
        raise AssertionError("nothing is whole here")

    reception.offered(offer(), tray, said.append, take)
    for offset in (2, 4, 1):
        chunk = p.Chunk(leader_term=3, index=7, term=2, offset=offset, size=5, data=b"x")
        reception.arrived(chunk, tray, said.append, take)
    assert tray.writes == []
    assert said[1:] == [reply(0)] * 3
    reception.arrived(
        p.Chunk(leader_term=3, index=7, term=2, offset=0, size=5, data=b"he"),
        tray,
        said.append,
        take,
    )
    assert said[-1] == reply(2)
    # A chunk that claims another size, or another snapshot, is of another transfer.
    for other in ({"size": 6}, {"index": 8}, {"term": 1}):
        fields = {"leader_term": 3, "index": 7, "term": 2, "offset": 2, "size": 5} | other
        reception.arrived(p.Chunk(**fields, data=b"x"), tray, said.append, take)
    assert tray.writes == [0]
    assert len(said) == 5


def test_the_snapshot_message_is_of_the_kind_that_the_group_takes() -> None:
    sender, receiver = pair(b"small")
    wire = connected(sender, receiver)
    wire.outgoing.send(snapshot_message(SNAPSHOT))
    wire.carry()
    (stepped,) = receiver.stepped
    assert (stepped.kind, stepped.sender, stepped.to, stepped.term) == (Kind.SNAPSHOT, 1, 2, 3)
    assert stepped.snapshot == SNAPSHOT


def test_an_offer_of_an_earlier_term_is_refused_and_disturbs_nothing() -> None:
    old, receiver = pair()
    new = Node(3, Shelf((SNAPSHOT, DATA)))
    second = connected(new, receiver)
    second.outgoing.send(snapshot_message(SNAPSHOT, term=4))
    second.incoming.receive(bytes(second.there))
    second.there.clear()
    second.outgoing.receive(bytes(second.back))
    second.back.clear()
    second.incoming.receive(bytes(second.there))
    second.there.clear()
    held = bytes(receiver.tray.held)
    assert len(held) == 2 * MIB
    first = connected(old, receiver)
    first.outgoing.send(snapshot_message(SNAPSHOT, term=3))
    first.carry()
    assert old.ended == [(2, False)]
    assert bytes(receiver.tray.held) == held
    second.carry()
    assert new.ended == [(2, True)]
    assert receiver.tray.writes == [0, MIB, 2 * MIB, 3 * MIB]
