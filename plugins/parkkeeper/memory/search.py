"""What makes text findable by Postgres's full text search, whose parser finds words by the spaces between them."""

from __future__ import annotations

import re

_THAI = "\u0e00-\u0e7f"
_KANA = "\u3040-\u30ff\u31f0-\u31ff"
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = re.compile(f"[{_THAI}{_KANA}{_HAN}]+")
# What has no space in it for longer is cut, behind a sign that is no letter where there is one. Postgres 18.4 writes
# past the end of its memory, and goes down, for a word that fits into the 2,046 bytes of a lexeme and in lower case
# does so no more; no locale's lower case makes a character longer than five bytes. Words of underscores take its
# parser a time that grows with their square.
_ENDLESS = re.compile(r"\S{401,}")
_PIECE = re.compile(r"\S{0,399}[^\w\s]|\S{1,400}")

#: What the scope's word in the index begins with: a character that the parser never yields.
SCOPE_MARK = "\x01"


def quoted_word(word: str) -> str:
    """Return `word` for a tsquery, where nothing in it is an operator."""
    escaped = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def spaced(text: str) -> str:
    """Return `text` with each run of a script that is written without spaces as overlapping pairs of characters.

    What has no space in it for more than 400 characters is cut. Other text is returned as it is. Text and query go
    through here alike: a run matches where a pair of its characters does.
    """
    return _ENDLESS.sub(_pieces, _UNSPACED.sub(_pairs, text))


def _pairs(run: re.Match[str]) -> str:
    characters = run[0]
    pairs = [characters[i : i + 2] for i in range(len(characters) - 1)] or [characters]
    return f" {' '.join(pairs)} "


def _pieces(run: re.Match[str]) -> str:
    return " ".join(_PIECE.findall(run[0]))
