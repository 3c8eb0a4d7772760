"""One value of every kind of record and file of generation 4: the examples of docs/formats/records.md.

The page shows their bytes; a test compares them with what the code writes and reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path
from re import MULTILINE, findall, finditer
from typing import Final

from penstock.formats.records.add import Rules, decode_add
from penstock.formats.records.add_encode import encode_add
from penstock.formats.records.canonical import encode_canonical
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    DeleteQueue,
    Deliver,
    Empty,
    EncodedChange,
    Envelope,
    MoveTasks,
    Part,
    RemoveTasks,
    ReturnTasks,
    SetAccess,
    SetMembers,
    SetQueue,
    SetTasks,
    Stamp,
    encode_change,
)
from penstock.formats.records.columns import NONE, Extension
from penstock.formats.records.footer import Footer, Mark, QueueSummary, encode_footer
from penstock.formats.records.hard_state import encode_hard_state
from penstock.formats.records.header import Kind, encode_record
from penstock.formats.records.identity import Identity, encode_identity
from penstock.formats.records.ids import DeliverReason, MoveReason, RemoveReason, ReturnReason
from penstock.formats.records.page_checkpoint import encode_page_checkpoint
from penstock.formats.records.producers import ProducerState, encode_producers
from penstock.formats.records.segment import FileHeader, encode_file_header
from penstock.formats.records.settings import (
    AccessSettings,
    ClusterSettings,
    MemberSettings,
    QueueSettings,
    SnapshotEnd,
    SnapshotStart,
    encode_settings,
)
from penstock.formats.records.sync_point import SyncedTo, encode_sync_point
from penstock.formats.records.task_headers import encode_headers
from penstock.formats.records.writer import record_of as written_record
from penstock.formats.records.writer import write_snapshot
from penstock.model import HardState, NodeId, QueueName, Term

PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "formats" / "records.md"
CLUSTER_ID: Final = bytes.fromhex("8F3C5D0A9B7E41D2A6C1F00DBA5EBA11")
PRODUCER: Final = bytes.fromhex("00112233445566778899AABBCCDDEEFF")
STAMP: Final = Stamp(index=42, term=3, time_ms=1_700_000_000_000, principal_id=5)
PREVIOUS: Final = 0x1234ABCD


def add_body(*args: object, rules: Rules = Rules.RECORD, **columns: object) -> bytes:
    """Return a body that its own decoder accepts."""
    body = encode_add(*args, **columns)  # type: ignore[arg-type]
    decode_add(body, 0, len(body), rules)
    return body


def added(body: bytes, *, queue_id: int = 7, first_id: int = 100) -> AddTasks:
    """Return the change that adds the tasks of a body."""
    return AddTasks(queue_id, first_id, decode_add(body, 0, len(body), Rules.RECORD))


ORIGIN: Final = encode_canonical(
    {
        "attempts": 3,
        "error": "timeout",
        "id": 12,
        "queue": 7,
        "reason": 1,
        "time_ms": 1_699_999_999_000,
    }
)

REQUEST_BODY: Final = add_body(
    b"mail", 5, [b"one", b"two"], producer=(PRODUCER, 8), rules=Rules.REQUEST
)

FULL_BODY: Final = add_body(
    b"mail",
    [5, -1],
    [b"one", b"three"],
    not_before=[NONE, 1000],
    expires=60_000,
    headers=[{"type": b"json"}, {}],
    groups=[b"g", b""],
    unique=[b"", b"u"],
    producers=[(PRODUCER, 8), None],
    ids=[100, 103],
    attempts=[0, 2],
    enqueued=[-5, NONE],
    principals=[5, 0],
    entries=[41, 42],
    born=[None, (3, 9)],
    origins=[b"", ORIGIN],
    extensions=[Extension(9, 0, b"xyz")],
)

CHANGES: Final[Mapping[str, Change]] = {
    "empty": Empty(),
    "add": added(REQUEST_BODY),
    "add with every column": added(FULL_BODY),
    "remove": RemoveTasks(7, range(100, 102), RemoveReason.ACKED),
    "remove a span": RemoveTasks(7, range(1, 1000), RemoveReason.PURGED, is_span=True),
    "return": ReturnTasks(
        7, array("Q", (100, 103)), ReturnReason.FAILED, not_before=5000, errors=b"timeout"
    ),
    "move": MoveTasks(7, range(100, 102), MoveReason.DEAD_FAILED, 8, 31, errors=(b"no", b"host")),
    "queue": SetQueue(
        7,
        QueueSettings(
            name=QueueName("mail"),
            policy={"size_max": 1000},
            options={"attempts_max": 3, "dead_letter": 8, "lease_ms": 60_000},
        ),
    ),
    "delete": DeleteQueue(7),
    "members": SetMembers(
        ClusterSettings(
            members=(
                MemberSettings(
                    number=1, roles=("voter",), addresses={"client": "a:6380", "peer": "a:6381"}
                ),
            ),
            feature_level=1,
            cluster_id=CLUSTER_ID,
        )
    ),
    "access": SetAccess(
        AccessSettings(
            users=({"name": "ann"},),
            grants=({"queue": "mail", "user": "ann", "verbs": ["enqueue"]},),
            principals={5: "ann"},
        )
    ),
    "deliver": Deliver(7, range(100, 102), DeliverReason.STARTED, b"worker-1", 60_000),
    "set": SetTasks(
        7, range(100, 102), keys=9, expires=(NONE, 100), headers=(b"", encode_headers({"a": b"b"}))
    ),
    "envelope": Envelope(
        (
            Part(RemoveTasks(7, range(100, 101), RemoveReason.ACKED), 5),
            Part(added(REQUEST_BODY, queue_id=8, first_id=31), 5),
        )
    ),
}


def record_of(change: Change, stamp: Stamp = STAMP, previous: int = PREVIOUS) -> bytes:
    """Return the record of a change."""
    return written_record(change, stamp, previous)


# --- files, and the kinds that are local to them -------------------------------------------------

PRODUCERS: Final = (
    ProducerState(PRODUCER, 9, 7, 100, 2, 1_700_000_000_000),
    ProducerState(bytes(16), 0, 8, 31, 1, 1_700_000_000_005),
)
FOOTER: Final = Footer(
    entries=3,
    marks=(Mark(64, 40, PREVIOUS),),
    queues=(
        QueueSummary(7, b"mail", 2, 100, 103, -1, 5, 1_700_000_000_000, 1_700_000_000_009),
        QueueSummary(
            8, None, 1, 31, 32, least_time=1_700_000_000_009, greatest_time=1_700_000_000_009
        ),
    ),
    digest=bytes(range(16)),
)
START: Final = SnapshotStart(
    last_index=42,
    last_term=3,
    last_checksum=PREVIOUS,
    time_ms=1_700_000_000_000,
    next_queue_id=9,
    feature_level=1,
    cluster_id=CLUSTER_ID,
    counts={"producers": 2, "queues": 1, "tasks": 2},
)
END: Final = SnapshotEnd(counts={"records": 5, "tasks": 2}, digest=bytes(range(16)))
PAGE_CHECKPOINT: Final = b"checkpoint"

LOCAL: Final[Mapping[str, EncodedChange]] = {
    "snapshot start": EncodedChange(Kind.SNAPSHOT_START, 0, 0, encode_settings(START)),
    "snapshot end": EncodedChange(Kind.SNAPSHOT_END, 0, 0, encode_settings(END)),
    "producers": EncodedChange(Kind.PRODUCERS, 0, 0, encode_producers(PRODUCERS)),
    "footer": EncodedChange(Kind.FOOTER, 0, 0, encode_footer(FOOTER)),
    "page checkpoint": EncodedChange(
        Kind.PAGE_CHECKPOINT, 7, 0, encode_page_checkpoint(PAGE_CHECKPOINT)
    ),
}

FILE_HEADER: Final = FileHeader(first_index=40, cluster_id=CLUSTER_ID)
HARD_STATE: Final = HardState(term=Term(3), vote=NodeId(2))
SYNC_POINT: Final = SyncedTo(sequence=7, index=42, segment=40, offset=384, commit_floor=41)
IDENTITY: Final = Identity(
    node=1, incarnation=bytes(range(16)), cluster_id=CLUSTER_ID, peers={2: {"peer": "b:6381"}}
)

FILES: Final[Mapping[str, bytes]] = {
    "file header": encode_file_header(FILE_HEADER),
    "hard-state": encode_hard_state(HARD_STATE),
    "sync-point, a sector": encode_sync_point(SYNC_POINT)[1][:56],
    "identity.json": encode_identity(IDENTITY),
}


def local_record(name: str) -> bytes:
    """Return the record of a kind that is local to a file."""
    stamp = STAMP._replace(principal_id=0)
    kind, queue_id, first_id, body = LOCAL[name]
    return encode_record(
        kind,
        body,
        index=stamp.index,
        term=stamp.term,
        time_ms=stamp.time_ms,
        previous=PREVIOUS,
        queue_id=queue_id,
        first_id=first_id,
    )


def small_log() -> list[tuple[Stamp, Change]]:
    """Return entries with every kind of change, from index 1 on."""
    return [
        (Stamp(index, 1 + index // 5, 1_700_000_000_000 + index, index % 3), change)
        for index, change in enumerate(CHANGES.values(), 1)
    ]


def small_snapshot() -> bytes:
    """Return a snapshot file with every kind of record."""
    parts = [
        *(encode_change(CHANGES[name]) for name in ("members", "access")),
        LOCAL["producers"],
        encode_change(SetQueue(7, QueueSettings(name=QueueName("mail"), last_id=103))),
        *(encode_change(CHANGES[name]) for name in ("add", "deliver")),
    ]
    return b"".join(write_snapshot(START, parts, [LOCAL["page checkpoint"]]))


def page_examples() -> dict[str, bytes]:
    """Return the bytes of every example of the page, by name."""
    blocks = finditer(r"^```example (.+)\n((?s:.*?))^```$", PAGE.read_text(), MULTILINE)
    return {
        block[1]: bytes.fromhex(
            "".join(findall(r"^ *\d+  ([0-9A-F ]+?)(?:  .*)?$", block[2], MULTILINE))
        )
        for block in blocks
    }
