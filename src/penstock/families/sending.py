"""Requests that are numbered alike in every run, sent to a node: what an earlier run has sent is not taken again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.errors import InvalidValue, RequestRefused, SequenceForgotten
from penstock.protocol.version2 import Enqueue

if TYPE_CHECKING:
    from penstock.client.blocking import Client


def send_numbered(client: Client, requests: Iterator[Enqueue], whose: str) -> None:
    """Send what no earlier run has sent. Raises ``RequestRefused`` if one sent other messages of ``whose``.

    A node remembers the last requests of a producer, and of older ones only that there were some. Numbers grow, and
    requests are sent in order, so those that the node has forgotten were taken and come before all others.
    """
    try:
        for request in requests:
            try:
                client.enqueue_numbered([request])
            except SequenceForgotten:
                continue
            client.enqueue_numbered(requests)
    except InvalidValue:
        raise RequestRefused(
            f"an earlier run sent other messages of {whose}: the files, the selection or the queue have changed"
            " since; repeat the command as it was, or start a new import with --producer NAME"
        ) from None
