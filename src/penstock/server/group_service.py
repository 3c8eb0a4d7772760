"""A node's place in its group on the loop: its peers' sockets, its clock, and a hand-over before it stops."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from penstock.model import TERM_MAX
from penstock.server.group import Group
from penstock.server.peers.transport import PeerTransport, Say, bind
from penstock.storage.directory import WAY_BACK

HAND_OVER_SECONDS: Final = 5.0
"""How long a leader that is to stop waits for another to take over."""


class GroupService:
    """Connects a group's member with the others and lets time pass for it."""

    def __init__(self, group: Group, loop: asyncio.AbstractEventLoop, say: Say) -> None:
        """Take the address for peers. Raises ``Unreachable``."""
        self._group = group
        self._loop = loop
        self._say = say
        self._listening: socket.socket | None = bind(group.membership.own_address)
        self.transport = PeerTransport(group, loop, say)
        self._timer: asyncio.TimerHandle | None = None
        group.replica.when_role_changes.append(self._say_role)
        self._said: tuple[str, int, int] | None = None
        self._has_said_last_term = False

    async def start(self) -> None:
        listening, self._listening = self._listening, None
        await self.transport.start(listening)
        self._tick()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._group.settings.tick_ms / 1000, self._tick)
        self._group.tick()
        if self._group.replica.group.core.term >= TERM_MAX and not self._has_said_last_term:
            self._has_said_last_term = True
            self._say(
                "term",
                {"text": f"term {TERM_MAX} is the last one: no node can be elected; {WAY_BACK}"},
            )

    def _say_role(self) -> None:
        status = self._group.status()
        told = (status.role, status.term, status.leader)
        if told != self._said:
            self._said = told
            self._say(
                "role",
                {
                    "role": status.role,
                    "is_leading": status.is_leading,
                    "term": status.term,
                    "leader": status.leader,
                },
            )

    async def hand_over(self) -> None:
        """Let another lead, if this node does and there is another: nobody then waits for an election."""
        group = self._group
        to = group.best_successor()
        if not group.replica.is_leading or not to:
            return
        done = asyncio.Event()
        reasons: list[str | None] = []

        def then(reason: str | None) -> None:
            reasons.append(reason)
            done.set()

        group.transfer_leadership(to, then)
        try:
            await asyncio.wait_for(done.wait(), HAND_OVER_SECONDS)
        except TimeoutError:
            reasons.append("it took too long")
        self._say("hand-over", {"to": to, "text": reasons[0] or f"node {to} leads"})

    def close(self) -> None:
        """End all connections with peers."""
        if self._timer is not None:
            self._timer.cancel()
        if self._listening is not None:
            self._listening.close()
        self.transport.close()
