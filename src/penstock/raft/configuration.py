"""Who belongs to a group, and how that changes (docs/raft.md).

A change of one voter is taken in one step. Anything more goes through a joint configuration, in which majorities of the
old and of the new voters must agree, and is left by a second entry. A configuration is in force when it is *applied*;
a member with one that is committed and not applied does not run for leader.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Final

from penstock.errors import CorruptData
from penstock.raft.refusals import InvalidChange


class Step(StrEnum):
    """What becomes of a member."""

    VOTER = "voter"
    LEARNER = "learner"  # a new one, or a voter that is not to vote any more
    REMOVE = "remove"


class Leave(StrEnum):
    """How a joint configuration ends."""

    AUTOMATIC = "automatic"
    EXPLICIT = "explicit"


@dataclass(frozen=True, slots=True)
class Change:
    """Steps to take at once; none at all means: leave the joint configuration."""

    steps: tuple[tuple[Step, int], ...] = ()
    leave: Leave | None = None  # ``None``: joint only if it must be, and then left by itself
    # What is to be known of members; what that is, is their drivers' business.
    labels: tuple[tuple[int, str], ...] = ()
    # What the group began with, told to all alike by its first leader: nothing else comes before it.
    base: Configuration | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """Members in sorted tuples. ``outgoing`` is empty unless the configuration is joint."""

    voters: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    learners_next: tuple[int, ...] = ()  # outgoing voters that become learners with the leave
    is_left_by_itself: bool = False
    labels: tuple[tuple[int, str], ...] = ()  # what is known of members, in their order

    def label(self, member: int) -> str:
        """Return what is known of a member, nothing if that is nothing."""
        return dict(self.labels).get(member, "")

    @property
    def is_joint(self) -> bool:
        return bool(self.outgoing)

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted({*self.voters, *self.outgoing, *self.learners, *self.learners_next}))

    def has(self, member: int) -> bool:
        """Return whether somebody is a member, in whatever part."""
        return (
            member in self.voters
            or member in self.learners
            or member in self.outgoing
            or member in self.learners_next
        )

    def is_voter(self, member: int) -> bool:
        return member in self.voters or member in self.outgoing


def apply_change(configuration: Configuration, change: Change) -> Configuration:
    """Return what a change makes of a configuration. Raises ``InvalidChange``."""
    return _labelled(_changed(configuration, change), change.labels)


def _changed(configuration: Configuration, change: Change) -> Configuration:
    if change.base is not None:
        return change.base
    if not change.steps:
        return leave_joint(configuration)
    if needs_joint(configuration, change):
        is_automatic = change.leave is not Leave.EXPLICIT
        return enter_joint(configuration, change.steps, is_left_by_itself=is_automatic)
    return change_simply(configuration, change.steps)


def _labelled(configuration: Configuration, labels: Iterable[tuple[int, str]]) -> Configuration:
    """Return a configuration with more labels, and without those of members that left."""
    known = dict(configuration.labels) | dict(labels)
    members = configuration.members
    kept = tuple((member, known[member]) for member in members if member in known)
    return replace(configuration, labels=kept)


def needs_joint(configuration: Configuration, change: Change) -> bool:
    """Return whether a change is asked to go, or has to go, through a joint configuration."""
    if change.leave is not None or len(change.steps) > 1:
        return True
    ((step, member),) = change.steps
    return step is Step.LEARNER and member in configuration.voters


def change_simply(configuration: Configuration, steps: Sequence[tuple[Step, int]]) -> Configuration:
    """Return the configuration after steps that change at most one voter."""
    if configuration.is_joint:
        raise InvalidChange("the configuration is joint; leave it first")
    changed = _stepped(configuration, steps)
    if len(set(configuration.voters) ^ set(changed.voters)) > 1:
        raise InvalidChange("more than one voter changes; that needs a joint configuration")
    return changed


def enter_joint(
    configuration: Configuration, steps: Sequence[tuple[Step, int]], *, is_left_by_itself: bool
) -> Configuration:
    """Return the joint configuration that leads to the one after ``steps``."""
    if configuration.is_joint:
        raise InvalidChange("the configuration is joint already")
    if not configuration.voters:
        raise InvalidChange("a group without voters cannot be changed")
    joint = replace(
        configuration, outgoing=configuration.voters, is_left_by_itself=is_left_by_itself
    )
    return _stepped(joint, steps)


def leave_joint(configuration: Configuration) -> Configuration:
    """Return the configuration that a joint one leads to."""
    if not configuration.is_joint:
        raise InvalidChange("the configuration is not joint")
    learners = _sorted({*configuration.learners, *configuration.learners_next})
    return Configuration(
        voters=configuration.voters, learners=learners, labels=configuration.labels
    )


def _stepped(configuration: Configuration, steps: Iterable[tuple[Step, int]]) -> Configuration:
    voters, learners = set(configuration.voters), set(configuration.learners)
    learners_next = set(configuration.learners_next)
    for step, member in steps:
        if member < 1:
            raise InvalidChange(f"members are numbered from 1 on, not {member}")
        voters.discard(member)
        learners.discard(member)
        learners_next.discard(member)
        if step is Step.VOTER:
            voters.add(member)
        elif step is Step.LEARNER:
            # It cannot be both: an outgoing voter votes until the joint configuration is left.
            (learners_next if member in configuration.outgoing else learners).add(member)
    if not voters:
        raise InvalidChange("the last voter cannot go")
    return replace(
        configuration,
        voters=_sorted(voters),
        learners=_sorted(learners),
        learners_next=_sorted(learners_next),
    )


def _sorted(members: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(members))


_LEAVE: Final = "leave"
_LABELS: Final = "labels"
_BASE: Final = "base"


def encode_change(change: Change) -> bytes:
    """Return a change as the payload of an entry."""
    value: dict[str, object] = {"steps": [[step, member] for step, member in change.steps]}
    if change.leave is not None:
        value[_LEAVE] = change.leave
    if change.labels:
        value[_LABELS] = change.labels
    if change.base is not None:
        value[_BASE] = [change.base.voters, change.base.labels]
    return json.dumps(value, separators=(",", ":")).encode()


def decode_change(payload: bytes) -> Change:
    """Return the change that an entry holds. Raises ``CorruptData`` for what is none."""
    try:
        value = json.loads(payload)
        steps = tuple((Step(step), int(member)) for step, member in value["steps"])
        leave = Leave(value[_LEAVE]) if _LEAVE in value else None
        base = None
        if _BASE in value:
            voters, labels = value[_BASE]
            base = Configuration(
                voters=_decode_members(voters), labels=_decode_labels({_LABELS: labels})
            )
        return Change(steps, leave, _decode_labels(value), base)
    except _NOT_OURS as error:
        raise CorruptData(f"a change of members that means nothing: {error!r}") from None


def encode_configuration(configuration: Configuration) -> bytes:
    """Return a configuration as bytes, for a snapshot or its offer."""
    return json.dumps(asdict(configuration), separators=(",", ":")).encode()


def decode_configuration(data: bytes) -> Configuration:
    """Return the configuration in ``data``. Raises ``CorruptData`` for what is none."""
    try:
        value = json.loads(data)
        return Configuration(
            voters=_decode_members(value["voters"]),
            outgoing=_decode_members(value["outgoing"]),
            learners=_decode_members(value["learners"]),
            learners_next=_decode_members(value["learners_next"]),
            is_left_by_itself=bool(value["is_left_by_itself"]),
            labels=_decode_labels(value),
        )
    except _NOT_OURS as error:
        raise CorruptData(f"a configuration that means nothing: {error!r}") from None


_NOT_OURS: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


def _decode_members(value: list[int]) -> tuple[int, ...]:
    members = tuple(int(member) for member in value)
    if members != _sorted(set(members)) or (members and members[0] < 1):
        raise ValueError("members are numbered from 1 on and stand in order")
    return members


def _decode_labels(value: dict[str, list[tuple[int, str]]]) -> tuple[tuple[int, str], ...]:
    return tuple((int(member), str(label)) for member, label in value.get(_LABELS, ()))
