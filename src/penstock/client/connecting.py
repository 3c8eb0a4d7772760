"""What ``penstock.aio.connect`` returns: a client that is awaited or entered. The page is docs/client.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, Protocol, TypeVar


class _Closable(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


class Connecting(Generic[C]):
    """A client that is not connected yet: ``await`` it, or enter it with ``async with``.

    ``async with`` closes the client at the end.
    """

    def __init__(self, make: Callable[[], Awaitable[C]]) -> None:
        self._make = make
        self._client: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._make().__await__()

    async def __aenter__(self) -> C:
        self._client = await self._make()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        await self._client.close()
