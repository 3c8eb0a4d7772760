"""Penstock for asyncio: ``async with penstock.aio.connect("host:port") as client``."""

from penstock.client.async_subscription import AsyncSubscription
from penstock.client.asynchronous import AsyncClient
from penstock.spooling.connecting import connect_async as connect

__all__ = ["AsyncClient", "AsyncSubscription", "connect"]
