"""Tasks of a snapshot from columns to bytes, as ``snapshot.encode_snapshot`` writes them one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.formats.kernel import bulk, compiled
from penstock.formats.kernel_bytes import copy, put
from penstock.formats.taskflux.snapshot import QueueForm

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def encode_task_columns(
    form: QueueForm,
    ids: NDArray[np.int64],
    keys: NDArray[np.int64],
    bounds: NDArray[np.int32],
    data: NDArray[np.uint8],
    *,
    interpreted: bool = False,
) -> NDArray[np.uint8]:
    """Return the bytes of tasks; the payload of task ``i`` is ``data[bounds[i]:bounds[i + 1]]``."""
    with bulk():
        import numpy as np

    header_size = form.task_header.size
    size = int(bounds[-1]) - int(bounds[0]) if len(bounds) else 0
    encoded = np.empty(len(keys) * header_size + size, dtype=np.uint8)
    kernel: Callable[..., Any] = _encode_kernel if interpreted else compiled(_encode_kernel)
    kernel(ids, keys, bounds, data, form.has_ids, encoded)
    return encoded


def _encode_kernel(ids: Any, keys: Any, bounds: Any, data: Any, has_ids: Any, encoded: Any) -> None:
    """Write each task: its id where the form has ids, its key, the payload's size, the payload."""
    position = 0
    for row in range(len(keys)):
        start = bounds[row]
        size = bounds[row + 1] - start
        if has_ids:
            position = put(encoded, position, ids[row], 8)
        position = put(encoded, position, keys[row], 8)
        position = put(encoded, position, size, 4)
        position = copy(data, start, encoded, position, size)
