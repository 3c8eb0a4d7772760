"""``penstock spool``: a producer's local buffer, filled, emptied and looked at from the shell."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.connection import RETRY_SECONDS
from penstock.cli.files import with_family_flags
from penstock.cli.output import Exit, emit, emit_rows, say
from penstock.cli.paths import new_directory
from penstock.cli.task_input import (
    STDIN,
    DelayOption,
    Feed,
    KeyOption,
    Reading,
    Shape,
    TtlOption,
    of_arguments,
)
from penstock.errors import DirectoryLocked, InvalidValue, PathMissing
from penstock.families.beats.family import CBOR, key_of
from penstock.families.options import Operation, Values
from penstock.model import QueueName

if TYPE_CHECKING:
    from penstock.storage.spool import Spool, SpoolSettings

LOCK_SECONDS: Final = 10.0
"""How long a command waits for a spool that another process has open: most have it only for moments."""

LOOK_SECONDS: Final = 0.5
"""How often somebody who drains a spool for good looks for more, or for its lock."""

TAIL_SECONDS: Final = 0.1
"""How often somebody who only looks does so: it costs a listing of the directory."""

SAID_SECONDS: Final = 5.0
"""How often a drain says how far it is."""

SIZE: Final = 2**30

Directory = Annotated[Path, typer.Argument(metavar="DIR", parser=new_directory, help="The spool.")]
MaxSizeOption = Annotated[
    int, typer.Option("--max-size", metavar="BYTES", help="What the spool may have on the disk.")
]
SegmentSizeOption = Annotated[
    int | None,
    typer.Option("--segment-size", metavar="BYTES", help="Of a file; a tenth of it if not said."),
]
WhenFullOption = Annotated[
    str, typer.Option("--when-full", metavar="HOW", help="block, refuse or drop-oldest.")
]


@with_family_flags(Operation.SPOOL)
def stat(
    directory: Directory,
    values: Values,
) -> None:
    """Say how a spool stands; its owner may be at work. The exit code is 1 if something is damaged.

    \b
    Examples:
      penstock spool stat spool
    """
    from penstock.spooling.watching import stat

    report = _DamageReport()
    emit(stat(directory, key=key_of(values), report=report))
    report.exit_if_damaged()


class _DamageReport:
    """Reports damage on stderr and keeps whether there was any, for the exit code."""

    def __init__(self) -> None:
        self._is_damaged = False

    def __call__(self, words: str) -> None:
        self._is_damaged = True
        say(words)

    def exit_if_damaged(self) -> None:
        if self._is_damaged:
            raise typer.Exit(Exit.DAMAGE)


@with_family_flags(Operation.SPOOL_PUT)
def put(
    directory: Directory,
    values: Values,
    payloads: Annotated[
        list[str] | None,
        typer.Argument(metavar="PAYLOAD", help="A task each; if none, a task a line of stdin."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="NAME", help="The queue; with --json none: as rows say."),
    ] = None,
    key: KeyOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="A task a JSON line of stdin, as tasks prints them.")
    ] = False,
    delay: DelayOption = None,
    ttl: TtlOption = None,
    max_size: MaxSizeOption = SIZE,
    segment_size: SegmentSizeOption = None,
    when_full: WhenFullOption = "refuse",
) -> None:
    """Put tasks in a spool, from where they are drained to a node; each is durable once it is counted.

    With --key-file or --password-file, tasks are written encrypted.

    \b
    Examples:
      penstock spool put spool --queue orders "write the invoice" "send the invoice"
      seq 1000 | penstock spool put spool --queue orders --key 5
      penstock tasks old | penstock spool put spool --json --compress
      penstock spool put shipper --queue orders --serialization protobuf "call the bank"
    """
    from penstock.spooling.settings import spool_settings

    if json and payloads:
        raise typer.BadParameter("--json reads stdin; give no payloads")
    if queue is None and not json:
        raise typer.BadParameter("name the queue; '' is the default queue", param_hint="--queue")
    is_key_named = "key_file" in values or "password_file" in values
    with _usage():
        settings = spool_settings(
            size=max_size,
            segment_size=segment_size,
            when_full=when_full,
            serialization=values.get("serialization", CBOR),
            compress="compress" in values,
            key=key_of(values),
            encrypt="encrypt" in values or is_key_named,
        )
    reading = Reading([STDIN], Shape.ROWS if json else Shape.LINES, queue=queue, key=key)
    if payloads:
        feed = Feed(of_arguments(payloads, queue=queue, key=key), lambda: False)
    else:
        feed = Feed(reading, reading.is_waiting)
    counts: Counter[str] = Counter()
    try:
        with _opened(directory, settings, LOCK_SECONDS, threading.Event()) as spool:
            _put(spool, feed, counts, delay=delay, ttl=ttl)
    finally:
        for name, count in counts.items():
            emit({"queue": name, "count": count})
    if reading.left_out:
        say(f"{reading.left_out} rows were left out: a node's own notes, which it makes itself")
    if feed.problem is not None:
        say(f"{feed.problem}; the {counts.total()} tasks before it were taken")
        raise typer.Exit(Exit.DAMAGE)


def _put(
    spool: Spool, feed: Feed, counts: Counter[str], *, delay: float | None, ttl: float | None
) -> None:
    """Spool all tasks, those that have come before waiting for the next. Raises ``SpoolFull`` and the like."""
    from penstock.client.batches import cut
    from penstock.spooling.client import encode_batch, fitting

    while (queue := feed.next_queue()) is not None:
        counts[queue] += 0
        first, second = tee(feed.chunk())  # in step, so nothing piles up between
        keys, payloads = (task.key for task in first), (task.payload for task in second)
        for batch in cut(payloads, key=0, keys=keys):
            with _usage():
                events = encode_batch(
                    queue, batch, delay=delay, ttl=ttl, payload_format=spool.settings.payload_format
                )
            for part in fitting(events, spool.settings.publication_max):
                spool.publish(part)
                counts[queue] += len(part)


@with_family_flags(Operation.SPOOL)
def drain(
    directory: Directory,
    values: Values,
    to: Annotated[str, typer.Option("--to", metavar="HOST:PORT", help="The node.")],
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="NAME", help="Where events go that are no tasks of ours."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Do not end; send what others put there.")
    ] = False,
) -> None:
    """Send what a spool holds to a node, each task once, until nothing is left.

    \b
    Examples:
      penstock spool drain spool --to 127.0.0.1:2602
      penstock spool drain beats --to 127.0.0.1:2602 --queue events
    """
    from penstock.client.addresses import parse_addresses
    from penstock.client.worker import stopped_by_signals
    from penstock.spooling.rounds import checked_target
    from penstock.spooling.settings import spool_settings

    if not directory.is_dir():
        raise PathMissing(f"{directory}: no such directory")
    with _usage():
        parse_addresses(to)
        others = None if queue is None else checked_target(queue)
        secret = key_of(values)
        settings = spool_settings(
            size=SIZE, segment_size=None, when_full="refuse", compress=False, key=secret
        )
    stop = threading.Event()
    draining = _Draining(directory, settings, to, others, stop, is_patient=follow)
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a node that goes away breaks one too
    try:
        with stopped_by_signals(stop):
            if follow:
                draining.follow()
            else:
                draining.drain()
    finally:
        signal.signal(signal.SIGPIPE, before)
        draining.report()
    if stop.is_set() and not follow:
        say(f"{directory}: stopped before the end; the same command goes on where this one ended")
        raise typer.Exit(Exit.DAMAGE)
    if draining.refused:
        raise typer.Exit(Exit.DAMAGE)


class _Draining:
    """From a spool to a node, once or again and again."""

    def __init__(
        self,
        directory: Path,
        settings: SpoolSettings,
        to: str,
        others: QueueName | None,
        stop: threading.Event,
        *,
        is_patient: bool,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._to = to
        self._others = others
        self._stop = stop
        self._seconds = float("inf") if is_patient else RETRY_SECONDS  # for a node that is away
        self._count = 0
        self.refused = 0
        self._said_at = time.monotonic()

    def drain(self) -> None:
        """Send until nothing is left, or it is stopped."""
        from penstock.client.blocking import connect
        from penstock.spooling.forwarder import Forwarder
        from penstock.spooling.pump import Pump

        with _opened(
            self._directory, self._settings, min(self._seconds, LOCK_SECONDS), self._stop
        ) as spool:
            forwarder = Forwarder(
                spool, lambda: connect(self._to, retry=0.0), others=self._others, tell=say
            )
            try:
                Pump(forwarder, tell=say, stop=self._stop).run(
                    until_empty=True, retry=self._seconds, progress=self._advance
                )
                forwarder.rest()
            finally:
                forwarder.close()
                self.refused += forwarder.refused

    def follow(self) -> None:
        """Send, let others have the spool, and look again, until it is stopped."""
        seen: object = None
        while not self._stop.is_set():
            if _sizes(self._directory) != seen:
                with contextlib.suppress(DirectoryLocked):  # whoever has it puts something in
                    self.drain()
                    seen = _sizes(self._directory)
            self._stop.wait(LOOK_SECONDS)

    def report(self) -> None:
        sent = self._count - self.refused
        emit({"path": str(self._directory), "sent": sent, "refused": self.refused})

    def _advance(self, count: int) -> None:
        self._count += count
        if time.monotonic() - self._said_at > SAID_SECONDS:
            self._said_at = time.monotonic()
            say(f"{self._count} tasks so far")


@with_family_flags(Operation.SPOOL)
def tail(
    directory: Directory,
    values: Values,
    follow: Annotated[
        bool, typer.Option("--follow", help="Do not end; show what is put there.")
    ] = False,
) -> None:
    """Show the events that wait in a spool, as 'penstock tasks' does; its owner may be at work.

    The exit code is 1 if something is damaged.

    \b
    Examples:
      penstock spool tail spool
    """
    from penstock.spooling.watching import Tail

    report = _DamageReport()
    watched = Tail(directory, key=key_of(values), report=report)
    while True:
        emit_rows(watched.rows())
        if not follow:
            return report.exit_if_damaged()
        sys.stdout.flush()
        time.sleep(TAIL_SECONDS)


def _sizes(directory: Path) -> list[tuple[str, int]]:
    """Return what can be seen to change when something is put in a spool."""
    from penstock.spooling.watching import spool_at

    return [(one.path.name, one.size) for one in spool_at(directory).segments]


@contextmanager
def _opened(
    directory: Path, settings: SpoolSettings, seconds: float, stop: threading.Event
) -> Iterator[Spool]:
    """Give an open spool. Another process may have it for a while. Raises ``DirectoryLocked``."""
    from penstock.storage.spool import Spool

    deadline = time.monotonic() + seconds
    spool: Spool | None = None
    while spool is None:
        try:
            spool = Spool(directory, settings, tell=say)
        except DirectoryLocked:
            if time.monotonic() >= deadline or stop.wait(LOOK_SECONDS):
                raise
    with spool:
        yield spool


@contextmanager
def _usage() -> Iterator[None]:
    """Turn arguments that mean nothing into ``typer.BadParameter``."""
    try:
        yield
    except InvalidValue as error:
        raise typer.BadParameter(str(error).replace("spool_", "")) from None
