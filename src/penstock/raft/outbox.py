"""What a member has to say, and what of it has to wait for the disk."""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.raft.messages import Kind, Message, Ready

_WAITING: Final = (
    Kind.APPEND_REPLY,
    Kind.VOTE,
    Kind.VOTE_REPLY,
    Kind.PRE_VOTE,
    Kind.PRE_VOTE_REPLY,
)
"""Messages that leave only when what they rest on is durable."""


class Outbox:
    """Messages that were not handed out yet, and what the member says to itself."""

    __slots__ = ("_member", "_own", "messages")

    def __init__(self, member: int) -> None:
        self._member = member
        self.messages: list[Message] = []
        self._own: deque[tuple[int, list[Message]]] = deque()  # what it says to itself, by token

    def _must_wait(self, message: Message, *, waits: bool) -> bool:
        return message.kind in _WAITING or (message.kind is Kind.HEARTBEAT_REPLY and waits)

    def take_urgent(self, *, waits: bool) -> list[Message]:
        """Take out what need not wait. ``waits``: whether term or vote may not be durable yet."""
        urgent: list[Message] = []
        rest: list[Message] = []
        for message in self.messages:
            is_late = message.to == self._member or self._must_wait(message, waits=waits)
            (rest if is_late else urgent).append(message)
        self.messages = rest
        return urgent

    def split(self, ready: Ready, *, waits: bool) -> None:
        """Hand everything out with a Ready: what may leave now, what waits, and what is for the member itself."""
        own: list[Message] = []
        for message in self.messages:
            if message.to == self._member:
                own.append(message)
            elif self._must_wait(message, waits=waits):
                ready.messages_after.append(message)
            else:
                ready.messages.append(message)
        self.messages = []
        self._own.append((ready.token, own))

    def take_own(self) -> list[Message]:
        """Take what the member said to itself in the Ready that is durable now."""
        return self._own.popleft()[1]
