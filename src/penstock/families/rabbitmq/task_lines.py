"""Messages as lines of JSON in bulk: byte for byte what ``emit(task_row(...))`` prints, many at a time.

A kernel puts the lines together from what the columns hold and from text that is made once for many messages: what
tells queue, exchange and keys, and properties that are not plain. What ``task_row`` tells is told here too.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import BadData
from penstock.families.rabbitmq.columns import Messages
from penstock.families.rabbitmq.location import Queue, Vhost
from penstock.families.rabbitmq.rows import vhost_name
from penstock.families.rabbitmq.trouble import Tell, Trouble
from penstock.formats.kernel import compiled
from penstock.formats.rabbitmq.message_scan import routing_keys
from penstock.formats.rabbitmq.properties import (
    Properties,
    decode_properties,
    json_of_properties,
    json_of_text,
)
from penstock.formats.rabbitmq.property_text import property_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# As the command line writes rows: without spaces, in ASCII.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def task_lines(vhost: Vhost, queue: Queue, messages: Messages, tell: Tell) -> memoryview:
    """Return the lines of messages of a queue; tell whose properties cannot be read."""
    import numpy as np

    texts = _texts(vhost, queue, messages, tell)
    parts = messages.parts
    numbers = np.stack(
        (
            messages.sequence,
            messages.is_persistent.astype(np.int64),
            messages.delivered.astype(np.int64),
            (messages.expiry_us // 10).astype(np.int64),  # without its last digit it has a sign
            (messages.expiry_us % 10).astype(np.int64),
        )
    )
    middle = f',"key":{-queue.priority},"persistent":'.encode()
    words = np.frombuffer(_WORDS + middle, dtype=np.uint8)
    spans = np.concatenate((texts.spans, [parts.body_offset, parts.body_length]))
    sizes = spans[1::2].sum() + (len(words) + _ROOM_OF_LINE) * len(messages)
    out = np.empty(int(sizes + (parts.body_length // 3).sum()), dtype=np.uint8)
    used = compiled(_line_kernel)(messages.data, texts.text, words, numbers, spans, out)
    return out[: int(used)].data


# --- text that is made one by one ----------------------------------------------------------------


class _Texts(NamedTuple):
    """Text, and where in it each message has what comes before its number, behind it, and its properties."""

    text: NDArray[np.uint8]
    spans: NDArray[np.int64]  # offset and length, three times


class _Pieces:
    """Pieces of text that are put one behind the other."""

    def __init__(self, base: int) -> None:
        self._parts: list[bytes] = []
        self._end = base

    def put(self, piece: bytes) -> tuple[int, int]:
        """Return where the piece is, and its length."""
        self._parts.append(piece)
        self._end += len(piece)
        return self._end - len(piece), len(piece)

    def join(self) -> bytes:
        return b"".join(self._parts)


def _texts(vhost: Vhost, queue: Queue, messages: Messages, tell: Tell) -> _Texts:
    import numpy as np

    parts = messages.parts
    plain = property_text(messages.data, parts.properties_offset, parts.properties_length)
    if messages.decoded:
        plain.length[list(messages.decoded)] = -1  # their block may be one that we made
    pieces = _Pieces(len(plain.text))
    spans = np.empty((6, len(messages)), dtype=np.int64)
    runs = _runs(messages)
    by_address: dict[bytes, tuple[int, int, int, int]] = {}
    of_runs = np.array(
        [_address_spans(vhost, queue, messages, row, by_address, pieces) for row in runs.tolist()],
        dtype=np.int64,
    )
    lengths = np.diff(np.append(runs, len(messages)))
    spans[:4] = np.repeat(of_runs, lengths, axis=0).T
    spans[4], spans[5] = plain.offset, plain.length
    for row in np.flatnonzero(plain.length < 0).tolist():
        text, reason = _property_text(messages, row)
        spans[4, row], spans[5, row] = pieces.put(text)
        if reason is not None:
            tell(_bad_properties(messages, row, reason))
    others = np.frombuffer(pieces.join(), dtype=np.uint8)
    return _Texts(np.concatenate((plain.text, others)), spans)


def _runs(messages: Messages) -> NDArray[np.int64]:
    """Return the rows that have another address than the row before; queues mostly have one."""
    import numpy as np

    is_new = np.ones(len(messages), dtype=bool)
    is_new[1:] = np.diff(messages.parts.address) != 0
    decoded = np.array(list(messages.decoded), dtype=np.int64)
    is_new[decoded] = True  # their address is not known
    is_new[decoded[decoded + 1 < len(messages)] + 1] = True
    return np.flatnonzero(is_new)


def _address_spans(
    vhost: Vhost,
    queue: Queue,
    messages: Messages,
    row: int,
    known: dict[bytes, tuple[int, int, int, int]],
    pieces: _Pieces,
) -> tuple[int, int, int, int]:
    """Return where the text before a message's number is, and that between its expiry and its properties."""
    parts, data = messages.parts, messages.data
    size = int(parts.address_length[row])
    start = int(messages.term_offset[row])
    address = data[start : start + size].tobytes()
    if address in known:
        return known[address]
    name = vhost_name(vhost, queue)
    if name is None and parts.vhost_length[row] >= 0:
        name = _stretch(data, parts.vhost_offset[row], parts.vhost_length[row])
    whose = b"null" if name is None else _text(name)
    head = b'{"vhost":%b,"queue":%b,"seq":' % (whose, _text(queue.label))
    exchange = _text(_stretch(data, parts.exchange_offset[row], parts.exchange_length[row]))
    keys = b",".join(map(_text, routing_keys(data, parts, row)))
    tail = b',"exchange":%b,"routing_keys":[%b],"properties":' % (exchange, keys)
    spans = pieces.put(head) + pieces.put(tail)
    if address:
        known[address] = spans
    return spans


@lru_cache(maxsize=1024)  # Names of queues and exchanges are few, and routing keys mostly are.
def _text(name: bytes) -> bytes:
    """Return a name as JSON."""
    return _encode(json_of_text(name)).encode("ascii")


def _stretch(data: NDArray[np.uint8], offset: int, length: int) -> bytes:
    return data[offset : offset + length].tobytes()


def _property_text(messages: Messages, row: int) -> tuple[bytes, str | None]:
    """Return the text of properties, and why they cannot be read, if they cannot."""
    message = messages.decoded.get(row)
    if message is not None and isinstance(message.content.stored_properties, Properties):
        properties = json_of_properties(message.content.stored_properties)
        return _encode(properties).encode("ascii"), None
    parts = messages.parts
    return _text_of_block(
        _stretch(messages.data, parts.properties_offset[row], parts.properties_length[row])
    )


@lru_cache(maxsize=1024)  # Blocks with headers that are not plain are often all alike.
def _text_of_block(block: bytes) -> tuple[bytes, str | None]:
    try:
        return _encode(json_of_properties(decode_properties(block))).encode("ascii"), None
    except BadData as error:
        return b"null", f"the properties cannot be read: {error.reason}"


def _bad_properties(messages: Messages, row: int, reason: str) -> Trouble:
    path = messages.paths[int(messages.path[row])]
    sequence = int(messages.sequence[row])
    return Trouble(path, int(messages.offset[row]), None, "bad-properties", reason, sequence)


# --- lines ---------------------------------------------------------------------------------------

_WORDS: Final = b'truefalsenull,"delivered":,"expiry_us":,"payload":""}\n'
_ROOM_OF_LINE: Final = 64
"""Bytes of a line beside its texts and the words: two numbers, two of true, false and null, and padding."""

_NOTHING, _TRUE, _FALSE, _NULL = -1, 0, 4, 9
# Where in the words those stand that follow each other in a line; what comes before the first is the queue's.
_DELIVERED, _EXPIRY, _PAYLOAD, _END, _OWN = 13, 26, 39, 51, 54


def _line_kernel(data: Any, texts: Any, words: Any, numbers: Any, spans: Any, out: Any) -> Any:
    """Write a line for each message; return how many bytes that took.

    In six steps: each writes a text if it has one, then words, then a value.
    """
    at = 0
    for row in range(numbers.shape[1]):
        for step in range(6):
            # Steps 0, 4 and 5 have texts: before the sequence number, behind the expiry, the properties.
            text = -1
            first = 0
            last = 0
            number = -1
            word = _NOTHING
            if step == 0:
                text = 0
                number = numbers[0, row]
            elif step == 1:
                first, last = _OWN, len(words)
                word = _TRUE if numbers[1, row] > 0 else _FALSE
            elif step == 2:
                first, last = _DELIVERED, _EXPIRY
                delivered = numbers[2, row]
                word = _TRUE if delivered > 0 else (_FALSE if delivered == 0 else _NULL)
            elif step == 3:
                first, last = _EXPIRY, _PAYLOAD
                number = numbers[3, row]
                if number == 0:
                    number = numbers[4, row]
                    if number == 0:
                        number = -1
                        word = _NULL
            elif step == 4:
                text = 2
            else:
                text = 4
                first, last = _PAYLOAD, _END
            if text >= 0:
                size = spans[text + 1, row]
                # Between two slices the compiler copies many bytes at once.
                source = texts[spans[text, row] : spans[text, row] + size]
                target = out[at : at + size]
                for i in range(size):
                    target[i] = source[i]
                at += size
            source = words[first:last]
            target = out[at : at + last - first]
            for i in range(last - first):
                target[i] = source[i]
            at += last - first
            if word != _NOTHING:
                for i in range(word, word + (5 if word == _FALSE else 4)):
                    out[at] = words[i]
                    at += 1
            if number >= 0:
                digits = 1
                rest = number // 10
                while rest > 0:
                    digits += 1
                    rest //= 10
                rest = number
                for i in range(digits):
                    out[at + digits - 1 - i] = 48 + rest % 10
                    rest //= 10
                at += digits
                if step == 3 and numbers[3, row] > 0:
                    out[at] = 48 + numbers[4, row]
                    at += 1
        # Base64: three bytes become four numbers of six bits, and those become letters. Two plain loops
        # without a table are what the compiler makes the widest instructions of.
        size = spans[7, row]
        whole = size // 3
        body = data[spans[6, row] : spans[6, row] + size]
        target = out[at : at + 4 * ((size + 2) // 3)]
        for i in range(whole):
            a = body[3 * i] * 1
            b = body[3 * i + 1] * 1
            c = body[3 * i + 2] * 1
            target[4 * i] = a >> 2
            target[4 * i + 1] = ((a & 3) << 4) | (b >> 4)
            target[4 * i + 2] = ((b & 15) << 2) | (c >> 6)
            target[4 * i + 3] = c & 63
        left = size - 3 * whole
        if left > 0:
            a = body[3 * whole] * 1
            b = body[3 * whole + 1] * 1 if left == 2 else 0
            target[4 * whole] = a >> 2
            target[4 * whole + 1] = ((a & 3) << 4) | (b >> 4)
            target[4 * whole + 2] = (b & 15) << 2
            target[4 * whole + 3] = 0
        for i in range(len(target)):
            v = target[i] * 1
            letter = v + 65
            if v > 25:
                letter = v + 71
            if v > 51:
                letter = v - 4
            if v == 62:
                letter = 43
            if v == 63:
                letter = 47
            target[i] = letter
        if left > 0:
            target[len(target) - 1] = 61
            if left == 1:
                target[len(target) - 2] = 61
        at += len(target)
        for i in range(_END, _OWN):
            out[at] = words[i]
            at += 1
    return at
