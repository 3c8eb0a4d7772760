"""Penstock: a durable, replicated priority task queue whose every file is a Spark table.

``connect`` returns a client of a node, ``open`` runs a node in this process, and ``worker`` turns a function into a
consumer of a queue. ``aio`` contains the asyncio client, ``tables`` reads
files as Arrow tables, ``spark`` is the Spark data source.

Importing this package loads only the exceptions. Every other name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import (
    BadData,
    BadRecord,
    CannotConvert,
    Compacted,
    ConnectionFailed,
    ConnectionLost,
    CorruptData,
    DependencyMissing,
    DirectoryLocked,
    ForeignWrite,
    InvalidOption,
    InvalidQueueName,
    InvalidValue,
    KeyOutOfRange,
    LeaseLost,
    LimitReached,
    NoRoom,
    NotLeader,
    OutOfRange,
    PathMissing,
    PathRefused,
    PayloadTooLarge,
    PenstockError,
    PolicyViolated,
    ProtocolBroken,
    QueueExists,
    QueueFull,
    QueueInUse,
    QueueMissing,
    ReplayConflict,
    RequestRefused,
    SequenceForgotten,
    SparkFailed,
    SpoolFull,
    StorageError,
    StorageFailed,
    TooDeep,
    TruncatedData,
    UnknownFormat,
    Unreachable,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from penstock import aio, paged, spark, tables
    from penstock.client.blocking import Client
    from penstock.client.subscription import Subscription
    from penstock.client.values import Delivery, PeekedTask
    from penstock.client.worker import Worker, worker
    from penstock.model import Implementation, KeyRange, Policy, QueueName, QueueOptions
    from penstock.protocol.version2 import (
        ClusterInfo,
        ClusterMember,
        Enqueue,
        Entries,
        NodeInfo,
        Producer,
        QueueStat,
    )
    from penstock.server.embedded import open_directory as open  # noqa: A004
    from penstock.spooling.client import SpoolClient
    from penstock.spooling.connecting import connect
    from penstock.storage.spool_values import SpoolStat

__version__ = "0.1.0"

__all__ = [
    "BadData",
    "BadRecord",
    "CannotConvert",
    "Client",
    "ClusterInfo",
    "ClusterMember",
    "Compacted",
    "ConnectionFailed",
    "ConnectionLost",
    "CorruptData",
    "Delivery",
    "DependencyMissing",
    "DirectoryLocked",
    "Enqueue",
    "Entries",
    "ForeignWrite",
    "Implementation",
    "InvalidOption",
    "InvalidQueueName",
    "InvalidValue",
    "KeyOutOfRange",
    "KeyRange",
    "LeaseLost",
    "LimitReached",
    "NoRoom",
    "NodeInfo",
    "NotLeader",
    "OutOfRange",
    "PathMissing",
    "PathRefused",
    "PayloadTooLarge",
    "PeekedTask",
    "PenstockError",
    "Policy",
    "PolicyViolated",
    "Producer",
    "ProtocolBroken",
    "QueueExists",
    "QueueFull",
    "QueueInUse",
    "QueueMissing",
    "QueueName",
    "QueueOptions",
    "QueueStat",
    "ReplayConflict",
    "RequestRefused",
    "SequenceForgotten",
    "SparkFailed",
    "SpoolClient",
    "SpoolFull",
    "SpoolStat",
    "StorageError",
    "StorageFailed",
    "Subscription",
    "TooDeep",
    "TruncatedData",
    "UnknownFormat",
    "Unreachable",
    "UnsupportedVersion",
    "Worker",
    "aio",
    "connect",
    "open",
    "paged",
    "spark",
    "tables",
    "worker",
]

_HOMES: Final = {
    "Client": "penstock.client.blocking:Client",
    "ClusterInfo": "penstock.protocol.version2:ClusterInfo",
    "ClusterMember": "penstock.protocol.version2:ClusterMember",
    "Delivery": "penstock.client.values:Delivery",
    "Enqueue": "penstock.protocol.version2:Enqueue",
    "Entries": "penstock.protocol.version2:Entries",
    "Implementation": "penstock.model:Implementation",
    "KeyRange": "penstock.model:KeyRange",
    "NodeInfo": "penstock.protocol.version2:NodeInfo",
    "PeekedTask": "penstock.client.values:PeekedTask",
    "Policy": "penstock.model:Policy",
    "Producer": "penstock.protocol.version2:Producer",
    "QueueName": "penstock.model:QueueName",
    "QueueOptions": "penstock.model:QueueOptions",
    "QueueStat": "penstock.protocol.version2:QueueStat",
    "SpoolClient": "penstock.spooling.client:SpoolClient",
    "SpoolStat": "penstock.storage.spool_values:SpoolStat",
    "Subscription": "penstock.client.subscription:Subscription",
    "Worker": "penstock.client.worker:Worker",
    "aio": "penstock.aio",
    "connect": "penstock.spooling.connecting:connect",
    "open": "penstock.server.embedded:open_directory",
    "paged": "penstock.paged",
    "spark": "penstock.spark",
    "tables": "penstock.tables",
    "worker": "penstock.client.worker:worker",
}
"""Where the names are defined that are imported when they are first used: module, or module and attribute."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value: Any = import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
