"""What is said of a group, in bytes: its members, how they change, and who leads (docs/protocol.md)."""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.binary import INT32, INT64, UINT32, Reader, encode_string
from penstock.errors import CorruptData, InvalidValue
from penstock.protocol.version2.fields import decode_count, decode_flags
from penstock.protocol.version2.messages import (
    PACES,
    ROLES,
    STANDINGS,
    ChangeMembers,
    ClusterInfo,
    ClusterMember,
    Failed,
    Failure,
    MemberChange,
    MemberStep,
    check_step_count,
)

_CLUSTER: Final = Struct(">iiBBqqqqq")
_STEP: Final = Struct(">Bi")
_STEP_SIZE_MIN: Final = _STEP.size + 4  # an address is at least its length
_MEMBER_SIZE_MIN: Final = 4 + 4 + 4 + 1 + 1

_LEADING: Final = 1
_JOINT: Final = 2

_LEADER: Final = 1
_SELF: Final = 2
_MATCH: Final = 4
_LAG: Final = 8
_PACE: Final = 16
_WINDOW: Final = 32


def not_leader(leader: int, address: str | None) -> Failed:
    """Return what a node answers that does not lead: who does (-1: unknown), and where clients reach it."""
    return Failed(Failure.NOT_LEADER, address or "", leader)


def encode_change_members(request: ChangeMembers) -> bytes:
    """Return the body of a change of members."""
    return UINT32.pack(len(request.steps)) + b"".join(
        [_STEP.pack(each.step, each.node) + encode_string(each.address) for each in request.steps]
    )


def decode_change_members(reader: Reader) -> ChangeMembers:
    """Return a change of members. Raises ``BadData``, and ``InvalidValue`` for what no group can do."""
    count = decode_count(reader, _STEP_SIZE_MIN)
    check_step_count(count)
    steps = [
        (*_STEP.unpack(reader.take(_STEP.size, "a step")), reader.string("an address"))
        for _ in range(count)
    ]
    return ChangeMembers(
        [MemberChange(_step(step), node, address) for step, node, address in steps]
    )


def _step(number: int) -> MemberStep:
    try:
        return MemberStep(number)
    except ValueError:
        raise InvalidValue(f"unknown step {number}; 0 is a voter, 1 a learner, 2 removes") from None


def encode_cluster(info: ClusterInfo) -> bytes:
    """Return the body of what a node says of its group."""
    flags = _LEADING * info.is_leading | _JOINT * info.is_joint
    leader = -1 if info.leader is None else info.leader
    numbers = (info.term, info.first, info.last, info.committed, info.applied)
    return (
        _CLUSTER.pack(info.node, leader, ROLES.index(info.role), flags, *numbers)
        + UINT32.pack(len(info.members))
        + b"".join(map(_encode_member, info.members))
    )


def _encode_member(member: ClusterMember) -> bytes:
    flags = _LEADER * member.is_leader | _SELF * member.is_self
    progress = b""
    if member.match is not None:
        flags |= _MATCH
        progress += INT64.pack(member.match)
    if member.lag is not None:
        flags |= _LAG
        progress += INT64.pack(member.lag)
    if member.pace is not None:
        flags |= _PACE
        progress += bytes((PACES.index(member.pace),))
    if member.window is not None:
        flags |= _WINDOW
        progress += UINT32.pack(member.window)
    return (
        INT32.pack(member.node)
        + encode_string(member.address)
        + encode_string(member.client_address)
        + bytes((STANDINGS.index(member.standing), flags))
        + progress
    )


def decode_cluster(reader: Reader) -> ClusterInfo:
    """Return what a node says of its group. Raises ``BadData``."""
    node, leader = reader.int32(), reader.int32()
    role = _word(reader, ROLES, "role")
    flags = decode_flags(reader, _LEADING | _JOINT)
    term, first, last = reader.int64(), reader.int64(), reader.int64()
    committed, applied = reader.int64(), reader.int64()
    count = decode_count(reader, _MEMBER_SIZE_MIN)
    return ClusterInfo(
        node=node,
        leader=None if leader < 0 else leader,
        role=role,
        is_leading=bool(flags & _LEADING),
        is_joint=bool(flags & _JOINT),
        term=term,
        first=first,
        last=last,
        committed=committed,
        applied=applied,
        members=tuple(_member(reader) for _ in range(count)),
    )


def _member(reader: Reader) -> ClusterMember:
    node = reader.int32()
    address, client_address = reader.string("an address"), reader.string("an address")
    standing = _word(reader, STANDINGS, "standing")
    flags = decode_flags(reader, _LEADER | _SELF | _MATCH | _LAG | _PACE | _WINDOW)
    return ClusterMember(
        node=node,
        address=address,
        client_address=client_address,
        standing=standing,
        is_leader=bool(flags & _LEADER),
        is_self=bool(flags & _SELF),
        match=reader.int64() if flags & _MATCH else None,
        lag=reader.int64() if flags & _LAG else None,
        pace=_word(reader, PACES, "pace") if flags & _PACE else None,
        window=reader.uint32() if flags & _WINDOW else None,
    )


def _word(reader: Reader, words: tuple[str, ...], what: str) -> str:
    number = reader.byte(f"a {what}")
    if number >= len(words):
        raise CorruptData(f"unknown {what}", offset=reader.offset - 1, found=str(number))
    return words[number]
