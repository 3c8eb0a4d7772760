"""Payloads as text and as JSON: one rule, in rows and in columns, and columns that cost nothing if nobody wants them."""

from __future__ import annotations

import json
import unicodedata
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.families.payloads import (
    json_column,
    payload_fields,
    stored_columns,
    text_column,
    with_payload_columns,
)
from penstock.tables import read
from support.table_sources import MAKERS

SAMPLES = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=12).map(str.encode),
    st.text('{}[]":, 1aé\x85\x7f\t\n', max_size=10).map(str.encode),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    ).map(lambda value: json.dumps(value).encode()),
)


def text_by_letter(payload: bytes | None) -> str | None:
    """Say what the text is, one character after the other."""
    try:
        text = (payload or b"").decode()
    except UnicodeDecodeError:
        return None
    fine = all(unicodedata.category(each) != "Cc" or each in "\t\n\r" for each in text)
    return text if fine and payload is not None else None


def json_by_library(payload: bytes | None) -> Any:
    """Say what Python's own decoder makes of it; it takes words that are no JSON, and halves of characters."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    text = text_by_letter(payload)
    try:
        found = json.loads(text or "", parse_constant=refuse)
        json.dumps(found, ensure_ascii=False).encode()
    except ValueError:
        return None
    return found if isinstance(found, dict | list) else None


@given(st.lists(SAMPLES | st.none(), max_size=8), st.integers(0, 3))
def test_columns_are_the_text_and_the_json_of_each_payload(
    payloads: list[bytes | None], skipped: int
) -> None:
    column = pa.array(payloads, pa.binary()).slice(min(skipped, len(payloads)))
    rest = column.to_pylist()
    text = text_column(column)
    text.validate(full=True)
    assert text.to_pylist() == [text_by_letter(each) for each in rest]
    found = [None if each is None else json.loads(each) for each in json_column(text).to_pylist()]
    assert found == [json_by_library(each) for each in rest]


@pytest.mark.parametrize(
    "payload", [b"5", b'"word"', b"true", b"{", b"[NaN]", b'{"a": 1} {}', b'{"a": "\x00"}', b""]
)
def test_what_is_not_a_whole_object_or_array_is_no_json(payload: bytes) -> None:
    assert json_column(text_column(pa.array([payload]))).to_pylist() == [None]


def test_json_as_deep_as_a_stack_is_no_json() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert json_column(text_column(pa.array([deep]))).to_pylist() == [None]


def test_text_in_ascii_is_a_view_of_the_payloads() -> None:
    payloads = pa.array([b"mail", b"for", None, b"Ada"], pa.binary())
    assert text_column(payloads).buffers()[2].address == payloads.buffers()[2].address


def test_only_columns_that_are_wanted_are_made() -> None:
    assert stored_columns(["queue", "payload"]) == ["queue", "payload"]
    assert stored_columns(["payload_json", "queue"]) == ["queue", "payload"]

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"queue": ["q"], "payload": pa.array([b"[1]"])})

    (made,) = with_payload_columns(batches(), ["payload_text", "queue"])
    assert made.to_pydict() == {"payload_text": ["[1]"], "queue": ["q"]}


@pytest.mark.parametrize("name", ["made THREE 2", "made ONE None", "made spool"])
def test_tasks_of_every_family_have_them(name: str, tmp_path: Path) -> None:
    source = MAKERS[name](tmp_path)
    found = read(source.path, options=source.options).read_all().to_pylist()
    assert found
    for row in found:
        assert row["payload_text"] == text_by_letter(row["payload"])
        text = row["payload_json"]
        assert (None if text is None else json.loads(text)) == json_by_library(row["payload"])
    alone = read(source.path, columns=["payload_json"], options=source.options).read_all()
    assert alone.to_pylist() == [{"payload_json": row["payload_json"]} for row in found]


@pytest.mark.parametrize(
    ("payload", "fields"),
    [
        (b"", {"payload_text": ""}),
        (b"two\tlines\r\n", {"payload_text": "two\tlines\r\n"}),
        ("Grüße".encode(), {"payload_text": "Grüße"}),
        (b"17", {"payload_text": "17"}),  # every number is JSON too
        (b'"a"', {"payload_text": '"a"'}),
        (b"{torn", {"payload_text": "{torn"}),
        (b'{"a":[1,2]}', {"payload_text": '{"a":[1,2]}', "payload_json": {"a": [1, 2]}}),
        (b"[]", {"payload_text": "[]", "payload_json": []}),
        (b"\n [1]\n", {"payload_text": "\n [1]\n", "payload_json": [1]}),
        (b" 1", {"payload_text": " 1"}),
        (b"[" * 100_000, {"payload_text": "[" * 100_000}),
        (b"\xff\xfe", {}),
        (b"a\0b", {}),
        (b"\x1b[2J", {}),
        (b"\x7f", {}),
        ("\x9b2J".encode(), {}),
    ],
)
def test_a_payload_is_shown_as_text_and_json_where_its_bytes_are_that(
    payload: bytes, fields: dict[str, object]
) -> None:
    assert payload_fields(payload) == {"payload": b64encode(payload).decode()} | fields
