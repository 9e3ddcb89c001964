"""What is kept of a provider's error: no secret, nothing that Postgres cannot hold, and not more than fits."""

from __future__ import annotations

import re

#: In characters, as Postgres's length() counts them.
ERROR_LENGTH = 2_000

# A remote system decides how long its error is; what lies behind this cannot come into what is kept.
_LOOKED_AT = 50_000
_REDACTED = "[redacted]"

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_NAME = (
    r"(?:api[-_ ]?|access[-_ ]?|auth[-_ ]?|secret[-_ ]?|client[-_ ]?|private[-_ ]?|x[-_]){0,3}"
    r"(?:key|token|secret|password|passwd|pwd|signature|sig)"
)
# Every repetition that can fail after it has begun has a bound: these run over what a stranger wrote.
_SECRETS = (
    # Authorization: Bearer abc, Basic 'abc'
    (re.compile(r"\b(bearer|basic)\s+[\"']?[\w.~+/=:-]{6,}", re.IGNORECASE), rf"\1 {_REDACTED}"),
    # ?key=abc&, api_key: "abc", "token": "abc", SOME_API_KEY=abc
    (
        re.compile(rf"(?<![^\W_])({_NAME}[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;}}]{{4,}}", re.IGNORECASE),
        rf"\1{_REDACTED}",
    ),
    # scheme://user:password@host
    (re.compile(r"(://[^\s/:@]{0,256}:)[^\s/@]{1,256}@"), rf"\1{_REDACTED}@"),
    # Keys that are known by how they begin: OpenAI and kin, GitHub, Slack, AWS, Google; and JSON web tokens.
    (re.compile(r"\b(?:sk|pk|rk)-[\w-]{8,}"), _REDACTED),
    (
        re.compile(r"\bgh[a-z]_\w{16,}|\bxox[a-z]-[\w-]{8,}|\bA[KS]IA[0-9A-Z]{12,}|\bAIza[\w-]{20,}"),
        _REDACTED,
    ),
    (re.compile(r"\beyJ[\w-]{8,300}(?:\.[\w-]+){1,2}"), _REDACTED),
)


def kept_error(message: object) -> str:
    """Return the text of an error as it is stored: at most 2,000 characters.

    An exception is led by its type; bytes are decoded with replacement; control characters but tab and newline are
    dropped; half surrogate pairs are replaced; then secrets are removed, so that none can hide behind a dropped
    character; then the text is cut.
    """
    if isinstance(message, bytes | bytearray):
        text = bytes(message[:_LOOKED_AT]).decode("utf-8", "replace")
    elif isinstance(message, BaseException):
        text = f"{type(message).__name__}: {message}"
    else:
        text = str(message)
    text = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", _CONTROLS.sub("", text[:_LOOKED_AT]))
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text[:ERROR_LENGTH]
