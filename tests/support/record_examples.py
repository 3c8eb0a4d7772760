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
from penstock.formats.records.header import encode_record
from penstock.formats.records.ids import DeliverReason, MoveReason, RemoveReason, ReturnReason
from penstock.formats.records.settings import (
    AccessSettings,
    ClusterSettings,
    MemberSettings,
    QueueSettings,
)
from penstock.formats.records.task_headers import encode_headers
from penstock.model import QueueName

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
    kind, queue_id, first_id, body = encode_change(change)
    return encode_record(
        kind,
        body,
        index=stamp.index,
        term=stamp.term,
        time_ms=stamp.time_ms,
        previous=previous,
        queue_id=queue_id,
        principal_id=stamp.principal_id,
        first_id=first_id,
    )


def page_examples() -> dict[str, bytes]:
    """Return the bytes of every example of the page, by name."""
    blocks = finditer(r"^```example (.+)\n((?s:.*?))^```$", PAGE.read_text(), MULTILINE)
    return {
        block[1]: bytes.fromhex(
            "".join(findall(r"^ *\d+  ([0-9A-F ]+?)(?:  .*)?$", block[2], MULTILINE))
        )
        for block in blocks
    }
