"""Events as lines of JSON in bulk: byte for byte what ``emit(task_row(...))`` prints, many at a time.

A kernel turns events in CBOR, as Beats and spools of ours write them, into text. Whatever is not plain it leaves to the
decoder: tags, lengths that are not told, text that is not UTF-8, numbers of more than 64 bits or 15 digits, a key that
comes twice, and what is no event.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import ldexp
from typing import TYPE_CHECKING, Any, Final

from penstock.formats.beats.frame import Frame
from penstock.formats.beats.frame_scan import FrameColumns
from penstock.formats.kernel import compiled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# As the command line writes rows: without spaces, in ASCII.
_encode = json.JSONEncoder(separators=(",", ":")).encode

Line = Callable[[Frame], bytes]
"""Makes the line of a frame that is not plain; empty if it is not asked for."""

TEXT_OF_BYTE: Final = 14
"""Characters that a byte of CBOR can become: an empty string of bytes is ``{"base64":""}`` and a comma."""

_ROOM_OF_LINE: Final = 512
"""Characters of a line beside the event, its payload and the name of a queue."""

_DEPTH: Final = 16
_KEYS: Final = 64
"""Maps within each other, and keys of a map, that the kernel follows; events have fewer."""


class LineMaker:
    """Makes lines of the frames of one segment."""

    def __init__(self, *, segment: int, otherwise: str, queue: str | None, line: Line) -> None:
        """``otherwise`` is the queue of events that name none; ``queue`` leaves out those of all others."""
        import numpy as np

        parts = [text.encode("ascii") for text in _words(segment, _encode(otherwise))]
        self._words = np.frombuffer(b"".join(parts), dtype=np.uint8)
        self._marks = np.cumsum([0, *map(len, parts)])
        wanted = b"" if queue is None else queue.encode("utf-8", "surrogateescape")
        # A name of no bytes would give an array that nothing may be read from.
        self._wanted = np.frombuffer(wanted + b"\0", dtype=np.uint8)
        self._asked = np.array([queue is not None, queue == otherwise, len(wanted)], dtype=np.int64)
        self._stack = np.zeros((_DEPTH + 1, 4), dtype=np.int64)
        self._keys = np.zeros((_DEPTH + 1, _KEYS, 2), dtype=np.int64)
        self._line = line

    def lines(self, columns: FrameColumns) -> NDArray[np.uint8]:
        """Return the lines of frames that are all good."""
        import numpy as np

        rows = np.stack(
            (columns.offset, columns.index, columns.payload_start, columns.payload_size)
        )
        sizes = columns.payload_size
        room = _ROOM_OF_LINE + len(self._words)
        scratch = np.empty(TEXT_OF_BYTE * int(sizes.max()) + room, dtype=np.uint8)
        size = int(sizes.sum()) * (TEXT_OF_BYTE + 2) + len(columns) * room
        out = np.empty(size, dtype=np.uint8)
        # Numba compiles a kernel for arrays that can be written, and once more for those that cannot.
        data = columns.data.view()
        data.flags.writeable = False
        kernel = compiled(_line_kernel)
        row, at = 0, 0
        while True:
            row, at = kernel(
                data, rows, row, at, self._words, self._marks, self._wanted, self._asked,
                self._stack, self._keys, scratch, out,
            )  # fmt: skip
            if row == len(columns):
                return out[:at]
            line = np.frombuffer(self._line(_frame(columns, row)), dtype=np.uint8)
            if at + len(line) > len(out):
                out = np.concatenate((out, np.empty(len(line), dtype=np.uint8)))
            out[at : at + len(line)] = line
            row, at = row + 1, at + len(line)


def line_of(row: dict[str, Any]) -> bytes:
    """Return a row as it is printed."""
    return (_encode(row) + "\n").encode("ascii")


def _frame(columns: FrameColumns, row: int) -> Frame:
    start, size = int(columns.payload_start[row]), int(columns.payload_size[row])
    payload = columns.data[start : start + size].tobytes()
    return Frame(
        int(columns.offset[row]), int(columns.size[row]), int(columns.index[row]), payload, None
    )


def _words(segment: int, otherwise: str) -> list[str]:
    """Return the text of lines, and the keys that mean something; the kernel knows them by number."""
    line = ['{"queue":', ',"key":', f',"segment":{segment},"offset":', ',"seq":', ',"event":']
    line += [',"payload":"', '"}\n', otherwise, '{"base64":"', "false", "true", "null", "null"]
    return [
        *line,
        "timestamp",
        "flags",
        "meta",
        "fields",
        *["queue", "key", "delay_ms", "ttl_ms"],
        "payload",
    ]


# The first seven are those of a line, in their order.
_OTHERWISE, _BASE64, _FALSE, _TIMESTAMP, _META_QUEUE, _FIELDS_PAYLOAD = 7, 8, 9, 13, 17, 21
_UINT32_MAX: Final = 2**32 - 1
_INT64_MAX: Final = 2**63 - 1


def _line_kernel(
    data: Any, rows: Any, row: Any, at: Any, words: Any, marks: Any, wanted: Any, asked: Any,
    stack: Any, keys: Any, scratch: Any, out: Any,
) -> Any:  # fmt: skip
    """Write a line for each frame from ``row`` on; return the first that is not plain, or their number, and ``at``.

    A row of ``stack`` is a list or a map that is open: items or pairs left, whether it is a map, whether a key comes
    next, and how many came. The event is written to ``scratch`` first, for it tells what stands before it.
    """

    def put_number(number: Any, width: Any, target: Any, place: Any) -> Any:
        digits = 1
        rest = number // 10
        while rest > 0 or digits < width:
            digits += 1
            rest //= 10
        rest = number
        for i in range(digits):
            target[place + digits - 1 - i] = 48 + rest % 10
            rest //= 10
        return place + digits

    def put_base64(source: Any, start: Any, size: Any, target: Any, place: Any) -> Any:
        # Three bytes become four numbers of six bits, and those become letters. Two plain loops without a
        # table are what the compiler makes the widest instructions of.
        whole = size // 3
        left = size - 3 * whole
        body = source[start : start + size]
        text = target[place : place + 4 * ((size + 2) // 3)]
        for i in range(whole):
            a = body[3 * i] * 1
            b = body[3 * i + 1] * 1
            c = body[3 * i + 2] * 1
            text[4 * i] = a >> 2
            text[4 * i + 1] = ((a & 3) << 4) | (b >> 4)
            text[4 * i + 2] = ((b & 15) << 2) | (c >> 6)
            text[4 * i + 3] = c & 63
        if left > 0:
            a = body[3 * whole] * 1
            b = body[3 * whole + 1] * 1 if left == 2 else 0
            text[4 * whole] = a >> 2
            text[4 * whole + 1] = ((a & 3) << 4) | (b >> 4)
            text[4 * whole + 2] = (b & 15) << 2
            text[4 * whole + 3] = 0
        for i in range(len(text)):
            v = text[i] * 1
            letter = v + 65
            if v > 25:
                letter = v + 71
            if v > 51:
                letter = v - 4
            if v == 62:
                letter = 43
            if v == 63:
                letter = 47
            text[i] = letter
        for i in range((3 - left) % 3):
            text[len(text) - 1 - i] = 61
        return place + len(text)

    def put_text(source: Any, start: Any, size: Any, target: Any, place: Any) -> Any:
        """Write a string of JSON; return -1 if it is not UTF-8."""
        target[place] = 34
        place += 1
        i = start
        stop = start + size
        while i < stop:
            code = source[i] * 1
            i += 1
            if code >= 32 and code < 127 and code != 34 and code != 92:
                target[place] = code
                place += 1
                continue
            more = 0
            least = 0
            if code >= 0x80:
                if code >= 0xC2 and code <= 0xDF:
                    more, least, code = 1, 0x80, code - 0xC0
                elif code >= 0xE0 and code <= 0xEF:
                    more, least, code = 2, 0x800, code - 0xE0
                elif code >= 0xF0 and code <= 0xF4:
                    more, least, code = 3, 0x10000, code - 0xF0
                if more == 0 or i + more > stop:
                    place = -1
                    break
                is_bad = False
                for j in range(more):
                    byte = source[i + j] * 1
                    if byte < 0x80 or byte > 0xBF:
                        is_bad = True
                    code = code * 64 + byte - 0x80
                i += more
                if is_bad or code < least or code > 0x10FFFF or (code >= 0xD800 and code < 0xE000):
                    place = -1
                    break
            letter = 0
            if code == 34 or code == 92:
                letter = code
            elif code == 8:
                letter = 98
            elif code == 9:
                letter = 116
            elif code == 10:
                letter = 110
            elif code == 12:
                letter = 102
            elif code == 13:
                letter = 114
            if letter > 0:
                target[place] = 92
                target[place + 1] = letter
                place += 2
                continue
            second = -1
            if code >= 0x10000:
                second = 0xDC00 + (code - 0x10000) % 1024
                code = 0xD800 + (code - 0x10000) // 1024
            while code >= 0:
                target[place] = 92
                target[place + 1] = 117
                for j in range(4):
                    digit = (code >> (12 - 4 * j)) & 15
                    target[place + 2 + j] = digit + (48 if digit < 10 else 87)
                place += 6
                code, second = second, -1
        if place >= 0:
            target[place] = 34
            place += 1
        return place

    def is_word(source: Any, start: Any, size: Any, number: Any) -> Any:
        is_same = size == marks[number + 1] - marks[number]
        if is_same:
            for i in range(size):
                if source[start + i] != words[marks[number] + i]:
                    is_same = False
        return is_same

    count = rows.shape[1]
    while row < count:
        p = rows[2, row]
        end = p + rows[3, row]
        s = 0
        depth = 0
        is_plain = True
        # What makes an event a task: its queue (in the text, and as it stands), its key, its terms, its one field.
        queue_start, queue_end, raw_start, raw_size = -1, -1, 0, 0
        key = 0
        has_key, has_terms, has_payload = False, True, False
        field_count = 0
        while True:
            is_key = False
            if depth > 0:
                is_map = stack[depth, 1] == 1
                is_key = is_map and stack[depth, 2] == 1
                if stack[depth, 0] == 0 and (is_key or not is_map):
                    scratch[s] = 125 if is_map else 93
                    s += 1
                    depth -= 1
                    if depth == 0:
                        break
                    continue
                if is_key or not is_map:
                    if stack[depth, 3] > 0:
                        scratch[s] = 44
                        s += 1
                    stack[depth, 3] += 1
                if not is_key:
                    stack[depth, 0] -= 1
                    stack[depth, 2] = 1

            # The head of the next item: what it is, and its length or value.
            if p >= end:
                is_plain = False
                break
            head = data[p] * 1
            major = head >> 5
            info = head & 31
            p += 1
            width = 0
            value = info
            if info >= 24:
                width = 1 << (info - 24)
                if info > 27 or p + width > end:
                    is_plain = False
                    break
                value = 0
                for i in range(width):
                    value = value * 256 + data[p + i]
                p += width
            if major != 7 and width == 8 and data[p - 8] > 127:
                is_plain = False  # more than 63 bits
                break

            entry = stack[1, 3] - 1 if depth > 0 else -1
            name = -1
            if is_key:
                if major != 3 or p + value > end or stack[depth, 3] > _KEYS:
                    is_plain = False
                    break
                if depth == 1:
                    # The four entries of an event, in the order in which they are written.
                    if not is_word(data, p, value, _TIMESTAMP + entry):
                        is_plain = False
                        break
                else:
                    this = stack[depth, 3] - 1
                    for other in range(this):
                        if keys[depth, other, 1] == value:
                            is_same = True
                            start = keys[depth, other, 0]
                            for i in range(value):
                                if data[start + i] != data[p + i]:
                                    is_same = False
                            if is_same:
                                is_plain = False
                    keys[depth, this, 0] = p
                    keys[depth, this, 1] = value
                stack[depth, 2] = 0
            elif depth == 0:
                if major != 5 or value != 4:
                    is_plain = False
            elif depth == 1:
                if entry == 0 and major > 1:
                    is_plain = False
                if entry == 1 and (major != 0 or value > _UINT32_MAX):
                    is_plain = False
                if entry >= 2 and major != 5:
                    is_plain = False
                if entry == 3:
                    field_count = value
            elif depth == 2:
                # The value of a key that may mean something to a task.
                this = stack[2, 3] - 1
                start, size = keys[2, this, 0], keys[2, this, 1]
                if stack[2, 1] == 1 and entry == 2:
                    for i in range(4):
                        if is_word(data, start, size, _META_QUEUE + i):
                            name = i
                elif stack[2, 1] == 1 and is_word(data, start, size, _FIELDS_PAYLOAD):
                    has_payload = field_count == 1 and major == 2
            if not is_plain:
                break

            if major == 3:
                if p + value > end:
                    is_plain = False
                    break
                before = s
                s = put_text(data, p, value, scratch, s)
                if s < 0:
                    is_plain = False
                    break
                if name == 0:
                    queue_start, queue_end, raw_start, raw_size = before, s, p, value
                p += value
                if is_key:
                    scratch[s] = 58
                    s += 1
            elif major == 5 or major == 4:
                # An item has a byte at least.
                if depth == _DEPTH or value > end - p:
                    is_plain = False
                    break
                depth += 1
                scratch[s] = 123 if major == 5 else 91
                s += 1
                stack[depth, 0] = value
                stack[depth, 1] = 1 if major == 5 else 0
                stack[depth, 2] = 1
                stack[depth, 3] = 0
            elif major == 2:
                if p + value > end:
                    is_plain = False
                    break
                for i in range(marks[_BASE64], marks[_BASE64 + 1]):
                    scratch[s] = words[i]
                    s += 1
                s = put_base64(data, p, value, scratch, s)
                scratch[s] = 34
                scratch[s + 1] = 125
                s += 2
                p += value
            elif major < 2 and depth == 1 and entry == 0:
                # Nanoseconds since 1970 as a time; the years are counted from a March, so that a leap day is the last.
                if major == 1:
                    value = -1 - value
                nanos = value % 1_000_000_000
                seconds = value // 1_000_000_000
                days = seconds // 86_400
                seconds -= days * 86_400
                cycle = (days + 719_468) // 146_097
                day = days + 719_468 - cycle * 146_097
                year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
                day -= 365 * year + year // 4 - year // 100
                month = (5 * day + 2) // 153
                day -= (153 * month + 2) // 5
                year += 400 * cycle
                if month >= 10:
                    year += 1
                    month -= 12
                scratch[s] = 34
                s += 1
                for part in range(7):
                    number, digits, mark = year, 4, 45
                    if part == 1:
                        number, digits = month + 3, 2
                    elif part == 2:
                        number, digits, mark = day + 1, 2, 84
                    elif part == 3:
                        number, digits, mark = seconds // 3_600, 2, 58
                    elif part == 4:
                        number, digits, mark = seconds // 60 % 60, 2, 58
                    elif part == 5:
                        number, digits, mark = seconds % 60, 2, 46
                    elif part == 6:
                        number, digits, mark = nanos, 9, 90
                    s = put_number(number, digits, scratch, s)
                    scratch[s] = mark
                    s += 1
                scratch[s] = 34
                s += 1
            elif major < 2:
                if name == 1:
                    key = value if major == 0 else -1 - value
                    has_key = True
                if name > 1 and major == 1:
                    has_terms = False
                if major == 1:
                    if value == _INT64_MAX:
                        is_plain = False
                        break
                    scratch[s] = 45
                    s += 1
                    value += 1
                s = put_number(value, 1, scratch, s)
            elif major == 7 and width == 0 and info >= 20 and info <= 23:
                word = _FALSE + info - 20
                for i in range(marks[word], marks[word + 1]):
                    scratch[s] = words[i]
                    s += 1
            elif major == 7 and width >= 4:
                # Sign, exponent and mantissa; then the shortest decimals that are this number, if they are few.
                first = data[p - width] * 1
                if width == 8:
                    second = data[p - 7] * 1
                    exponent = (first & 127) * 16 + (second >> 4) - 1075
                    mantissa = second & 15
                    for i in range(6):
                        mantissa = mantissa * 256 + data[p - 6 + i]
                    is_plain = exponent > -1075 and exponent < 972
                    mantissa += 1 << 52
                else:
                    second = data[p - 3] * 1
                    exponent = (first & 127) * 2 + (second >> 7) - 150
                    mantissa = ((second & 127) * 256 + data[p - 2]) * 256 + data[p - 1]
                    is_plain = exponent > -150 and exponent < 105
                    mantissa += 1 << 23
                number = ldexp(mantissa * 1.0, exponent) if is_plain else 0.0
                if not (number >= 1e-4 and number < 1e15):
                    is_plain = False
                    break
                scale = 1.0
                power = 1
                digits = 0
                whole = int(number + 0.5)
                while whole / scale != number:
                    scale *= 10.0
                    power *= 10
                    digits += 1
                    if digits > 18 or number * scale >= 1e15:
                        is_plain = False
                        break
                    whole = int(number * scale + 0.5)
                # One that ends in 0 is not the shortest: a step before went wrong by a hair.
                if not is_plain or (digits > 0 and whole % 10 == 0):
                    is_plain = False
                    break
                if first >= 128:
                    scratch[s] = 45
                    s += 1
                s = put_number(whole // power, 1, scratch, s)
                scratch[s] = 46
                s = put_number(whole % power, max(digits, 1), scratch, s + 1)
            else:
                is_plain = False
                break
            if name > 1 and major > 1 and not (major == 7 and (info == 22 or info == 23)):
                has_terms = False

        if not is_plain or p != end:
            return row, at
        is_task = queue_start >= 0 and has_key and has_terms and has_payload
        is_wanted = True
        if asked[0] == 1 and is_task:
            is_wanted = raw_size == asked[2]
            if is_wanted:
                for i in range(raw_size):
                    if data[raw_start + i] != wanted[i]:
                        is_wanted = False
        elif asked[0] == 1:
            is_wanted = asked[1] == 1
        if is_wanted:
            if not is_task:
                key = 0
            for step in range(7):
                for i in range(marks[step], marks[step + 1]):
                    out[at] = words[i]
                    at += 1
                number = -1
                if step == 0:
                    start, size, source = queue_start, queue_end - queue_start, scratch
                    if not is_task:
                        start, source = marks[_OTHERWISE], words
                        size = marks[_OTHERWISE + 1] - start
                elif step == 4:
                    start, size, source = 0, s, scratch
                else:
                    start, size, source = 0, 0, scratch
                text = source[start : start + size]
                target = out[at : at + size]
                for i in range(size):
                    target[i] = text[i]
                at += size
                if step == 1:
                    number = key
                    if key < 0:
                        out[at] = 45
                        at += 1
                        number = -key
                elif step == 2:
                    number = rows[0, row]
                elif step == 3:
                    number = rows[1, row]
                elif step == 5:
                    at = put_base64(data, rows[2, row], rows[3, row], out, at)
                if number >= 0:
                    at = put_number(number, 1, out, at)
        row += 1
    return row, at
