"""From what was raised to one line on stderr and an exit code; never a traceback, a row or a password."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path

import psycopg
import typer

from parkkeeper.cli.output import printable
from parkkeeper.errors import (
    DatabaseUnavailable,
    InvalidArgument,
    MigrationBlocked,
    MigrationError,
    ParkkeeperError,
    UnknownNamespace,
)

REFUSED, USAGE, UNREACHABLE, NAMESPACE, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 4, 130, 141

# The first that fits.
_CODES: tuple[tuple[type[Exception], int], ...] = (
    (InvalidArgument, USAGE),
    (DatabaseUnavailable, UNREACHABLE),
    (UnknownNamespace, NAMESPACE),
    (MigrationBlocked, REFUSED),
    (MigrationError, NAMESPACE),
    (ParkkeeperError, REFUSED),
)

# Of the place that stdout leads to.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# Typer has a copy of click of its own, or uses click itself, depending on the release: this is the base it raises.
_UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]


def guarded(command: Callable[[], None], arguments: Sequence[str]) -> int:
    """Run `command`; return its exit code, and have said what went wrong."""
    # The driver's own warnings show the server's address; what they are about is said in one line below.
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    if sys.stdout is None:
        # A command that cannot say what it did would be taken for failed, and be repeated.
        sys.stderr.write("parkkeeper: error: stdout is closed: nothing was begun\n")
        return REFUSED
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # Not every terminal knows every character.
    try:
        for number, argument in enumerate(arguments, start=1):
            _check_text(number, argument)
        command()
        sys.stdout.flush()
        return 0
    except typer.Exit as left:
        return left.exit_code
    except BrokenPipeError:
        # Whoever read our output has left; Python would complain once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (KeyboardInterrupt, typer.Abort) as error:
        return _say("interrupted", error, INTERRUPTED)
    except Exception as error:
        message, code = explain(error)
        return _say(f"error: {message}", error, code)


def explain(error: Exception) -> tuple[str, int]:
    """Return what to say about `error`, and the exit code."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return str(error), code
    if isinstance(error, _UsageProblem):
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context else ""
        return error.format_message().rstrip(".") + hint, USAGE  # type: ignore[attr-defined]
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        # Its first line names a table or a schema, and no row.
        return f"the login lacks a right: {str(error).partition(chr(10))[0]}", REFUSED
    if isinstance(error, psycopg.Error):
        # Its message may hold a row; the class and the sqlstate do not.
        lost = isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(
            ("08", "57P")
        )
        what = "the session with the database was lost" if lost else "the database refused"
        return (
            f"{what} ({error.sqlstate or 'no sqlstate'}, {type(error).__name__})",
            UNREACHABLE if lost else REFUSED,
        )
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"output cannot be written: {error.strerror}", REFUSED
    return (
        f"{type(error).__name__} in {_place(error)}: this is a fault of parkkeeper, please report it",
        REFUSED,
    )


def _place(error: Exception) -> str:
    """Return file and line where `error` was raised, as far as it is our own."""
    place, trace = "an unknown place", error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if "parkkeeper" in path.parts:
            place = f"{path.name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _check_text(number: int, argument: str) -> None:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"argument {number} is refused: it is not valid UTF-8") from None


def _say(message: str, error: BaseException, code: int) -> int:
    """Print one line, with what a command has noted on the error on its way up."""
    line = "; ".join([message, *getattr(error, "__notes__", [])])
    sys.stderr.write(f"parkkeeper: {printable(' '.join(line.split()))}\n")
    return code
