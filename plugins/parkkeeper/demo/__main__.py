"""``python -m parkkeeper.demo [--once]``: the whole path once, a table of what came out, then Airflow's UI."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import sys
import threading
from contextlib import ExitStack
from types import FrameType
from typing import NoReturn

import psycopg
from rich.console import Console

from parkkeeper.demo import airflow, checks, place, report, runs, story
from parkkeeper.demo.progress import Progress
from parkkeeper.embedded import DSN_VARIABLE
from parkkeeper.errors import ParkkeeperError

#: Characters a line where there is no terminal to ask.
LOG_WIDTH = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run the demo.

    Returns
    -------
    int
        0 when every figure is what it must be, 1 when not or when a step failed, 130 when interrupted before that.
    """
    parser = argparse.ArgumentParser(prog="python -m parkkeeper.demo", description=__doc__.split(": ", 1)[1])
    parser.add_argument("--once", action="store_true", help="stop when it is done instead of staying up")
    once = parser.parse_args().once
    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    for number in _SIGNALS:  # SIGINT too: a shell's background job starts with it ignored
        signal.signal(number, _interrupt)
    try:
        with ExitStack() as stack:
            try:
                return _demo(stack, console, once)
            finally:
                _ignore_signals()
    except ParkkeeperError as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except psycopg.Error as error:
        # Its own words may quote a row.
        sys.stderr.write(
            f"demo: the database refused a statement: {type(error).__name__} ({error.sqlstate})\n"
        )
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("demo: interrupted; everything it started was stopped\n")
        return 130


def _demo(stack: ExitStack, console: Console, once: bool) -> int:
    progress = Progress(console)
    checkout = place.checkout()
    # The worker warns of each job that fails, which is what many of them are here for.
    logging.basicConfig(
        filename=checkout.state / "demo.log", filemode="w", format="%(asctime)s %(name)s: %(message)s"
    )
    stage, material = story.open_stage(stack, checkout, progress)
    put, found = story.play(stage, material)
    results = checks.checks(put, found)
    report.show(console, found, results)
    failed = [result for result in results if not result.passed]
    verdict = (
        f"[red]{len(failed)} of {len(results)} figures are not[/]"
        if failed
        else f"[green]All {len(results)} figures are[/]"
    )
    console.print(f"{verdict} what they must be, after {progress.elapsed:.0f} s.")
    if not once:
        _stay_up(console, stage)
    return 1 if failed else 0


def _stay_up(console: Console, stage: story.Stage) -> None:
    stage.airflow.client.unpause(runs.MAINTENANCE)
    console.print(f"\nAirflow's UI: {stage.airflow.url}/  login {airflow.USER}, password {airflow.PASSWORD}")
    console.print(f"The page:     {stage.airflow.url}/plugin/parkkeeper")
    if DSN_VARIABLE not in os.environ:
        settings = stage.state / "env"
        console.print(f"The command line, in another terminal:  . {shlex.quote(str(settings))}")
    console.print("Ctrl-C stops all of it.")
    over = threading.Event()
    try:
        while not over.wait(2):
            stage.airflow.check()
    except KeyboardInterrupt:
        console.print("\nStopping Airflow and Postgres.")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _ignore_signals()  # make passes on what a terminal has sent already
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    """Let nothing cut short the stopping that comes next."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
