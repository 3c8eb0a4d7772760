"""Tasks of records as Arrow arrays over the bytes of their file: neither keys nor payloads are copied.

`add_batch` is one add, whose columns are Arrow buffers as they are. `task_batch` is the tasks of many records: payloads
are views (Arrow's ``binary_view``), so that a batch of small records is one array. pyarrow loads when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.binary import Bytes
from penstock.errors import InvalidValue
from penstock.formats.kernel import bulk, compiled
from penstock.formats.kernel_bytes import signed, u32_little
from penstock.formats.records.add import IDS, AddBody
from penstock.formats.records.task_scan import TaskColumns
from penstock.model import INT32_MAX

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_INLINE_MAX: Final = 12
"""A view holds strings up to this size itself."""


def add_batch(body: AddBody, first_id: int) -> pa.RecordBatch:
    """Return id, key and payload of the tasks of one add. Buffers refer to ``body.data``, which they keep alive.

    What is one for all tasks, or follows from the place of a task, has no bytes in the file and is made.
    """
    with bulk():
        import numpy as np
        import pyarrow as pa

    count = body.count
    ids: Any = (body.extra or {}).get(IDS)
    if ids is None:
        ids = np.arange(count, dtype=np.uint64) + np.uint64(first_id)
    keys = np.full(count, body.keys, dtype=np.int64) if isinstance(body.keys, int) else body.keys
    offsets: Any = body.sizes
    if isinstance(offsets, int):
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(offsets)
    payloads = memoryview(body.data)[body.payloads_at : body.payloads_at + body.payload_size]
    return pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(pa.uint64(), count, [None, pa.py_buffer(ids)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(keys)]),
            pa.Array.from_buffers(
                pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(payloads)]
            ),
        ],
        names=["id", "key", "payload"],
    )


def task_batch(data: Bytes | NDArray[np.uint8], tasks: TaskColumns) -> pa.RecordBatch:
    """Return id, key and payload of scanned tasks; payloads are views of ``data``, which the batch keeps alive."""
    with bulk():
        import numpy as np
        import pyarrow as pa

    count = len(tasks)
    if len(data) > INT32_MAX:
        raise InvalidValue(
            f"a view cannot refer to {len(data)} bytes; scan a file in windows below 2 GiB"
        )
    payloads = pa.Array.from_buffers(
        pa.binary_view(), count, [None, pa.py_buffer(_views(data, tasks)), pa.py_buffer(data)]
    )
    return pa.RecordBatch.from_arrays(
        [pa.array(tasks.id.view(np.uint64)), pa.array(tasks.key), payloads],
        names=["id", "key", "payload"],
    )


def _views(data: Bytes | NDArray[np.uint8], tasks: TaskColumns) -> NDArray[np.int32]:
    """Return a view of 16 bytes for each payload."""
    import numpy as np

    raw = data if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    views = np.empty((len(tasks), 4), dtype=np.int32)
    compiled(_view_kernel)(raw, tasks.payload_at, tasks.payload_size, views)
    return views


def _view_kernel(data: Any, starts: Any, sizes: Any, views: Any) -> None:
    """Write a view of each payload: its size, then the payload itself or its first 4 bytes, buffer 0 and its place."""
    for row in range(len(starts)):
        start, size = starts[row], sizes[row]
        views[row, 0] = size
        views[row, 1] = _four_bytes(data, start, size)
        if size <= _INLINE_MAX:
            views[row, 2] = _four_bytes(data, start + 4, size - 4)
            views[row, 3] = _four_bytes(data, start + 8, size - 8)
        else:
            views[row, 2] = 0
            views[row, 3] = start


def _four_bytes(data: Any, start: Any, size: Any) -> Any:
    """Return up to four bytes, as many as there are, as a signed little-endian integer."""
    if size >= 4:
        return signed(u32_little(data, start))
    value = 0
    for place in range(size):
        value += data[start + place] * (1 << (8 * place))
    return value
