"""The file that says who a spool is to a node."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SpoolFull
from penstock.formats.beats.state import Position
from penstock.model import QueueName
from penstock.spooling.identity import (
    FILE_NAME,
    Identity,
    IdentityFile,
    decode_identity,
    encode_identity,
)
from penstock.spooling.rounds import RULE
from penstock.testing.disk import MemoryFiles, Operation

ROOT = Path("/spool")
numbers = st.integers(0, 2**63 - 1)
identities = st.builds(
    Identity,
    producer=st.binary(min_size=16, max_size=16),
    others=st.one_of(st.none(), st.sampled_from([QueueName(""), QueueName("a-b")])),
    end=st.one_of(st.none(), st.builds(Position, numbers, numbers, numbers)),
).flatmap(
    lambda one: (
        st.just(one)
        if one.end is None
        else st.frozensets(numbers, max_size=5).map(
            lambda divided: Identity(
                producer=one.producer, others=one.others, end=one.end, divided=divided
            )
        )
    )
)


@given(identities)
def test_what_is_written_is_read(identity: Identity) -> None:
    data = encode_identity(identity)
    assert decode_identity(data) == identity
    assert data.split(b"\n")[0] == identity.producer.hex().encode()


@given(identities, st.data())
def test_any_other_bytes_are_not_ours_or_say_something(
    identity: Identity, data: st.DataObject
) -> None:
    written = encode_identity(identity)
    cut = data.draw(st.integers(0, len(written)))
    noise = data.draw(st.binary(max_size=20))
    found = decode_identity(written[:cut] + noise)
    assert found is None or len(found.producer) == 16


def test_the_two_producers_of_a_spool_are_different_and_lasting() -> None:
    identity = Identity(producer=bytes(range(16)))
    assert identity.single_producer != identity.producer
    assert len(identity.single_producer) == 16
    assert identity.single_producer == Identity(producer=bytes(range(16))).single_producer


def test_a_divided_request_belongs_to_its_round() -> None:
    end = Position(1, 100, 9)
    identity = Identity(producer=bytes(16)).with_divided(5, end).with_divided(7, end)
    assert identity.is_divided(5, end)
    assert identity.is_divided(7, end)
    assert not identity.is_divided(6, end)
    assert not identity.is_divided(5, Position(1, 200, 12))
    later = identity.with_divided(8, Position(2, 50, 1))
    assert later.divided == {8}


def test_a_file_that_is_missing_or_not_ours_is_told() -> None:
    files, told = MemoryFiles(), list[str]()
    files.make_directory(ROOT)
    identity = IdentityFile(files, ROOT)
    assert not identity.read(told.append)
    identity.renew(None)
    again = IdentityFile(files, ROOT)
    assert again.read(told.append)
    assert again.identity == identity.identity
    damaged = MemoryFiles({str(ROOT / FILE_NAME): b"not ours"})
    assert not IdentityFile(damaged, ROOT).read(told.append)
    newer = encode_identity(Identity(producer=bytes(16), rule=RULE + 1))
    newer_files = MemoryFiles({str(ROOT / FILE_NAME): newer})
    assert not IdentityFile(newer_files, ROOT).read(told.append)
    assert len(told) == 3
    assert all("is missing, not ours, or of another" in words for words in told)


def test_a_full_disk_is_said_so_and_the_old_file_stays() -> None:
    files = MemoryFiles()
    files.make_directory(ROOT)
    identity = IdentityFile(files, ROOT)
    identity.renew(None)
    before = identity.identity

    def fault(operation: Operation) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    files.fault = fault
    with pytest.raises(SpoolFull, match="No space left"):
        identity.renew(None)
    files.fault = None
    again = IdentityFile(files, ROOT)
    assert again.read(print)
    assert again.identity == before == identity.identity
