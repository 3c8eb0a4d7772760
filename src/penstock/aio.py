"""The asyncio client: ``async with penstock.aio.connect("host:port") as client``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.async_subscription import AsyncSubscription
from penstock.client.asynchronous import AsyncClient
from penstock.client.connecting import Connecting
from penstock.spooling.connecting import connect_async as connect

if TYPE_CHECKING:
    from penstock.spooling.async_client import AsyncSpoolClient

__all__ = ["AsyncClient", "AsyncSpoolClient", "AsyncSubscription", "Connecting", "connect"]


def __getattr__(name: str) -> Any:
    if name != "AsyncSpoolClient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported when it is first used: it loads the modules of the spool.
    from penstock.spooling.async_client import AsyncSpoolClient

    return AsyncSpoolClient


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
