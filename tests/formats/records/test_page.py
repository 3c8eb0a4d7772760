"""The page of records shows the bytes that the code writes, and the code reads the bytes that the page shows."""

from __future__ import annotations

import pytest

from penstock.formats.records.changes import decode_change
from penstock.formats.records.header import HEADER_SIZE, check_body, decode_header
from support.record_examples import (
    CHANGES,
    FILES,
    LOCAL,
    local_record,
    page_examples,
    record_of,
)

EXAMPLES = page_examples()


def test_the_page_has_an_example_of_every_kind() -> None:
    assert EXAMPLES.keys() == CHANGES.keys() | LOCAL.keys() | FILES.keys()


@pytest.mark.parametrize("name", LOCAL)
def test_the_example_of_a_local_kind_is_what_the_code_writes(name: str) -> None:
    assert EXAMPLES[name] == local_record(name)


@pytest.mark.parametrize("name", FILES)
def test_the_example_of_a_file_is_what_the_code_writes(name: str) -> None:
    assert EXAMPLES[name] == FILES[name]


@pytest.mark.parametrize("name", CHANGES)
def test_the_example_on_the_page_is_what_the_code_writes(name: str) -> None:
    assert EXAMPLES[name] == record_of(CHANGES[name])


@pytest.mark.parametrize("name", CHANGES)
def test_the_example_on_the_page_is_what_the_code_reads(name: str) -> None:
    record = EXAMPLES[name]
    header = decode_header(record)
    check_body(record, 0, header)
    change = decode_change(header, record, HEADER_SIZE, header.size)
    assert type(change) is type(CHANGES[name])
    assert record_of(change) == record
