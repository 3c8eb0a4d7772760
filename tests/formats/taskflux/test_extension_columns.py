"""Extensions in columns: the verdicts and fields of the plain decoder, whatever the bytes."""

from __future__ import annotations

from base64 import b64decode, b64encode
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptData, UnsupportedVersion
from penstock.formats.taskflux.extensions import (
    IDS_MAX,
    ExtensionColumns,
    Verdict,
    decode_extension,
    encode_extension,
    is_extension,
    scan_extensions,
)
from penstock.model import (
    INT32_MAX,
    INT64_MAX,
    LEASE_MS_MAX,
    UINT64_MAX,
    Adding,
    Creating,
    Extension,
    Removing,
    Returning,
    Terms,
)

PREFIX = b"!penstock.1."

Said = Extension | Verdict
"""An extension, or why there is none."""


@pytest.fixture(scope="module", autouse=True)
def _warm_kernel() -> None:
    """Compile before any test is timed."""
    in_columns([encode_extension(Removing(ids=(1,)))])


def plainly(data: bytes) -> Said:
    """Return what the plain decoder says."""
    try:
        extension = decode_extension(data, 0, len(data))
    except UnsupportedVersion:
        return Verdict.LATER
    except CorruptData:
        return Verdict.BAD
    return Verdict.NOTHING if extension is None else extension


def in_columns(entries: list[bytes]) -> list[Said]:
    """Return what the scan says of entries that stand in one buffer, with other bytes between them."""
    ends = np.cumsum([len(entry) + 1 for entry in entries], dtype=np.int64)
    sizes = np.array([len(entry) for entry in entries], dtype=np.int64)
    data = b"".join(b"\xff" + entry for entry in entries)
    columns = scan_extensions(data, ends - sizes, ends)
    assert len(columns) == len(entries)
    return [value_of(columns, row) for row in range(len(entries))]


def value_of(columns: ExtensionColumns, row: int) -> Said:
    verdict = Verdict(int(columns.verdict[row]))
    ids = tuple(columns.ids[columns.id_ends[row] : columns.id_ends[row + 1]].tolist())
    not_before_ms = optional(columns.not_before_ms[row], -1)
    dead_letter = int(columns.dead_letter[row])
    match verdict:
        case Verdict.ADDING:
            producer = columns.producer[row].tobytes()
            terms = Terms(
                not_before_ms=not_before_ms,
                expires_ms=optional(columns.expires_ms[row], -1),
                attempts=int(columns.attempts[row]),
                producer=producer if columns.has_producer[row] else None,
                sequence=int(columns.sequence[row]),
                total=int(columns.total[row]),
            )
            return Adding(count=int(columns.count[row]), terms=terms)
        case Verdict.CREATING:
            return Creating(
                lease_ms=int(columns.lease_ms[row]),
                attempts_max=optional(columns.attempts_max[row], 0),
                dead_letter=dead_letter - 1 if dead_letter else None,
            )
        case Verdict.RETURNING:
            return Returning(queue=int(columns.queue[row]), ids=ids, not_before_ms=not_before_ms)
        case Verdict.REMOVING:
            return Removing(ids=ids)
        case _:
            assert ids == ()
            assert not columns.count[row]
            assert not_before_ms is None
            return verdict


def optional(value: np.int64, missing: int) -> int | None:
    return None if value == missing else int(value)


def assert_same(entries: list[bytes]) -> list[Said]:
    """Hold the scan, compiled, to the decoder, interpreted."""
    expected = [plainly(entry) for entry in entries]
    assert in_columns(entries) == expected
    return expected


def entry(name: bytes) -> bytes:
    return bytes((0x44, len(name))) + name


times = st.none() | st.integers(0, INT64_MAX) | st.sampled_from([0, INT64_MAX])
ids = st.lists(st.integers(1, UINT64_MAX), min_size=1, max_size=IDS_MAX).map(tuple)


@st.composite
def addings(draw: st.DrawFn) -> Adding:
    count = draw(st.integers(1, 2**32 - 1))
    producer = draw(st.none() | st.binary(min_size=16, max_size=16))
    has_producer = producer is not None
    terms = Terms(
        not_before_ms=draw(times),
        expires_ms=draw(times),
        attempts=draw(st.integers(0, 2**32 - 1)),
        producer=producer,
        sequence=draw(st.integers(0, UINT64_MAX)) if has_producer else 0,
        total=draw(st.integers(count, 2**32 - 1)) if has_producer else 0,
    )
    return Adding(count=count, terms=terms)


extensions: st.SearchStrategy[Extension] = st.one_of(
    addings(),
    st.builds(
        Creating,
        lease_ms=st.integers(1, LEASE_MS_MAX),
        attempts_max=st.none() | st.integers(1, INT32_MAX),
        dead_letter=st.none() | st.integers(0, UINT64_MAX - 1),
    ),
    st.builds(Returning, queue=st.integers(0, UINT64_MAX), ids=ids, not_before_ms=times),
    st.builds(Removing, ids=ids),
)

SAMPLES: list[Extension] = [
    Adding(count=2, terms=Terms(expires_ms=1_700_000_060_000)),
    Adding(
        count=3,
        terms=Terms(
            not_before_ms=0,
            expires_ms=INT64_MAX,
            attempts=2**32 - 1,
            producer=bytes(range(240, 256)),
            sequence=UINT64_MAX,
            total=2**32 - 1,
        ),
    ),
    Creating(lease_ms=LEASE_MS_MAX, attempts_max=INT32_MAX, dead_letter=UINT64_MAX - 1),
    Creating(lease_ms=1, attempts_max=None, dead_letter=None),
    Returning(queue=UINT64_MAX, ids=tuple(range(1, IDS_MAX + 1)), not_before_ms=5),
    Removing(ids=(3, UINT64_MAX)),
]


@settings(deadline=None)
@given(values=st.lists(extensions, max_size=8))
def test_columns_equal_extensions(values: list[Extension]) -> None:
    assert assert_same([encode_extension(value) for value in values]) == values


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_every_byte_of_an_entry_may_be_any_other(sample: Extension) -> None:
    """Of the name's own bytes and its length; the first bytes are what makes it an extension."""
    data = encode_extension(sample)
    entries = [
        data[:at] + bytes((value,)) + data[at + 1 :]
        for at in (1, *range(12, len(data)))
        for value in range(256)
    ]
    assert sample in assert_same(entries)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_body_cut_anywhere_or_grown_reads_the_same(sample: Extension) -> None:
    name = encode_extension(sample)[2:]
    entries = [entry(name[:size]) for size in range(10, len(name) + 1)]
    entries += [entry((name + more)[:255]) for more in (b"=", b"====", b"AAAA", b"A", b"AAA=")]
    assert assert_same(entries).count(sample) == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_body_with_any_bytes_changed_reads_the_same(seed: int) -> None:
    random = Random(seed)
    entries: list[bytes] = []
    for _ in range(1500):
        body = bytearray(b64decode(encode_extension(random.choice(SAMPLES))[2 + len(PREFIX) :]))
        for _ in range(random.randrange(4)):
            place = random.randrange(min(len(body), random.choice((6, 180))))
            body[place] = random.choice((0, 1, 5, 127, 128, 255, random.randrange(256)))
        entries.append(entry(PREFIX + b64encode(body)))
    said = assert_same(entries)
    assert Verdict.BAD in said
    assert {type(one) for one in said} == {Verdict, Adding, Creating, Returning, Removing}


@settings(deadline=None)
@given(value=extensions, changes=st.lists(st.tuples(st.integers(1, 256), st.binary(max_size=3))))
def test_an_entry_with_bytes_replaced_reads_the_same(
    value: Extension, changes: list[tuple[int, bytes]]
) -> None:
    data = encode_extension(value)
    for place, new in changes:
        at = 12 + place % (len(data) - 12) if len(data) > 12 else 12
        data = data[:at] + new + data[at + len(new) :]
    assert is_extension(data, 0, len(data))
    assert_same([data])


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        (b"!penstock.", Verdict.NOTHING),
        (b"!penstock.nothing", Verdict.NOTHING),
        (b"!penstock.1", Verdict.LATER),
        (b"!penstock.12.AAAA", Verdict.LATER),
        (b"!penstock.2.AAAA", Verdict.LATER),
        (b"!penstock.1.", Verdict.BAD),
        (b"!penstock./.AAAA", Verdict.NOTHING),
        (b"!penstock.:.AAAA", Verdict.NOTHING),
    ],
)
def test_a_name_without_an_extension_has_its_verdict(name: bytes, verdict: Verdict) -> None:
    assert assert_same([entry(name)]) == [verdict]


def test_another_spelling_of_a_body_is_refused() -> None:
    """Some versions of Python took these, others did not: an entry could divide the nodes of a cluster."""
    name = encode_extension(Removing(ids=(3,)))[2:]
    assert not name.endswith(b"=")
    padded = encode_extension(Adding(count=2, terms=Terms(expires_ms=0)))[2:]
    assert padded.endswith(b"AA=")
    spellings = [name + b"=" * count for count in range(1, 6)]
    spellings += [padded[:-2] + b"B=", padded[:-2] + b"D=", padded[:-1], padded + b"="]
    assert assert_same([entry(one) for one in spellings]) == [Verdict.BAD] * len(spellings)


def test_no_extensions_make_no_rows() -> None:
    assert assert_same([]) == []


def test_an_array_is_scanned_like_bytes() -> None:
    data = encode_extension(SAMPLES[1])
    array = np.frombuffer(data, dtype=np.uint8)
    columns = scan_extensions(array, np.array([0]), np.array([len(data)]))
    assert value_of(columns, 0) == SAMPLES[1]
    assert columns.ids.dtype == columns.sequence.dtype == np.uint64
