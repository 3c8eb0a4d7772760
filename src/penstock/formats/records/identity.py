"""The file ``identity.json``: which node a directory belongs to, and to which cluster (docs/formats/records.md).

Canonical JSON and a line feed. The member ``checksum`` is the CRC-32C of the canonical JSON of all other members, as
eight hexadecimal digits. The file is replaced atomically.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.binary import Bytes
from penstock.errors import BadRecord, UnsupportedVersion
from penstock.formats.records.canonical import decode_canonical, encode_canonical
from penstock.formats.records.checksum import crc32c
from penstock.formats.records.settings import CLUSTER_ID_SIZE, Object, ObjectReader
from penstock.model import INT32_MAX

FORMAT: Final = 4
INCARNATION_SIZE: Final = 16
SIZE_MAX: Final = 2**20
"""A reader loads no more than this: thousands of peers fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a directory is. ``incarnation`` is drawn when the directory is made."""

    node: int
    incarnation: bytes
    cluster_id: bytes | None = None  # None until it is known; then no other is accepted
    peers: Mapping[int, Object] = field(default_factory=dict)  # by number, what is known of them
    other: Object = field(default_factory=dict)


def encode_identity(identity: Identity) -> bytes:
    """Return the file of an identity."""
    members: dict[str, Any] = {
        **identity.other,
        "format": FORMAT,
        "node": identity.node,
        "incarnation": identity.incarnation.hex(),
        "peers": {str(number): peer for number, peer in identity.peers.items()},
    }
    if identity.cluster_id is not None:
        members["cluster_id"] = identity.cluster_id.hex()
    members["checksum"] = f"{crc32c(encode_canonical(members)):08x}"
    return encode_canonical(members) + b"\n"


def decode_identity(data: Bytes) -> Identity:
    """Return the identity in a file. Raises ``BadData``: a node that guesses who it is could vote twice."""
    raw = bytes(data)
    if not raw.endswith(b"\n") or len(raw) > SIZE_MAX:
        raise BadRecord("the identity does not end with a line feed", offset=len(raw))
    reader = ObjectReader(decode_canonical(raw[:-1]), "the identity", 0)
    stored = reader.take("checksum", str)
    actual = f"{crc32c(encode_canonical(reader.rest)):08x}"
    if stored != actual:
        raise BadRecord(
            "checksum of the identity does not match", offset=0, expected=actual, found=stored
        )
    version = reader.number("format")
    if version != FORMAT:
        raise UnsupportedVersion(
            "unsupported format of a directory", offset=0, expected=str(FORMAT), found=str(version)
        )
    return Identity(
        node=reader.number("node", INT32_MAX),
        incarnation=reader.hexadecimal("incarnation", INCARNATION_SIZE),
        cluster_id=reader.hexadecimal("cluster_id", CLUSTER_ID_SIZE)
        if "cluster_id" in reader.rest
        else None,
        peers=_decode_peers(reader),
        other=reader.rest,
    )


def _decode_peers(reader: ObjectReader) -> dict[int, Object]:
    peers: dict[str, Any] = reader.take("peers", dict)
    for number, peer in peers.items():
        is_number = number.isascii() and number.isdigit() and str(int(number)) == number
        if not is_number or int(number) > INT32_MAX or not isinstance(peer, dict):
            raise reader.bad("peers", "objects by the number of a node")
    return {int(number): peer for number, peer in peers.items()}
