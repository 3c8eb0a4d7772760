"""Property blocks as JSON text in bulk: what ``json_of_properties`` gives, written by a kernel.

The kernel knows the properties and headers that need no thought: numbers, booleans, and text in ASCII that JSON
shows as it is. A block with anything else (nested tables, floats, other letters, damage) is left to
``decode_properties`` (a property test holds the two together; docs/formats/rabbitmq-messages.md, "In bulk").
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.formats.kernel import bulk, compiled
from penstock.formats.rabbitmq.properties import NAMES, Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PLAIN_SIZE_MAX: Final = 4096
"""Bytes of a block that is looked at here; it bounds the room for text, which may be much longer."""

_ROOM_OF_BLOCK: Final = 512  # the names of all properties and their largest numbers
_ROOM_OF_BYTE: Final = 24  # a header without a name or a value takes 2 bytes, and 40 as text


class PropertyText(NamedTuple):
    """The text of blocks, where it stands in ``text``; a length of -1 is a block that is not plain."""

    text: NDArray[np.uint8]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]


def property_text(
    data: NDArray[np.uint8],
    offset: NDArray[np.int64],
    length: NDArray[np.int64],
    *,
    interpreted: bool = False,
) -> PropertyText:
    """Return the JSON text of the property blocks that stand there, without spaces and in ASCII.

    Needs numpy and numba, which the ``spark`` extra brings; ``interpreted`` does without numba.
    """
    with bulk():
        import numpy as np

    looked_at = np.minimum(length, PLAIN_SIZE_MAX)
    text = np.empty(int((_ROOM_OF_BLOCK + _ROOM_OF_BYTE * looked_at).sum()), dtype=np.uint8)
    spans = np.empty((2, len(offset)), dtype=np.int64)
    words, properties, headers = _tables()
    if interpreted:
        used = _text_kernel(
            data.tobytes(), offset, length, words.tobytes(), properties, headers, text, spans
        )
    else:
        used = compiled(_text_kernel)(data, offset, length, words, properties, headers, text, spans)
    return PropertyText(text[: int(used)], spans[0], spans[1])


# --- what the kernel knows -----------------------------------------------------------------------

_OTHER, _TEXT, _UNSIGNED, _SIGNED, _BOOLEAN, _VOID, _TABLE = range(-1, 6)
_SIGNED_KINDS: Final = (Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64)
_WORDS: Final = b'truefalsenull{"name":"'


@cache
def _tables() -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Return words, and what is to be known of each property and of each byte that is a header's type.

    That is: where the words stand that come before its value, how many, what the value is, and its width
    (of text, that of its length).
    """
    import numpy as np

    words = bytearray(_WORDS)
    properties = np.zeros((len(NAMES), 4), dtype=np.int64)
    for place, name in enumerate(NAMES):
        form, width = {
            "headers": (_TABLE, 4),
            "delivery_mode": (_UNSIGNED, 1),
            "priority": (_UNSIGNED, 1),
            "timestamp": (_UNSIGNED, 8),
        }.get(name, (_TEXT, 1))
        label = f'"{name}":'.encode()
        properties[place] = len(words), len(label), form, width
        words += label
    headers = np.full((256, 4), _OTHER, dtype=np.int64)
    for kind in Kind:
        form, width = _form(kind)
        label = f'","type":"{kind.label}","value":'.encode()
        headers[kind.code] = len(words), len(label), form, width
        words += label
    headers[ord("L")] = headers[Kind.INT64.code]
    return np.frombuffer(bytes(words), dtype=np.uint8), properties, headers


def _form(kind: Kind) -> tuple[int, int]:
    match kind:
        case Kind.TEXT:
            return _TEXT, 4
        case Kind.VOID:
            return _VOID, 0
        case Kind.BINARY | Kind.FLOAT | Kind.DOUBLE | Kind.DECIMAL | Kind.TABLE | Kind.ARRAY:
            return _OTHER, 0
    assert kind.form is not None, "what is left are numbers"
    if kind is Kind.BOOLEAN:
        return _BOOLEAN, 1
    return (_SIGNED if kind in _SIGNED_KINDS else _UNSIGNED), kind.form.size


def _text_kernel(
    data: Any,
    offset: Any,
    length: Any,
    words: Any,
    properties: Any,
    headers: Any,
    text: Any,
    spans: Any,
) -> Any:
    """Write the text of each block into ``text``; return how much of it is used.

    One loop, in which an item is a property, or a header while ``is_table``. Bytes are multiplied, not
    shifted, into integers: a shifted byte is unsigned to numba, and mixing the signs makes it a float.
    """
    used = 0
    for row in range(len(offset)):
        at = used
        position = offset[row]
        end = position + length[row]
        good = length[row] >= 2 and length[row] <= PLAIN_SIZE_MAX
        flags = data[position] * 0x100 + data[position + 1] if good else 0
        position += 2
        text[at] = 123  # {
        at += 1
        place = 0
        is_table = False
        is_first = True  # of a table
        table_end = end
        while good:
            limit = table_end if is_table else end
            if is_table and position == table_end:
                text[at] = 93  # ]
                at += 1
                is_table = False
                continue
            word, word_length, form, width = 0, 0, _OTHER, 0
            if is_table:
                if not is_first:
                    text[at] = 44  # ,
                    at += 1
                is_first = False
                name_length = data[position] * 1
                position += 1
                good = position + name_length + 1 <= limit
                if not good:
                    break
                for i in range(9):
                    text[at + i] = words[13 + i]
                at += 9
                for i in range(position, position + name_length):
                    letter = data[i]
                    if letter < 32 or letter > 126 or letter == 34 or letter == 92:
                        good = False
                    text[at] = letter
                    at += 1
                position += name_length
                code = data[position]
                position += 1
                word = headers[code, 0]
                word_length = headers[code, 1]
                form = headers[code, 2]
                width = headers[code, 3]
            else:
                while place < len(properties) and (flags >> (15 - place)) % 2 == 0:
                    place += 1
                if place == len(properties):
                    break
                if text[at - 1] != 123:
                    text[at] = 44
                    at += 1
                word = properties[place, 0]
                word_length = properties[place, 1]
                form = properties[place, 2]
                width = properties[place, 3]
                place += 1
            good = good and form != _OTHER and position + width <= limit
            if not good:
                break
            # Between two slices the compiler copies many bytes at once, as it would not between sums of indexes.
            source = words[word : word + word_length]
            target = text[at : at + word_length]
            for i in range(word_length):
                target[i] = source[i]
            at += word_length
            # The number that is the value, or the length of what is.
            high = 0
            low = 0
            for i in range(position, position + width):
                high = high * 0x100 + low // 0x1000000
                low = low % 0x1000000 * 0x100 + data[i]
            position += width
            if form == _TABLE:
                table_end = position + low
                good = table_end <= end
                text[at] = 91  # [
                at += 1
                is_table = True
                is_first = True
                continue
            if form == _TEXT:
                good = position + low <= limit
                text[at] = 34  # "
                at += 1
                for i in range(position, position + low if good else position):
                    letter = data[i]
                    if letter < 32 or letter > 126 or letter == 34 or letter == 92:
                        good = False
                    text[at] = letter
                    at += 1
                position += low
                text[at] = 34
                at += 1
            elif form == _BOOLEAN or form == _VOID:
                first, last = 9, 13
                if form == _BOOLEAN and low != 0:
                    first, last = 0, 4
                elif form == _BOOLEAN:
                    first, last = 4, 9
                for i in range(first, last):
                    text[at] = words[i]
                    at += 1
            else:
                if form == _SIGNED and width == 8 and high >= 0x80000000:
                    high -= 0x100000000
                elif high >= 0x80000000:
                    good = False  # a time that no clock shows, and no signed number holds
                    break
                value = high * 0x100000000 + low
                if form == _SIGNED and width < 8 and low >= 1 << (8 * width - 1):
                    value = low - (1 << (8 * width))
                if high == -0x80000000 and low == 0:
                    good = False  # its magnitude is no signed number either
                    break
                if value < 0:
                    text[at] = 45  # -
                    at += 1
                    value = -value
                digits = 1
                rest = value // 10
                while rest > 0:
                    digits += 1
                    rest //= 10
                for i in range(digits):
                    text[at + digits - 1 - i] = 48 + value % 10
                    value //= 10
                at += digits
            if is_table:
                text[at] = 125  # }
                at += 1
        spans[0, row] = used
        if good and position == end:
            text[at] = 125
            spans[1, row] = at + 1 - used
            used = at + 1
        else:
            spans[1, row] = -1
    return used
