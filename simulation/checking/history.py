"""The record of what clients asked and were told, and its file: JSON lines, one operation a line.

A task is known by an id of the client's own choice (it travels in the payload), unique over the whole history:
a client that never got an answer does not know the number that the node gave to its task. All times are of one
monotonic clock. Nothing here judges an answer; what cannot be an operation at all is refused when built.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final, NoReturn, TypeVar

from penstock.errors import BadData, CorruptData, InvalidValue, PathMissing, PathRefused
from penstock.model import INT64_MAX, INT64_MIN, KeyRange, Policy

LINE_SIZE_MAX: Final = 4 * 2**20
"""A batch has at most 65,536 tasks; with keys, ids, numbers and tokens that stays below 64 bytes each."""

OPERATIONS_MAX: Final = 5_000_000
"""What fits into a few GiB of memory; a longer run is to be judged in parts."""

TaskName = int | str
"""The client's own id of a task."""

Process = int | str

Choice = TypeVar("Choice", bound=StrEnum)


class Op(StrEnum):
    """What was asked of a queue; the last three are what befalls leases without being asked for."""

    ENQUEUE = "enqueue"
    DEQUEUE = "dequeue"  # on lease
    ACK = "ack"
    NACK = "nack"
    PURGE = "purge"
    CREATE = "create"
    DELETE = "delete"
    LEASE_END = "lease-end"  # of these tasks
    DISCONNECT = "disconnect"  # of this process: all its leases end, on every queue
    LEAD = "lead"  # a new leader: all leases end, on every queue


class Outcome(StrEnum):
    OK = "ok"
    FAIL = "fail"  # refused: nothing changed
    UNKNOWN = "unknown"  # no answer: it took effect at any later time, or never


class Refusal(StrEnum):
    """Reasons of refusals that a model can judge; any other reason is taken as it is."""

    QUEUE_MISSING = "queue-missing"
    QUEUE_EXISTS = "queue-exists"
    QUEUE_FULL = "queue-full"
    KEY_OUT_OF_RANGE = "key-out-of-range"
    PAYLOAD_TOO_LARGE = "payload-too-large"
    LEASE_LOST = "lease-lost"


_NAMED: Final = frozenset({Op.ENQUEUE, Op.ACK, Op.NACK, Op.LEASE_END})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One request and its answer. ``ids``, ``keys``, ``sizes``, ``numbers`` and ``tokens`` are columns of a batch.

    A dequeue that found nothing has no ids. A batch of acks of which some were refused is two operations.
    """

    process: Process  # who asked; a connection that is opened anew is another process
    op: Op
    queue: str = ""
    ids: tuple[TaskName, ...] = ()
    keys: tuple[int, ...] = ()
    t0: float  # when it was called
    t1: float = math.inf  # when it returned, or was given up
    outcome: Outcome = Outcome.OK
    # Where it took effect: the last entry that the answer rests on, which for a change is its own (last) one.
    index: int | None = None
    term: int | None = None
    step: int = 0  # order among those of one index: a change comes before what only rests on it
    reason: str = ""  # of a refusal
    sizes: tuple[int, ...] = ()  # of the payloads, in bytes
    numbers: tuple[int, ...] = ()  # the ids that the node gave
    tokens: tuple[TaskName, ...] = ()  # of the leases, where one process may hold a task twice
    producer: str | None = None
    sequence: int | None = None  # with the producer: a repetition has no further effect
    asked: int = 1  # how many tasks a dequeue asked for
    count: int | None = None  # how many tasks a purge removed
    policy: Policy | None = None  # of a created queue

    def __post_init__(self) -> None:
        if not (-math.inf < self.t0 <= self.t1) or self.t0 == math.inf:
            raise InvalidValue(f"an operation cannot last from {self.t0} to {self.t1}")
        if self.t1 == math.inf and self.outcome is not Outcome.UNKNOWN:
            raise InvalidValue(
                f"an operation of outcome {self.outcome} needs the time of its return"
            )
        count = len(self.ids)
        for name, column in (
            ("keys", self.keys),
            ("sizes", self.sizes),
            ("numbers", self.numbers),
            ("tokens", self.tokens),
        ):
            if column and len(column) != count:
                raise InvalidValue(f"{len(column)} {name} do not go with {count} ids")
        if count > 1 and len(set(self.ids)) < count:
            raise InvalidValue("a batch names a task twice")
        if not count and self.op in _NAMED:
            raise InvalidValue(f"an operation {self.op} needs the ids of its tasks")
        if self.op is Op.ENQUEUE and not self.keys:
            raise InvalidValue("an enqueue needs the keys of its tasks")
        if (self.producer is None) != (self.sequence is None):
            raise InvalidValue("a producer and its sequence go together")
        if self.asked < 1 or (self.count is not None and self.count < 0):
            raise InvalidValue(f"asked {self.asked} or count {self.count} is out of range")

    @property
    def returned(self) -> float:
        """The end of the time in which it can have taken effect."""
        return math.inf if self.outcome is Outcome.UNKNOWN else self.t1

    def __str__(self) -> str:
        named = ", ".join(map(repr, self.ids[:5])) + (", …" if len(self.ids) > 5 else "")
        what = f"{self.op} {named}" if named else f"{self.op}"
        if self.op is Op.DEQUEUE and not named and self.outcome is Outcome.OK:
            what = "dequeue of nothing"
        place = "" if self.index is None else f" at index {self.index}"
        queue = f" of queue {self.queue!r}" if self.queue else ""
        window = f"{self.t0}…{self.t1}" if self.t1 < math.inf else f"{self.t0}…"
        return f"{what}{queue} by {self.process} ({self.outcome}, {window}{place})"


def merged_retries(history: Iterable[Operation]) -> list[Operation]:
    """Return the history with all attempts of one producer's sequence as a single operation.

    For judges that know no producers: whichever attempt took effect, it was after the first call and before the
    first answer. Where none was answered with yes, and not all with no, the outcome is unknown.
    """
    found: list[Operation] = []
    places: dict[tuple[str, int], int] = {}
    for operation in history:
        if operation.producer is None or operation.sequence is None:
            found.append(operation)
            continue
        place = places.setdefault((operation.producer, operation.sequence), len(found))
        if place == len(found):
            found.append(operation)
        else:
            found[place] = _merged(found[place], operation)
    return found


def _merged(one: Operation, other: Operation) -> Operation:
    t0 = min(one.t0, other.t0)
    good = [each for each in (one, other) if each.outcome is Outcome.OK]
    if good:
        first = min(good, key=lambda each: each.t1)
        return replace(first, t0=t0)
    is_refused = one.outcome is other.outcome is Outcome.FAIL
    outcome = Outcome.FAIL if is_refused else Outcome.UNKNOWN
    return replace(one, t0=t0, t1=max(one.t1, other.t1), outcome=outcome)


# --- the file ------------------------------------------------------------------------------------


def write_history(path: Path, history: Iterable[Operation]) -> None:
    """Write a history to a new file. Raises ``PathRefused`` if it cannot be written."""
    try:
        with open(path, "x", encoding="ascii") as file:
            file.writelines(encode_operation(operation) + "\n" for operation in history)
    except OSError as error:
        raise PathRefused(f"history {path} cannot be written: {error.strerror}") from error


def read_history(path: Path) -> list[Operation]:
    """Return the operations of a file.

    Raises ``PathMissing``, ``PathRefused``, or ``CorruptData`` naming the line.
    """
    try:
        with open(path, "rb") as file:
            return list(scan_history(file))
    except FileNotFoundError:
        raise PathMissing(f"history {path} does not exist") from None
    except OSError as error:
        raise PathRefused(f"history {path} cannot be read: {error.strerror}") from error
    except BadData as error:
        raise error.located(str(path)) from None


def scan_history(file: IO[bytes]) -> Iterator[Operation]:
    """Yield the operations of an open file. Raises ``CorruptData`` naming the line."""
    number = 0
    while line := file.readline(LINE_SIZE_MAX + 1):
        number += 1
        if len(line) > LINE_SIZE_MAX:
            raise CorruptData(f"line {number} is longer than {LINE_SIZE_MAX} bytes")
        if number > OPERATIONS_MAX:
            raise CorruptData(f"the history has more than {OPERATIONS_MAX} operations")
        if not line.endswith(b"\n"):
            raise CorruptData(f"line {number} ends in the middle: its writer was cut off")
        try:
            yield decode_operation(line)
        except (BadData, InvalidValue) as error:
            raise CorruptData(f"line {number}: {error}") from None


_PLAIN: Final = ("index", "term", "producer", "sequence", "count")
_COLUMNS: Final = {"sizes": "size", "numbers": "number", "tokens": "token"}


def encode_operation(operation: Operation) -> str:
    """Return the line of an operation, without its end. One task is written as ``id``, several as ``ids``."""
    fields: dict[str, Any] = {"process": operation.process, "op": operation.op.value}
    fields["queue"] = operation.queue
    for many, one in (("keys", "key"), ("ids", "id"), *_COLUMNS.items()):
        column = getattr(operation, many)
        if len(column) == 1:
            fields[one] = column[0]
        elif column:
            fields[many] = column
    fields["t0"] = operation.t0
    fields["t1"] = operation.t1 if operation.t1 < math.inf else None
    fields["outcome"] = operation.outcome.value
    for name in _PLAIN:
        if (value := getattr(operation, name)) is not None:
            fields[name] = value
    if operation.step:
        fields["step"] = operation.step
    if operation.reason:
        fields["reason"] = operation.reason
    if operation.asked != 1:
        fields["asked"] = operation.asked
    if operation.policy is not None:
        fields["policy"] = _encode_policy(operation.policy)
    return _ENCODER.encode(fields)


def _encode_policy(policy: Policy) -> dict[str, Any]:
    keys = policy.keys
    return {
        "size_max": policy.size_max,
        "payload_size_max": policy.payload_size_max,
        "keys": None if keys is None else [keys.lowest, keys.highest],
    }


def decode_operation(line: bytes | str) -> Operation:
    """Return the operation of a line. Raises ``CorruptData``, or ``InvalidValue`` for one that cannot be."""
    try:
        fields = _DECODER.decode(line if isinstance(line, str) else line.decode())
    except RecursionError:
        raise CorruptData("the line is nested too deep") from None
    except ValueError as error:  # no JSON, no text, or a number of thousands of digits
        raise CorruptData(f"the line is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise CorruptData("the line is no JSON object")
    operation = _operation(fields)
    if fields:
        raise CorruptData(f"the line has an unknown field {next(iter(fields))!r}")
    return operation


def _operation(fields: dict[str, Any]) -> Operation:
    """Take all known fields out and make an operation of them."""
    t1 = fields.pop("t1", None)
    return Operation(
        process=_name(fields, "process"),
        op=_choice(fields, "op", Op),
        queue=_text(fields, "queue") or "",
        ids=_column(fields, "ids", "id", _is_name),
        keys=_column(fields, "keys", "key", _is_integer),
        t0=_time(fields.pop("t0", None), "t0"),
        t1=math.inf if t1 is None else _time(t1, "t1"),
        outcome=_choice(fields, "outcome", Outcome),
        index=_integer(fields, "index"),
        term=_integer(fields, "term"),
        step=_integer(fields, "step") or 0,
        reason=_text(fields, "reason") or "",
        sizes=_column(fields, "sizes", "size", _is_count),
        numbers=_column(fields, "numbers", "number", _is_count),
        tokens=_column(fields, "tokens", "token", _is_name),
        producer=_text(fields, "producer"),
        sequence=_integer(fields, "sequence"),
        asked=1 if (asked := _integer(fields, "asked")) is None else asked,
        count=_integer(fields, "count"),
        policy=_policy(fields.pop("policy", None)),
    )


def _refuse_constant(name: str) -> NoReturn:
    raise CorruptData(f"{name} is no number of a history")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise CorruptData("an object has the same field twice")
    return found


# Made once: json.loads and json.dumps make new ones for each line.
_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_object)
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _is_integer(value: object) -> bool:
    return type(value) is int and INT64_MIN <= value <= INT64_MAX


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_name(value: object) -> bool:
    return type(value) in {int, str}


def _time(value: object, name: str) -> float:
    # Whole numbers stay whole: nanoseconds since a start have more digits than a float.
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise CorruptData(f"field {name!r} is no time", found=_shown(value))


def _name(fields: dict[str, Any], name: str) -> TaskName:
    value = fields.pop(name, None)
    if isinstance(value, int | str) and _is_name(value):
        return value
    raise CorruptData(f"field {name!r} is neither a number nor a text", found=_shown(value))


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.pop(name, None)
    if value is None or isinstance(value, str):
        return value
    raise CorruptData(f"field {name!r} is no text", found=_shown(value))


def _integer(fields: dict[str, Any], name: str) -> int | None:
    value = fields.pop(name, None)
    if value is None or (isinstance(value, int) and _is_integer(value)):
        return value
    raise CorruptData(f"field {name!r} is no whole number of 64 bits", found=_shown(value))


def _choice(fields: dict[str, Any], name: str, kind: type[Choice]) -> Choice:
    value = fields.pop(name, None)
    try:
        return kind(value)
    except ValueError:
        expected = ", ".join(kind)
        raise CorruptData(
            f"field {name!r} is unknown", expected=expected, found=_shown(value)
        ) from None


def _column(fields: dict[str, Any], many: str, one: str, is_right: Any) -> tuple[Any, ...]:
    """Return a column of a batch, or the single value under its own name."""
    value = fields.pop(many, None)
    single = fields.pop(one, None)
    if value is not None and single is not None:
        raise CorruptData(f"a line has {one!r} or {many!r}, not both")
    if single is not None:
        value = [single]
    elif value is None:
        return ()
    if not isinstance(value, list) or not all(map(is_right, value)):
        raise CorruptData(f"field {many!r} is no list of what it should be", found=_shown(value))
    return tuple(value)


def _policy(value: object) -> Policy | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise CorruptData("field 'policy' is no object", found=_shown(value))
    size_max, payload_size_max = _integer(value, "size_max"), _integer(value, "payload_size_max")
    keys = _column(value, "keys", "key", _is_integer)
    if value or len(keys) not in {0, 2}:
        raise CorruptData("field 'policy' has more than size_max, payload_size_max and two keys")
    lowest_and_highest = KeyRange(lowest=keys[0], highest=keys[1]) if keys else None
    return Policy(size_max=size_max, payload_size_max=payload_size_max, keys=lowest_and_highest)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"
