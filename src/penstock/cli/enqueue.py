"""``penstock enqueue``: tasks from the shell into a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import NODE, NodeOption, connected
from penstock.cli.files import open_path, with_family_flags
from penstock.cli.output import Bar, Exit, bar, emit, say
from penstock.cli.task_input import (
    STDIN,
    DelayOption,
    Feed,
    KeyOption,
    NewTask,
    Reading,
    Shape,
    TtlOption,
    of_arguments,
    refuse_missing,
)
from penstock.errors import (
    ConnectionFailed,
    PenstockError,
    PolicyViolated,
)
from penstock.families.family import Files, Outcome, Sending
from penstock.families.options import Operation, Values
from penstock.model import DEFAULT_QUEUE

if TYPE_CHECKING:
    from penstock.client.blocking import Client

_SHOWN_EVERY = 1000  # tasks between two looks at the clock


FileOption = Annotated[
    list[Path] | None,
    typer.Option("--file", metavar="FILE...", readable=False, help="A task a file, as it is."),
]


@with_family_flags(Operation.INGEST)
def enqueue(
    values: Values,
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="QUEUE",
            help="The queue; '' is the default queue; with --json none: as rows say.",
        ),
    ] = None,
    payloads: Annotated[
        list[str] | None,
        typer.Argument(metavar="PAYLOAD", help="A task each; '-' alone: all of stdin is one."),
    ] = None,
    file: FileOption = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="A task a line, of stdin or of the files.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="A task a JSON line, as dequeue, peek and tasks print them; the same way.",
        ),
    ] = False,
    key: KeyOption = None,
    delay: DelayOption = None,
    ttl: TtlOption = None,
    producer: Annotated[
        str | None,
        typer.Option("--producer", metavar="NAME", help="Whose retries count once; one at a time."),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print a line for each task.")] = False,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PATH",
            readable=False,
            help="The messages of RabbitMQ's directory, or the events of a spool; can be repeated.",
        ),
    ] = None,
    node: NodeOption = NODE,
) -> None:
    """Put tasks in a queue; each is durable once it is counted.

    \b
    Examples:
      penstock enqueue orders "write the invoice" "send the invoice"
      penstock enqueue orders --key -1 --delay 0.5 "answer the phone"
      penstock enqueue orders --file invoice.txt letter.txt
      seq 1000 | penstock enqueue orders --lines
      gzip --stdout letter.txt | penstock enqueue orders -
      penstock tasks old | penstock enqueue --json
      penstock enqueue --from rabbit
    """
    if source is not None:
        others = [queue, payloads, file, lines, json, key, delay, ttl, ids]
        if any(other is not None and other is not False for other in others):
            raise typer.BadParameter(
                "tasks come from PATH; omit QUEUE, payloads and the flags of tasks",
                param_hint="--from",
            )
        files = open_path(source, Operation.INGEST, values)
        _send_files(files, values, producer=producer, node=node)
        return
    if values:
        raise typer.BadParameter(
            "these flags apply to messages in files; name the files with --from PATH"
        )
    feed, reading = _feed(queue, payloads or [], file or [], lines=lines, rows=json, key=key)
    tally = Tally(with_ids=ids)
    try:
        with connected(node, producer=producer) as client:
            _send(client, feed, tally, delay=delay, ttl=ttl)
    finally:
        tally.report()
    if reading is not None:
        _report_left_out(reading)
    if feed.problem is not None:
        say(f"{feed.problem}; the {tally.count} tasks before it were taken")
        raise typer.Exit(Exit.DAMAGE)
    if not tally.count and not ids:
        emit({"queue": queue or "", "count": 0, "first_id": None, "last_id": None})


def _report_left_out(reading: Reading) -> None:
    if reading.left_out:
        say(f"{reading.left_out} rows were left out: a node's own notes, which it makes itself")
    if reading.queues_left_out:
        say(f"the input leaves out {reading.queues_left_out} queues, which are not classic")


def _send_files(files: Files, values: Values, *, producer: str | None, node: str) -> None:
    """Put the messages of a directory in, those that no earlier run has put in."""
    totals: Totals = {}
    outcome = Outcome()
    try:
        with bar(files.size, "sending") as shown:
            sendings = files.ingest(values, outcome, producer=producer, progress=shown.advance)
            with connected(node) as client:
                _send_all(client, sendings, totals)
    finally:
        for queue, total in totals.items():
            emit({"queue": queue, **total})
    for words in outcome.words:
        say(words)
    if outcome.is_damaged or not outcome.is_complete:
        raise typer.Exit(Exit.DAMAGE)


Totals = dict[str, Counter[str]]
"""By queue, for one may come in several parts: the tasks that were put in, and what was left out."""


def _send_all(client: Client, sendings: Iterator[Sending], totals: Totals) -> None:
    try:
        for sending in sendings:
            if sending.queue != DEFAULT_QUEUE:
                client.create_queue(sending.queue, exist_ok=True)
            for queue, count in sending.send(client).items():
                totals.setdefault(queue, Counter()).update(count=count)
            left = asdict(sending.left)
            totals[sending.queue].update({f"left_{name}": count for name, count in left.items()})
    except ConnectionFailed:
        say(
            "run the same command again: it continues where this run ended and enqueues nothing twice"
        )
        raise


def _feed(
    queue: str | None,
    payloads: Sequence[str],
    files: Sequence[Path],
    *,
    lines: bool,
    rows: bool,
    key: int | None,
) -> tuple[Feed, Reading | None]:
    """Return the tasks that the arguments ask for. Raises ``typer.BadParameter`` and ``PathMissing``."""
    if lines and rows:
        raise typer.BadParameter("give --lines or --json, not both")
    shape = Shape.LINES if lines else Shape.ROWS if rows else Shape.WHOLE
    if files:
        paths = [*files, *map(Path, payloads)]  # so that `--file *.txt` means what it says
    elif shape is Shape.WHOLE and list(payloads) != ["-"]:
        if not payloads:
            raise typer.BadParameter(
                "nothing to enqueue: give payloads after QUEUE, or '-', --file, --lines or --json"
            )
        return Feed(of_arguments(payloads, queue=queue, key=key), lambda: False), None
    elif shape is not Shape.WHOLE and payloads:
        raise typer.BadParameter("--lines and --json read stdin, or the files after --file")
    else:
        paths = [STDIN]
    refuse_missing(paths)
    reading = Reading(paths, shape, queue=queue, key=key)
    return Feed(reading, reading.is_waiting), reading


def _send(
    client: Client, feed: Feed, tally: Tally, *, delay: float | None, ttl: float | None
) -> None:
    """Send everything there is. Raises ``PenstockError``, after saying what was taken."""
    with bar(None, "tasks") as shown:
        while (queue := feed.next_queue()) is not None:
            first, second = tee(_shown(feed.chunk(), shown))  # in step, so nothing piles up between
            keys, payloads = (task.key for task in first), (task.payload for task in second)
            try:
                ids = client.enqueue_many(queue, payloads, keys=keys, delay=delay, ttl=ttl)
            except PenstockError as error:
                tally.add(queue, getattr(error, "ids", ()))
                shown.stop()
                if tally.count or isinstance(error, PolicyViolated):
                    say(tally.words(is_broken=isinstance(error, ConnectionFailed)))
                raise
            tally.add(queue, ids)


def _shown(tasks: Iterator[NewTask], shown: Bar) -> Iterator[NewTask]:
    """Yield the tasks and show how many there were."""
    for count, task in enumerate(tasks, 1):
        if count % _SHOWN_EVERY == 0:
            shown.advance(_SHOWN_EVERY)
        yield task


class Tally:
    """What was taken, queue by queue."""

    def __init__(self, *, with_ids: bool) -> None:
        self._with_ids = with_ids
        self._taken: dict[str, tuple[int, int, int]] = {}  # count, first id, last id
        self._answered = 0
        self._first_refused: int | None = None  # by its number in the input, from 1
        self.count = 0

    def add(self, queue: str, ids: Sequence[int | None]) -> None:
        """Count tasks that were answered for; ``None`` stands for one that was refused."""
        for task_id in ids:
            self._answered += 1
            if self._with_ids:
                emit({"queue": queue, "id": task_id})
            if task_id is None:
                self._first_refused = self._first_refused or self._answered
                continue
            count, first, _ = self._taken.get(queue, (0, task_id, task_id))
            self._taken[queue] = (count + 1, first, task_id)
            self.count += 1

    def words(self, *, is_broken: bool) -> str:
        taken = f"{self.count} tasks were enqueued"
        if is_broken:
            return f"{taken}; the outcome of the tasks after them is unknown"
        number = self._first_refused or self._answered + 1
        return f"{taken}; task {number} of the input is the first that was refused"

    def report(self) -> None:
        """Print a row for each queue that took something."""
        for queue, (count, first, last) in () if self._with_ids else self._taken.items():
            emit({"queue": queue, "count": count, "first_id": first, "last_id": last})
