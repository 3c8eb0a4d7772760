"""From numbers about a buffer to Arrow columns, a whole batch at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import CorruptData
from penstock.families.tables import Table, schema_of
from penstock.formats.kernel import compiled
from penstock.model import INT32_MAX

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


def _gather_kernel(data: Any, offset: Any, size: Any, ends: Any, gathered: Any) -> None:
    """Copy the stretch of each row, one behind the other."""
    for row in range(len(offset)):
        # Between two slices the compiler copies many bytes at once, as it would not between sums of indexes.
        source = data[offset[row] : offset[row] + size[row]]
        target = gathered[ends[row] : ends[row] + size[row]]
        for i in range(size[row]):
            target[i] = source[i]


def gather(
    data: NDArray[np.uint8],
    offset: NDArray[np.int64],
    size: NDArray[np.int64],
    starts: NDArray[Any],
    gathered: NDArray[np.uint8],
) -> None:
    """Copy a stretch of ``data`` for each row to where the row begins in ``gathered``."""
    compiled(_gather_kernel)(data, offset, size, starts, gathered)


def stretches(
    data: NDArray[np.uint8],
    offset: NDArray[np.int64],
    size: NDArray[np.int64],
    is_there: NDArray[np.bool_],
    kind: pa.DataType,
) -> pa.Array:
    """Return a column of bytes or text: for each row a stretch of the buffer, null where there is none."""
    import numpy as np
    import pyarrow as pa

    size = np.where(is_there, size, 0)
    if int(size.sum()) > INT32_MAX:
        raise CorruptData("records together are larger than Spark can take at once, 2 GiB")
    ends = np.zeros(len(size) + 1, dtype=np.int32)
    np.cumsum(size, out=ends[1:])
    gathered = np.empty(int(ends[-1]), dtype=np.uint8)
    gather(data, offset, size, ends, gathered)
    buffers = [_validity(is_there), pa.py_buffer(ends), pa.py_buffer(gathered)]
    return pa.Array.from_buffers(kind, len(size), buffers, int((~is_there).sum()))


def numbers(values: NDArray[Any], is_there: NDArray[np.bool_]) -> pa.Array:
    """Return a column of 64-bit numbers, null where there is none."""
    import numpy as np
    import pyarrow as pa

    values = np.ascontiguousarray(values)
    buffers = [_validity(is_there), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.int64(), len(values), buffers, int((~is_there).sum()))


def words(codes: NDArray[np.int64], meanings: Mapping[int, str | None]) -> pa.Array:
    """Return a column of words, each row's by its code; null for a code without a word."""
    import numpy as np
    import pyarrow as pa

    if len(codes) and int(codes.min()) == int(codes.max()):  # as nearly always
        return same(meanings[int(codes[0])], len(codes), pa.string())
    known = [(code, word) for code, word in meanings.items() if word is not None]
    places = np.full(max(int(codes.max(initial=0)), *meanings) + 1, -1, dtype=np.int32)
    for place, (code, _) in enumerate(known):
        places[code] = place
    chosen = places[codes]
    indexes = pa.array(chosen, mask=chosen < 0)
    return pa.DictionaryArray.from_arrays(indexes, [word for _, word in known]).dictionary_decode()


def same(value: object, count: int, kind: pa.DataType) -> pa.Array:
    """Return a column with one value in every row."""
    room = 1 << max(count - 1, 0).bit_length()
    return _repeated(value, room, kind).slice(0, count)


@lru_cache(maxsize=64)  # what a few files have the same of; each a few hundred kilobytes
def _repeated(value: object, count: int, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, kind), count) if value is not None else pa.nulls(count, kind)


def batch(columns: Mapping[str, pa.Array], wanted: Sequence[str]) -> pa.RecordBatch:
    """Return the wanted columns in their order."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([columns[name] for name in wanted], names=list(wanted))


def _validity(is_there: NDArray[np.bool_]) -> pa.Buffer | None:
    import numpy as np
    import pyarrow as pa

    if is_there.all():
        return None
    return pa.py_buffer(np.packbits(is_there, bitorder="little"))


RECORD: Final = "record"
"""The property that holds an entry's bytes, in hexadecimal, where its other columns do not tell all of them."""


class Property(NamedTuple):
    """One property of some rows."""

    name: str
    rows: NDArray[np.int64]
    values: pa.Array  # of text, one for each of the rows


def properties(found: Sequence[Property], count: int) -> pa.Array:
    """Return the column of properties of ``count`` rows, text by name; null where a row has no property. A row's come in the order given."""
    import numpy as np
    import pyarrow as pa

    kind = schema_of(Table.ENTRIES).field("properties").type
    found = [one for one in found if len(one.rows)]
    if not found:
        return same(None, count, kind)
    rows = np.concatenate([one.rows for one in found])
    every = np.arange(count)
    if all(np.array_equal(one.rows, every) for one in found):  # as in most logs
        order = np.arange(len(rows)).reshape(len(found), count).T.ravel()
    else:
        order = np.argsort(rows, kind="stable")
    names = np.repeat(np.arange(len(found), dtype=np.int32), [len(one.rows) for one in found])
    keys = pa.DictionaryArray.from_arrays(names[order], [one.name for one in found])
    values = pa.concat_arrays([one.values for one in found]).take(pa.array(order))
    sizes = np.bincount(rows, minlength=count)
    ends = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(sizes, out=ends[1:])
    # A null among the ends makes its row null; the last end is no row's beginning.
    is_missing = np.append(sizes == 0, False)
    offsets = pa.array(ends, mask=is_missing)
    return pa.MapArray.from_arrays(offsets, keys.dictionary_decode(), values, type=kind)


def hexadecimal(raw: NDArray[np.uint8]) -> pa.Array:
    """Return each row of bytes as hexadecimal digits."""
    import numpy as np
    import pyarrow as pa

    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    text = np.ascontiguousarray(digits[np.stack((raw >> 4, raw & 15), axis=2)])
    ends = np.arange(len(raw) + 1, dtype=np.int32) * (2 * raw.shape[1])
    return pa.Array.from_buffers(
        pa.string(), len(raw), [None, pa.py_buffer(ends), pa.py_buffer(text)]
    )
