"""Write the pages of the reference that are made from docstrings: ``make docs``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

import griffe

HERE = Path(__file__).resolve().parent
#: Each page, what it is about, and the modules whose public names it lists.
PAGES = {
    "queue.md": ("The queue in Python", ["parkkeeper.queue"]),
    "memory.md": ("The memory namespace in Python", ["parkkeeper.memory", "parkkeeper.memory.extractors"]),
    "migrations.md": ("Migrations in Python", ["parkkeeper.migrations"]),
    "operators.md": ("The Airflow operators and sensors", ["parkkeeper.operators", "parkkeeper.sensors"]),
}
_MADE = "<!-- Made from the docstrings by `make docs`: change those, not this page. -->"

#: "see :func:`parkkeeper.queue.ring.rotate`": the docstring of that function is the method's.
_ELSEWHERE = re.compile(r"[Ss]ee :func:`([\w.]+)`")
_ROLE = re.compile(r":\w+:`(?:~[\w.]*?\.)?(?:[^`<]*<)?~?([\w.]+)>?`")


def main() -> None:
    """Write all pages."""
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Return each page's name and its text, read from the sources without importing them."""
    package = griffe.load(
        "parkkeeper",
        search_paths=[HERE.parents[1] / "plugins"],
        docstring_parser=griffe.Parser.numpy,
        resolve_aliases=True,
    )
    return {name: "\n".join(_page(package, title, modules)) for name, (title, modules) in PAGES.items()}


def _page(package: griffe.Object, title: str, modules: Iterable[str]) -> Iterator[str]:
    yield from (f"# {title}", "", _MADE, "")
    for path in modules:
        module = package[path.removeprefix("parkkeeper.")]
        if module.docstring:
            yield from (_markdown(module.docstring.value), "")
        yield from ("```python", f"from {path} import ...", "```", "")
        for name in _public(module):
            yield from _object(package, module[name])


def _public(module: griffe.Object) -> list[str]:
    """Return the public names of a module: those it exports, else those it defines and documents."""
    if module.exports is not None:
        return sorted(str(name) for name in module.exports)
    return [
        name
        for name, member in module.members.items()
        if not name.startswith("_") and not member.is_alias and (member.is_class or member.is_function)
    ]


def _object(package: griffe.Object, found: griffe.Object | griffe.Alias, owner: str = "") -> Iterator[str]:
    yield from (f"##{'#' * bool(owner)} {owner}{found.name}", "")
    yield from ("```python", _signature(found, owner), "```", "")
    if found.docstring:
        yield from _sections(_told_of(package, found.docstring))
    if found.is_class:
        for base in _kept_bases(found):
            if base.docstring:
                yield from _sections(base.docstring, of_a_base=True)
        for member in _members(found):
            if not member.is_class and not member.name.startswith("_") and member.docstring:
                yield from _object(package, member, f"{found.name}.")


def _members(found: griffe.Object | griffe.Alias) -> list[griffe.Object | griffe.Alias]:
    """Return the members of a class, and those of bases that the package keeps to itself."""
    members = dict(found.members)
    for base in _kept_bases(found):
        members = {**base.members, **members}
    return list(members.values())


def _kept_bases(found: griffe.Object | griffe.Alias) -> list[griffe.Class]:
    """Return the bases of a class up to the first that has a place of its own: what they say is said nowhere else."""
    return list(takewhile(lambda base: base.name not in (base.module.parent.exports or ()), found.mro()))


def _signature(found: griffe.Object | griffe.Alias, owner: str) -> str:
    """Return how it is called, on one line or, when that would be long, a parameter a line."""
    if found.is_attribute:
        return f"{owner}{found.name}: {found.annotation}"
    if found.is_function:
        name, returns = f"{owner}{found.name}", f" -> {found.returns}" if found.returns is not None else ""
    elif "__init__" in found.members or "dataclass" in found.labels:
        name, returns = found.name, ""
    elif made := [base for base in _kept_bases(found) if "__init__" in base.members]:
        return _signature(made[0], owner).replace(made[0].name, found.name, 1)
    else:
        bases = ", ".join(str(base) for base in found.bases)
        return f"class {found.name}({bases})" if bases else f"class {found.name}"
    parameters = list(_parameters(found.parameters))
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){returns}"


def _parameters(parameters: Iterable[griffe.Parameter]) -> Iterator[str]:
    starred = False
    for parameter in parameters:
        if parameter.name == "self":
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not starred:
            starred = True
            yield "*"
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(
            parameter.kind, ""
        )
        written = f"{stars}{parameter.name}"
        if parameter.annotation is not None:
            written += f": {parameter.annotation}"
        if parameter.default is not None and not stars:
            written += f" = {parameter.default}"
        yield written


def _told_of(package: griffe.Object, docstring: griffe.Docstring) -> griffe.Docstring:
    """Return a docstring, or the one that it names as the place where all is told."""
    elsewhere = _ELSEWHERE.search(docstring.value)
    if elsewhere is None:
        return docstring
    told = package[elsewhere[1].removeprefix("parkkeeper.")].docstring
    assert told is not None, f"{elsewhere[1]} has no docstring"
    return told


def _sections(docstring: griffe.Docstring, *, of_a_base: bool = False) -> Iterator[str]:
    """Return what a docstring says; of a base's all but its first sentence, which is about the base."""
    for section in docstring.parsed:
        match section.kind:
            case griffe.DocstringSectionKind.text if of_a_base:
                more = section.value.partition("\n\n")[2]
                yield from ((_markdown(more), "") if more else ())
            case griffe.DocstringSectionKind.text:
                yield from (_markdown(section.value), "")
            case griffe.DocstringSectionKind.parameters | griffe.DocstringSectionKind.attributes:
                heading = section.kind.value.capitalize() + (
                    " that others of its kind have" if of_a_base else ""
                )
                yield from (f"{heading}:", "", *_named(section.value), "")
            case griffe.DocstringSectionKind.returns | griffe.DocstringSectionKind.yields:
                told = [_item(f"`{item.annotation}`", item.description) for item in section.value]
                yield from (f"{section.kind.value.capitalize()}:", "", *told, "")
            case griffe.DocstringSectionKind.raises:
                told = [
                    _item(_codes(str(item.annotation).strip("()")), item.description)
                    for item in section.value
                ]
                yield from ("Raises:", "", *told, "")
            case griffe.DocstringSectionKind.admonition:
                yield from (f"{section.title}:", "", _markdown(section.value.description), "")
            case other:
                raise ValueError(f"a docstring has a section {other}, which no page knows how to show")


def _named(items: Iterable[griffe.DocstringParameter | griffe.DocstringAttribute]) -> Iterator[str]:
    """Return a line for each description; names that were described together stay together."""
    described: dict[str, list[str]] = {}
    for item in items:
        described.setdefault(item.description, []).append(item.name)
    for description, names in described.items():
        yield _item(_codes(", ".join(names)), description)


def _codes(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def _item(head: str, description: str) -> str:
    text = _markdown(description).replace("\n", "\n  ")
    return f"- {head}: {text}" if text else f"- {head}"


def _markdown(text: str) -> str:
    """Turn the little reStructuredText that docstrings use into Markdown."""
    text = _ROLE.sub(r"`\1`", text.strip())
    text = re.sub(r"``docs/([\w/.-]+\.md)``", r"[docs/\1](../\1)", text)
    return text.replace("``", "`")


if __name__ == "__main__":
    main()
