"""Extractors by name: those that are shipped, and those that other distributions register."""

from __future__ import annotations

import configparser
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ENTRY_POINTS, SHIPPED, ExtractionError, load
from parkkeeper.memory.extractors.chunks import Chunks

ROOT = Path(__file__).resolve().parents[2]

MODULE = """
from parkkeeper.memory.extractors import Memory

class Shout:
    name, version = "shout", "1"

    def __init__(self, mark="!"):
        self.mark = mark

    def extract(self, turn):
        return [Memory(message["content"].upper() + self.mark) for message in turn.messages]

def shouting(mark):
    return Shout(mark)

def broken():
    raise RuntimeError("rosebud")

ready = Shout("?")
nothing = 5
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a distribution on the path that registers extractors, as an installer would leave it there."""

    def put(distribution: str = "shouting", module: str = MODULE, **extractors: str) -> None:
        place = tmp_path / distribution
        metadata = place / f"{distribution}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (place / f"{distribution}_module.py").write_text(module)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in extractors.items()]
        (metadata / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINTS}]", *lines]) + "\n")
        monkeypatch.syspath_prepend(str(place))

    yield put
    for name, loaded in [*sys.modules.items()]:
        if str(getattr(loaded, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_shipped_extractor_is_found_by_its_name() -> None:
    assert isinstance(load("chunks"), Chunks)


def test_what_is_shipped_is_registered_for_others_to_see() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"][ENTRY_POINTS].strip().splitlines()
    assert dict(line.split(" = ", 1) for line in lines) == SHIPPED


def test_another_distribution_adds_an_extractor_that_forms(install: Install, store: MemoryStore) -> None:
    install(shout="shouting_module:Shout")
    store.append("s", [{"role": "user", "content": "hello"}])
    assert store.form_batch(load("shout")).formed == 1
    (memory,) = store.recall("s", "hello").memories
    assert (memory.text, memory.extractor) == ("HELLO!", "shout")


def test_an_entry_point_names_a_class_a_function_or_an_extractor(install: Install) -> None:
    install(a="shouting_module:Shout", b="shouting_module:shouting", c="shouting_module:ready")
    assert [load("a").mark, load("a", mark=".").mark] == ["!", "."]  # type: ignore[attr-defined]
    assert load("b", mark="…").mark == "…"  # type: ignore[attr-defined]
    assert load("c").mark == "?"  # type: ignore[attr-defined]


def test_an_unknown_name_is_refused_with_the_names_there_are(install: Install) -> None:
    install(shout="shouting_module:Shout")
    with pytest.raises(InvalidArgument, match=r"extractor 'oracle' is refused: one of chunks, llm, shout$"):
        load("oracle")


@pytest.mark.parametrize(
    ("value", "arguments", "message"),
    [
        ("shouting_module:nothing", {}, "it needs name, version and extract"),
        ("shouting_module:shouting", {}, "cannot be made with no arguments"),
        ("shouting_module:Shout", {"model": "m"}, "cannot be made with model"),
        ("shouting_module:ready", {"model": "m"}, "takes no model"),
        ("shouting_module:broken", {}, r"cannot be made \(RuntimeError\)"),
        ("no_such_module:thing", {}, r"cannot be imported \(ModuleNotFoundError no_such_module\)"),
        ("shouting_module:absent", {}, r"cannot be imported \(AttributeError\)"),
        ("no_such_module:thing [fast]", {}, r"install shouting\[fast\], or see"),
    ],
)
def test_what_cannot_be_an_extractor_is_refused_in_one_sentence(
    install: Install, value: str, arguments: dict[str, str], message: str
) -> None:
    install(shout=value)
    with pytest.raises(InvalidArgument, match=message) as refused:
        load("shout", **arguments)
    assert "rosebud" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_name_that_two_distributions_register_is_refused_not_guessed(install: Install) -> None:
    install("one", shout="one_module:Shout")
    install("two", shout="two_module:Shout")
    with pytest.raises(InvalidArgument, match=r"stands for one_module:Shout and for two_module:Shout"):
        load("shout")


def test_nobody_takes_the_place_of_a_shipped_extractor(install: Install) -> None:
    install(chunks="shouting_module:Shout")
    with pytest.raises(InvalidArgument, match="extractor 'chunks' is refused: it stands for"):
        load("chunks")


def test_the_same_distribution_found_twice_is_one(install: Install) -> None:
    install("one", shout="one_module:Shout")
    install("two", shout="one_module:Shout")
    assert load("shout").name == "shout"


def test_the_memory_is_imported_without_airflow_and_without_a_client() -> None:
    program = (
        "import sys, parkkeeper.memory, parkkeeper.memory.extractors as e; e.load('chunks');"
        "print(sorted({'airflow', 'pydantic_ai', 'pydantic', 'openai'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_shipped_extractor_whose_extra_is_missing_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['pydantic_ai'] = None\n"
        "from parkkeeper.memory.extractors import load\n"
        "try: load('llm')\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (
        "(ModuleNotFoundError pydantic_ai): install airflow-provider-parkkeeper[llm], or see" in done.stdout
    )


@pytest.mark.parametrize(
    ("retry_after", "seconds"), [(7, 7), ("7", 7), ("0.5", 0.5), (timedelta(minutes=1), 60), ("-3", -3)]
)
def test_a_time_to_wait_is_seconds_or_a_timedelta(retry_after: object, seconds: float) -> None:
    error = ExtractionError("rate_limited", retry_after=retry_after)  # type: ignore[arg-type]
    assert error.retry_after == timedelta(seconds=seconds)


@pytest.mark.parametrize("zone", ["GMT", "+0000", "-0000"])
def test_a_time_to_wait_may_be_a_date_as_http_has_it(zone: str) -> None:
    wanted = datetime.now(UTC) + timedelta(minutes=10)
    text = format_datetime(wanted, usegmt=True).replace("GMT", zone)
    wait = ExtractionError("rate_limited", retry_after=text).retry_after
    assert wait is not None
    assert timedelta(minutes=8) < wait <= timedelta(minutes=10)


@pytest.mark.parametrize(
    "nonsense", ["", "soon", "nan", "inf", "1e400", "Mon, 99 Foo 2026", [], "\x00", "9" * 50]
)
def test_a_time_to_wait_that_is_none_leaves_the_class_as_it_is(nonsense: object) -> None:
    error = ExtractionError("rate_limited", retry_after=nonsense)  # type: ignore[arg-type]
    assert (error.error_class, error.retry_after) == ("rate_limited", None)
