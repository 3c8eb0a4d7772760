"""The frames of version 2, byte for byte as docs/protocol.md has them, and what is refused."""

from __future__ import annotations

import pytest

from penstock.errors import BadData, CorruptData, InvalidQueueName, InvalidValue
from penstock.model import Policy, QueueName
from penstock.protocol import version2 as v2
from penstock.protocol.frames import FrameReader, encode_frame
from penstock.protocol.version2 import Kind
from protocol.version2_samples import ANSWERS, ORDERS, REQUESTS
from support.damage import cuts, flipped

BODIES = [(kind, bytes.fromhex(text)) for _, kind, text in REQUESTS + ANSWERS]
NAME = "06 6F 72 64 65 72 73 "
REQUEST_KINDS = {kind for kind in Kind if chr(kind).isupper()}


def decode(kind: int, body: bytes) -> v2.Request | v2.Answer:
    """Return whatever a frame means, to a node or to a client."""
    if kind in REQUEST_KINDS:
        return v2.decode_request(kind, body)
    return v2.decode_answer(kind, body)


def encode(message: v2.Request | v2.Answer, kind: int) -> bytes:
    """Return the body of a message of this kind."""
    encoder = v2.encode_request if kind in REQUEST_KINDS else v2.encode_answer
    [(_, _, body)] = FrameReader().receive(encoder(message, 1))  # type: ignore[arg-type]
    return body


# --- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("request_", "kind", "text"), REQUESTS)
def test_a_request_has_exactly_these_bytes(request_: v2.Request, kind: Kind, text: str) -> None:
    body = bytes.fromhex(text)
    assert v2.encode_request(request_, 7) == encode_frame(kind, 7, body)
    assert v2.decode_request(kind, body) == request_


@pytest.mark.parametrize(("answer", "kind", "text"), ANSWERS)
def test_an_answer_has_exactly_these_bytes(answer: v2.Answer, kind: Kind, text: str) -> None:
    body = bytes.fromhex(text)
    assert v2.encode_answer(answer, 7) == encode_frame(kind, 7, body)
    assert v2.decode_answer(kind, body) == answer


def test_every_kind_of_frame_has_its_bytes_here() -> None:
    assert {kind for kind, _ in BODIES} == set(Kind)
    assert {kind for _, kind, _ in REQUESTS} == REQUEST_KINDS


def test_the_numbers_that_travel_never_change() -> None:
    assert "".join(map(chr, Kind)) == "EDANLXBSUPZCRQIMHGVTedapzqimgkx"
    assert [(code.name, code.value) for code in v2.Outcome] == [
        ("ACCEPTED", 0),
        ("QUEUE_FULL", 1),
        ("KEY_OUT_OF_RANGE", 2),
        ("PAYLOAD_TOO_LARGE", 3),
    ]
    assert list(v2.Failure) == list(range(1, 13))
    assert (v2.MAJOR, v2.MINOR, v2.BATCH_MAX, v2.PRODUCER_SIZE) == (2, 0, 65_536, 16)
    assert v2.MILLISECONDS_MAX == 3_162_240_000_000
    assert [step.name for step in v2.MemberStep] == ["VOTER", "LEARNER", "REMOVE"]
    assert v2.ROLES == ("follower", "precandidate", "candidate", "leader")
    assert v2.STANDINGS == ("voter", "learner", "outgoing")
    assert v2.PACES == ("probe", "replicate", "snapshot")


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_a_body_cut_anywhere_is_bad(kind: Kind, body: bytes) -> None:
    for cut in cuts(body):
        with pytest.raises(BadData):
            decode(kind, cut)


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_bytes_left_over_are_bad(kind: Kind, body: bytes) -> None:
    for more in (b"\0", b"\xff", bytes(8), body + b"\0"):
        with pytest.raises(BadData):
            decode(kind, body + more)


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_a_turned_bit_is_refused_or_means_something_that_has_bytes(kind: Kind, body: bytes) -> None:
    for bit in range(8 * len(body)):
        changed = flipped(body, bit)
        try:
            message = decode(kind, changed)
        except BadData:
            continue
        except InvalidValue:
            assert kind in REQUEST_KINDS  # a client is told in one way only
            continue
        assert decode(kind, encode(message, kind)) == message


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_a_body_under_another_type_is_refused_or_means_something_that_has_bytes(
    kind: Kind, body: bytes
) -> None:
    for other in range(256):
        for decoder, encoder in (
            (v2.decode_request, v2.encode_request),
            (v2.decode_answer, v2.encode_answer),
        ):
            try:
                message = decoder(other, body)
            except (BadData, InvalidValue):
                continue
            [(again, _, same)] = FrameReader().receive(encoder(message, 1))  # type: ignore[arg-type]
            assert again == other
            assert decoder(other, same) == message


def test_a_type_that_is_no_request_is_bad() -> None:
    for kind in sorted(set(range(256)) - set(REQUEST_KINDS)):
        with pytest.raises(CorruptData):
            v2.decode_request(kind, b"")


def test_a_type_that_is_no_answer_is_bad() -> None:
    for kind in sorted(set(range(256)) - (set(Kind) - REQUEST_KINDS)):
        with pytest.raises(CorruptData):
            v2.decode_answer(kind, b"")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.ENQUEUE, NAME + "08 00 00 00 00"),
        (Kind.ENQUEUE, NAME + "80 00 00 00 00"),
        (Kind.NACK, "04 00 00 00 00"),
        (Kind.NACK, "FF 00 00 00 00"),
    ],
)
def test_a_flag_that_nobody_knows_is_bad(kind: Kind, text: str) -> None:
    with pytest.raises(CorruptData, match="flags"):
        v2.decode_request(kind, bytes.fromhex(text))


# --- what is well-formed and means nothing -------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.ENQUEUE, "01 20 00 00 00 00 00"),
        (Kind.DEQUEUE, "01 7F" + " 00" * 16),
        (Kind.SUBSCRIBE, "01 00" + " 00" * 8),
        (Kind.PEEK, "01 C3 00 00 00 01"),
        (Kind.PURGE, "01 FF"),
        (Kind.CREATE, "01 20 00 00 00 01 FF FF FF FF FF FF FF FF 00" + " 00" * 9),
        (Kind.CREATE, "01 71 00 00 00 01 FF FF FF FF FF FF FF FF 00" + " 00" * 8 + " 01 01 20"),
        (Kind.DELETE, "01 0A"),
        (Kind.STAT, "01 01 20"),
    ],
)
def test_a_bad_name_in_a_request_does_not_cost_the_connection(kind: Kind, text: str) -> None:
    with pytest.raises(InvalidQueueName):
        v2.decode_request(kind, bytes.fromhex(text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.ENQUEUE, NAME + "01 00 00 02 E0 44 31 20 01 00 00 00 00"),
        (Kind.ENQUEUE, NAME + "02 FF FF FF FF FF FF FF FF 00 00 00 00"),
        (Kind.NACK, "01 00 00 02 E0 44 31 20 01 00 00 00 00"),
        (Kind.CREATE, NAME + "00 00 00 00 FF FF FF FF FF FF FF FF 00" + " 00" * 9),
        (Kind.CREATE, NAME + "00 00 00 03 FF FF FF FF FF FF FF FF 00" + " 00" * 9),
        (Kind.CREATE, NAME + "00 00 00 01 FF FF FF FE FF FF FF FF 00" + " 00" * 9),
        (Kind.CREATE, NAME + "00 00 00 01 FF FF FF FF 80 00 00 00 00" + " 00" * 9),
        (Kind.CREATE, NAME + "00 00 00 02 FF FF FF FF FF FF FF FF 00" + " 00" * 9),
        (
            Kind.CREATE,
            NAME
            + "00 00 00 01 FF FF FF FF FF FF FF FF 01 00 00 00 00 00 00 00 02"
            + " 00 00 00 00 00 00 00 01"
            + " 00" * 9,
        ),
        (Kind.CHANGE_MEMBERS, "00 00 00 00"),  # no step
        (Kind.CHANGE_MEMBERS, "00 00 00 01 03 00 00 00 04 00 00 00 00"),  # an unknown one
        (Kind.CHANGE_MEMBERS, "00 00 00 01 00 00 00 00 00 00 00 00 00"),  # node 0
        (Kind.CHANGE_MEMBERS, "00 00 00 01 00 80 00 00 00 00 00 00 00"),
        (Kind.CHANGE_MEMBERS, "00 00 00 01 02 00 00 00 04 00 00 00 03 61 3A 31"),
        (Kind.CHANGE_MEMBERS, "00 00 00 02" + " 00 00 00 00 04 00 00 00 00" * 2),  # node 4 twice
        (Kind.CHANGE_MEMBERS, "00 00 00 41" + " 00 00 00 00 04 00 00 00 00" * 65),
        *(
            (
                Kind.CHANGE_MEMBERS,
                f"00 00 00 01 00 00 00 00 04 {len(address):08X} {address.encode().hex()}",
            )
            for address in (
                "a",
                ":1",
                "a:",
                "a:0",
                "a:65536",
                "a b:1",
                "a#:1",
                "a,b:1",
                "a:1\n",
                "[::1:1",
            )
        ),
    ],
)
def test_a_request_that_means_nothing_does_not_cost_the_connection(kind: Kind, text: str) -> None:
    with pytest.raises(InvalidValue):
        v2.decode_request(kind, bytes.fromhex(text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        # Who unrolls the runs would build 2**32 ids.
        (Kind.ENQUEUED, "00 00 00 01 00 FF FF FF FF 00 00 00 00 00 00 00 01"),
        (
            Kind.ENQUEUED,
            "00 00 00 02" + " 00 00 01 00 00" + " 00" * 8 + " 01 00 00 00 01" + " 00" * 8,
        ),
        # The last id, or the last token, would be beyond what an ack can carry.
        (Kind.ENQUEUED, "00 00 00 01 00 00 00 00 02 FF FF FF FF FF FF FF FF"),
        (Kind.DELIVERED, "FF FF FF FF FF FF FF FF 00 00 00 01 00 00 00 02" + " 00" * 48),
        # A queue that nobody can have created, and a text that is none.
        (Kind.STATS, "00 00 00 01 01 20 00 00 00 01 FF FF FF FF FF FF FF FF" + " 00" * 110),
        (Kind.FAILED, "00 01 00 00 00 00 00 00 00 00 00 00 00 01 FF"),
        # A role, a flag, a standing and a pace that do not exist.
        (Kind.CLUSTER_INFO, "00" * 8 + "04" + "00" * 49),
        (Kind.CLUSTER_INFO, "00" * 9 + "04" + "00" * 48),
        (Kind.CLUSTER_INFO, "00" * 54 + "00 00 00 01" + "00" * 12 + "03 00"),
        (Kind.CLUSTER_INFO, "00" * 54 + "00 00 00 01" + "00" * 12 + "00 40"),
        (Kind.CLUSTER_INFO, "00" * 54 + "00 00 00 01" + "00" * 12 + "00 10 03"),
    ],
)
def test_an_answer_that_cannot_be_is_bad(kind: Kind, text: str) -> None:
    with pytest.raises(CorruptData):
        v2.decode_answer(kind, bytes.fromhex(text))


@pytest.mark.parametrize(
    "request_",
    [
        v2.Enqueue(ORDERS, (2**63,), [b""]),
        v2.Enqueue(ORDERS, (-(2**63) - 1,), [b""]),
        v2.Enqueue(ORDERS, (0,), [b""], delay_ms=-1),
        v2.Enqueue(ORDERS, (0,), [b""], ttl_ms=2**64),
        v2.Enqueue(ORDERS, (0,), [b""], producer=v2.Producer(bytes(16), 2**64)),
        v2.Dequeue(ORDERS, wait_ms=2**32),
        v2.Ack((2**64,)),
        v2.Nack((1,), key=2**63),
        v2.Extend((1,), -1),
        v2.Subscribe(ORDERS, -1),
        v2.Peek(ORDERS, 2**32),
        v2.Create(ORDERS, Policy(size_max=2**31)),
        v2.Create(ORDERS, Policy(payload_size_max=2**32 - 1)),
        v2.Create(ORDERS, Policy(), lease_ms=2**32),
        v2.Read(-1),
    ],
)
def test_a_number_without_room_in_its_field_is_refused_in_our_own_words(
    request_: v2.Request,
) -> None:
    with pytest.raises(InvalidValue):
        v2.encode_request(request_, 1)


def test_the_largest_batch_passes_and_one_more_task_does_not() -> None:
    def body(count: int) -> bytes:
        return b"\x00\x00" + count.to_bytes(4, "big") + bytes(12 * count)

    request = v2.decode_request(Kind.ENQUEUE, body(v2.BATCH_MAX))
    assert isinstance(request, v2.Enqueue)
    assert request.queue == QueueName("")
    assert len(request.payloads) == v2.BATCH_MAX
    with pytest.raises(CorruptData):
        v2.decode_request(Kind.ENQUEUE, body(v2.BATCH_MAX + 1))


def test_what_is_true_may_be_any_byte_but_zero() -> None:
    assert v2.decode_request(Kind.STAT, b"\xff\x01q") == v2.Stat(QueueName("q"))
    assert v2.encode_request(v2.Stat(QueueName("q")), 1)[9:] == b"\x01\x01q"
