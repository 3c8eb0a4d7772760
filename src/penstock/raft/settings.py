"""How a member of a group behaves: limits, timeouts, and which safeguards are on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a member behaves. Raises ``ValueError`` for what cannot work."""

    election_ticks: int = 10
    heartbeat_ticks: int = 1
    has_pre_vote: bool = True
    has_check_quorum: bool = True
    has_lease_reads: bool = False
    is_pipelined: bool = False  # several Readys may be under way
    append_size_max: int = 2**20
    window_count: int = 256
    window_size: int = 8 * 2**20
    uncommitted_max: int = 64 * 2**20
    apply_size_max: int = 2**20
    reads_max: int = 4096
    # Rejections in a row until a leader believes that a member lost what it had acknowledged.
    doubts_max: int = 3
    empty_payload: bytes = b""  # of the entry that begins a term
    # Whether a Ready holds the entries to apply; a driver that asks for them itself saves a walk over them.
    hands_out_committed: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks:
            raise ValueError("the election timeout must be longer than the heartbeat's")
        if min(self.window_count, self.window_size, self.append_size_max, self.apply_size_max) < 1:
            raise ValueError("windows and sizes are at least 1")
        if self.doubts_max < 1:
            raise ValueError("a rejection is believed the first time at the earliest")
        if self.has_lease_reads:
            raise ValueError("reads by lease rest on clocks and are not offered")
