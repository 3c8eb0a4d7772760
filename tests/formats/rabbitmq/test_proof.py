"""What an embedded message proves of its publish record, and where such records are found."""

from __future__ import annotations

from random import Random

import pytest

from penstock.formats.rabbitmq import journal, segment
from penstock.formats.rabbitmq.proof import (
    TRIES_MAX,
    ends_with_id,
    find_proven,
    is_whole_term,
    true_length,
)
from penstock.formats.rabbitmq.terms import FALSE, TRUE, AtomEncoding, encode_term
from support.damage import flipped
from support.rabbitmq_directories import journaled, message, message_id, publish

BODY = journal.PUBLISH_SIZE


def test_a_message_proves_its_record_at_its_exact_end_alone() -> None:
    term = message(7, b"body")
    data = b"before" + term + b"true"
    found = [end for end in range(len(data) + 1) if ends_with_id(data, end, message_id(7))]
    assert found == [6 + len(term)]
    assert not ends_with_id(data, found[0], message_id(8))


@pytest.mark.parametrize("is_persistent", [True, False])
@pytest.mark.parametrize("atoms", list(AtomEncoding))
def test_both_ways_to_write_atoms_end_a_message(is_persistent: bool, atoms: AtomEncoding) -> None:
    flag = encode_term(TRUE if is_persistent else FALSE, atoms=atoms)[1:]
    term = message(7, b"body", is_persistent=True)
    data = term[: -len(b"d\x00\x04true")] + flag
    assert ends_with_id(data, len(data), message_id(7))


@pytest.mark.parametrize("seed", range(20))
def test_records_are_found_in_any_bytes(seed: int) -> None:
    random = Random(seed)
    data, places = random.randbytes(random.randrange(50)), []
    for number in range(5):
        record = (
            journaled(number, publish(number))
            if seed % 2
            else segment.encode_publish(number, publish(number))
        )
        length = len(publish(number).embedded)
        places.append((len(data) + len(record) - length, length))
        data += record + random.randbytes(random.randrange(50))
    assert list(find_proven(data)) == places
    first = places[0][0]
    assert list(find_proven(data, first)) == places[1:]


def test_the_true_length_is_found_whatever_the_record_says() -> None:
    record = journaled(0, publish(0, b"body"))
    length = len(record) - BODY
    for bit in range(32):
        data = flipped(record, 8 * (BODY - 4) + bit) + b"behind it"
        assert true_length(data, BODY) == length
    for end in range(BODY, len(record)):
        assert true_length(record[:end], BODY) is None
    assert true_length(flipped(record, 8 * 8), BODY) is None  # another id
    assert true_length(record, BODY + 1) is None


def test_an_id_in_a_body_is_no_end_and_too_many_are_not_tried() -> None:
    inside = b"m\x00\x00\x00\x10" + message_id(3) + b"d\x00\x04true"
    record = journaled(0, publish(3, inside * 2))
    assert true_length(record, BODY) == len(record) - BODY
    assert true_length(journaled(0, publish(3, inside * TRIES_MAX)), BODY) is None


def test_only_bytes_that_are_one_term_are_whole() -> None:
    term = message(1, b"body")
    assert is_whole_term(term)
    assert not is_whole_term(term + b"\x00")
    assert not any(is_whole_term(term[:end]) for end in range(len(term)))
