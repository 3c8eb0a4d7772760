"""What a member of a group can be, and what it cannot become."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Role(Enum):
    """What a member is."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "precandidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


FORBIDDEN: Final = frozenset(
    (
        (Role.FOLLOWER, Role.LEADER),
        (Role.LEADER, Role.CANDIDATE),
        (Role.LEADER, Role.PRE_CANDIDATE),
    )
)
