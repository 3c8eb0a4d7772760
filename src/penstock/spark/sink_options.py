"""The options of a write to a node, checked on the driver before any job starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.client.addresses import parse_addresses
from penstock.errors import InvalidValue
from penstock.families.options import parse_fields, parse_number, parse_text
from penstock.families.tables import KNOWN, PATHS
from penstock.model import INT64_MIN, QueueName


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one write."""

    node: str
    queue: str | None = None  # of all rows; None: each row's own
    key: int | None = None  # of all rows; None: each row's own, 0 without such a column
    # Who writes, over restarts; None: the query, or nobody but this one write.
    application: str | None = None
    version: int | None = None  # which write of the application's this is; a stream numbers its own


VERSION_MAX: Final = 2**53
"""Numbers of requests are made of it and must fit 64 bits."""


def _version(value: str) -> int:
    number = parse_number(0)(value)
    if number > VERSION_MAX:
        raise ValueError(f"a whole number from 0 to {VERSION_MAX}")
    return number


def _queue(value: str) -> str:
    try:
        return QueueName(value)
    except InvalidValue as error:
        raise ValueError(f"a queue's name: {error}") from None


_OF_SINKS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "node": ("node", parse_text),
    "queue": ("queue", _queue),
    "key": ("key", parse_number(INT64_MIN)),
    "txnAppId": ("application", parse_text),
    "txnVersion": ("version", _version),
}
_ONLY_OF_SINKS: Final = [name for name in _OF_SINKS if name not in KNOWN]
_OF_SPARK: Final = ("checkpointlocation", "queryname", "outputmode")
"""What a stream is told and hands on to its sink."""


def is_of_sink(options: Mapping[str, str]) -> bool:
    """Return whether some option is one that only a write has."""
    only = {*map(str.lower, _ONLY_OF_SINKS), *_OF_SPARK}
    return any(name.lower() in only for name in options)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return what the options of a write say. Raises ``InvalidValue``."""
    if any(name.lower() in PATHS for name in options):
        raise InvalidValue(
            "a path, and nothing but a live node is written to: option node, and save() without a path; options"
            f" {', '.join(_ONLY_OF_SINKS)} are of a write, a read is filtered by its columns"
        )
    given = {name: value for name, value in options.items() if name.lower() not in _OF_SPARK}
    fields = parse_fields(given, _OF_SINKS)
    if "node" not in fields:
        raise InvalidValue("no node to write to; give option node, such as 127.0.0.1:2602")
    parsed = SinkOptions(**fields)  # type: ignore[arg-type]
    parse_addresses(parsed.node)
    return parsed
