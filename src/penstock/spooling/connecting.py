"""``connect``, blocking and for asyncio: the client as it is, or with a spool.

What a spool needs is imported only when one is asked for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypedDict, Unpack, overload

from penstock.client.addresses import parse_addresses
from penstock.client.blocking import Client
from penstock.client.blocking import connect as connect_node
from penstock.client.producer import producer_id
from penstock.client.retries import checked_seconds
from penstock.errors import InvalidValue, needing

if TYPE_CHECKING:
    from penstock.client.asynchronous import Connecting
    from penstock.spooling.async_client import Opening
    from penstock.spooling.client import SpoolClient

Directory = str | os.PathLike[str]


class SpoolOptions(TypedDict, total=False):
    """What can be said of a spool."""

    spool_size: int  # bytes that it may have, 1 GiB if not said
    spool_segment_size: int  # bytes of a file of it, a tenth of the whole if not said
    spool_when_full: str  # "block", "refuse" or "drop-oldest"
    spool_patience: float  # seconds to wait for room
    spool_compress: bool  # with LZ4
    spool_key: bytes  # 16 bytes, to encrypt with
    spool_others: str  # the queue for events that are no tasks of ours


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
    spool: Directory,
    **options: Unpack[SpoolOptions],
) -> SpoolClient: ...


def connect(
    address: str,
    *,
    timeout: float = 10.0,
    producer: str | None = None,
    retry: float = 30.0,
    spool: Directory | None = None,
    **options: Unpack[SpoolOptions],
) -> Client | SpoolClient:
    """Return a client that is connected to a node: ``"host:port"``, ``"host"``, ``"host1:port,host2:port"``.

    ``timeout``: seconds that the node may be silent while something is unanswered. ``retry``: seconds
    for which requests are repeated after the connection broke, if that is safe. ``producer``: a name for
    this program, so that the node keeps one row for it and not one for each run; one client a name.
    Raises ``InvalidValue`` for a bad address and ``ConnectionFailed`` if no node can be talked to.

    ``spool``: a directory of this program's own. The client is there then even if the node is not: ``enqueue``
    returns when the task is durable in the directory, and it is sent in the background (docs/spool.md).
    ``spool_size``: bytes that it may have, 1 GiB if not said. ``spool_when_full``: ``"block"``, for at most
    ``spool_patience`` seconds if these are given, ``"refuse"``, or ``"drop-oldest"``. ``spool_segment_size``: bytes
    of a file. ``spool_compress=True``: with LZ4. ``spool_key``: 16 bytes, to encrypt with. ``spool_others``: the
    queue for events in the directory that are no tasks of ours. Raises ``DirectoryLocked`` if another process has
    the directory open, and ``BadData`` if it cannot be read.
    """
    if spool is not None:
        return _open_spool(
            address, timeout=timeout, producer=producer, retry=retry, spool=spool, options=options
        )
    _refuse_options(options)
    return connect_node(address, timeout=timeout, producer=producer, retry=retry)


@overload
def connect_async(
    address: str,
    *,
    timeout: float = 10.0,
    producer: str | None = None,
    retry: float = 30.0,
    spool: None = None,
) -> Connecting: ...


@overload
def connect_async(
    address: str,
    *,
    timeout: float = 10.0,
    producer: str | None = None,
    retry: float = 30.0,
    spool: Directory,
    **options: Unpack[SpoolOptions],
) -> Opening: ...


def connect_async(
    address: str,
    *,
    timeout: float = 10.0,
    producer: str | None = None,
    retry: float = 30.0,
    spool: Directory | None = None,
    **options: Unpack[SpoolOptions],
) -> Connecting | Opening:
    """Return a client of a node, to be awaited or entered: ``async with connect(…) as client``.

    Arguments and exceptions are those of ``penstock.connect``.
    """
    from penstock.client.asynchronous import client_of
    from penstock.client.asynchronous import connect as connect_node_async

    if spool is None:
        _refuse_options(options)
        return connect_node_async(address, timeout=timeout, producer=producer, retry=retry)
    from penstock.spooling.async_client import AsyncSpoolClient, Opening

    addresses = parse_addresses(address)
    timeout = checked_seconds(timeout, "timeout", positive=True)
    return Opening(
        lambda: AsyncSpoolClient(
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
    )


def _refuse_options(options: SpoolOptions) -> None:
    """Raise ``InvalidValue`` for a word about a spool where there is none, ``TypeError`` for any other."""
    _check_names(options)
    for name in options:
        raise InvalidValue(f"{name} says something of a spool; name its directory: spool=…")


def _check_names(options: SpoolOptions) -> None:
    for name in options:
        if name not in SpoolOptions.__annotations__:
            raise TypeError(f"connect() got an unexpected keyword argument {name!r}")


def _open_spool(
    address: str,
    *,
    timeout: float,
    producer: str | None,
    retry: float,
    spool: Directory,
    options: SpoolOptions,
) -> SpoolClient:
    from penstock.spooling.client import SpoolClient
    from penstock.spooling.rounds import checked_target
    from penstock.spooling.settings import SPOOL_SIZE, spool_settings
    from penstock.storage.files import checked_directory

    _check_names(options)
    with needing("spool", "connect(spool=…)"):
        import cbor2  # noqa: F401 - the thread that sends to the node reads the spool with it
    # What would show only when the node is first talked to is checked now.
    parse_addresses(address)
    producer_id(producer)
    checked_seconds(timeout, "timeout", positive=True)
    checked_seconds(retry, "retry", positive=False)
    settings = spool_settings(
        size=options.get("spool_size", SPOOL_SIZE),
        segment_size=options.get("spool_segment_size"),
        when_full=options.get("spool_when_full", "block"),
        compress=options.get("spool_compress", False),
        key=options.get("spool_key"),
    )
    others = options.get("spool_others")
    return SpoolClient(
        checked_directory(spool, "spool"),
        settings,
        forward=lambda: connect_node(address, timeout=timeout, retry=0.0),
        connect=lambda: connect_node(address, timeout=timeout, producer=producer, retry=retry),
        others=None if others is None else checked_target(others),
        patience=options.get("spool_patience"),
    )
