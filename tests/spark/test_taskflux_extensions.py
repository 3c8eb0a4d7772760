"""``properties`` of a log's rows: what the plain decoders and the rows of our tools say of the same bytes, as text."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadData, CorruptData, UnsupportedVersion
from penstock.families.tables import Op, Table, schema_of
from penstock.families.taskflux.rows import own_fields
from penstock.families.taskflux.tables.extensions import (
    OPS,
    Property,
    codes,
    extension_properties,
    policy_properties,
    properties,
)
from penstock.formats.taskflux import deltas
from penstock.formats.taskflux.commands import encode_command
from penstock.formats.taskflux.deltas import BAD_OP, encode_delta
from penstock.formats.taskflux.extensions import (
    IDS_MAX,
    ExtensionColumns,
    Verdict,
    decode_extension,
    encode_extension,
    scan_extensions,
)
from penstock.formats.taskflux.generation import Contents
from penstock.model import (
    INT32_MAX,
    INT64_MAX,
    LEASE_MS_MAX,
    UINT64_MAX,
    Adding,
    CreateCommand,
    CreateQueue,
    Creating,
    Extension,
    Implementation,
    KeyRange,
    Policy,
    QueueName,
    Removing,
    Returning,
    Terms,
    policy_fields,
)
from support.taskflux_strategies import bare_limits, names, policies

Said = list[tuple[str, str]] | None
"""The properties of a row in their order; ``None`` for a row that has none."""

TYPE: Final = schema_of(Table.ENTRIES).field("properties").type

ORDER: Final = (
    "extension", "count", "queue", "not_before_ms", "expires_ms", "attempts", "producer",
    "sequence", "total", "lease_ms", "attempts_max", "dead_letter", "ids",
)  # fmt: skip
"""The order of an extension's properties, whatever its kind."""


# --- what the plain decoders say -----------------------------------------------------------------


def plainly(entry: bytes) -> Extension | Verdict:
    """Return an extension, or why there is none."""
    try:
        extension = decode_extension(entry, 0, len(entry))
    except UnsupportedVersion:
        return Verdict.LATER
    except CorruptData:
        return Verdict.BAD
    return Verdict.NOTHING if extension is None else extension


def said_by(entry: bytes) -> Said:
    """Return what the rows of our tools say of an extension, in the words of ``properties``."""
    extension = plainly(entry)
    if isinstance(extension, Verdict):
        return None
    fields: dict[str, Any] = own_fields(extension)
    fields |= fields.pop("terms", {})
    fields["extension"] = fields.pop("kind")
    if "producer" in fields:
        fields["producer"] = b64decode(fields["producer"]).hex()
    elif isinstance(extension, Adding):
        del fields["sequence"], fields["total"]
    if fields.get("attempts") == 0:
        del fields["attempts"]
    if "ids" in fields:
        fields["ids"] = ",".join(map(str, fields["ids"]))
    assert fields.keys() <= set(ORDER)
    return [(name, str(fields[name])) for name in ORDER if name in fields]


def scanned(entries: Sequence[bytes]) -> ExtensionColumns:
    ends = np.cumsum([len(entry) for entry in entries], dtype=np.int64)
    sizes = np.array([len(entry) for entry in entries], dtype=np.int64)
    return scan_extensions(b"".join(entries), ends - sizes, ends)


def column_of(found: Sequence[Property], count: int) -> list[Said]:
    """Return the column as Python has it, once Arrow finds nothing wrong with it."""
    column = properties(found, count)
    column.validate(full=True)
    assert column.type == TYPE
    assert len(column) == count
    listed: list[Said] = column.to_pylist()
    return listed


def said_of(entries: Sequence[bytes], places: Sequence[int]) -> list[Said]:
    found = extension_properties(scanned(entries), np.array(places, dtype=np.int64))
    return column_of(found, len(places))


# --- generated -----------------------------------------------------------------------------------


def named(name: bytes) -> bytes:
    """Return an entry that deletes a queue of this name."""
    return bytes((deltas.DELETE, len(name))) + name


times = st.none() | st.integers(0, INT64_MAX) | st.sampled_from([0, INT64_MAX])
ids = st.lists(st.integers(1, UINT64_MAX), min_size=1, max_size=IDS_MAX).map(tuple)
numbers = st.integers(0, UINT64_MAX) | st.sampled_from([0, UINT64_MAX])


@st.composite
def addings(draw: st.DrawFn) -> Adding:
    count = draw(st.integers(1, 2**32 - 1))
    producer = draw(st.none() | st.binary(min_size=16, max_size=16) | st.just(bytes(16)))
    has_producer = producer is not None
    terms = Terms(
        not_before_ms=draw(times),
        expires_ms=draw(times),
        attempts=draw(st.just(0) | st.integers(0, 2**32 - 1)),
        producer=producer,
        sequence=draw(numbers) if has_producer else 0,
        total=draw(st.integers(count, 2**32 - 1)) if has_producer else 0,
    )
    return Adding(count=count, terms=terms)


extensions: st.SearchStrategy[Extension] = st.one_of(
    addings(),
    st.builds(
        Creating,
        lease_ms=st.integers(1, LEASE_MS_MAX),
        attempts_max=st.none() | st.integers(1, INT32_MAX),
        dead_letter=st.none() | st.integers(0, UINT64_MAX - 1) | st.sampled_from([0]),
    ),
    st.builds(Returning, queue=numbers, ids=ids, not_before_ms=times),
    st.builds(Removing, ids=ids),
)
speechless = st.sampled_from(
    [b"!penstock.", b"!penstock.x", b"!penstock.2.AAAA", b"!penstock.1.", b"!penstock.1.BQ=="]
).map(named)
entries_of_ours = extensions.map(encode_extension) | speechless


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[list[bytes], list[int]]:
    """Return extensions, and rows of which each is one of them or, as -1, something else."""
    entries = draw(st.lists(entries_of_ours, max_size=6))
    places = draw(st.lists(st.integers(-1, len(entries) - 1), max_size=12))
    return entries, places


# --- extensions ----------------------------------------------------------------------------------


@settings(deadline=None)
@given(mixture=mixtures())
def test_properties_are_what_the_plain_decoder_says(mixture: tuple[list[bytes], list[int]]) -> None:
    entries, places = mixture
    expected = [None if place < 0 else said_by(entries[place]) for place in places]
    assert said_of(entries, places) == expected


@settings(deadline=None)
@given(entries=st.lists(entries_of_ours, max_size=6))
def test_codes_are_what_the_plain_decoder_says(entries: list[bytes]) -> None:
    ops: list[Op | None] = []
    for entry in entries:
        found = plainly(entry)
        if found is Verdict.BAD:
            ops.append(None)
        elif isinstance(found, Verdict):
            ops.append(Op.EXTENSION)
        else:
            ops.append(Op(own_fields(found)["kind"]))
    given = codes(scanned(entries)).tolist()
    assert [OPS.get(code) for code in given] == ops
    assert [code == BAD_OP for code in given] == [op is None for op in ops]


def test_no_code_is_that_of_a_delta_or_means_two_things() -> None:
    own = {deltas.CREATE, deltas.DELETE, deltas.ADD, deltas.REMOVE, BAD_OP, 0}
    assert not own & set(OPS)
    assert len(OPS) + 1 == len(Verdict)


def test_each_kind_has_its_properties_in_their_order() -> None:
    terms = Terms(
        not_before_ms=0,
        expires_ms=INT64_MAX,
        attempts=2,
        producer=bytes(range(15)) + b"\xff",
        sequence=UINT64_MAX,
        total=5,
    )
    entries = [
        encode_extension(Adding(count=3, terms=terms)),
        encode_extension(Creating(lease_ms=30_000, attempts_max=3, dead_letter=0)),
        encode_extension(Returning(queue=0, ids=(2, UINT64_MAX), not_before_ms=7)),
        encode_extension(Removing(ids=(9, 3))),
    ]
    assert said_of(entries, [3, -1, 2, 1, 0]) == [
        [("extension", "removing"), ("ids", "9,3")],
        None,
        [
            ("extension", "returning"),
            ("queue", "0"),
            ("not_before_ms", "7"),
            ("ids", "2,18446744073709551615"),
        ],
        [
            ("extension", "creating"),
            ("lease_ms", "30000"),
            ("attempts_max", "3"),
            ("dead_letter", "0"),
        ],
        [
            ("extension", "adding"),
            ("count", "3"),
            ("not_before_ms", "0"),
            ("expires_ms", "9223372036854775807"),
            ("attempts", "2"),
            ("producer", "000102030405060708090a0b0c0d0eff"),
            ("sequence", "18446744073709551615"),
            ("total", "5"),
        ],
    ]


def test_what_is_left_open_is_left_out() -> None:
    entries = [
        encode_extension(Adding(count=1, terms=Terms())),
        encode_extension(Creating(lease_ms=1, attempts_max=None, dead_letter=None)),
        encode_extension(Returning(queue=UINT64_MAX, ids=(1,))),
    ]
    assert said_of(entries, [0, 1, 2]) == [
        [("extension", "adding"), ("count", "1")],
        [("extension", "creating"), ("lease_ms", "1")],
        [("extension", "returning"), ("queue", "18446744073709551615"), ("ids", "1")],
    ]


def test_rows_without_extensions_have_no_properties() -> None:
    entry = encode_extension(Removing(ids=(1,)))
    assert said_of([], []) == []
    assert said_of([], [-1, -1]) == [None, None]
    assert said_of([entry], []) == []
    assert said_of([entry], [-1, -1, -1]) == [None, None, None]


# --- policies ------------------------------------------------------------------------------------


def said_of_policy(policy: Policy) -> Said:
    return [(name, str(value)) for name, value in policy_fields(policy).items()]


@pytest.mark.parametrize("contents", [Contents.DELTAS_BY_VALUE, Contents.DELTAS_BY_ID])
@given(
    made=st.lists(
        st.none() | st.builds(CreateQueue, queue=names, policy=policies()),
        max_size=8,
    )
)
def test_policies_are_what_the_rows_of_our_tools_say(
    contents: Contents, made: list[CreateQueue | None]
) -> None:
    creates = [(row, encode_delta(one)) for row, one in enumerate(made) if one is not None]
    expected = [None if one is None else said_of_policy(one.policy) for one in made]
    assert column_of(policy_properties(creates, contents), len(made)) == expected


@given(limits=st.lists(bare_limits, max_size=5))
def test_commands_have_a_limit_as_their_policy(limits: list[int | None]) -> None:
    creates = [
        (row, encode_command(CreateCommand(queue=QueueName("q"), size_max=limit)))
        for row, limit in enumerate(limits)
    ]
    expected = [said_of_policy(Policy(size_max=limit)) for limit in limits]
    assert column_of(policy_properties(creates, Contents.COMMANDS), len(limits)) == expected


def test_the_order_of_a_policy_does_not_depend_on_the_rows_before() -> None:
    """Names once stood in the order in which a batch brought them: the same entry read differently by its split."""
    keys = KeyRange(lowest=-1, highest=5)
    ranged = CreateQueue(queue=QueueName("a"), policy=Policy(keys=keys))
    whole = CreateQueue(
        queue=QueueName("b"),
        policy=Policy(
            implementation=Implementation.ARRAY, size_max=9, payload_size_max=8, keys=keys
        ),
    )
    creates = [(0, encode_delta(ranged)), (2, encode_delta(whole))]
    assert column_of(policy_properties(creates, Contents.DELTAS_BY_VALUE), 3) == [
        [("implementation", "heap"), ("keys", "[-1, 5]")],
        None,
        [
            ("implementation", "array"),
            ("size_max", "9"),
            ("payload_size_max", "8"),
            ("keys", "[-1, 5]"),
        ],
    ]


def test_no_new_queues_have_no_properties() -> None:
    for contents in Contents:
        assert column_of(policy_properties([], contents), 2) == [None, None]


def test_a_payload_that_creates_nothing_is_refused() -> None:
    with pytest.raises(BadData):
        policy_properties([(0, bytes((deltas.CREATE,)))], Contents.DELTAS_BY_VALUE)


# --- the column ----------------------------------------------------------------------------------


@st.composite
def given_properties(draw: st.DrawFn) -> tuple[list[Property], int]:
    count = draw(st.integers(0, 8))
    found: list[Property] = []
    for name in draw(st.lists(st.text(max_size=3), max_size=5, unique=True)):
        rows = draw(st.lists(st.integers(0, count - 1), unique=True)) if count else []
        texts = draw(st.lists(st.text(max_size=4), min_size=len(rows), max_size=len(rows)))
        values = pa.array(texts, pa.string())
        found.append(Property(name, np.array(rows, dtype=np.int64), values))
    return found, count


@given(case=given_properties())
def test_a_rows_properties_come_in_the_order_given(case: tuple[list[Property], int]) -> None:
    found, count = case
    expected: list[Said] = [None] * count
    for one in found:
        for row, value in zip(one.rows.tolist(), one.values.to_pylist(), strict=True):
            expected[row] = [*(expected[row] or []), (one.name, value)]
    assert column_of(found, count) == expected


@settings(deadline=None)
@given(mixture=mixtures(), new=st.lists(policies(), max_size=3))
def test_extensions_and_policies_share_a_column(
    mixture: tuple[list[bytes], list[int]], new: list[Policy]
) -> None:
    entries, places = mixture
    made = [CreateQueue(queue=QueueName("q"), policy=policy) for policy in new]
    creates = [(len(places) + row, encode_delta(one)) for row, one in enumerate(made)]
    every = np.array([*places, *[-1] * len(made)], dtype=np.int64)
    found = extension_properties(scanned(entries), every)
    found += policy_properties(creates, Contents.DELTAS_BY_VALUE)
    expected = [None if place < 0 else said_by(entries[place]) for place in places]
    expected += [said_of_policy(one.policy) for one in made]
    assert column_of(found, len(every)) == expected
