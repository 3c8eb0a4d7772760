"""``penstock.connect`` and ``penstock.aio.connect``: a client of a node, with or without a spool.

The modules of the spool are imported only by a call that asks for a spool.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypedDict, Unpack, overload

from penstock.client.addresses import parse_addresses
from penstock.client.blocking import Client
from penstock.client.blocking import connect as connect_node
from penstock.client.producer import producer_id
from penstock.client.retries import checked_seconds
from penstock.errors import InvalidValue, needing

if TYPE_CHECKING:
    from penstock.client.asynchronous import AsyncClient
    from penstock.client.connecting import Connecting
    from penstock.spooling.async_client import AsyncSpoolClient
    from penstock.spooling.client import SpoolClient


SPOOL_SIZE: Final = 2**30
"""Bytes that a spool may use by default."""


class SpoolOptions(TypedDict, total=False):
    """The types of the spool options of ``connect``; their defaults are in its signature."""

    spool_size: int
    spool_segment_size: int | None
    spool_when_full: str
    spool_patience: float | None
    spool_serialization: str
    spool_compress: bool
    spool_key: bytes | None
    spool_others: str | None


@overload
def connect(
    address: str,
    *,
    timeout: float = 10.0,
    producer: str | None = None,
    retry: float = 30.0,
    spool: None = None,
) -> Client: ...


@overload
def connect(
    address: str,
    *,
    timeout: float = 10.0,
    producer: str | None = None,
    retry: float = 30.0,
    spool: str | os.PathLike[str],
    **options: Unpack[SpoolOptions],
) -> SpoolClient: ...


def connect(
    address: str,
    *,
    timeout: float = 10.0,
    producer: str | None = None,
    retry: float = 30.0,
    spool: str | os.PathLike[str] | None = None,
    spool_size: int = SPOOL_SIZE,
    spool_segment_size: int | None = None,
    spool_when_full: str = "block",
    spool_patience: float | None = None,
    spool_serialization: str = "cbor",
    spool_compress: bool = False,
    spool_key: bytes | None = None,
    spool_others: str | None = None,
) -> Client | SpoolClient:
    """Connect to a node and return a client.

    ``address`` is ``"host:port"``, ``"host"`` (port 2602) or several of these separated by commas.
    ``timeout``: seconds that the node may be silent while a request is unanswered. ``retry``: seconds for
    which requests are repeated after the connection broke, if repeating them is safe. ``producer``: a stable
    name for this program, so that the node keeps one deduplication record for all its runs; at most one client
    may use a name at a time. Raises ``InvalidValue`` for an invalid argument and ``ConnectionFailed`` if no
    node can be reached.

    ``spool``: a directory that only this program uses. With it, the call gives a ``SpoolClient``, even if no node can be
    reached: ``enqueue`` returns when the task is durable in the directory, and a thread sends it to the
    node (docs/spool.md). ``spool_size``: bytes that the spool may use, 1 GiB by default.
    ``spool_segment_size``: bytes per file, a tenth of ``spool_size`` by default. ``spool_when_full``:
    ``"block"`` waits for room, at most ``spool_patience`` seconds if that is given; ``"refuse"`` raises
    ``SpoolFull``; ``"drop-oldest"`` deletes the oldest unsent tasks. ``spool_serialization``: ``"cbor"``, or
    ``"protobuf"`` for programs that expect it. ``spool_compress``: compress with LZ4. ``spool_key``: 16 bytes;
    encrypt with this key. ``spool_others``: the queue for events in the directory that Penstock did not write.
    Raises ``DirectoryLocked`` if another process has the directory open and ``BadData`` if its files are
    damaged. The spool options without ``spool`` are an ``InvalidValue``.
    """
    options = SpoolOptions(
        spool_size=spool_size,
        spool_segment_size=spool_segment_size,
        spool_when_full=spool_when_full,
        spool_patience=spool_patience,
        spool_serialization=spool_serialization,
        spool_compress=spool_compress,
        spool_key=spool_key,
        spool_others=spool_others,
    )
    if spool is None:
        _refuse_options(options)
        return connect_node(address, timeout=timeout, producer=producer, retry=retry)
    return _open_spool(
        address, timeout=timeout, producer=producer, retry=retry, spool=spool, options=options
    )


@overload
def connect_async(
    address: str,
    *,
    timeout: float = 10.0,
    producer: str | None = None,
    retry: float = 30.0,
    spool: None = None,
) -> Connecting[AsyncClient]: ...


@overload
def connect_async(
    address: str,
    *,
    timeout: float = 10.0,
    producer: str | None = None,
    retry: float = 30.0,
    spool: str | os.PathLike[str],
    **options: Unpack[SpoolOptions],
) -> Connecting[AsyncSpoolClient]: ...


def connect_async(
    address: str,
    *,
    timeout: float = 10.0,
    producer: str | None = None,
    retry: float = 30.0,
    spool: str | os.PathLike[str] | None = None,
    spool_size: int = SPOOL_SIZE,
    spool_segment_size: int | None = None,
    spool_when_full: str = "block",
    spool_patience: float | None = None,
    spool_serialization: str = "cbor",
    spool_compress: bool = False,
    spool_key: bytes | None = None,
    spool_others: str | None = None,
) -> Connecting[AsyncClient] | Connecting[AsyncSpoolClient]:
    """Connect to a node and return a client: ``async with connect(…) as client`` or ``await connect(…)``.

    ``address`` is ``"host:port"``, ``"host"`` (port 2602) or several of these separated by commas.
    ``timeout``: seconds that the node may be silent while a request is unanswered. ``retry``: seconds for
    which requests are repeated after the connection broke, if repeating them is safe. ``producer``: a stable
    name for this program, so that the node keeps one deduplication record for all its runs; at most one client
    may use a name at a time. Raises ``InvalidValue`` for an invalid argument and ``ConnectionFailed`` if no
    node can be reached.

    ``spool``: a directory that only this program uses. With it, the call gives an ``AsyncSpoolClient``, even if no node can be
    reached: ``enqueue`` returns when the task is durable in the directory, and a thread sends it to the
    node (docs/spool.md). ``spool_size``: bytes that the spool may use, 1 GiB by default.
    ``spool_segment_size``: bytes per file, a tenth of ``spool_size`` by default. ``spool_when_full``:
    ``"block"`` waits for room, at most ``spool_patience`` seconds if that is given; ``"refuse"`` raises
    ``SpoolFull``; ``"drop-oldest"`` deletes the oldest unsent tasks. ``spool_serialization``: ``"cbor"``, or
    ``"protobuf"`` for programs that expect it. ``spool_compress``: compress with LZ4. ``spool_key``: 16 bytes;
    encrypt with this key. ``spool_others``: the queue for events in the directory that Penstock did not write.
    Raises ``DirectoryLocked`` if another process has the directory open and ``BadData`` if its files are
    damaged. The spool options without ``spool`` are an ``InvalidValue``.
    """
    from penstock.client.asynchronous import client_of
    from penstock.client.asynchronous import connect as connect_node_async
    from penstock.client.connecting import Connecting

    options = SpoolOptions(
        spool_size=spool_size,
        spool_segment_size=spool_segment_size,
        spool_when_full=spool_when_full,
        spool_patience=spool_patience,
        spool_serialization=spool_serialization,
        spool_compress=spool_compress,
        spool_key=spool_key,
        spool_others=spool_others,
    )
    if spool is None:
        _refuse_options(options)
        return connect_node_async(address, timeout=timeout, producer=producer, retry=retry)
    from penstock.spooling.async_client import AsyncSpoolClient

    addresses = parse_addresses(address)
    timeout = checked_seconds(timeout, "timeout", positive=True)

    async def opened() -> AsyncSpoolClient:
        client = AsyncSpoolClient(
            lambda: _open_spool(
                address,
                timeout=timeout,
                producer=producer,
                retry=retry,
                spool=spool,
                options=options,
            ),
            client_of(addresses, timeout=timeout, producer=producer, retry=retry),
        )
        await client.open()
        return client

    return Connecting(opened)


def _refuse_options(options: SpoolOptions) -> None:
    """Raise ``InvalidValue`` if an option of a spool was given without a spool."""
    defaults = connect.__kwdefaults__ or {}
    for name, value in options.items():
        if value != defaults[name]:
            raise InvalidValue(f"{name} needs a spool; name its directory with spool=…")


def _open_spool(
    address: str,
    *,
    timeout: float,
    producer: str | None,
    retry: float,
    spool: str | os.PathLike[str],
    options: SpoolOptions,
) -> SpoolClient:
    from penstock.spooling.client import SpoolClient
    from penstock.spooling.rounds import checked_target
    from penstock.spooling.settings import spool_settings
    from penstock.storage.files import checked_directory

    with needing("spool", "connect(spool=…)"):
        import cbor2  # noqa: F401 - the thread that sends to the node reads the spool with it
    # The node may be contacted much later; invalid arguments are reported now.
    parse_addresses(address)
    producer_id(producer)
    checked_seconds(timeout, "timeout", positive=True)
    checked_seconds(retry, "retry", positive=False)
    settings = spool_settings(
        size=options["spool_size"],
        segment_size=options["spool_segment_size"],
        when_full=options["spool_when_full"],
        serialization=options["spool_serialization"],
        compress=options["spool_compress"],
        key=options["spool_key"],
    )
    others = options["spool_others"]
    return SpoolClient(
        checked_directory(spool, "spool"),
        settings,
        forward=lambda: connect_node(address, timeout=timeout, retry=0.0),
        connect=lambda: connect_node(address, timeout=timeout, producer=producer, retry=retry),
        others=None if others is None else checked_target(others),
        patience=options["spool_patience"],
    )
