"""Envelopes: a broker's message as the payload of a task (docs/formats/rabbitmq-envelope.md).

One line of JSON says what the broker knew of the message, and the body follows it byte for byte. JSON
has no newline inside a string, so the first one ends the line. The names are those of the rows that
``penstock tasks`` prints; key and payload are not among them, because the task has both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from penstock.binary import Bytes
from penstock.errors import CorruptData, InvalidValue
from penstock.formats.rabbitmq.properties import (
    Properties,
    json_of_properties,
    json_of_text,
    properties_of_json,
    text_of_json,
)

T = TypeVar("T", int, bool)

SEQUENCE_MAX: Final = 2**62 - 1
EXPIRY_US_MAX: Final = 2**64 - 1

# Made once: json.dumps makes an encoder per call when it is given separators.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a broker knew of a message beside its body; ``None`` is what nobody knows."""

    vhost: bytes | None = None
    queue: bytes | None = None
    sequence: int | None = None  # the place in the queue
    is_persistent: bool | None = None  # as the queue's index says
    is_delivered: bool | None = None
    expiry_us: int | None = None  # since 1970; None also where the message never expires
    exchange: bytes = b""
    routing_keys: tuple[bytes, ...] = ()
    properties: Properties | None = None  # None: they cannot be read

    def __post_init__(self) -> None:
        if self.sequence is not None and not 0 <= self.sequence <= SEQUENCE_MAX:
            raise InvalidValue(f"sequence number {self.sequence} is negative or beyond 62 bits")
        if self.expiry_us is not None and not 1 <= self.expiry_us <= EXPIRY_US_MAX:
            raise InvalidValue(f"expiry {self.expiry_us} is below 1 or beyond 64 bits")


def json_of_envelope(envelope: Envelope) -> dict[str, Any]:
    """Return what an envelope says as a JSON object, in the order of its line."""
    return {
        "vhost": None if envelope.vhost is None else json_of_text(envelope.vhost),
        "queue": None if envelope.queue is None else json_of_text(envelope.queue),
        "seq": envelope.sequence,
        "persistent": envelope.is_persistent,
        "delivered": envelope.is_delivered,
        "expiry_us": envelope.expiry_us,
        **json_of_publication(envelope.exchange, envelope.routing_keys, envelope.properties),
    }


def json_of_publication(
    exchange: bytes, routing_keys: tuple[bytes, ...], properties: Properties | None
) -> dict[str, Any]:
    """Return the part of an envelope that the publisher decided, in the order of its line."""
    return {
        "exchange": json_of_text(exchange),
        "routing_keys": [json_of_text(key) for key in routing_keys],
        "properties": None if properties is None else json_of_properties(properties),
    }


def encode_envelope(envelope: Envelope, *body: Bytes) -> bytes:
    """Return a payload: the line, and behind it the body, given in one piece or in several."""
    return b"".join((_encode(json_of_envelope(envelope)).encode(), b"\n", *body))


def decode_envelope(payload: bytes) -> tuple[Envelope, bytes]:
    """Return what a payload's line says, and the body. Raises ``CorruptData``.

    A name that is missing stands for ``null``; one that we do not know is passed over.
    """
    line, newline, body = payload.partition(b"\n")
    if not newline:
        raise CorruptData("the payload is no envelope: it has no line of JSON before the body")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise CorruptData("the payload is no envelope: its first line is no JSON") from None
    if not isinstance(found, dict):
        raise CorruptData("the payload is no envelope: its first line is no JSON object")
    try:
        return _envelope_of_json(found), body
    except InvalidValue as error:
        raise CorruptData(f"the envelope cannot be: {error}") from None


def _envelope_of_json(found: dict[str, Any]) -> Envelope:
    keys = found.get("routing_keys")
    properties = found.get("properties")
    if not isinstance(keys, list | None):
        raise InvalidValue("the routing keys are no list")
    if not isinstance(properties, dict | None):
        raise InvalidValue("the properties are no object")
    return Envelope(
        vhost=_text(found, "vhost"),
        queue=_text(found, "queue"),
        sequence=_typed(found, "seq", int),
        is_persistent=_typed(found, "persistent", bool),
        is_delivered=_typed(found, "delivered", bool),
        expiry_us=_typed(found, "expiry_us", int),
        exchange=_text(found, "exchange") or b"",
        routing_keys=tuple(text_of_json(key) for key in keys or ()),
        properties=None if properties is None else properties_of_json(properties),
    )


def _text(found: dict[str, Any], name: str) -> bytes | None:
    value = found.get(name)
    return None if value is None else text_of_json(value)


def _typed(found: dict[str, Any], name: str, kind: type[T]) -> T | None:
    value = found.get(name)
    if value is None or type(value) is kind:
        return value
    raise InvalidValue(f"{name} is no {kind.__name__}")
