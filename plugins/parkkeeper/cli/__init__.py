"""The command ``parkkeeper``: it translates arguments into calls of the core, and results into text or JSON.

Exit codes: 0 done, 1 the operation said no, 2 a bad argument, 3 the database cannot be reached, 4 the namespace is not
what this release works with, 130 interrupted. An error is one line on stderr. See ``docs/reference/cli.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from parkkeeper import __version__
from parkkeeper.cli import memory, migrate_all, migrations, queue, queue_upkeep
from parkkeeper.cli.failures import guarded

app = typer.Typer(
    name="parkkeeper",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="An error is one line on stderr. Exit codes: 0 done, 1 the operation said no, 2 a bad argument, "
    "3 the database cannot be reached, 4 the namespace is unknown, outdated, newer or changed, 130 interrupted.",
)
migrations.register(app)
app.command("migrate-all")(migrate_all.migrate_all)
queue_upkeep.register(queue.app)
app.add_typer(queue.app, name="queue")
app.add_typer(memory.app, name="memory")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    arguments
        What stands after the program's name; None means those of this process.

    Returns
    -------
    int
        The exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _invoke(given or ["--help"]), given)


def _invoke(arguments: list[str]) -> None:
    # Not by calling the app: that would answer an interrupt or a closed pipe by itself, and forget what was noted.
    command = _command()
    with command.make_context("parkkeeper", arguments) as context:
        command.invoke(context)


@cache
def _command() -> Any:
    """Build the commands from the functions' signatures, once a process."""
    return typer.main.get_command(app)


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=lambda given: _version(given), help="Show the version."
        ),
    ] = False,
) -> None:
    """Keep a Postgres job queue and a memory namespace healthy and honest.

    Name the database once: `export PARKKEEPER_DSN=postgresql://user@host/database`

    Then make the tables: `parkkeeper migrate --family queue --namespace jobs`
    """


def _version(given: bool) -> None:
    if given:
        typer.echo(f"parkkeeper {__version__}")
        raise typer.Exit
