"""Deltas as values, applied to queues as a replay applies their bytes."""

from __future__ import annotations

from penstock.formats.taskflux.deltas import encode_delta
from penstock.formats.taskflux.generation import Contents
from penstock.model import Delta, RemoveEqualTask
from penstock.queues.replay import Queues


def apply_delta(queues: Queues, delta: Delta) -> None:
    """Apply one delta. Raises ``ReplayConflict``."""
    is_by_value = isinstance(delta, RemoveEqualTask)
    contents = Contents.DELTAS_BY_VALUE if is_by_value else Contents.DELTAS_BY_ID
    queues.replay(encode_delta(delta), contents)
