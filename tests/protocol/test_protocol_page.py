"""Every byte that docs/protocol.md shows is what the codecs make of the value beside it, and the reverse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock import model
from penstock.protocol import frames, version1, version2

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"(request|response|answer)(?: (\d+))?: (.*)")
BYTES = re.compile(r"[0-9A-F]{2}(?: [0-9A-F]{2})*(?=$|  )")


class Example(NamedTuple):
    side: str
    number: int
    value: str
    data: bytes


def examples(language: str) -> list[Example]:
    """Return the examples of all blocks in this language: a line with the value, then lines of bytes."""
    found: list[Example] = []
    for name, text in BLOCK.findall(PAGE):
        for line in text.splitlines() if name == language else ():
            head = HEAD.fullmatch(line)
            if head:
                found.append(Example(head[1], int(head[2] or 0), head[3], b""))
                continue
            raw = BYTES.match(line)
            assert raw, f"neither a value nor bytes: {line}"
            found[-1] = found[-1]._replace(data=found[-1].data + bytes.fromhex(raw[0]))
    return found


def built(value: str, module: Any) -> Any:
    """Return the value that the page names, which is written as in Python."""
    return eval(value, {**vars(model), **vars(module)})


@pytest.mark.parametrize("example", examples("packets"), ids=lambda e: e.value)
def test_a_packet_of_the_page_is_what_the_codec_makes(example: Example) -> None:
    packet = built(example.value, version1)
    encode: Any
    decode: Any
    encode, decode = {
        "request": (version1.encode_request, version1.decode_request),
        "response": (version1.encode_response, version1.decode_response),
    }[example.side]
    assert encode(packet).hex(" ") == example.data.hex(" ")
    assert decode(example.data) == (packet, len(example.data))


@pytest.mark.parametrize("example", examples("frame"), ids=lambda e: f"{e.side} {e.number}")
def test_a_frame_of_the_page_is_what_the_codec_makes(example: Example) -> None:
    message = built(example.value, version2)
    encode: Any
    decode: Any
    encode, decode = {
        "request": (version2.encode_request, version2.decode_request),
        "answer": (version2.encode_answer, version2.decode_answer),
    }[example.side]
    assert encode(message, example.number).hex(" ") == example.data.hex(" ")
    [(kind, number, body)] = frames.FrameReader().receive(example.data)
    assert number == example.number
    assert decode(kind, body) == message


def test_the_page_shows_every_kind_of_frame_and_has_no_block_that_is_not_checked() -> None:
    assert {example.data[4] for example in examples("frame")} == set(version2.Kind)
    assert {name for name, _ in BLOCK.findall(PAGE)} == {"packets", "frame"}
    assert PAGE.count("```") == 2 * len(BLOCK.findall(PAGE))


def test_the_page_has_the_type_of_every_request_and_answer() -> None:
    for kind in version2.Kind:
        letter, code = chr(kind), f"{kind:02X}"
        shown = f"`{letter}` {code}" if letter.isupper() else f"`{letter}`, {code}"
        assert shown in PAGE or kind is version2.Kind.OK, kind
    assert "6B             type k" in PAGE


def test_the_page_has_every_failure_and_every_limit() -> None:
    for failure in version2.Failure:
        assert f"| {failure.value} | {failure.name} |" in PAGE
    for limit in (
        frames.FRAME_SIZE_MAX,
        version1.PAYLOAD_SIZE_MAX,
        version2.BATCH_MAX,
        version2.MILLISECONDS_MAX,
        model.LEASE_MS_MAX,
        model.LEASE_MS,
    ):
        assert f"{limit:,}" in PAGE
