"""Packets in several small writes, as TaskFlux's client sends them: without TCP_NODELAY."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from support.node_process import start

DELAYED_SECONDS = 0.04
"""The shortest time for which Linux delays an acknowledgement."""

WARM_UP = 30  # Linux acknowledges the first packets of a connection at once
CALLS = 40


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux acknowledges on demand")
def test_a_packet_in_small_writes_does_not_wait_for_a_delayed_acknowledgement(
    tmp_path: Path,
) -> None:
    """Every enqueue of TaskFlux's client took 44 ms: its kernel held the second write of a packet back."""
    writes = (b"C", b"E\x00" + bytes(11) + b"\x02", b"hi")
    taken = []
    with start(tmp_path / "node") as node, node.wire1() as wire:
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        for number in range(WARM_UP + CALLS):
            begun = time.perf_counter()
            for part in writes:
                wire.send(part)
            wire.expect(b"k")
            if number >= WARM_UP:
                taken.append(time.perf_counter() - begun)
            wire.exchange(b"N", b"k")
    # Each call waits for at least one delayed acknowledgement, or none does; a busy machine slows only some of them.
    assert sorted(taken)[CALLS // 4] < DELAYED_SECONDS
