"""What the queues of a broker hold, as rows: what it would have after a restart, in the order of delivery.

Bodies are looked up by message id in a map of the vhost's stores. A worker builds it when the first message of its part
is not in the index, of the heads of records alone, and keeps it for the parts that follow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import CorruptData
from penstock.families import arrow
from penstock.families.arrow import Property, properties
from penstock.families.damage import Damage, ignore
from penstock.families.plan import why
from penstock.families.rabbitmq.columns import UNKNOWN, Messages, read_columns
from penstock.families.rabbitmq.damage import BAD_PROPERTIES, damage_at
from penstock.families.rabbitmq.family import NAME as FAMILY
from penstock.families.rabbitmq.location import Queue, Vhost, resolve, vhost_name
from penstock.families.rabbitmq.read import Bodies, Wanted
from penstock.families.rabbitmq.store_map import StoreMap, build_map
from penstock.families.rabbitmq.tables.messages import MessageParts, json_of_keys, json_of_name
from penstock.families.rabbitmq.tables.plan import QueuePlan, queue_of, vhost_of
from penstock.families.rabbitmq.tables.scan import address_properties, property_text
from penstock.families.tables import Mode, ReadOptions, Table, schema_of, shown_path
from penstock.storage.files import OpenFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_MAPS_MAX: Final = 4
"""Maps that a worker keeps; each takes some 40 MB for a million messages."""


def read(
    source: str, plan: QueuePlan, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a part of a queue. Raises ``CorruptData`` if damage is to fail the job."""
    (vhost,) = resolve(Path(plan.path)).vhosts
    (queue,) = vhost.queues
    part = _Part(source, plan, vhost, queue, options)
    wanted = Wanted(
        as_of_us=plan.as_of_us,
        transient="include_transient" in options.own,
        expired="include_expired" in options.own,
    )
    with OpenFiles() as files:
        bodies = _SharedBodies(vhost=vhost, files=files, report=ignore)
        for messages in read_columns(part.queue, bodies, wanted, report=part.report):
            built = part.build(messages, columns)
            if built is not None:
                yield built


class _Part:
    """Some segments of a queue, with its journal."""

    def __init__(
        self, source: str, plan: QueuePlan, vhost: Vhost, queue: Queue, options: ReadOptions
    ) -> None:
        self._source = source
        self._options = options
        self._vhost = vhost
        # In a queue of both versions numbers of segments say nothing, and it is never cut.
        is_cut = plan.first > 0 or plan.end is not None
        count = vhost.entry_count if is_cut and not queue.indexes else 0
        self._first = plan.first * count
        self._end = None if plan.end is None or not count else plan.end * count
        self.queue = queue

        def within(numbered: tuple[tuple[int, Path], ...]) -> tuple[tuple[int, Path], ...]:
            return tuple(
                (number, path)
                for number, path in numbered
                if plan.first <= number and (plan.end is None or number < plan.end)
            )

        if is_cut:
            self.queue = replace(
                queue,
                segments=within(queue.segments),
                indexes=within(queue.indexes),
                stores=within(queue.stores),
            )

    def _is_within(self, sequence: Any) -> Any:
        """Return whether messages are in this part: the journal speaks of others too."""
        is_before_end = True if self._end is None else sequence < self._end
        return (sequence >= self._first) & is_before_end

    def report(self, damage: Damage) -> None:
        is_other = damage.sequence is not None and not self._is_within(damage.sequence)
        if self._options.mode is Mode.FAILFAST and not damage.is_harmless and not is_other:
            raise CorruptData(
                why(damage.status, damage.reason), path=str(damage.path), offset=damage.offset
            )

    def build(self, messages: Messages, columns: Sequence[str]) -> pa.RecordBatch | None:
        """Return the rows of those messages that are in this part."""
        import numpy as np

        rows = np.flatnonzero(self._is_within(messages.sequence))
        if not len(rows):
            return None
        told = _Told(messages, self._vhost, self.queue)
        if self._options.mode is Mode.FAILFAST:
            for row, reason in told.parts.property_reasons().items():
                path, offset = messages.paths[messages.path[row]], int(messages.offset[row])
                sequence = int(messages.sequence[row])
                self.report(
                    damage_at(path, BAD_PROPERTIES, reason, offset=offset, sequence=sequence)
                )
        made = {name: self._make(name, told) for name in columns}
        batch = arrow.batch(made, columns)
        return batch if len(rows) == len(messages) else batch.take(rows)

    def _make(self, name: str, told: _Told) -> pa.Array:
        import numpy as np

        messages = told.messages
        count = len(messages)
        everywhere = np.ones(count, dtype=np.bool_)
        match name:
            case "path":
                return told.paths(self._source)
            case "offset":
                return arrow.numbers(messages.offset, everywhere)
            case "log_index" | "task_id":
                return arrow.numbers(messages.sequence, everywhere)
            case "payload":
                return (
                    told.envelopes()
                    if self._options.own.get("properties") == "envelope"
                    else told.bodies()
                )
            case "properties":
                return told.properties()
            case "event_time":
                return told.parts.times()
        constants = {
            "source": self._source,
            "family": FAMILY,
            "queue": queue_of(self._vhost, self.queue),
            "key": -self.queue.priority,
        }
        kind = schema_of(Table.TASKS).field(name).type
        return arrow.same(constants.get(name), count, kind)


class _Told:
    """What the messages of one batch say, as columns."""

    def __init__(self, messages: Messages, vhost: Vhost, queue: Queue) -> None:
        self.messages = messages
        self._vhost = vhost
        self._queue = queue
        self.parts = MessageParts(
            messages.data, messages.term_offset, messages.parts, messages.decoded
        )

    def paths(self, source: str) -> pa.Array:
        import pyarrow as pa

        shown = [shown_path(source, path) for path in self.messages.paths]
        return pa.array(shown, pa.string()).take(pa.array(self.messages.path))

    def bodies(self) -> pa.Array:
        import pyarrow as pa

        return self.parts.bodies().column(pa.binary())

    def properties(self) -> pa.Array:
        """Return what ``penstock tasks`` tells beside the columns of their own."""
        import numpy as np
        import pyarrow as pa

        messages = self.messages
        every = np.arange(len(messages))
        vhost = vhost_of(self._vhost, self._queue)
        made = []
        if vhost is not None:
            made.append(Property("vhost", every, pa.repeat(vhost, len(every))))
        made.append(Property("persistent", every, _text(messages.is_persistent)))
        known = np.flatnonzero(messages.delivered != UNKNOWN)
        made.append(Property("delivered", known, _text(messages.delivered[known] == 1)))
        expiring = np.flatnonzero(messages.expiry_us)
        made.append(Property("expiry_us", expiring, _text(messages.expiry_us[expiring])))
        made += address_properties(self.parts, vhost=vhost is None)
        made.append(property_text(self.parts))
        return properties(made, len(messages))

    def envelopes(self) -> pa.Array:
        """Return payloads as ``encode_envelope`` makes them: a line that says what is known, and the body."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        messages = self.messages
        rows, places, known = self.parts.addresses
        assert len(rows) == len(messages), "every message that was read has an address"
        order = pa.array(places[np.argsort(rows)])
        vhost = vhost_name(self._vhost, self._queue)
        queue = json_of_name(self._queue.label)
        before = [
            f'{{"vhost":{json_of_name(vhost if vhost is not None else each.vhost)},"queue":{queue},"seq":'
            for each in known
        ]
        behind = [
            f',"exchange":{json_of_name(each.exchange)},"routing_keys":{json_of_keys(each.routing_keys)}'
            ',"properties":'
            for each in known
        ]
        delivered = pa.array(messages.delivered == 1, mask=messages.delivered == UNKNOWN)
        expiry = pa.array(messages.expiry_us, mask=messages.expiry_us == 0)
        line = pc.binary_join_element_wise(
            pa.array(before, pa.string()).take(order),
            _text(messages.sequence),
            ',"persistent":',
            _text(messages.is_persistent),
            ',"delivered":',
            pc.fill_null(delivered.cast(pa.string()), "null"),
            ',"expiry_us":',
            pc.fill_null(expiry.cast(pa.string()), "null"),
            pa.array(behind, pa.string()).take(order),
            pc.fill_null(self.parts.properties(), "null"),
            "}\n",
            "",
        )
        return pc.binary_join_element_wise(line.cast(pa.binary()), self.bodies(), b"")


def _text(values: NDArray[Any]) -> pa.Array:
    import pyarrow as pa

    return pa.array(values).cast(pa.string())


# --- maps of stores ------------------------------------------------------------------------------

_Stamp = tuple[tuple[str, int, int, int], ...]  # path, inode, time of the last change, size
_maps: OrderedDict[_Stamp, StoreMap] = OrderedDict()
"""The maps that were used last: a worker reads many parts of queues that share one store."""


@dataclass(slots=True, kw_only=True)
class _SharedBodies(Bodies):
    """Finds bodies by maps that outlive it."""

    @property
    def persistent(self) -> StoreMap:
        return _map(self.vhost.persistent)

    @property
    def transient(self) -> StoreMap:
        return _map(self.vhost.transient)


def _map(paths: tuple[Path, ...]) -> StoreMap:
    """Return the map of some files as they are now."""
    stamp = tuple(_stamp(path) for path in paths)
    found = _maps.get(stamp)
    if found is None:
        # Damage in a store matters here only if a message is missing, which is reported then.
        found = build_map(paths, ignore)
        _maps[stamp] = found
    _maps.move_to_end(stamp)
    while len(_maps) > _MAPS_MAX:
        _maps.popitem(last=False)
    return found


def _stamp(path: Path) -> tuple[str, int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0, 0  # it went away, or may not be looked at: building the map tells
    return str(path), found.st_ino, found.st_mtime_ns, found.st_size
