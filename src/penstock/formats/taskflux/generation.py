"""Names of the generations and variants of TaskFlux files, and of what their logs hold."""

from __future__ import annotations

from enum import Enum, IntEnum


class Generation(IntEnum):
    """The three generations of TaskFlux files."""

    ONE = 1
    TWO = 2
    THREE = 3


class Contents(Enum):
    """What the payload of a log record is."""

    COMMANDS = "commands"  # generation 1: requests, decided anew at replay
    DELTAS_BY_VALUE = "deltas by value"  # generations 1c and 2: removal by key and payload
    DELTAS_BY_ID = "deltas by id"  # generation 3: removal by id
