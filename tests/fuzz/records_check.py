"""What must hold for any bytes at all where records of generation 4 are read.

The first byte of an input chooses what the rest is taken for. Behind it, bodies need no checksum: those are for accidents, and
whoever forges bytes can make them match.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import BadData
from penstock.formats.records.add import AddBody, Rules, decode_add
from penstock.formats.records.changes import (
    AddTasks,
    Change,
    Envelope,
    decode_change,
    encode_change,
)
from penstock.formats.records.footer import FooterBuilder, decode_footer, encode_footer
from penstock.formats.records.hard_state import decode_hard_state, encode_hard_state
from penstock.formats.records.header import (
    HEADER_SIZE,
    Header,
    Kind,
    decode_header,
)
from penstock.formats.records.identity import decode_identity, encode_identity
from penstock.formats.records.page_checkpoint import (
    decode_page_checkpoint,
    encode_page_checkpoint,
)
from penstock.formats.records.producers import decode_producers, encode_producers
from penstock.formats.records.read import (
    Chain,
    collect,
    decode_entry,
    find_record,
    read_snapshot,
    walk_segment,
)
from penstock.formats.records.segment import decode_file_header, encode_file_header
from penstock.formats.records.settings import (
    decode_snapshot_end,
    decode_snapshot_start,
    encode_settings,
)
from penstock.formats.records.sync_point import decode_sync_point
from penstock.formats.records.writer import write_log
from support.record_examples import (
    CHANGES,
    CLUSTER_ID,
    FILES,
    FULL_BODY,
    LOCAL,
    REQUEST_BODY,
    record_of,
    small_log,
    small_snapshot,
)
from support.refusal import attempted

_FIRST_IDS = {"remove a span": 1}


def read_change(data: bytes) -> None:
    """Take the bytes for a kind, a first id and the body of a record of the log."""
    if len(data) < 2:
        return
    kind, first_id, body = data[0], data[1], data[2:]
    queue_id = 0 if kind in (0, 7, 8, 11) else 7
    header = Header(0, kind, 0, 1, 42, 3, 1000, 0, 0, queue_id, 5, first_id, 0)
    change = decode_change(header, body, 0, len(body))
    assert encode_change(change) == (kind, queue_id, first_id, body), "bytes that mean nothing"
    see_change(change)
    FooterBuilder().note(64, header, change)


def see_change(change: Change) -> None:
    """Look at everything that a change says of adds, as the state does."""
    if isinstance(change, AddTasks):
        see_add(change.body, change.first_id)
    elif isinstance(change, Envelope):
        for part in change.parts:
            see_change(part.change)


def see_add(body: AddBody, first_id: int) -> None:
    """Ask a body for everything that it has."""
    sizes = 0
    for place in range(min(body.count, 100)):
        body.key(place)
        sizes += len(body.payload(place))
        body.headers(place)
        body.born(place)
        body.origin(place)
    assert sizes <= body.payload_size
    assert sum(request.count for request in body.requests(first_id)) <= body.count
    body.extensions()


def read_request(data: bytes) -> None:
    """Take the bytes for the body of a request; what is taken there is taken in a record and a delivery too."""
    see_add(decode_add(data, 0, len(data), Rules.REQUEST), 1)
    decode_add(data, 0, len(data), Rules.RECORD)
    decode_add(data, 0, len(data), Rules.DELIVERY)


def read_delivery(data: bytes) -> None:
    see_add(decode_add(data, 0, len(data), Rules.DELIVERY), 1)


def read_local(data: bytes) -> None:
    """Take the bytes for the body of a kind that is local to a file."""
    if not data:
        return
    kind, body = data[0], data[1:]
    size = len(body)
    if kind == Kind.SNAPSHOT_START:
        assert encode_settings(decode_snapshot_start(body, 0, size)) == body
    elif kind == Kind.SNAPSHOT_END:
        assert encode_settings(decode_snapshot_end(body, 0, size)) == body
    elif kind == Kind.PRODUCERS:
        assert encode_producers(list(decode_producers(body, 0, size).rows())) == body
    elif kind == Kind.FOOTER:
        assert encode_footer(decode_footer(body, 0, size)) == body
    elif kind == Kind.PAGE_CHECKPOINT:
        assert encode_page_checkpoint(decode_page_checkpoint(body, 0, size)) == body


def read_header(data: bytes) -> None:
    assert decode_header(data).size >= HEADER_SIZE


def read_small_file(data: bytes) -> None:
    """Take the bytes for each of the small files."""
    decode_sync_point(data)
    state = attempted(decode_hard_state, data)
    assert isinstance(state, BadData) or encode_hard_state(state) == data
    identity = attempted(decode_identity, data)
    assert isinstance(identity, BadData) or encode_identity(identity) == data
    assert encode_file_header(decode_file_header(data)) == data[:64]


def read_segment(data: bytes) -> None:
    """Take the bytes for a segment of a log."""
    find_record(data, 0)
    records, end = collect(walk_segment(data, chain=Chain(0, 0)))
    assert end.position <= len(data)
    for record in records:
        attempted(decode_entry, data, record)


def read_whole_snapshot(data: bytes) -> None:
    read_snapshot(data)


READERS: tuple[Callable[[bytes], None], ...] = (
    read_change,
    read_request,
    read_delivery,
    read_local,
    read_header,
    read_small_file,
    read_segment,
    read_whole_snapshot,
)


def check(data: bytes) -> None:
    """Read an input as its first byte says. Nothing but ``BadData`` may be raised."""
    if not data:
        return
    try:
        READERS[data[0] % len(READERS)](data[1:])
    except BadData as error:
        str(error)


def _seeds() -> list[tuple[Callable[[bytes], None], bytes]]:
    changes = []
    for name, change in CHANGES.items():
        kind, _, first_id, body = encode_change(change)
        changes.append((read_change, bytes((kind, _FIRST_IDS.get(name, first_id))) + body))
    segment = next(iter(write_log(small_log(), cluster_id=CLUSTER_ID, segment_size=1000))).data
    return [
        *changes,
        (read_request, REQUEST_BODY),
        (read_delivery, FULL_BODY),
        *((read_local, bytes((part.kind,)) + part.body) for part in LOCAL.values()),
        (read_header, record_of(CHANGES["remove"])),
        *((read_small_file, data) for data in FILES.values()),
        (read_segment, segment),
        (read_whole_snapshot, small_snapshot()),
    ]


SEEDS: list[bytes] = [bytes((READERS.index(reader),)) + data for reader, data in _seeds()]
