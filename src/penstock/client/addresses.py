"""Addresses as people write them: ``host:port``, ``host``, ``[::1]:port``, several with commas between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import InvalidValue
from penstock.protocol.version1 import PORT

ADDRESSES_MAX: Final = 64
"""More nodes than any cluster has; a longer list is a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Return the addresses in ``text``, at least one. Raises ``InvalidValue`` with what to write instead."""
    if not isinstance(text, str):
        raise InvalidValue(f'an address is a str such as "localhost:{PORT}", not {text!r}')
    parts = text.split(",")
    if len(parts) > ADDRESSES_MAX:
        raise InvalidValue(f"{len(parts)} addresses; at most {ADDRESSES_MAX} make sense")
    return tuple(_parse(part.strip()) for part in parts)


def _parse(text: str) -> Address:
    if not text:
        raise InvalidValue(f'an address is empty; write "localhost:{PORT}", or "host1,host2"')
    if "/" in text:
        bare = text.rsplit("//", maxsplit=1)[-1].split("/", maxsplit=1)[0]
        raise InvalidValue(f'address "{text}" is a URL; write "{bare or f"localhost:{PORT}"}"')
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not host or (rest and not rest.startswith(":")):
            raise InvalidValue(f'address "{text}" has odd brackets; write "[::1]:{PORT}"')
        return Address(host=host, port=_port(rest[1:], text) if rest else PORT)
    if text.count(":") > 1:
        raise InvalidValue(f'address "{text}" is IPv6 without brackets; write "[{text}]:{PORT}"')
    host, colon, port = text.partition(":")
    if not host or " " in host:
        raise InvalidValue(f'address "{text}" names no host; write "localhost:{port or PORT}"')
    return Address(host=host, port=_port(port, text) if colon else PORT)


def _port(text: str, address: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 65_535:
        return int(text)
    raise InvalidValue(
        f'address "{address}" has a port that is not 1 to 65535; write "host:{PORT}"'
    )
