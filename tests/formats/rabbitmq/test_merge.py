"""What journal and segments add up to, also after a crash in mid-flush, and for real queues."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.rabbitmq import journal, message_store, segment
from penstock.formats.rabbitmq.journal import Publish, SequenceNumber
from penstock.formats.rabbitmq.merge import Anomaly, Entry, Finding, Merged, Place, is_live, merge
from support.rabbitmq_golden import Files, Vhost, holds_body, holds_expiry, snapshot
from support.rabbitmq_reading import JOURNAL, SEGMENT, damaged

ENTRY_COUNT = 2048


def publish(sequence: int, *, message: bytes = b"") -> Publish:
    return Publish(
        message_id=sequence.to_bytes(16, "big"),
        is_persistent=True,
        expiry_us=0,
        body_size=len(message),
        embedded=message,
    )


def journal_of(text: str) -> bytes:
    """Return a journal: ``p3 d3 a3`` publishes, delivers and acks message 3; ``q3`` is another one."""
    parts = []
    for word in text.split():
        number = SequenceNumber(int(word[1:]))
        parts.append(
            {
                "p": lambda n: journal.encode_publish(n, publish(n + 1)),
                "q": lambda n: journal.encode_publish(n, publish(n + 100_000)),
                "d": journal.encode_deliver,
                "a": journal.encode_ack,
            }[word[0]](number)
        )
    return b"".join(parts)


def segments_of(text: str) -> dict[int, bytes]:
    """Return segments by number; a segment writes a deliver and an ack alike."""
    files: dict[int, bytes] = {}
    for word in text.split():
        number = SequenceNumber(int(word[1:]))
        relative = segment.relative_of(number, entry_count=ENTRY_COUNT)
        if word[0] in "pq":
            message = number + (1 if word[0] == "p" else 100_000)
            record = segment.encode_publish(relative, publish(message))
        else:
            record = segment.encode_deliver_or_ack(relative)
        which = segment.segment_of(number, entry_count=ENTRY_COUNT)
        files[which] = files.get(which, b"") + record
    return files


def merged_files(jif: bytes, files: dict[int, bytes]) -> Merged:
    return merge(
        journal.scan(jif),
        {n: segment.scan(data, segment=n, entry_count=ENTRY_COUNT) for n, data in files.items()},
    )


def states(merged: Merged) -> str:
    """Return ``3pda`` for a message that is published, delivered and acked."""
    return " ".join(
        f"{e.sequence}p{'d' if e.is_delivered else ''}{'a' if e.is_acked else ''}"
        for e in merged.entries
    )


def words(merged: Merged) -> list[str]:
    return [f"{f.anomaly.word} {f.sequence}" for f in merged.findings]


CASES = [
    ("journal alone", "p0 d0 p1 d1 a0", "", "0pda 1pd", []),
    ("segment alone", "", "p1 d1 p0 d0 a0", "0pda 1pd", []),
    (
        "acks in the journal for a segment's messages",
        "a0 a2049",
        "p0 d0 p2049 d2049",
        "0pda 2049pda",
        [],
    ),
    ("queue order, not file order", "p5 p3", "p4", "3p 4p 5p", []),
    (
        "a flush that was interrupted before the journal was emptied",
        "p0 d0 a0 p1 d1",
        "p1 d1",
        "0pda 1pd",
        ["flushed 1", "flushed 1"],
    ),
    (
        "the same, with an ack",
        "a7",
        "p7 d7 a7",
        "7pda",
        ["flushed 7"],
    ),
    (
        "a segment that was deleted before the journal was emptied",
        "d3 a3 a4",
        "",
        "",
        ["orphan 3", "orphan 3", "orphan 4"],
    ),
    ("an ack without a deliver", "p0 a0", "", "0pa", ["undelivered 0"]),
    ("an ack twice", "p0 d0 a0 a0", "", "0pda", ["repeated 0"]),
    ("a deliver twice", "p0 d0 d0", "", "0pd", ["repeated 0"]),
    ("a publish twice", "p0 p0", "", "0p", ["repeated 0"]),
    ("an ack twice in a segment", "", "p0 d0 a0 a0", "0pda", ["repeated 0"]),
    (
        "a publish twice in a segment takes the message back",
        "",
        "p0 d0 a0 p0",
        "0p",
        ["replaced 0"],
    ),
    ("two messages with one number", "q0 d0", "p0", "0pd", ["conflicting 0"]),
    (
        "another message with the number of one in a segment",
        "",
        "p0 d0 a0 q0",
        "0p",
        ["conflicting 0"],
    ),
    ("two messages with one number in the journal", "p0 q0", "", "0p", ["conflicting 0"]),
    ("an ack before the publish", "a0 d0 p0", "", "0pda", []),
    (
        "a segment's delivers for a publish that only the journal has",
        "p0",
        "d0 a0",
        "0pda",
        [],
    ),
    ("a segment's delivers for no publish", "", "d0 a0", "", ["orphan 0", "orphan 0"]),
]


@pytest.mark.parametrize(
    ("jif", "idx", "expected", "findings"), [pytest.param(*row[1:], id=row[0]) for row in CASES]
)
def test_files_add_up_to_what_the_page_says(
    jif: str, idx: str, expected: str, findings: list[str]
) -> None:
    """docs/formats/rabbitmq.md, "Journal and segments together"."""
    merged = merged_files(journal_of(jif), segments_of(idx))
    assert states(merged) == expected
    assert words(merged) == findings


def test_an_entry_says_where_its_publish_record_is() -> None:
    jif = journal_of("d0 p1")
    files = segments_of("p0 p2048")
    zero, one, last = merged_files(jif, files).entries
    assert zero == Entry(
        sequence=SequenceNumber(0),
        message_id=(1).to_bytes(16, "big"),
        is_persistent=True,
        expiry_us=0,
        body_size=0,
        length=0,
        place=Place(0, 0),
        size=34,
        is_delivered=True,
        is_acked=False,
    )
    assert one.place == Place(None, 8)
    assert last.place == Place(1, 0)
    assert all(map(is_live, (zero, one, last)))


def test_damage_becomes_findings_by_file_and_offset() -> None:
    files = segments_of("p0 p2048")
    files[0] += b"\x80"
    files[1] += bytes(5)
    bad = segment.encode_publish(1, publish(1, message=b"\x83h"))[:-2] + b"no"
    files[2] = bad + b"\x00\x01"
    merged = merged_files(journal_of("p9 a8") + b"\x01", files)
    assert merged.findings == [
        Finding(Anomaly.TORN, Place(0, 34), None),
        Finding(Anomaly.ZEROS, Place(1, 34), None),
        Finding(Anomaly.BAD_MESSAGE, Place(2, 0), SequenceNumber(4097)),
        Finding(Anomaly.BAD_RECORD, Place(2, 36), None),
        Finding(Anomaly.ORPHAN, Place(None, 40), SequenceNumber(8)),
        Finding(Anomaly.TORN, Place(None, 48), None),
    ]
    # A message that cannot be read was published all the same.
    assert [entry.sequence for entry in merged.entries] == [0, 9, 2048, 4097]


@given(
    st.lists(
        st.tuples(st.sampled_from("pda"), st.integers(0, 3)).map(lambda pair: f"{pair[0]}{pair[1]}")
    )
)
def test_a_journal_is_a_set_of_facts(facts: list[str]) -> None:
    """Deliver, ack and publish hold whatever their order and however often they are said."""
    merged = merged_files(journal_of(" ".join(facts)), {})
    said = {(fact[0], int(fact[1:])) for fact in facts}
    assert [e.sequence for e in merged.entries] == sorted(n for kind, n in said if kind == "p")
    for entry in merged.entries:
        assert entry.is_delivered == (("d", entry.sequence) in said)
        assert entry.is_acked == (("a", entry.sequence) in said)


@given(data=st.data(), count=st.integers(1, 5))
def test_a_flush_changes_nothing_wherever_it_is_interrupted(
    data: st.DataObject, count: int
) -> None:
    """The journal is emptied last, so every prefix of what was appended gives the same messages."""
    stages = [data.draw(st.sampled_from(["p", "pd", "pda"])) for _ in range(count)]
    jif = journal_of(" ".join(f"{kind}{n}" for n, kinds in enumerate(stages) for kind in kinds))
    # Complete triples are never written, and a chunk is in descending order.
    chunk = [
        f"{kind}{n}" for n in reversed(range(count)) if stages[n] != "pda" for kind in stages[n]
    ]
    idx = segments_of(" ".join(chunk)).get(0, b"")
    expected = states(merged_files(jif, {}))
    for end in range(len(idx) + 1):
        assert states(merged_files(jif, {0: idx[:end]})) == expected


@given(seed=st.integers(0, 2**32))
def test_no_files_make_a_merge_fail(seed: int) -> None:
    random = Random(seed)
    merged = merge(
        journal.scan(damaged(JOURNAL, random)),
        {3: segment.scan(damaged(SEGMENT, random), segment=3, entry_count=ENTRY_COUNT)},
    )
    sequences = [entry.sequence for entry in merged.entries]
    assert sequences == sorted(set(sequences))


# --- real queues ---------------------------------------------------------------------------------

REAL = [
    ("c1_small_embedded_live", 321, {}),
    ("c1_small_embedded_kill9_ack_race", 472, {}),
    ("c3_large_store_limit1m_kill9", 146, {}),
    ("c4_props_ttl_priority_kill9", 328, {}),
    ("c5_transient_clean", 161, {}),
    ("c6_fanout_refcount_kill9", 229, {}),
    ("c8_damage_dup_flush", 465, {Anomaly.FLUSHED: 330}),
    ("c8_damage_segment_deleted_journal_kept", 465, {Anomaly.ORPHAN: 25}),
    ("c8_damage_torn_journal", 460, {Anomaly.TORN: 1}),
    ("c8_damage_torn_journal_ack", 466, {Anomaly.TORN: 1}),
    ("c8_damage_journal_zero_tail", 465, {Anomaly.ZEROS: 1}),
    ("c8_damage_torn_segment", 465, {Anomaly.TORN: 1, Anomaly.FLUSHED: 136}),
    ("c8_damage_segment_all_zero", 70, {Anomaly.ZEROS: 1}),
    ("c8_damage_torn_store_tail", 464, {}),
    ("c8_damage_store_marker_bad", 464, {}),
    ("c8_damage_crashed_merge", 465, {}),
    ("c8_damage_store_file_missing", 447, {}),
]


@pytest.mark.parametrize(("name", "count", "anomalies"), REAL, ids=[row[0] for row in REAL])
def test_a_real_queue_holds_the_messages_that_its_client_knows(
    name: str, count: int, anomalies: dict[Anomaly, int]
) -> None:
    """Bodies are searched in the messages, which stay undecoded here. Order is queue order."""
    directory = snapshot(name)
    found: Counter[Anomaly] = Counter()
    total = 0
    for vhost in directory.vhosts.values():
        store = stored(vhost.store)
        for key, files in vhost.queues.items():
            merged = merged_queue(vhost, files)
            found.update(finding.anomaly for finding in merged.findings)
            messages = [
                (entry, message)
                for entry in merged.entries
                if entry.is_persistent and is_live(entry)
                for message in [message_of(entry, files, store)]
                if message is not None
            ]
            truth = directory.truth.get(key, [])
            assert len(messages) == len(truth), key
            for (entry, message), row in zip(messages, truth, strict=True):
                assert entry.body_size == row["body_len"]
                assert holds_expiry(entry.expiry_us, row)
                assert holds_body(message, row)
            total += len(messages)
    assert total == count == sum(map(len, directory.truth.values()))
    assert found == anomalies


def merged_queue(vhost: Vhost, files: Files) -> Merged:
    numbers = {name: segment.parse_segment_name(name) for name in files}
    return merge(
        journal.scan(files.get("journal.jif", b"")),
        {
            number: segment.scan(files[name], segment=number, entry_count=vhost.entry_count)
            for name, number in numbers.items()
            if number is not None
        },
    )


def stored(files: Files) -> dict[bytes, bytes]:
    """Return the messages of a store by id; what an interrupted merge kept is a source too."""
    return {
        piece.message_id: message_store.decode_message(data, piece)
        for data in files.values()
        for piece in message_store.scan(data)
        if piece.status is message_store.Status.OK
    }


def message_of(entry: Entry, files: Files, store: dict[bytes, bytes]) -> bytes | None:
    if entry.length == 0:
        return store.get(entry.message_id)
    number = entry.place.segment
    data = files["journal.jif" if number is None else segment.segment_name(number)]
    end = entry.place.offset + entry.size
    return data[end - entry.length : end]
