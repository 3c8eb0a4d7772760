"""Policies of queues as our tables spell them: in ``properties``, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping

from penstock.model import NO_LIMITS, Implementation, KeyRange, Policy


def policy_of(fields: Mapping[str, str] | None) -> Policy:
    """Return the policy that a queue's properties spell."""
    if not fields:
        return NO_LIMITS
    keys = json.loads(fields["keys"]) if "keys" in fields else None
    return Policy(
        implementation=Implementation[fields.get("implementation", "heap").upper()],
        size_max=int(fields["size_max"]) if "size_max" in fields else None,
        payload_size_max=int(fields["payload_size_max"]) if "payload_size_max" in fields else None,
        keys=None if keys is None else KeyRange(lowest=keys[0], highest=keys[1]),
    )
