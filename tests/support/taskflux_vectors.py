"""Golden bytes of every file, delta and command, and the values that they stand for.

The bytes never change: a file that somebody wrote years ago must still mean the same. The pages in
docs/formats/ explain them field by field.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.formats.taskflux.compaction import Compaction
from penstock.formats.taskflux.log import LogLayout
from penstock.formats.taskflux.metadata import MetadataLayout
from penstock.formats.taskflux.snapshot import SnapshotLayout, StoredTask
from penstock.model import (
    NO_LIMITS,
    NOTHING,
    AddTask,
    Command,
    CountTasks,
    CreateCommand,
    CreateQueue,
    CreateWithPolicy,
    DeleteCommand,
    DeleteQueue,
    Delta,
    Dequeue,
    Enqueue,
    HardState,
    Implementation,
    Index,
    KeyRange,
    ListQueues,
    NodeId,
    Policy,
    QueueHead,
    QueueName,
    RemoveEqualTask,
    RemoveTask,
    SnapshotPoint,
    TaskId,
    Term,
)


def _hex(text: str) -> bytes:
    return bytes.fromhex(text)


ORDERS: Final = QueueName("orders")
DEFAULT: Final = QueueName("")
BOUNDED: Final = Policy(size_max=100, keys=KeyRange(lowest=-10, highest=10))

# --- checksum (docs/formats/types.md, "Checksum") ------------------------------------------------

CHECKSUMS: Final[list[tuple[bytes, int]]] = [
    (b"123456789", 0x0376E6E7),
    (b"", 0xFFFFFFFF),
    (b"\x00", 0x4E08BFB4),
    (b"a", 0xE66C6494),
    (b"hello, world", 0xBD0822B5),
    (bytes(32), 0x4A55AF67),
    (bytes(range(256)), 0x494A116A),
]

# --- deltas --------------------------------------------------------------------------------------

CREATE_ORDERS: Final = CreateQueue(queue=ORDERS, policy=BOUNDED)
ADD_HI: Final = AddTask(queue=ORDERS, key=5, payload=b"hi")
REMOVE_HI: Final = RemoveEqualTask(queue=ORDERS, key=5, payload=b"hi")
REMOVE_FIRST: Final = RemoveTask(queue=ORDERS, id=TaskId(1))

DELTAS: Final[list[tuple[Delta, bytes, int]]] = [
    (
        CREATE_ORDERS,
        _hex(
            "43 06 6F 72 64 65 72 73 00 00 00 01 00 00 00 64 FF FF FF FF 01"
            "FF FF FF FF FF FF FF F6 00 00 00 00 00 00 00 0A"
        ),
        0xA6E07439,
    ),
    (
        CreateQueue(queue=QueueName("q"), policy=NO_LIMITS),
        _hex("43 01 71 00 00 00 01 FF FF FF FF FF FF FF FF 00"),
        0x35546464,
    ),
    (DeleteQueue(queue=ORDERS), _hex("44 06 6F 72 64 65 72 73"), 0x1E925D23),
    (
        ADD_HI,
        _hex("41 06 6F 72 64 65 72 73 00 00 00 00 00 00 00 05 00 00 00 02 68 69"),
        0xC26B0C99,
    ),
    (
        AddTask(queue=DEFAULT, key=-1, payload=b""),
        _hex("41 00 FF FF FF FF FF FF FF FF 00 00 00 00"),
        0x8E2D754A,
    ),
    (
        REMOVE_HI,
        _hex("52 06 6F 72 64 65 72 73 00 00 00 00 00 00 00 05 00 00 00 02 68 69"),
        0xD2490BA5,
    ),
    (
        REMOVE_FIRST,
        _hex("52 06 6F 72 64 65 72 73 00 00 00 00 00 00 00 01"),
        0xF6AA1075,
    ),
    (
        CreateQueue(
            queue=QueueName("a"),
            policy=Policy(
                implementation=Implementation.ARRAY,
                payload_size_max=1024,
                keys=KeyRange(lowest=0, highest=9),
            ),
        ),
        _hex(
            "43 01 61 00 00 00 02 FF FF FF FF 00 00 04 00 01"
            "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 09"
        ),
        0x6620419A,
    ),
    (
        NOTHING,
        _hex("44 11 21 70 65 6E 73 74 6F 63 6B 2E 6E 6F 74 68 69 6E 67"),
        0x6797BA48,
    ),
]

# --- commands ------------------------------------------------------------------------------------

COMMANDS: Final[list[tuple[Command, bytes]]] = [
    (
        Enqueue(queue=ORDERS, key=5, payload=b"hi"),
        _hex("45 06 6F 72 64 65 72 73 00 00 00 00 00 00 00 05 00 00 00 02 68 69"),
    ),
    (Dequeue(queue=ORDERS), _hex("44 06 6F 72 64 65 72 73")),
    (CountTasks(queue=ORDERS), _hex("43 06 6F 72 64 65 72 73")),
    (
        CreateCommand(queue=ORDERS, size_max=100),
        _hex("51 06 6F 72 64 65 72 73 00 00 00 64"),
    ),
    (
        CreateCommand(queue=ORDERS, size_max=None),
        _hex("51 06 6F 72 64 65 72 73 00 00 00 00"),
    ),
    (
        CreateWithPolicy(queue=ORDERS, policy=Policy(size_max=100)),
        _hex("51 06 6F 72 64 65 72 73 00 00 00 01 00 00 00 64 FF FF FF FF 00"),
    ),
    (
        CreateWithPolicy(queue=ORDERS, policy=BOUNDED),
        _hex(
            "51 06 6F 72 64 65 72 73 00 00 00 01 00 00 00 64 FF FF FF FF 01"
            "FF FF FF FF FF FF FF F6 00 00 00 00 00 00 00 0A"
        ),
    ),
    (DeleteCommand(queue=ORDERS), _hex("52 06 6F 72 64 65 72 73")),
    (ListQueues(), _hex("4C")),
]

# --- logs ----------------------------------------------------------------------------------------

LOG_1: Final = _hex("""
    2F 6F 0F 2F 00 00 00 01 00 00 00 01 00 00 00 0C
    51 06 6F 72 64 65 72 73 00 00 00 64 00 00 00 02
    00 00 00 16 45 06 6F 72 64 65 72 73 00 00 00 00
    00 00 00 05 00 00 00 02 68 69 00 00 00 02 00 00
    00 08 44 06 6F 72 64 65 72 73
""")
LOG_1A: Final = _hex("""
    2F 0F 6F 2F 01 00 00 00 01 00 00 00 0C 00 00 00
    51 06 6F 72 64 65 72 73 00 00 00 64 02 00 00 00
    16 00 00 00 45 06 6F 72 64 65 72 73 00 00 00 00
    00 00 00 05 00 00 00 02 68 69 02 00 00 00 08 00
    00 00 44 06 6F 72 64 65 72 73
""")
LOG_2: Final = _hex("""
    12 76 AD 55 00 00 00 01 00 00 00 01 AA F5 34 C4
    00 00 00 01 A6 E0 74 39 00 00 00 25 43 06 6F 72
    64 65 72 73 00 00 00 01 00 00 00 64 FF FF FF FF
    01 FF FF FF FF FF FF FF F6 00 00 00 00 00 00 00
    0A AA F5 34 C4 00 00 00 01 C2 6B 0C 99 00 00 00
    16 41 06 6F 72 64 65 72 73 00 00 00 00 00 00 00
    05 00 00 00 02 68 69 AA F5 34 C4 00 00 00 02 D2
    49 0B A5 00 00 00 16 52 06 6F 72 64 65 72 73 00
    00 00 00 00 00 00 05 00 00 00 02 68 69 00 00 00
    00
""")
LOG_2_EMPTY: Final = _hex("12 76 AD 55 00 00 00 01 FF FF FF FF 00 00 00 00")
LOG_3: Final = _hex("""
    12 76 AD 55 00 00 00 01 AA F5 34 C4 00 00 00 00
    00 00 00 01 A6 E0 74 39 00 00 00 25 43 06 6F 72
    64 65 72 73 00 00 00 01 00 00 00 64 FF FF FF FF
    01 FF FF FF FF FF FF FF F6 00 00 00 00 00 00 00
    0A AA F5 34 C4 00 00 00 00 00 00 00 01 C2 6B 0C
    99 00 00 00 16 41 06 6F 72 64 65 72 73 00 00 00
    00 00 00 00 05 00 00 00 02 68 69 AA F5 34 C4 00
    00 00 00 00 00 00 02 F6 AA 10 75 00 00 00 10 52
    06 6F 72 64 65 72 73 00 00 00 00 00 00 00 01 00
    00 00 00
""")


class LogVector(NamedTuple):
    """A log file and what it holds."""

    name: str
    layout: LogLayout
    data: bytes
    commit: int | None
    offsets: list[int]
    terms: list[int]
    payloads: list[bytes]
    tail: bytes  # what follows the last record

    @property
    def end(self) -> int:
        return len(self.data) - len(self.tail)


_COMMAND_PAYLOADS: Final = [COMMANDS[3][1], COMMANDS[0][1], COMMANDS[1][1]]

LOGS: Final = [
    LogVector("1", LogLayout.ONE_B, LOG_1, None, [8, 28, 58], [1, 2, 2], _COMMAND_PAYLOADS, b""),
    LogVector("1a", LogLayout.ONE_A, LOG_1A, None, [8, 28, 58], [1, 2, 2], _COMMAND_PAYLOADS, b""),
    LogVector(
        "2",
        LogLayout.TWO,
        LOG_2,
        1,
        [12, 65, 103],
        [1, 1, 2],
        [DELTAS[0][1], DELTAS[3][1], DELTAS[5][1]],
        bytes(4),
    ),
    LogVector("2 empty", LogLayout.TWO, LOG_2_EMPTY, -1, [], [], [], bytes(4)),
    LogVector(
        "3",
        LogLayout.THREE,
        LOG_3,
        None,
        [8, 65, 107],
        [1, 1, 2],
        [DELTAS[0][1], DELTAS[3][1], DELTAS[6][1]],
        bytes(4),
    ),
]

# --- metadata ------------------------------------------------------------------------------------


class MetadataVector(NamedTuple):
    """A metadata file and what it holds."""

    name: str
    layout: MetadataLayout
    data: bytes
    state: HardState


def _state(term: int, vote: int | None = None) -> HardState:
    return HardState(term=Term(term), vote=None if vote is None else NodeId(vote))


METADATA: Final = [
    MetadataVector(
        "1 with a vote",
        MetadataLayout.ONE_FLAG,
        _hex("2F 6F 0F 2F 00 00 00 01 00 00 00 02 01 00 00 00 01"),
        _state(2, 1),
    ),
    MetadataVector(
        "1 without a vote",
        MetadataLayout.ONE_FLAG,
        _hex("2F 6F 0F 2F 00 00 00 01 00 00 00 01 00 00 00 00 00"),
        _state(1),
    ),
    MetadataVector(
        "1a with a vote",
        MetadataLayout.ONE_A,
        _hex("2F 0F 6F 2F 01 00 00 00 02 00 00 00 01 01 00 00 00"),
        _state(2, 1),
    ),
    MetadataVector(
        "1b with a vote",
        MetadataLayout.ONE_B,
        _hex("2F 6F 0F 2F 00 00 00 01 00 00 00 02 00 00 00 01"),
        _state(2, 1),
    ),
    MetadataVector(
        "1b without a vote",
        MetadataLayout.ONE_B,
        _hex("2F 6F 0F 2F 00 00 00 01 00 00 00 01 00 00 00 00"),
        _state(1),
    ),
    MetadataVector(
        "2 with a vote",
        MetadataLayout.TWO_SEED,
        _hex("5A 6E A0 12 00 00 00 01 00 00 00 03 00 00 00 02 29 09 6D BE"),
        _state(3, 2),
    ),
    MetadataVector(
        "2 initial",
        MetadataLayout.TWO_SEED,
        _hex("5A 6E A0 12 00 00 00 01 00 00 00 01 00 00 00 00 B2 91 99 CA"),
        _state(1),
    ),
    MetadataVector(
        "2 as programmed",
        MetadataLayout.TWO_CODE,
        _hex("5A 6E A0 12 00 00 00 01 00 00 00 03 00 00 00 02"),
        _state(3, 2),
    ),
    MetadataVector(
        "3 with a vote",
        MetadataLayout.THREE,
        _hex("5A 6E A0 12 00 00 00 01 00 00 00 00 00 00 00 03 00 00 00 02 6F 1C E7 34"),
        _state(3, 2),
    ),
    MetadataVector(
        "3 initial",
        MetadataLayout.THREE,
        _hex("5A 6E A0 12 00 00 00 01 00 00 00 00 00 00 00 01 FF FF FF FF 33 80 CE 3B"),
        _state(1),
    ),
]

# --- snapshots -----------------------------------------------------------------------------------

SNAPSHOT_1: Final = _hex("""
    2F 6F 0F 2F 00 00 00 02 00 00 00 02 00 00 00 02
    00 00 00 00 00 00 00 00 00 06 6F 72 64 65 72 73
    00 00 00 64 00 00 00 02 00 00 00 00 00 00 00 05
    00 00 00 02 68 69 FF FF FF FF FF FF FF FF 00 00
    00 00
""")
SNAPSHOT_1B: Final = _hex("""
    2F 6F 0F 2F 00 00 00 02 00 00 00 02 00 00 00 00
    00 00 00 00 00 06 6F 72 64 65 72 73 00 00 00 64
    00 00 00 02 00 00 00 00 00 00 00 05 00 00 00 02
    68 69 FF FF FF FF FF FF FF FF 00 00 00 00
""")
SNAPSHOT_1D: Final = _hex("""
    2F 6F 0F 2F 00 00 00 02 00 00 00 02 00 FF FF FF
    FF 00 00 00 00 00 00 06 6F 72 64 65 72 73 00 00
    00 64 01 FF FF FF FF FF FF FF F6 00 00 00 00 00
    00 00 0A 00 00 00 00 02 00 00 00 00 00 00 00 05
    00 00 00 02 68 69 FF FF FF FF FF FF FF FF 00 00
    00 00
""")
SNAPSHOT_2: Final = _hex("""
    B6 38 0F C9 00 00 00 02 00 00 00 02 00 00 00 02
    00 00 00 00 01 FF FF FF FF FF FF FF FF 00 00 00
    00 00 06 6F 72 64 65 72 73 00 00 00 01 00 00 00
    64 FF FF FF FF 01 FF FF FF FF FF FF FF F6 00 00
    00 00 00 00 00 0A 00 00 00 02 00 00 00 00 00 00
    00 05 00 00 00 02 68 69 FF FF FF FF FF FF FF FF
    00 00 00 00 44 E4 8D 66
""")
SNAPSHOT_2_CODE: Final = _hex("""
    B6 38 0F C9 00 00 00 02 00 00 00 02 00 00 00 58
    00 00 00 02 00 00 00 00 01 FF FF FF FF FF FF FF
    FF 00 00 00 00 00 06 6F 72 64 65 72 73 00 00 00
    01 00 00 00 64 FF FF FF FF 01 FF FF FF FF FF FF
    FF F6 00 00 00 00 00 00 00 0A 00 00 00 02 00 00
    00 00 00 00 00 05 00 00 00 02 68 69 FF FF FF FF
    FF FF FF FF 00 00 00 00 D0 03 0F 6C
""")
SNAPSHOT_3: Final = _hex("""
    B6 38 0F C9 00 00 00 00 00 00 00 02 00 00 00 00
    00 00 00 02 00 00 00 78 00 00 00 02 00 00 00 00
    01 00 00 00 00 00 00 00 00 FF FF FF FF FF FF FF
    FF 00 00 00 00 00 06 6F 72 64 65 72 73 00 00 00
    01 00 00 00 00 00 00 00 03 00 00 00 64 FF FF FF
    FF 01 FF FF FF FF FF FF FF F6 00 00 00 00 00 00
    00 0A 00 00 00 02 00 00 00 00 00 00 00 02 00 00
    00 00 00 00 00 05 00 00 00 02 68 69 00 00 00 00
    00 00 00 03 FF FF FF FF FF FF FF FF 00 00 00 00
    7D B0 6C 02
""")


class SnapshotVector(NamedTuple):
    """A snapshot file and what it holds."""

    name: str
    layout: SnapshotLayout
    data: bytes
    point: SnapshotPoint
    queues: list[tuple[QueueHead, list[StoredTask]]]


POINT: Final = SnapshotPoint(index=Index(2), term=Term(2))


def _queues(
    policy: Policy, last_id: int, ids: tuple[int, int]
) -> list[tuple[QueueHead, list[StoredTask]]]:
    return [
        (QueueHead(name=DEFAULT, policy=NO_LIMITS, last_id=TaskId(0), count=0), []),
        (
            QueueHead(name=ORDERS, policy=policy, last_id=TaskId(last_id), count=2),
            [(ids[0], 5, b"hi"), (ids[1], -1, b"")],
        ),
    ]


_QUEUES_1: Final = _queues(Policy(size_max=100), 2, (1, 2))
_QUEUES_2: Final = _queues(BOUNDED, 2, (1, 2))
_QUEUES_3: Final = _queues(BOUNDED, 3, (2, 3))

SNAPSHOTS: Final = [
    SnapshotVector("1", SnapshotLayout.ONE_COUNTED, SNAPSHOT_1, POINT, _QUEUES_1),
    SnapshotVector("1b", SnapshotLayout.ONE_B, SNAPSHOT_1B, POINT, _QUEUES_1),
    SnapshotVector("1d", SnapshotLayout.ONE_D, SNAPSHOT_1D, POINT, _QUEUES_2),
    SnapshotVector("2", SnapshotLayout.TWO_SEED, SNAPSHOT_2, POINT, _QUEUES_2),
    SnapshotVector("2 as programmed", SnapshotLayout.TWO_CODE, SNAPSHOT_2_CODE, POINT, _QUEUES_2),
    SnapshotVector("3", SnapshotLayout.THREE, SNAPSHOT_3, POINT, _QUEUES_3),
]

# --- compaction sidecar --------------------------------------------------------------------------

# Ours: no other program writes it. The bytes are those of docs/formats/compaction.md, version 1.
SIDECARS: Final[list[tuple[str, bytes, Compaction]]] = [
    (
        "before the shortening",
        _hex("""
            50 53 43 57 00 00 00 01 00 00 00 00 00 00 00 09
            00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 04
            FF FF FF FF FF FF FF FF 17 AE 23 9C
        """),
        Compaction(point=SnapshotPoint(index=Index(9), term=Term(3)), first=Index(4), count=None),
    ),
    (
        "while the log is shortened",
        _hex("""
            50 53 43 57 00 00 00 01 00 00 00 00 00 00 00 09
            00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 04
            00 00 00 00 00 00 00 08 9F A6 A8 06
        """),
        Compaction(point=SnapshotPoint(index=Index(9), term=Term(3)), first=Index(4), count=8),
    ),
]
