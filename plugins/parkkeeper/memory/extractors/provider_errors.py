"""Which class a provider's failure has: by status, code and type of exception, never by its prose.

What a provider says is prose, and prose changes, is translated, and may quote the turn. So a class that the client
library has itself guessed from a sentence is not asked for either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic_ai.exceptions import (
    ContentFilterError,
    IncompleteToolCall,
    ModelAPIError,
    ModelHTTPError,
    ModelTimeoutError,
    OutputTokenLimitExceeded,
    UnexpectedModelBehavior,
)

from parkkeeper.memory.extractors import ExtractionError

# What OpenAI, Azure, Anthropic and the many that speak like one of them call it, under "code" or "type".
_CODES = {
    **dict.fromkeys(
        (
            "content_filter",
            "content_policy_violation",
            "moderation_blocked",
            "ResponsibleAIPolicyViolation",
        ),
        "refusal",
    ),
    **dict.fromkeys(("context_length_exceeded", "request_too_large", "string_above_max_length"), "too_long"),
    **dict.fromkeys(
        (
            "insufficient_quota",
            "billing_error",
            "billing_hard_limit_reached",
            "credit_balance_exhausted",
            "organization_spend_limit_exceeded",
            "organization_usage_limit_exceeded",
            "project_spend_limit_exceeded",
            "exceeded_current_quota_error",
        ),
        "quota",
    ),
    **dict.fromkeys(("rate_limit_exceeded", "rate_limit_error", "too_many_requests"), "rate_limited"),
    **dict.fromkeys(("invalid_api_key", "authentication_error", "permission_error"), "auth"),
    **dict.fromkeys(
        ("overloaded_error", "server_is_overloaded", "model_not_found", "not_found_error"), "unavailable"
    ),
    "timeout_error": "timeout",
}
_STATUSES = {
    401: "auth",
    402: "quota",
    403: "auth",
    # The model or the address is not there: that is no turn's fault.
    404: "unavailable",
    407: "auth",
    408: "timeout",
    413: "too_long",
    429: "rate_limited",
}
# What tells most about one turn comes before what is the provider's trouble: Azure sends both.
_FIRST = ("refusal", "too_long", "quota", "rate_limited", "auth", "timeout", "unavailable")

# Where in a body the codes stand: in it, in its "error", and in that one's "innererror".
_NESTED = ("error", "innererror")


def classed(error: Exception) -> ExtractionError:
    """Return what was raised while a model was asked as a failure with its class and what the provider said."""
    if isinstance(error, ExtractionError):
        return error
    if isinstance(error, ModelHTTPError):
        return ExtractionError(
            _of_reply(error.status_code, error.body),
            f"HTTP {error.status_code}: {_said(error.body)}",
            retry_after=(error.headers or {}).get("retry-after"),
        )
    return ExtractionError(_of_exception(error), f"{type(error).__name__}: {error}")


def _of_exception(error: Exception) -> str:
    if isinstance(error, ContentFilterError):
        return "refusal"
    if isinstance(error, OutputTokenLimitExceeded | IncompleteToolCall):
        return "output_truncated"
    if isinstance(error, ModelTimeoutError | TimeoutError):
        return "timeout"
    # A ValueError is pydantic's, json's or a codec's: there was a reply, and it could not be read.
    if isinstance(error, UnexpectedModelBehavior | ValueError) or isinstance(error.__cause__, ValueError):
        return "malformed"
    return "unavailable" if isinstance(error, ModelAPIError) else "other"


def _of_reply(status: int, body: object) -> str:
    classes = {_CODES[code] for code in _codes(body) if code in _CODES}
    for error_class in _FIRST:
        if error_class in classes:
            return error_class
    return _STATUSES.get(status) or ("unavailable" if status >= 500 else "other")


def _codes(body: Any) -> Iterator[str]:
    while isinstance(body, dict):
        yield from (value for key in ("code", "type") if isinstance(value := body.get(key), str))
        body = next((body[key] for key in _NESTED if key in body), None)


def _said(body: object) -> str:
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, default=repr)
