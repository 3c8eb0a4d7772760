"""The column of properties: what rows say beyond the columns of their own, as text by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.families import arrow
from penstock.families.columns import Table, schema_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


RECORD: Final = "record"
"""The property that holds an entry's bytes, in hexadecimal, where its other columns do not tell all of them."""


class Property(NamedTuple):
    """One property of some rows."""

    name: str
    rows: NDArray[np.int64]
    values: pa.Array  # of text, one for each of the rows


def properties(found: Sequence[Property], count: int) -> pa.Array:
    """Return the column of ``count`` rows; null where a row has no property. A row's come in the order given."""
    import numpy as np
    import pyarrow as pa

    kind = schema_of(Table.ENTRIES).field("properties").type
    found = [one for one in found if len(one.rows)]
    if not found:
        return arrow.same(None, count, kind)
    rows = np.concatenate([one.rows for one in found])
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
