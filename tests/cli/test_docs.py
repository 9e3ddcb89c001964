"""The pages about the command line: what they show can be run, and the reference knows every option."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from parkkeeper import cli

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [
    "how-to/enqueue-and-work.md",
    "how-to/redrive-failed-jobs.md",
    "how-to/look-after-the-ring.md",
    "how-to/park-and-unpark.md",
    "how-to/rebuild-a-scope.md",
    "how-to/hold-formation-back.md",
    "how-to/erase-a-subject.md",
    "how-to/write-an-extractor.md",
    "explanation/migrations.md",
    "how-to/least-privilege.md",
]
SHARED = {"--namespace", "-n", "--dsn", "--json", "--help", "-h"}


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_can_be_run_one_after_another(
    run, namespace: str, page: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks
    shell, printed = "", ""
    for line in "".join(blocks).splitlines():
        if not line.startswith("parkkeeper "):
            shell += line + "\n"
            continue
        subprocess.run(["bash", "-euo", "pipefail", "-c", shell], check=True)
        shell = ""
        own = re.sub(r"(-n|--namespace) (jobs|support)\b", rf"\1 {namespace}", line.partition(" > ")[0])
        assert namespace in own
        done = run(*shlex.split(own)[1:])
        assert (done.code, done.err) == (0, ""), line
        printed += done.out
    assert shell == ""
    for shown in re.findall(
        r"^    ((?!request_id)[a-z_]+ +\d.*|clean.*|deleted.*|residual.*)$", text, re.MULTILINE
    ):
        assert " ".join(shown.split()) in " ".join(printed.split()), (
            f"{page} shows what is not printed: {shown}"
        )


def commands(command: Any, name: str) -> dict[str, set[str]]:
    """Every command by its full name, with the names of its own options."""
    groups = getattr(command, "commands", None)
    if groups is None:
        return {
            name: {option for p in command.params for option in p.opts if option.startswith("-")} - SHARED
        }
    return {
        full: options
        for sub, one in groups.items()
        for full, options in commands(one, f"{name} {sub}").items()
    }


def test_the_reference_knows_every_command_and_every_option() -> None:
    page = (DOCS / "reference" / "cli.md").read_text()
    sections = dict(re.findall(r"^### `(parkkeeper .*?)`\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE))
    documented = {
        name: {
            option
            for row in re.findall(r"^\| (`-.*?) \|", body, re.MULTILINE)
            for option in re.findall(r"`(-.*?)`", row)
        }
        for name, body in sections.items()
    }
    assert documented == commands(typer.main.get_command(cli.app), "parkkeeper")


@pytest.mark.parametrize("page", [*PAGES, "how-to/enqueue-in-your-transaction.md", "reference/cli.md"])
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    path = DOCS / page
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        assert (path.parent / target).is_file(), target


def test_the_outcomes_that_the_reference_lists_are_the_fields_that_are_printed(run, support: str) -> None:
    page = (DOCS / "reference" / "cli.md").read_text()
    for name, arguments in {"freshness": ("-s", "ada"), "sweep": (), "form": ()}.items():
        section = (
            page.partition(f"### `parkkeeper memory {name}`")[2]
            .partition("\n| option")[0]
            .partition("### ")[0]
        )
        listed = re.findall(r"`([a-z_]+)`", section.partition("JSON")[2])
        assert listed == list(run("memory", name, "-n", support, *arguments, "--json").json)
