"""What messages say, as columns: body, exchange, routing keys, properties, time.

Nearly all messages have one shape, whose parts a kernel finds; those that have another are decoded one by one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import BadData
from penstock.families import arrow
from penstock.families.rabbitmq.read import decode
from penstock.formats.rabbitmq.message_scan import (
    KEY_HEAD_SIZE,
    MessageColumns,
    Status,
    scan_messages,
)
from penstock.formats.rabbitmq.messages import Message
from penstock.formats.rabbitmq.properties import (
    Properties,
    json_of_block,
    json_of_properties,
    json_of_text,
)

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

SECONDS_MAX: Final = 253_402_300_799
"""The last second of the year 9999, and the last that Spark has a timestamp for."""

_BLOCKS_MAX: Final = 1024
"""Property blocks that are remembered; publishers mostly set the same few."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Address(NamedTuple):
    """Where a message was published to."""

    vhost: bytes | None
    exchange: bytes
    routing_keys: tuple[bytes, ...]


class Block(NamedTuple):
    """What a property block says, or why it cannot be read."""

    fields: dict[str, Any] | None  # a JSON object, as the tools show it
    reason: str | None


@dataclass(slots=True)
class Spans:
    """Stretches of a buffer, one a row; a negative size is nothing."""

    data: NDArray[np.uint8]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]

    def patched(self, others: Mapping[int, bytes]) -> Spans:
        """Return them with other bytes in some rows."""
        import numpy as np

        if not others:
            return self
        rows = np.fromiter(others, np.int64, len(others))
        sizes = np.fromiter(map(len, others.values()), np.int64, len(others))
        offset, size = self.offset.copy(), self.size.copy()
        offset[rows] = len(self.data) + np.cumsum(sizes) - sizes
        size[rows] = sizes
        more = np.frombuffer(b"".join(others.values()), np.uint8)
        return Spans(np.concatenate((self.data, more)), offset, size)

    def column(self, kind: pa.DataType) -> pa.Array:
        return arrow.stretches(self.data, self.offset, self.size, self.size >= 0, kind)


class MessageParts:
    """The messages of some rows, as far as they can be read."""

    def __init__(
        self,
        data: NDArray[np.uint8],
        start: NDArray[np.int64],
        found: MessageColumns,
        decoded: Mapping[int, Message],
    ) -> None:
        """``start`` is where the terms begin; ``decoded`` has those that a kernel could not read."""
        self._data = data
        self._start = start
        self._found = found
        self._decoded = decoded
        self.is_fast: NDArray[np.bool_] = found.status == Status.FAST

    def __len__(self) -> int:
        return len(self._start)

    @cached_property
    def is_read(self) -> NDArray[np.bool_]:
        """Which rows have a message that can be read; its properties may still be damaged."""
        found = self.is_fast.copy()
        found[list(self._decoded)] = True
        return found

    def bodies(self) -> Spans:
        import numpy as np

        size = np.where(self.is_fast, self._found.body_length, -1)
        others = {row: message.content.body for row, message in self._decoded.items()}
        return Spans(self._data, self._found.body_offset, size).patched(others)

    # Where messages were published to.

    @cached_property
    def addresses(self) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Address]]:
        """Which rows have an address, the place of each one's in a list, and the list: few stand for many."""
        import numpy as np
        import pyarrow as pa

        fast = np.flatnonzero(self.is_fast)
        spans = Spans(self._data, self._start[fast], self._found.address_length[fast])
        codes = spans.column(pa.binary()).dictionary_encode().indices.to_numpy().astype(np.int64)
        first = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.int64)
        first[codes[::-1]] = fast[::-1]
        known = [self._address(row) for row in first.tolist()]
        others = [Address(m.vhost, m.exchange, m.routing_keys) for m in self._decoded.values()]
        rows = np.concatenate((fast, np.fromiter(self._decoded, np.int64, len(self._decoded))))
        return rows, np.concatenate((codes, len(known) + np.arange(len(others)))), known + others

    def _address(self, row: int) -> Address:
        found, data = self._found, self._data
        position = int(found.keys_offset[row])
        keys = []
        for _ in range(int(found.key_count[row])):
            size = int.from_bytes(data[position - 4 : position].tobytes(), "big")
            keys.append(data[position : position + size].tobytes())
            position += size + KEY_HEAD_SIZE
        return Address(
            _bytes(data, found.vhost_offset[row], found.vhost_length[row]),
            _bytes(data, found.exchange_offset[row], found.exchange_length[row]),
            tuple(keys),
        )

    # Properties.

    @cached_property
    def _blocks(self) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Block]]:
        """Which rows have properties, the place of each one's in a list, and the list: few stand for many."""
        import numpy as np
        import pyarrow as pa

        fast = np.flatnonzero(self.is_fast)
        found = self._found
        spans = Spans(self._data, found.properties_offset[fast], found.properties_length[fast])
        encoded = spans.column(pa.binary()).dictionary_encode()
        known = [block_of(block) for block in encoded.dictionary.to_pylist()]
        others = [_stored_block(m.content.stored_properties) for m in self._decoded.values()]
        rows = np.concatenate((fast, np.fromiter(self._decoded, np.int64, len(self._decoded))))
        codes = encoded.indices.to_numpy().astype(np.int64)
        return rows, np.concatenate((codes, len(known) + np.arange(len(others)))), known + others

    def _of_blocks(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """Return a value of each row's block as a column; null where there is no message."""
        import numpy as np
        import pyarrow as pa

        rows, places, _ = self._blocks
        by_row = np.full(len(self), len(values), dtype=np.int64)
        by_row[rows] = places
        return pa.array([*values, None], kind).take(pa.array(by_row))

    def property_reasons(self) -> dict[int, str]:
        """Return why properties cannot be read, by row."""
        rows, places, blocks = self._blocks
        reasons = {
            row: blocks[place].reason
            for row, place in zip(rows.tolist(), places.tolist(), strict=True)
        }
        return {row: reason for row, reason in reasons.items() if reason is not None}

    def properties(self) -> pa.Array:
        """Return the properties as JSON; null where there is no message, or none that has any."""
        import pyarrow as pa

        texts = [None if each.fields is None else _encode(each.fields) for each in self._blocks[2]]
        return self._of_blocks(texts, pa.string())

    def times(self) -> pa.Array:
        """Return the timestamps that publishers set."""
        import pyarrow as pa

        seconds = [(each.fields or {}).get("timestamp") for each in self._blocks[2]]
        micros = [None if s is None or s > SECONDS_MAX else s * 1_000_000 for s in seconds]
        return self._of_blocks(micros, pa.timestamp("us", tz="UTC"))


class ScannedMessages(MessageParts):
    """Messages as they stand in a file: some may be none."""

    def __init__(
        self,
        data: NDArray[np.uint8],
        start: NDArray[np.int64],
        length: NDArray[np.int64],
        is_raw: NDArray[np.bool_],
    ) -> None:
        """A length of 0 is no message; those that are ``raw`` are not looked into."""
        import numpy as np

        readable = np.where(is_raw, 0, length)
        found = scan_messages(data, start, readable)
        self._length = length
        # What is wrong with a row's message, where something is: status and reason.
        self.faults: dict[int, tuple[str, str]] = {}
        decoded = {}
        for row in np.flatnonzero((found.status != Status.FAST) & (readable > 0)).tolist():
            term = _bytes(data, start[row], length[row])
            message = decode(term, partial(self._note, row))
            if message is not None:
                decoded[row] = message
        super().__init__(data, start, found, decoded)

    def _note(self, row: int, status: str, reason: str) -> None:
        self.faults[row] = status, reason

    def bodies_or_terms(self) -> Spans:
        """Return the bodies; of a message that cannot be read, its bytes as they stand."""
        import numpy as np

        spans = self.bodies()
        is_raw = (self._length > 0) & ~self.is_read
        return Spans(
            spans.data,
            np.where(is_raw, self._start, spans.offset),
            np.where(is_raw, self._length, spans.size),
        )


def _bytes(data: NDArray[np.uint8], offset: Any, size: Any) -> bytes:
    return data[int(offset) : int(offset) + int(size)].tobytes()


def json_of_name(name: bytes | None) -> str:
    """Return a name as JSON."""
    return "null" if name is None else _encode(json_of_text(name))


def json_of_keys(keys: tuple[bytes, ...]) -> str:
    """Return routing keys as a JSON list."""
    return _encode([json_of_text(key) for key in keys])


def _stored_block(stored: bytes | Properties) -> Block:
    """Return what properties say that a broker stored as a block, or as a term."""
    if not isinstance(stored, Properties):
        return block_of(stored)
    return Block(json_of_properties(stored), None)


@lru_cache(maxsize=_BLOCKS_MAX)
def block_of(block: bytes) -> Block:
    """Return what a property block says."""
    try:
        return Block(json_of_block(block), None)
    except BadData as error:
        return Block(None, f"the properties cannot be read: {error.reason}")
