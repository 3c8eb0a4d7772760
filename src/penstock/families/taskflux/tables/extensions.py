"""What entries say beyond the columns of their own: our extensions and the policies of new queues, as ``properties``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.families.arrow import RECORD, Property, hexadecimal, properties
from penstock.families.tables import Op
from penstock.formats.taskflux.commands import decode_command
from penstock.formats.taskflux.deltas import BAD_OP, decode_delta
from penstock.formats.taskflux.extensions import ExtensionColumns, Verdict
from penstock.formats.taskflux.generation import Contents
from penstock.model import CreateCommand, CreateQueue, CreateWithPolicy, Policy, policy_fields

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = [
    "OPS",
    "Property",
    "codes",
    "extension_properties",
    "policy_properties",
    "properties",
    "record_property",
]

_CODES: Final[Mapping[Verdict, int]] = {
    Verdict.NOTHING: 0xF0,
    Verdict.ADDING: 0xF1,
    Verdict.CREATING: 0xF2,
    Verdict.RETURNING: 0xF3,
    Verdict.REMOVING: 0xF4,
    Verdict.LATER: 0xF5,
    Verdict.BAD: BAD_OP,
}
"""Codes of ours beside the type bytes of deltas, none of which is as high."""

_OPS: Final[Mapping[Verdict, Op]] = {
    Verdict.NOTHING: Op.EXTENSION,
    Verdict.ADDING: Op.ADDING,
    Verdict.CREATING: Op.CREATING,
    Verdict.RETURNING: Op.RETURNING,
    Verdict.REMOVING: Op.REMOVING,
    Verdict.LATER: Op.EXTENSION,
}
OPS: Final[Mapping[int, Op]] = {_CODES[verdict]: op for verdict, op in _OPS.items()}
"""What an entry of a reserved name does, by its code."""


def codes(found: ExtensionColumns) -> NDArray[np.int64]:
    """Return the code of each extension; ``BAD_OP`` for one that means nothing."""
    import numpy as np

    return np.array([_CODES[verdict] for verdict in Verdict], dtype=np.int64)[found.verdict]


def extension_properties(found: ExtensionColumns, places: NDArray[np.int64]) -> list[Property]:
    """Return what extensions say: for each row its place among ``found``, below 0 where it is none."""
    import numpy as np
    import pyarrow as pa

    if not len(found):
        return []
    every = np.flatnonzero(places >= 0)
    verdicts = found.verdict[places[every]]
    said: list[Property] = []

    def add(name: str, values: NDArray[Any], is_said: NDArray[np.bool_]) -> None:
        rows = every[is_said[places[every]]]
        if len(rows):
            said.append(Property(name, rows, pa.array(values[places[rows]]).cast(pa.string())))

    for verdict, op in _OPS.items():
        rows = every[verdicts == verdict]
        if op is not Op.EXTENSION and len(rows):
            said.append(Property("extension", rows, pa.repeat(str(op), len(rows))))
    is_returning = found.verdict == Verdict.RETURNING
    has_dead_letter = found.dead_letter > 0
    add("count", found.count, found.count > 0)
    add("queue", found.queue, is_returning)
    add("not_before_ms", found.not_before_ms, found.not_before_ms >= 0)
    add("expires_ms", found.expires_ms, found.expires_ms >= 0)
    add("attempts", found.attempts, found.attempts > 0)
    rows = every[found.has_producer[places[every]]]
    said.append(Property("producer", rows, hexadecimal(found.producer[places[rows]])))
    add("sequence", found.sequence, found.has_producer)
    add("total", found.total, found.has_producer)
    add("lease_ms", found.lease_ms, found.lease_ms > 0)
    add("attempts_max", found.attempts_max, found.attempts_max > 0)
    add("dead_letter", found.dead_letter - np.uint64(1), has_dead_letter)
    rows = every[np.diff(found.id_ends)[places[every]] > 0]
    said.append(Property("ids", rows, _joined_ids(found, places[rows])))
    return said


def _joined_ids(found: ExtensionColumns, places: NDArray[np.int64]) -> pa.Array:
    """Return the ids of some extensions, in decimal, separated by commas."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = pa.ListArray.from_arrays(
        pa.array(found.id_ends.astype(np.int32)), pa.array(found.ids).cast(pa.string())
    )
    return pc.binary_join(lists.take(pa.array(places)), ",")


_POLICY_NAMES: Final = ("implementation", "size_max", "payload_size_max", "keys")
"""Those of ``policy_fields`` in its order: no row's order may depend on what the rows before it have."""


def policy_properties(creates: Iterable[tuple[int, bytes]], contents: Contents) -> list[Property]:
    """Return the policies of new queues, given the row and the payload of each. Raises ``BadData``.

    One by one: queues are few beside tasks.
    """
    import numpy as np
    import pyarrow as pa

    found: dict[str, list[tuple[int, str]]] = {name: [] for name in _POLICY_NAMES}
    for row, payload in creates:
        for name, value in policy_fields(_policy(payload, contents)).items():
            found[name].append((row, str(value)))
    return [
        Property(
            name,
            np.array([row for row, _ in said], dtype=np.int64),
            pa.array([value for _, value in said], pa.string()),
        )
        for name, said in found.items()
    ]


def record_property(creates: Sequence[tuple[int, bytes]]) -> Property:
    """Return the bytes of entries that create queues: several spellings of a policy may mean the same."""
    import numpy as np
    import pyarrow as pa

    rows = np.array([row for row, _ in creates], dtype=np.int64)
    return Property(RECORD, rows, pa.array([data.hex() for _, data in creates], pa.string()))


def _policy(payload: bytes, contents: Contents) -> Policy:
    if contents is Contents.COMMANDS:
        command = decode_command(payload)
        if isinstance(command, CreateWithPolicy):
            return command.policy
        assert isinstance(command, CreateCommand)
        return Policy(size_max=command.size_max)
    delta = decode_delta(payload, contents)
    assert isinstance(delta, CreateQueue)
    return delta.policy
