"""The ``penstock`` command. Whatever goes wrong becomes one line and an exit code, never a traceback."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated

import typer

import penstock
from penstock.cli import (
    cluster,
    dequeue,
    dev_cluster,
    enqueue,
    export,
    files,
    node,
    pipeline,
    queues,
    serve,
    spool,
    sql,
)
from penstock.cli.output import Exit, say
from penstock.errors import PathMissing, PenstockError

app = typer.Typer(
    name="penstock",
    help="A durable, replicated priority task queue whose every file is a Spark table.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
queue_app = typer.Typer(
    name="queue", help="Create, list, look at, purge and delete queues.", no_args_is_help=True
)

cluster_app = typer.Typer(
    name="cluster",
    help="A group of nodes: look at it, add and remove members, let another one lead.",
    no_args_is_help=True,
)

pipeline_app = typer.Typer(
    name="pipeline",
    help="Turn files into tables with Spark, travel in time, audit, migrate.",
    no_args_is_help=True,
)

spool_app = typer.Typer(
    name="spool",
    help="A producer's local buffer: fill it, drain it to a node, look at it.",
    no_args_is_help=True,
)


def _register(group: typer.Typer, command: Callable[..., None], name: str) -> None:
    summary, _, examples = (command.__doc__ or "").partition("\b\n")
    # Click reflows text that is not set off; the examples stand last, as they are typed.
    group.command(name, help=inspect.cleandoc(summary), epilog="\b\n" + inspect.cleandoc(examples))(
        command
    )


_register(app, serve.serve, "serve")
_register(app, enqueue.enqueue, "enqueue")
_register(app, dequeue.dequeue, "dequeue")
_register(app, dequeue.peek, "peek")
_register(app, node.stat, "stat")
_register(app, node.node, "node")
app.add_typer(queue_app)
_register(queue_app, queues.create, "create")
_register(queue_app, queues.list_, "list")
_register(queue_app, queues.stat, "stat")
_register(queue_app, queues.purge, "purge")
_register(queue_app, queues.delete, "delete")
app.add_typer(cluster_app)
_register(cluster_app, cluster.status, "status")
_register(cluster_app, cluster.add, "add")
_register(cluster_app, cluster.remove, "remove")
_register(cluster_app, cluster.transfer, "transfer")
_register(app, dev_cluster.dev_cluster, "dev-cluster")
app.add_typer(spool_app)
_register(spool_app, spool.stat, "stat")
_register(spool_app, spool.put, "put")
_register(spool_app, spool.drain, "drain")
_register(spool_app, spool.tail, "tail")
app.add_typer(pipeline_app)
_register(pipeline_app, pipeline.run, "run")
_register(pipeline_app, pipeline.tasks, "tasks")
_register(pipeline_app, pipeline.snapshot, "snapshot")
_register(pipeline_app, pipeline.audit, "audit")
_register(pipeline_app, pipeline.migrate, "migrate")
_register(app, files.inspect, "inspect")
_register(app, files.dump, "dump")
_register(app, files.tasks, "tasks")
_register(app, files.verify, "verify")
_register(app, files.repair, "repair")
_register(app, files.convert, "convert")
_register(app, sql.sql, "sql")
_register(app, export.export, "export")


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"penstock {penstock.__version__}\n")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Take the options that stand before a command."""
    del version


def main() -> None:
    """Run the command line and exit."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `penstock dump … | head` just ends
    try:
        try:
            app()
        finally:
            _flush()
    except PathMissing as error:
        say(str(error))
        sys.exit(Exit.USAGE)
    except PenstockError as error:
        say(str(error))
        sys.exit(Exit.DAMAGE)
    except OSError as error:
        say(f"{error.filename or 'the system'}: {error.strerror or error}")
        sys.exit(Exit.DAMAGE)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _flush() -> None:
    """Write out what is still held, so that a full disk shows in the exit code. Raises ``OSError``."""
    try:
        sys.stdout.flush()
    except OSError:
        # Python tries once more at its end, and would complain in its own words.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


if __name__ == "__main__":
    main()
