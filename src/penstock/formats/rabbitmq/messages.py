"""Messages: what stands embedded in an index or in a store file (docs/formats/rabbitmq-messages.md).

One Erlang term a message: a ``basic_message`` up to 3.12, a container from 3.13 on. The body is not
copied here: a decoded message holds views on the bytes that it was decoded from, and keeps them alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.binary import Bytes
from penstock.errors import CorruptData, InvalidValue, UnsupportedVersion
from penstock.formats.rabbitmq.properties import Properties, decode_properties, encode_properties
from penstock.formats.rabbitmq.property_terms import (
    bytes_of_term,
    properties_of_term,
    term_of_properties,
)
from penstock.formats.rabbitmq.terms import (
    FALSE,
    TRUE,
    Atom,
    AtomEncoding,
    ErlangTerm,
    Map,
    decode_term,
    encode_term,
)

ID_SIZE: Final = 16
BASIC_CLASS: Final = 60  # the only class of AMQP 0-9-1 that has content

EMBED_BELOW: Final = 4096
"""Bytes from which on a broker moves a message from the index to the store, unless told otherwise."""

HEADER_ESTIMATE: Final = 100
"""Bytes that a broker reckons for a header of which it has no bytes at hand."""

NONE: Final = Atom("none")
PROTOCOL: Final = Atom("rabbit_framing_amqp_0_9_1")
# Version 0-8 has the same property block. A broker forgets the protocol with the bytes of the block.
PROTOCOLS: Final = (PROTOCOL, Atom("rabbit_framing_amqp_0_8"), NONE)
LEGACY_CONTAINER: Final = Atom("mc_amqpl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Properties and body. Properties are a block as published, or what a broker made of them."""

    stored_properties: bytes | Properties
    fragments: tuple[Bytes, ...]  # the body in the order of its frames
    protocol: Atom = PROTOCOL

    @property
    def properties(self) -> Properties:
        """The properties. Raises ``BadData`` when the block is damaged; the body is then still good."""
        if isinstance(self.stored_properties, Properties):
            return self.stored_properties
        return decode_properties(self.stored_properties)

    @property
    def property_block(self) -> bytes:
        """The bytes of the properties as they go to a consumer."""
        if isinstance(self.stored_properties, Properties):
            return encode_properties(self.stored_properties)
        return self.stored_properties

    @property
    def body_size(self) -> int:
        return sum(map(len, self.fragments))

    @property
    def body(self) -> bytes:
        """The body in one piece: a copy unless it is one fragment of ``bytes``."""
        return b"".join(self.fragments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as it was routed to queues."""

    vhost: bytes | None  # None in a container, which does not say
    exchange: bytes
    routing_keys: tuple[bytes, ...]  # the publisher's first, then those of CC and BCC
    content: Content
    id: bytes | None  # the 16 bytes that index and store know it by; a container may lack them
    is_persistent: bool
    annotations: Map | None = None  # of a container, all of them; None in a ``basic_message``

    def __post_init__(self) -> None:
        if self.id is not None and len(self.id) != ID_SIZE:
            raise InvalidValue(f"a message id has {ID_SIZE} bytes")


def is_embedded(content: Content, *, below: int) -> bool:
    """Return whether a broker puts such a message into the index rather than into the store."""
    if isinstance(content.stored_properties, Properties):
        size = HEADER_ESTIMATE * len(content.stored_properties.headers or ())
    else:
        size = len(content.stored_properties)
    return content.body_size + size < below


# --- decoding ------------------------------------------------------------------------------------


def decode_message(data: Bytes) -> Message:
    """Return the message in a whole term. Raises ``BadData``.

    ``UnsupportedVersion`` is for a container whose content is of another protocol than AMQP 0-9-1.
    A property block is not looked into: damage in it shows when ``Content.properties`` is asked for.
    """
    term = decode_term(data, views=True)
    try:
        match term:
            case tuple((Atom("basic_message"), source, keys, content, id_, flag)):
                vhost, exchange = _resource(source)
                return Message(
                    vhost=vhost,
                    exchange=exchange,
                    routing_keys=_routing_keys(keys),
                    content=_content(content),
                    id=bytes_of_term(id_, "a message id"),
                    is_persistent=_flag(flag),
                )
            case tuple((Atom("mc"), Atom() as protocol, content, Map() as annotations)):
                return _container(protocol, content, annotations)
    except InvalidValue as error:
        raise CorruptData(str(error)) from None
    raise CorruptData("the term is no message", expected="basic_message of 6 elements or mc of 4")


def _container(protocol: Atom, content: ErlangTerm, annotations: Map) -> Message:
    if protocol != LEGACY_CONTAINER:
        raise UnsupportedVersion(
            "a container of another protocol",
            expected=LEGACY_CONTAINER.name,
            found=protocol.name,
        )
    exchange = annotations.get("x")
    keys = annotations.get("rk")
    id_ = annotations.get("id")
    flag = annotations.get("d")
    return Message(
        vhost=None,
        exchange=b"" if exchange is None else bytes_of_term(exchange, "an exchange"),
        routing_keys=() if keys is None else _routing_keys(keys),
        content=_content(content),
        id=None if id_ is None else bytes_of_term(id_, "a message id"),
        is_persistent=flag is None or _flag(flag),  # only a transient message says so
        annotations=annotations,
    )


def _resource(term: ErlangTerm) -> tuple[bytes, bytes]:
    match term:
        case tuple((Atom("resource"), vhost, Atom("exchange"), name)):
            return bytes_of_term(vhost, "a vhost"), bytes_of_term(name, "an exchange")
    raise CorruptData("a message's exchange is no resource")


def _routing_keys(term: ErlangTerm) -> tuple[bytes, ...]:
    if not isinstance(term, list):
        raise CorruptData("the routing keys are no list")
    return tuple(bytes_of_term(key, "a routing key") for key in term)


def _flag(term: ErlangTerm) -> bool:
    if term == TRUE or term == FALSE:
        return term == TRUE
    raise CorruptData("a message's persistence is neither true nor false")


def _content(term: ErlangTerm) -> Content:
    match term:
        case tuple((Atom("content"), 60, decoded, block, Atom() as protocol, list() as fragments)):
            if protocol not in PROTOCOLS:
                raise UnsupportedVersion("content of another protocol", found=protocol.name)
            return Content(
                # Where both are there the one was made of the other; the block is the original.
                stored_properties=(
                    properties_of_term(decoded)
                    if block == NONE
                    else bytes_of_term(block, "the property block")
                ),
                fragments=tuple(_fragment(fragment) for fragment in reversed(fragments)),
                protocol=protocol,
            )
    raise CorruptData("a message's content is none of class 60")


def _fragment(term: ErlangTerm) -> Bytes:
    if isinstance(term, bytes | bytearray | memoryview):
        return term
    raise CorruptData("a part of a body is no binary")


# --- encoding ------------------------------------------------------------------------------------


def encode_message(message: Message, *, atoms: AtomEncoding = AtomEncoding.LATIN_1) -> bytes:
    """Return the term of a message. A container is written with the annotations that it has."""
    content = _term_of_content(message.content)
    if message.annotations is not None:
        return encode_term(
            (Atom("mc"), LEGACY_CONTAINER, content, message.annotations), atoms=atoms
        )
    assert message.vhost is not None, "a basic_message names its vhost"
    assert message.id is not None, "a basic_message has an id"
    return encode_term(
        (
            Atom("basic_message"),
            (Atom("resource"), message.vhost, Atom("exchange"), message.exchange),
            list(message.routing_keys),
            content,
            message.id,
            TRUE if message.is_persistent else FALSE,
        ),
        atoms=atoms,
    )


def _term_of_content(content: Content) -> ErlangTerm:
    decoded: ErlangTerm = NONE
    block: ErlangTerm = NONE
    if isinstance(content.stored_properties, Properties):
        decoded = term_of_properties(content.stored_properties)
    else:
        block = content.stored_properties
    fragments: list[ErlangTerm] = list(reversed(content.fragments))
    return (Atom("content"), BASIC_CLASS, decoded, block, content.protocol, fragments)
