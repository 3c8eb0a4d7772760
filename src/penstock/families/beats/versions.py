"""The versions of segments that a conversion writes, by the names that people type."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class SegmentVersion(IntEnum):
    """Version 1 is for Beats 7.14 to 8.3, version 2 for all later ones."""

    ONE = 1
    TWO = 2


FORMATS: Final = {f"beats-{int(version)}": version for version in SegmentVersion}
