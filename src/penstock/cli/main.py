"""The ``penstock`` command. Whatever goes wrong becomes one line and an exit code, never a traceback."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from typing import Annotated

import typer

import penstock
from penstock.cli import files, serve
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
for command in (
    serve.serve,
    files.inspect,
    files.dump,
    files.tasks,
    files.verify,
    files.repair,
    files.convert,
):
    summary, _, examples = (command.__doc__ or "").partition("\b\n")
    # Click reflows text that is not set off; the examples stand last, as they are typed.
    app.command(help=inspect.cleandoc(summary), epilog="\b\n" + inspect.cleandoc(examples))(command)


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
