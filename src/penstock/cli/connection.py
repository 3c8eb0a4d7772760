"""What every command over a node shares: where it is, how it is reached, and its refusals in words of the shell."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.errors import (
    InvalidValue,
    KeyOutOfRange,
    LeaseLost,
    NotLeader,
    PayloadTooLarge,
    QueueExists,
    QueueMissing,
    RequestRefused,
)
from penstock.families.family import encode_payload

if TYPE_CHECKING:
    from penstock.client.blocking import Client

NODE: Final = "127.0.0.1:2602"

RETRY_SECONDS: Final = 30.0
"""How long a command outlasts a node that restarts."""

NodeOption = Annotated[
    str,
    typer.Option(
        "--node",
        metavar="HOST:PORT",
        envvar="PENSTOCK_NODE",
        help="The node to talk to, or several of a group with commas.",
    ),
]
QueueArgument = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="The queue; '' or none is the default queue."),
]
NameArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The queue; '' is the default queue.")
]

_ADVICE: Final[dict[type[RequestRefused], str]] = {
    QueueMissing: "create it with: penstock queue create NAME, or see: penstock queue list",
    QueueExists: "pass --exist-ok to use it as it is",
    KeyOutOfRange: "see: penstock queue stat NAME",
    PayloadTooLarge: "see: penstock queue stat NAME, and: penstock node",
    LeaseLost: "ask for a longer --lease",
    NotLeader: "name all nodes of the cluster, separated by commas; see: penstock cluster status",
}
"""What to do next, where the client's own advice is about Python."""


@contextmanager
def connected(
    node: str, *, producer: str | None = None, retry: float = RETRY_SECONDS
) -> Iterator[Client]:
    """Give a client of the node while the block runs.

    Raises ``typer.BadParameter`` for arguments that mean nothing, ``RequestRefused`` in words for people
    at a shell, and ``ConnectionFailed``.
    """
    from penstock.client.blocking import connect

    # A node that goes away breaks a pipe too, and must not end the command: the client tries again.
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        with connect(node, producer=producer, retry=retry) as client:
            yield client
    except InvalidValue as error:
        raise typer.BadParameter(str(error)) from None
    except RequestRefused as error:
        raise type(error)(_for_the_shell(error)) from None
    except (
        BrokenPipeError
    ):  # whoever read stdout has gone; the client's own are ``ConnectionFailed``
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
        raise
    finally:
        signal.signal(signal.SIGPIPE, before)


def task_row(queue: str, task_id: int, key: int, payload: bytes, **attempts: int) -> dict[str, Any]:
    """Return a task as ``dequeue`` and ``peek`` print it, and ``enqueue --json`` takes it."""
    return {
        "queue": queue,
        "id": task_id,
        "key": key,
        **attempts,
        "payload": encode_payload(payload),
    }


def _for_the_shell(error: RequestRefused) -> str:
    what, _, advice = str(error).partition("; ")
    ours = _ADVICE.get(type(error))
    # Advice with a call in it is meant for programs.
    return str(error) if ours is None or not {"(", "="} & set(advice) else f"{what}; {ours}"
