"""Every request and answer of version 2 with the bytes of its body, written by hand from docs/protocol.md."""

from __future__ import annotations

from penstock.model import Implementation, KeyRange, Policy, QueueName, QueueOptions
from penstock.protocol import version2 as v2
from penstock.protocol.version2 import Kind

ORDERS = QueueName("orders")
DEAD = QueueName("dead")
_NAME = "06 6F 72 64 65 72 73"
_DEAD = "04 64 65 61 64"
_PRODUCER_ID = bytes(range(16))
_PRODUCER = "00 01 02 03 04 05 06 07 08 09 0A 0B 0C 0D 0E 0F"
_ARRAY = Policy(
    implementation=Implementation.ARRAY,
    size_max=100,
    payload_size_max=1024,
    keys=KeyRange(lowest=-10, highest=10),
)
_ARRAY_BYTES = (
    "00 00 00 02 00 00 00 64 00 00 04 00 01 FF FF FF FF FF FF FF F6 00 00 00 00 00 00 00 0A"
)
_NO_LIMITS = "00 00 00 01 FF FF FF FF FF FF FF FF 00"

REQUESTS: list[tuple[v2.Request, Kind, str]] = [
    (
        v2.Enqueue(ORDERS, (5,), [b"hi"]),
        Kind.ENQUEUE,
        f"{_NAME} 00 00 00 00 01 00 00 00 00 00 00 00 05 00 00 00 02 68 69",
    ),
    (
        v2.Enqueue(ORDERS, (5, -1), [b"hi", b""], 1500, 60_000, v2.Producer(_PRODUCER_ID, 3)),
        Kind.ENQUEUE,
        (
            f"{_NAME} 07 00 00 00 00 00 00 05 DC 00 00 00 00 00 00 EA 60"
            f" {_PRODUCER} 00 00 00 00 00 00 00 03 00 00 00 02"
            " 00 00 00 00 00 00 00 05 FF FF FF FF FF FF FF FF 00 00 00 02 00 00 00 00 68 69"
        ),
    ),
    (
        v2.Enqueue(ORDERS, (), [], delay_ms=0),
        Kind.ENQUEUE,
        f"{_NAME} 01 00 00 00 00 00 00 00 00 00 00 00 00",
    ),
    (
        v2.Enqueue(QueueName(""), (2**63 - 1,), [b"\0"], ttl_ms=v2.MILLISECONDS_MAX),
        Kind.ENQUEUE,
        "00 02 00 00 02 E0 44 31 20 00 00 00 00 01 7F FF FF FF FF FF FF FF 00 00 00 01 00",
    ),
    (
        v2.Dequeue(ORDERS, 10, 65_536, 30_000, 5000),
        Kind.DEQUEUE,
        f"{_NAME} 00 00 00 0A 00 01 00 00 00 00 75 30 00 00 13 88",
    ),
    (
        v2.Dequeue(ORDERS),
        Kind.DEQUEUE,
        f"{_NAME} 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00",
    ),
    (
        v2.Ack((1, 2**64 - 1)),
        Kind.ACK,
        "00 00 00 02 00 00 00 00 00 00 00 01 FF FF FF FF FF FF FF FF",
    ),
    (v2.Ack(()), Kind.ACK, "00 00 00 00"),
    (v2.Nack((7,)), Kind.NACK, "00 00 00 00 01 00 00 00 00 00 00 00 07"),
    (
        v2.Nack((7,), 1000, -5),
        Kind.NACK,
        "03 00 00 00 00 00 00 03 E8 FF FF FF FF FF FF FF FB 00 00 00 01 00 00 00 00 00 00 00 07",
    ),
    (
        v2.Nack((7,), None, 9),
        Kind.NACK,
        "02 00 00 00 00 00 00 00 09 00 00 00 01 00 00 00 00 00 00 00 07",
    ),
    (v2.Release((7,)), Kind.RELEASE, "00 00 00 01 00 00 00 00 00 00 00 07"),
    (
        v2.Start((9,), (7, 8)),
        Kind.START,
        "00 00 00 01 00 00 00 02 00 00 00 00 00 00 00 09 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 08",
    ),
    (v2.Start((9,)), Kind.START, "00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 09"),
    (v2.Extend((7,), 5000), Kind.EXTEND, "00 00 13 88 00 00 00 01 00 00 00 00 00 00 00 07"),
    (v2.Subscribe(ORDERS, 100, 5000), Kind.SUBSCRIBE, f"{_NAME} 00 00 00 64 00 00 13 88"),
    (v2.Unsubscribe(4), Kind.UNSUBSCRIBE, "00 00 00 04"),
    (v2.Peek(ORDERS, 2), Kind.PEEK, f"{_NAME} 00 00 00 02"),
    (v2.Purge(ORDERS), Kind.PURGE, _NAME),
    (v2.Create(ORDERS, Policy()), Kind.CREATE, f"{_NAME} {_NO_LIMITS} 00 00 00 00 00 00 00 00 00"),
    (
        v2.Create(ORDERS, _ARRAY, 30_000, 5, DEAD),
        Kind.CREATE,
        f"{_NAME} {_ARRAY_BYTES} 00 00 75 30 00 00 00 05 01 {_DEAD}",
    ),
    (v2.Delete(ORDERS), Kind.DELETE, _NAME),
    (v2.Stat(), Kind.STAT, "00"),
    (v2.Stat(ORDERS), Kind.STAT, f"01 {_NAME}"),
    (v2.Read(1000, 65_536, 5000), Kind.READ, "00 00 00 00 00 00 03 E8 00 01 00 00 00 00 13 88"),
    (v2.Node(), Kind.NODE, ""),
    (v2.Ping(), Kind.PING, ""),
    (v2.Cluster(), Kind.CLUSTER, ""),
    (
        v2.ChangeMembers(
            [
                v2.MemberChange(v2.MemberStep.LEARNER, 4, "n4:2702"),
                v2.MemberChange(v2.MemberStep.VOTER, 5),
                v2.MemberChange(v2.MemberStep.REMOVE, 2**31 - 1),
            ]
        ),
        Kind.CHANGE_MEMBERS,
        (
            "00 00 00 03 01 00 00 00 04 00 00 00 07 6E 34 3A 32 37 30 32"
            " 00 00 00 00 05 00 00 00 00 02 7F FF FF FF 00 00 00 00"
        ),
    ),
    (v2.Transfer(2), Kind.TRANSFER, "00 00 00 02"),
]

_STAT = v2.QueueStat(
    name=ORDERS,
    policy=_ARRAY,
    options=QueueOptions(lease_ms=30_000, attempts_max=5, dead_letter=DEAD),
    count=1,
    leased=2,
    delayed=3,
    size=4,
    last_id=5,
    enqueued=6,
    delivered=7,
    acked=8,
    returned=9,
    expired=10,
    dead_lettered=11,
)
_STAT_BYTES = f"{_NAME} {_ARRAY_BYTES} 00 00 75 30 00 00 00 05 01 {_DEAD} " + " ".join(
    f"00 00 00 00 00 00 00 {number:02X}" for number in (*range(1, 12), 0)
)
_PLAIN_STAT = v2.QueueStat(
    name=QueueName(""),
    policy=Policy(),
    options=QueueOptions(),
    count=0,
    leased=0,
    delayed=0,
    size=0,
    last_id=0,
)
_PLAIN_STAT_BYTES = f"00 {_NO_LIMITS} 00 00 EA 60 00 00 00 00 00 " + " ".join(["00"] * 96)

ANSWERS: list[tuple[v2.Answer, Kind, str]] = [
    (
        v2.Enqueued([v2.Run(0, 2, 41), v2.Run(1, 1, 0)]),
        Kind.ENQUEUED,
        "00 00 00 02 00 00 00 00 02 00 00 00 00 00 00 00 29 01 00 00 00 01 00 00 00 00 00 00 00 00",
    ),
    (v2.Enqueued([]), Kind.ENQUEUED, "00 00 00 00"),
    (
        v2.Delivered(256, 60_000, (41, 42), (-1, 5), (1, 2), [b"", b"hi"]),
        Kind.DELIVERED,
        (
            "00 00 00 00 00 00 01 00 00 00 EA 60 00 00 00 02"
            " 00 00 00 00 00 00 00 29 00 00 00 00 00 00 00 2A"
            " FF FF FF FF FF FF FF FF 00 00 00 00 00 00 00 05"
            " 00 00 00 01 00 00 00 02 00 00 00 00 00 00 00 02 68 69"
        ),
    ),
    (
        v2.Delivered(0, 0, (), (), (), []),
        Kind.DELIVERED,
        "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00",
    ),
    (v2.Settled(()), Kind.SETTLED, "00 00 00 00"),
    (v2.Settled((257,)), Kind.SETTLED, "00 00 00 01 00 00 00 00 00 00 01 01"),
    (
        v2.Peeked((42,), (5,), (0,), [b"hi"]),
        Kind.PEEKED,
        "00 00 00 01 00 00 00 00 00 00 00 2A 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 02 68 69",
    ),
    (v2.Purged(3), Kind.PURGED, "00 00 00 00 00 00 00 03"),
    (v2.Stats([]), Kind.STATS, "00 00 00 00"),
    (v2.Stats([_STAT, _PLAIN_STAT]), Kind.STATS, f"00 00 00 02 {_STAT_BYTES} {_PLAIN_STAT_BYTES}"),
    (
        v2.Entries(3, 1000, 1001, (2, 3), [b"ab", b"c"]),
        Kind.ENTRIES,
        (
            "03 00 00 00 00 00 00 03 E8 00 00 00 00 00 00 03 E9 00 00 00 02"
            " 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 03 00 00 00 02 00 00 00 01 61 62 63"
        ),
    ),
    (
        v2.Entries(2, 0, -1, (), []),
        Kind.ENTRIES,
        "02 00 00 00 00 00 00 00 00 FF FF FF FF FF FF FF FF 00 00 00 00",
    ),
    (
        v2.NodeInfo(
            node=1,
            leader=0,
            version="0.2.0",
            generation=3,
            term=7,
            first=500,
            committed=1001,
            frame_size_max=20 * 2**20,
            payload_size_max=16 * 2**20,
            addresses=("n0:2602", "n1:2602"),
        ),
        Kind.NODE_INFO,
        (
            "00 00 00 01 00 00 00 00 03 00 00 00 00 00 00 00 07 00 00 00 00 00 00 01 F4"
            " 00 00 00 00 00 00 03 E9 01 40 00 00 01 00 00 00 00 00 00 05 30 2E 32 2E 30"
            " 00 00 00 02 00 00 00 07 6E 30 3A 32 36 30 32 00 00 00 07 6E 31 3A 32 36 30 32"
        ),
    ),
    (
        v2.NodeInfo(
            node=0,
            leader=None,
            version="",
            generation=2,
            term=1,
            first=0,
            committed=-1,
            frame_size_max=1,
            payload_size_max=2,
        ),
        Kind.NODE_INFO,
        (
            "00 00 00 00 FF FF FF FF 02 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00"
            " FF FF FF FF FF FF FF FF 00 00 00 01 00 00 00 02 00 00 00 00 00 00 00 00"
        ),
    ),
    (
        v2.ClusterInfo(
            node=1,
            leader=2,
            role="follower",
            is_leading=False,
            is_joint=True,
            term=7,
            first=0,
            last=9,
            committed=8,
            applied=8,
            members=(
                v2.ClusterMember(
                    node=1,
                    address="",
                    client_address="",
                    standing="learner",
                    is_leader=False,
                    is_self=True,
                ),
                v2.ClusterMember(
                    node=2,
                    address="a:1",
                    client_address="b:2",
                    standing="outgoing",
                    is_leader=True,
                    is_self=False,
                    match=9,
                    lag=0,
                    pace="snapshot",
                    window=3,
                ),
            ),
        ),
        Kind.CLUSTER_INFO,
        (
            "00 00 00 01 00 00 00 02 00 02 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 00"
            " 00 00 00 00 00 00 00 09 00 00 00 00 00 00 00 08 00 00 00 00 00 00 00 08"
            " 00 00 00 02"
            " 00 00 00 01 00 00 00 00 00 00 00 00 01 02"
            " 00 00 00 02 00 00 00 03 61 3A 31 00 00 00 03 62 3A 32 02 3D"
            " 00 00 00 00 00 00 00 09 00 00 00 00 00 00 00 00 02 00 00 00 03"
        ),
    ),
    (
        v2.ClusterInfo(
            node=3,
            leader=None,
            role="precandidate",
            is_leading=False,
            is_joint=False,
            term=1,
            first=0,
            last=-1,
            committed=-1,
            applied=-1,
            members=(),
        ),
        Kind.CLUSTER_INFO,
        (
            "00 00 00 03 FF FF FF FF 01 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00"
            " FF FF FF FF FF FF FF FF FF FF FF FF FF FF FF FF FF FF FF FF FF FF FF FF"
            " 00 00 00 00"
        ),
    ),
    (v2.Ok(), Kind.OK, ""),
    (
        v2.Failed(v2.Failure.NOT_LEADER, "é", -1),
        Kind.FAILED,
        "00 05 FF FF FF FF FF FF FF FF 00 00 00 02 C3 A9",
    ),
    (
        v2.Failed(v2.Failure.COMPACTED, "", 500),
        Kind.FAILED,
        "00 07 00 00 00 00 00 00 01 F4 00 00 00 00",
    ),
]
