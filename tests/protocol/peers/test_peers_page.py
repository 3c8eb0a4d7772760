"""Every byte that docs/peers.md shows is what the codecs make of the value above it, and the reverse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.model import TERM_MAX
from penstock.protocol.peers import Packet, PacketReader, Type, encode_packet
from penstock.protocol.peers import packets as p
from penstock.server.peers import links, proofs, transfers, transport

PAGE = (Path(__file__).parents[3] / "docs" / "peers.md").read_text()
WORDS = " ".join(PAGE.split())  # whatever the lines are
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"packet: (.*)")
BYTES = re.compile(r"[0-9A-F]{2}(?: [0-9A-F]{2})*")


class Example(NamedTuple):
    value: str
    data: bytes


def examples() -> list[Example]:
    """Return the examples of all blocks: a line with the value, then lines of bytes."""
    found: list[Example] = []
    for name, text in BLOCK.findall(PAGE):
        if name != "packets":
            continue
        for line in text.splitlines():
            head = HEAD.fullmatch(line)
            if head:
                found.append(Example(head[1], b""))
                continue
            assert BYTES.fullmatch(line), f"neither a value nor bytes: {line}"
            found[-1] = found[-1]._replace(data=found[-1].data + bytes.fromhex(line))
    return found


@pytest.mark.parametrize("example", examples(), ids=lambda e: e.value[:40])
def test_a_packet_of_the_page_is_what_the_codec_makes(example: Example) -> None:
    packet: Packet = eval(example.value, dict(vars(p)))
    assert encode_packet(packet).hex(" ") == example.data.hex(" ")
    reader = PacketReader()
    reader.feed(example.data)
    assert reader.next() == packet
    assert reader.held == 0


def test_the_page_shows_every_type_in_its_tables_and_as_bytes() -> None:
    assert {example.data[0] for example in examples()} == set(Type)
    for kind in Type:
        assert f"| `{chr(kind)}` |" in PAGE
    assert {name for name, _ in BLOCK.findall(PAGE)} == {"packets", "text"}


def test_the_page_has_every_limit() -> None:
    for size in (
        p.APPEND_SIZE_MAX,
        p.CHUNK_SIZE_MAX,
        p.CONFIGURATION_SIZE_MAX,
        p.MEMBERS_SIZE_MAX,
    ):
        assert f"{size:,} bytes" in WORDS
    assert f"{p.TEXT_SIZE_MAX} bytes each" in WORDS
    assert f"| handshake | {links.HANDSHAKE_SECONDS:g} s |" in WORDS
    assert f"{transport.UNSENT_MAX // 2**20} MiB | messages are dropped" in WORDS
    assert f"that are not proven | {transport.UNPROVEN_MAX} |" in WORDS
    assert f"| connecting | {transport.CONNECT_SECONDS:g} s |" in WORDS
    retries = transport.RETRY_SECONDS_MIN * 1000, transport.RETRY_SECONDS_MAX
    assert "{:g} ms, doubled up to {:g} s".format(*retries) in WORDS
    assert f"progress for {transfers.RETRY_SECONDS:g} s" in WORDS
    assert f"after {transfers.PATIENCE_SECONDS:g} s it gives up" in WORDS
    assert f"| term | {TERM_MAX:,} |" in WORDS
    assert f"| nonces returned on a link | {proofs.PROOFS_MAX} |" in WORDS
    assert f"most once in {transport.STRANGER_LOG_SECONDS:g} s" in WORDS
    assert f"every {transport.RETRY_SECONDS_MIN * 1000:g} ms" in WORDS
