"""What the events of some frames say, as columns. They are decoded one by one, and only for columns that need it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import BadData
from penstock.families.arrow import Property
from penstock.families.beats.read import undecoded
from penstock.formats.beats.event import Event, decode_event, event_as_json
from penstock.formats.beats.frame import Verdict
from penstock.formats.beats.frame_scan import FrameColumns
from penstock.formats.beats.segment import PayloadFormat
from penstock.formats.beats.task_event import task_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


class Undecoded(NamedTuple):
    """Why the payload of a sound frame is not shown as an event."""

    status: str
    reason: str


class Events:
    """The events of frames; damage has none."""

    def __init__(self, frames: FrameColumns, payload_format: PayloadFormat, queue: str) -> None:
        """``queue`` is that of events that name none."""
        self._frames = frames
        self._format = payload_format
        self._queue = queue
        self._decoded: list[Event | Undecoded | None] | None = None

    @cached_property
    def is_frame(self) -> NDArray[np.bool_]:
        """Which rows are frames whose checksum is right."""
        return self._frames.verdict <= Verdict.OTHER_END

    def only(self, frames: FrameColumns, wanted: NDArray[np.bool_]) -> Events:
        """Return the events of some of the rows, of which ``frames`` are the columns."""
        events = Events(frames, self._format, self._queue)
        if self._decoded is not None:
            events._decoded = [self._decoded[row] for row in wanted.nonzero()[0].tolist()]
        return events

    @property
    def _found(self) -> list[Event | Undecoded | None]:
        if self._decoded is None:
            frames = self._frames
            data, ends = frames.data.data, frames.payload_start + frames.payload_size
            places = zip(
                self.is_frame.tolist(), frames.payload_start.tolist(), ends.tolist(), strict=True
            )
            self._decoded = [
                self._decode(data[start:end]) if is_frame else None
                for is_frame, start, end in places
            ]
        return self._decoded

    def _decode(self, payload: memoryview) -> Event | Undecoded:
        try:
            return decode_event(payload, self._format)
        except BadData as error:
            return Undecoded(*undecoded(error))

    @cached_property
    def decoded(self) -> list[Event | None]:
        """The events; ``None`` where there is none, or it cannot be read."""
        return [None if isinstance(found, Undecoded) else found for found in self._found]

    @cached_property
    def undecoded(self) -> dict[int, Undecoded]:
        """Why payloads are no events, by row."""
        return {row: found for row, found in enumerate(self._found) if isinstance(found, Undecoded)}

    @cached_property
    def _addresses(self) -> list[tuple[str | None, int | None]]:
        """Queue and key of each row: a task says both, any other frame is in the queue of its directory."""
        known = {True: (self._queue, 0), False: (None, None)}
        found: list[tuple[str | None, int | None]] = []
        for is_frame, event in zip(self.is_frame.tolist(), self.decoded, strict=True):
            task = None if event is None else task_of(event)
            found.append(known[is_frame] if task is None else (readable(task.queue), task.key))
        return found

    def queues(self) -> pa.Array:
        import pyarrow as pa

        return pa.array([queue for queue, _ in self._addresses], pa.string())

    def keys(self) -> pa.Array:
        import pyarrow as pa

        return pa.array([key for _, key in self._addresses], pa.int64())

    def is_in(self, queues: frozenset[str]) -> NDArray[np.bool_]:
        """Return which rows are of some queues."""
        import numpy as np

        return np.array([queue in queues for queue, _ in self._addresses], dtype=np.bool_)

    def times(self) -> pa.Array:
        """Return the times of events in the microseconds that Spark has."""
        import pyarrow as pa

        values = [None if event is None else event.timestamp // 1000 for event in self.decoded]
        return pa.array(values, pa.int64()).cast(pa.timestamp("us", tz="UTC"))

    def properties(self) -> list[Property]:
        """Return what events say: exact times as numbers, ``meta`` and ``fields`` as JSON."""
        import numpy as np
        import pyarrow as pa

        rows = np.array([r for r, event in enumerate(self.decoded) if event is not None], np.int64)
        events = [event for event in self.decoded if event is not None]
        shown = [event_as_json(event) for event in events]

        def add(name: str, values: list[str]) -> Property:
            return Property(name, rows, pa.array(values, pa.string()))

        encode: Callable[[Any], str] = _ENCODER.encode
        return [
            add("timestamp_ns", [str(event.timestamp) for event in events]),
            add("flags", [str(event.flags) for event in events]),
            add("meta", [encode(each["meta"]) for each in shown]),
            add("fields", [encode(each["fields"]) for each in shown]),
        ]


# Text that is not UTF-8 stays what it is: as escapes, which no column of text could hold otherwise.
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def readable(name: str) -> str:
    """Return a name as a column can hold it: bytes that are not UTF-8 as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()
