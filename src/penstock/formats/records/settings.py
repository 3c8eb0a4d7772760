"""Bodies of canonical JSON: queues, members, access, start and end of a snapshot (docs/formats/records.md).

Members that this version does not know are kept in ``other`` and written back as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, assert_never

from penstock.binary import Bytes
from penstock.errors import BadRecord, InvalidQueueName, InvalidValue
from penstock.formats.records.canonical import INTEGER_MAX, decode_canonical, encode_canonical
from penstock.formats.records.columns import ZEROS, padded
from penstock.model import QueueName

Object = Mapping[str, Any]

CLUSTER_ID_SIZE: Final = 16
HASH_SIZE: Final = 16
SETTINGS_SIZE_MAX: Final = 4 * 2**20
"""Bytes of JSON in one record: its values take many times as much memory. 25,000 users with grants fit."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Kind 5: name, policy and options of a queue. References to other queues are by id."""

    name: QueueName
    policy: Object = field(default_factory=dict)
    options: Object = field(default_factory=dict)
    last_id: int | None = None  # in a snapshot: the last id that the queue has given out
    other: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """One member of a cluster. A voter that is about to leave has the role ``outgoing``."""

    number: int
    roles: tuple[str, ...]
    addresses: Object = field(default_factory=dict)  # ``peer`` and ``client``
    other: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Kind 7: the members of a cluster and its feature level; in the first record of a cluster also its id."""

    members: tuple[MemberSettings, ...]
    feature_level: int
    cluster_id: bytes | None = None
    other: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Kind 8: users, grants, tokens, and the numbers by which records name principals."""

    users: tuple[Object, ...] = ()
    grants: tuple[Object, ...] = ()
    tokens: tuple[Object, ...] = ()
    principals: Mapping[int, str] = field(default_factory=dict)
    other: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStart:
    """Kind 128: which entry a snapshot covers, and what of the state no other record says."""

    last_index: int
    last_term: int
    last_checksum: int  # head checksum of the last entry: the next one chains to it
    time_ms: int  # the log clock
    next_queue_id: int
    feature_level: int
    cluster_id: bytes
    counts: Mapping[str, int]  # queues, tasks, producers
    other: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEnd:
    """Kind 129: what the file holds before this record, and the BLAKE2b-128 of all of its bytes."""

    counts: Mapping[str, int]  # records, tasks
    digest: bytes
    continues: bool = False  # records of paged queues follow, and then another end
    other: Object = field(default_factory=dict)


# --- reading -------------------------------------------------------------------------------------


class ObjectReader:
    """Takes known members out of a JSON object, by name and type; ``rest`` is what remains. Raises ``BadRecord``."""

    def __init__(self, value: Any, what: str, offset: int) -> None:
        if not isinstance(value, dict):
            raise BadRecord(f"{what} is not a JSON object", offset=offset)
        self.rest: dict[str, Any] = dict(value)
        self._what = what
        self._offset = offset

    def bad(self, name: str, expected: str) -> BadRecord:
        return BadRecord(f"{self._what}: bad {name}", offset=self._offset, expected=expected)

    def take(self, name: str, kind: type[T], default: T | None = None) -> T:
        """Return a member of a JSON type. A member without a default must be there."""
        value = self.rest.pop(name, default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.bad(name, f"a JSON {kind.__name__}")
        return value

    def number(self, name: str, most: int = INTEGER_MAX) -> int:
        value = self.take(name, int)
        if not 0 <= value <= most:
            raise self.bad(name, f"0 to {most}")
        return value

    def optional_number(self, name: str) -> int | None:
        return self.number(name) if name in self.rest else None

    def hexadecimal(self, name: str, size: int) -> bytes:
        text = self.take(name, str)
        if len(text) != 2 * size or set(text) - set("0123456789abcdef"):
            raise self.bad(name, f"{2 * size} hexadecimal digits")
        return bytes.fromhex(text)

    def objects(self, name: str) -> tuple[dict[str, Any], ...]:
        values: list[Any] = self.take(name, list)
        if not all(isinstance(value, dict) for value in values):
            raise self.bad(name, "JSON objects")
        return tuple(values)

    def counts(self, name: str) -> dict[str, int]:
        values: dict[str, Any] = self.take(name, dict)
        if not all(type(value) is int and value >= 0 for value in values.values()):
            raise self.bad(name, "numbers")
        return values


def _members(data: Bytes, start: int, end: int, what: str) -> ObjectReader:
    """Return the members of the JSON object in ``data[start:end]``, which ends with up to 7 zeros."""
    if end - start > SETTINGS_SIZE_MAX:
        raise BadRecord(
            f"{what} is too large",
            offset=start,
            expected=f"up to {SETTINGS_SIZE_MAX} bytes",
            found=str(end - start),
        )
    body = bytes(data[start:end])
    text = body.rstrip(b"\x00")
    if body[len(text) :] != ZEROS[-len(text) % 8]:
        raise BadRecord(f"{what} is not padded to 8 bytes", offset=start)
    try:
        return ObjectReader(decode_canonical(text), what, start)
    except BadRecord as error:
        error.offset = start
        raise


def decode_queue(data: Bytes, start: int, end: int) -> QueueSettings:
    """Return the body of a kind 5. Raises ``BadRecord``."""
    members = _members(data, start, end, "a queue")
    try:
        name = QueueName(members.take("name", str))
    except InvalidQueueName:
        raise members.bad("name", "a queue name") from None
    return QueueSettings(
        name=name,
        policy=members.take("policy", dict),
        options=members.take("options", dict),
        last_id=members.optional_number("last_id"),
        other=members.rest,
    )


def decode_cluster(data: Bytes, start: int, end: int) -> ClusterSettings:
    """Return the body of a kind 7. Raises ``BadRecord``."""
    members = _members(data, start, end, "the members")
    found = tuple(_decode_member(value, start) for value in members.objects("members"))
    numbers = [member.number for member in found]
    if sorted(set(numbers)) != numbers:
        raise members.bad("members", "numbers that ascend")
    return ClusterSettings(
        members=found,
        feature_level=members.number("feature_level"),
        cluster_id=members.hexadecimal("cluster_id", CLUSTER_ID_SIZE)
        if "cluster_id" in members.rest
        else None,
        other=members.rest,
    )


def _decode_member(value: dict[str, Any], start: int) -> MemberSettings:
    members = ObjectReader(value, "a member", start)
    roles: list[Any] = members.take("roles", list)
    if not all(isinstance(role, str) for role in roles):
        raise members.bad("roles", "strings")
    return MemberSettings(
        number=members.number("number"),
        roles=tuple(roles),
        addresses=members.take("addresses", dict),
        other=members.rest,
    )


def decode_access(data: Bytes, start: int, end: int) -> AccessSettings:
    """Return the body of a kind 8. Raises ``BadRecord``."""
    members = _members(data, start, end, "access")
    principals: dict[int, str] = {}
    for value in members.objects("principals"):
        principal = ObjectReader(value, "a principal", start)
        number = principal.number("id", 2**32 - 1)
        if number <= max(principals, default=0) or principal.rest.keys() != {"name"}:
            raise principal.bad("id", "ids that ascend from 1, each with a name")
        principals[number] = principal.take("name", str)
    return AccessSettings(
        users=members.objects("users"),
        grants=members.objects("grants"),
        tokens=members.objects("tokens"),
        principals=principals,
        other=members.rest,
    )


def decode_snapshot_start(data: Bytes, start: int, end: int) -> SnapshotStart:
    """Return the body of a kind 128. Raises ``BadRecord``."""
    members = _members(data, start, end, "the start of a snapshot")
    return SnapshotStart(
        last_index=members.number("last_index"),
        last_term=members.number("last_term"),
        last_checksum=members.number("last_checksum", 2**32 - 1),
        time_ms=members.number("time_ms"),
        next_queue_id=members.number("next_queue_id", 2**32),
        feature_level=members.number("feature_level"),
        cluster_id=members.hexadecimal("cluster_id", CLUSTER_ID_SIZE),
        counts=members.counts("counts"),
        other=members.rest,
    )


def decode_snapshot_end(data: Bytes, start: int, end: int) -> SnapshotEnd:
    """Return the body of a kind 129. Raises ``BadRecord``."""
    members = _members(data, start, end, "the end of a snapshot")
    return SnapshotEnd(
        counts=members.counts("counts"),
        digest=members.hexadecimal("digest", HASH_SIZE),
        continues=_decode_continues(members),
        other=members.rest,
    )


def _decode_continues(members: ObjectReader) -> bool:
    if "continues" not in members.rest:
        return False
    if not members.take("continues", bool):
        raise members.bad("continues", "true, or no such member")
    return True


# --- writing -------------------------------------------------------------------------------------

Settings = QueueSettings | ClusterSettings | AccessSettings | SnapshotStart | SnapshotEnd


def encode_settings(settings: Settings) -> bytes:
    """Return the body of a record: canonical JSON, padded to 8 bytes. Raises ``InvalidValue``."""
    body = padded(encode_canonical(settings_members(settings)))
    if len(body) > SETTINGS_SIZE_MAX:
        raise InvalidValue(
            f"settings of {len(body)} bytes; at most {SETTINGS_SIZE_MAX} are allowed"
        )
    return body


def settings_members(settings: Settings) -> dict[str, Any]:
    """Return settings as a JSON object."""
    known: dict[str, Any]
    match settings:
        case QueueSettings(name=name, policy=policy, options=options, last_id=last_id):
            known = {"name": str(name), "policy": policy, "options": options}
            if last_id is not None:
                known["last_id"] = last_id
        case ClusterSettings(members=members, feature_level=level, cluster_id=cluster_id):
            known = {"members": [_member(member) for member in members], "feature_level": level}
            if cluster_id is not None:
                known["cluster_id"] = cluster_id.hex()
        case AccessSettings(users=users, grants=grants, tokens=tokens, principals=principals):
            named = [{"id": number, "name": principals[number]} for number in sorted(principals)]
            known = {"users": users, "grants": grants, "tokens": tokens, "principals": named}
        case SnapshotStart():
            known = {
                "last_index": settings.last_index,
                "last_term": settings.last_term,
                "last_checksum": settings.last_checksum,
                "time_ms": settings.time_ms,
                "next_queue_id": settings.next_queue_id,
                "feature_level": settings.feature_level,
                "cluster_id": settings.cluster_id.hex(),
                "counts": settings.counts,
            }
        case SnapshotEnd(counts=counts, digest=digest, continues=continues):
            known = {"counts": counts, "digest": digest.hex()}
            if continues:
                known["continues"] = True
        case _ as never:
            assert_never(never)
    return {**settings.other, **known}


def _member(member: MemberSettings) -> dict[str, Any]:
    known = {"number": member.number, "roles": member.roles, "addresses": member.addresses}
    return {**member.other, **known}
