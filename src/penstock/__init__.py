"""Penstock: a durable, replicated priority task queue whose every file is a Spark table.

``connect`` talks to a node, ``open`` runs one inside this process, ``worker`` makes a function work
through a queue; every exception stands here too. Importing this package pulls in nothing heavy: each of
these names is imported when it is first used, as are numba, pyarrow and Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from os import PathLike

    from penstock.client.blocking import Client as Client
    from penstock.client.subscription import Subscription as Subscription
    from penstock.client.values import Delivery as Delivery
    from penstock.client.values import PeekedTask as PeekedTask
    from penstock.client.worker import Worker as Worker
    from penstock.client.worker import worker as worker
    from penstock.errors import *  # noqa: F403
    from penstock.spooling.client import SpoolClient as SpoolClient
    from penstock.spooling.connecting import connect as connect

    def open(path: str | PathLike[str], **options: Any) -> Client:  # noqa: A001
        """Return a client of a node that runs in this process, on the files in ``path``."""


__version__ = "0.1.0"

_HOMES: Final = {
    "Client": ("penstock.client.blocking", "Client"),
    "Delivery": ("penstock.client.values", "Delivery"),
    "PeekedTask": ("penstock.client.values", "PeekedTask"),
    "SpoolClient": ("penstock.spooling.client", "SpoolClient"),
    "Subscription": ("penstock.client.subscription", "Subscription"),
    "connect": ("penstock.spooling.connecting", "connect"),
    "Worker": ("penstock.client.worker", "Worker"),
    "open": ("penstock.server.embedded", "open_directory"),
    "worker": ("penstock.client.worker", "worker"),
}
"""Where a public name is defined, and how it is called there."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    value = getattr(import_module("penstock.errors"), name, None) if home is None else None
    if home is not None:
        value = getattr(import_module(home[0]), home[1])
    elif not (isinstance(value, type) and issubclass(value, Exception)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
