"""The flags of ``penstock serve`` that place a node in a group, and what they must not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.client.addresses import Address, parse_addresses
from penstock.errors import InvalidValue
from penstock.model import INT32_MAX
from penstock.server.settings import GroupSettings, Settings

ELECTION_MS: Final = 1000
HEARTBEAT_MS: Final = 100

HEARTBEAT_MS_MIN: Final = 10
"""Below this the heartbeats of an idle group would keep its machines busy."""

ELECTION_MS_MAX: Final = 600_000

HEARTBEATS_MIN: Final = 3
"""Heartbeats in an election timeout at least: one that gets lost must not end a leader's term."""

_ANY: Final = ("0.0.0.0", "::")  # noqa: S104 - what is refused


def in_group(
    settings: Settings,
    *,
    node: int | None,
    peers: str | None,
    is_joining: bool,
    advertise: str | None,
    election_ms: int,
    heartbeat_ms: int,
) -> Settings:
    """Return the settings of a node in a group, or as they are for one that is alone. Raises ``InvalidValue``."""
    if peers is None:
        given = {
            "--node": node is not None,
            "--join": is_joining,
            "--advertise": advertise is not None,
            "--election-timeout": election_ms != ELECTION_MS,
            "--heartbeat": heartbeat_ms != HEARTBEAT_MS,
        }
        for flag, is_given in given.items():
            if is_given:
                raise InvalidValue(f"{flag} needs --peers, such as --peers 1=HOST:PORT,2=HOST:PORT")
        return settings
    if node is None:
        raise InvalidValue("--peers needs --node, the number of this node")
    parse_node(str(node))
    places = parse_peers(peers)
    if node not in places:
        raise InvalidValue(
            f"--peers names {_listed(places)} but not node {node}, which is this node; add its address"
        )
    if settings.generation == 2:
        raise InvalidValue("a cluster needs files of generation 3; omit --generation")
    for place in places.values():
        replace(settings, host=place.host).refuse_reachable()
    tick_ms, election_ticks, heartbeat_ticks = _ticks(election_ms, heartbeat_ms)
    group = GroupSettings(
        node=node,
        peers={each: str(place) for each, place in places.items()},
        is_joining=is_joining,
        listen=str(places[node]),
        client_address=_client_address(settings, advertise),
        tick_ms=tick_ms,
        election_ticks=election_ticks,
        heartbeat_ticks=heartbeat_ticks,
    )
    return replace(settings, node=node, group=group)


def parse_peers(text: str) -> dict[int, Address]:
    """Return where nodes hear each other, from ``1=HOST:PORT,2=HOST:PORT``. Raises ``InvalidValue``."""
    places: dict[int, Address] = {}
    for part in text.split(","):
        node, place = parse_peer(part)
        if node in places:
            raise InvalidValue(f"node {node} is listed twice in --peers")
        if place in places.values():
            raise InvalidValue(f"two peers have the address {place}")
        places[node] = place
    return places


def parse_peer(text: str) -> tuple[int, Address]:
    """Return a node's number and place, from ``4=HOST:PORT``. Raises ``InvalidValue``."""
    number, equals, place = text.strip().partition("=")
    if not equals:
        raise InvalidValue(f"{text.strip()!r} is not a peer; write NUMBER=HOST:PORT")
    addresses = parse_addresses(place)
    if len(addresses) != 1:
        raise InvalidValue(f"{text.strip()!r} has more than one address; write NUMBER=HOST:PORT")
    address = addresses[0]
    if not _has_port(place, address):
        raise InvalidValue(f"peer {text.strip()!r} needs a port; write {number}={place}:2702")
    return parse_node(number), address


def _has_port(text: str, address: Address) -> bool:
    return text.strip().endswith(f":{address.port}")


def parse_node(text: str) -> int:
    """Return a node's number. Raises ``InvalidValue``."""
    if text.isascii() and text.isdigit() and 1 <= int(text) <= INT32_MAX:
        return int(text)
    raise InvalidValue(f"nodes are numbered from 1 to {INT32_MAX}, not {text!r}")


def _ticks(election_ms: int, heartbeat_ms: int) -> tuple[int, int, int]:
    """Return the milliseconds of a tick, and both times in ticks: ten to an election or more, so that two draw apart."""
    if not heartbeat_ms >= HEARTBEAT_MS_MIN:
        raise InvalidValue(f"--heartbeat is {HEARTBEAT_MS_MIN} ms or more")
    if not HEARTBEATS_MIN * heartbeat_ms <= election_ms <= ELECTION_MS_MAX:
        raise InvalidValue(
            f"--election-timeout is {HEARTBEATS_MIN} heartbeats or more, here"
            f" {HEARTBEATS_MIN * heartbeat_ms} to {ELECTION_MS_MAX} ms"
        )
    tick_ms = max(1, min(heartbeat_ms, election_ms // 10))
    return tick_ms, -(-election_ms // tick_ms), max(1, heartbeat_ms // tick_ms)


def _client_address(settings: Settings, advertise: str | None) -> str:
    """Return the address that clients of other nodes are sent to."""
    if advertise is not None:
        addresses = parse_addresses(advertise)
        # Without a port, clients would be sent to 2602, wherever this node listens.
        if len(addresses) != 1 or not _has_port(advertise, addresses[0]):
            raise InvalidValue("--advertise takes one address, HOST:PORT")
        return str(addresses[0])
    if settings.host in _ANY or settings.port == 0:
        raise InvalidValue(
            "other nodes must be able to send clients to this node: give --listen a host and a port,"
            " or add --advertise HOST:PORT"
        )
    return str(Address(host=settings.host, port=settings.port))


def _listed(places: Mapping[int, Address]) -> str:
    return ", ".join(str(node) for node in sorted(places))
