"""The form in which a model is asked to answer, and reading it out of whatever else it says around it."""

from __future__ import annotations

import json
from typing import Any

from parkkeeper.memory.extractors import ExtractionError, Memory

#: How many opening braces of a reply are looked at: a reply that is all braces must not cost time without end.
BRACES = 1_000

_DECODER = json.JSONDecoder()


def memories(reply: str) -> list[Memory]:
    """Return the memories of the one object with `memories` in `reply`; what stands around it does not count.

    Raises
    ------
    ExtractionError
        Of class ``malformed``: there is no such object, there are different ones, or something in it is no memory.
        A reply without an object is a failure and never an empty result: a refusal in prose looks like that.
    """
    found = _envelopes(reply)
    if not found:
        raise ExtractionError("malformed", f"the reply has no object with memories: {reply}")
    if any(each != found[0] for each in found):
        raise ExtractionError("malformed", f"the reply has several different objects with memories: {reply}")
    items = found[0]["memories"]
    if not isinstance(items, list):
        raise ExtractionError("malformed", f"memories in the reply is no list: {reply}")
    return [_memory(number, item, reply) for number, item in enumerate(items)]


def _envelopes(reply: str) -> list[dict[str, Any]]:
    found = []
    position = reply.find("{")
    for _ in range(BRACES):
        if position < 0:
            break
        end = position + 1
        try:
            value, end = _DECODER.raw_decode(reply, position)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and "memories" in value:
            found.append(value)
        elif value is not None:
            end = position + 1  # It may stand inside another object.
        position = reply.find("{", end)
    return found


def _memory(number: int, item: Any, reply: str) -> Memory:
    """Return one memory; what the database cannot hold is seen where results are checked."""
    if not isinstance(item, dict) or not isinstance(item.get("text"), str) or not item["text"].strip():
        raise ExtractionError("malformed", f"memories[{number}] in the reply has no text: {reply}")
    kind = item.get("kind", "memory")
    if not isinstance(kind, str):
        raise ExtractionError("malformed", f"memories[{number}].kind in the reply is no string: {reply}")
    return Memory(item["text"], kind)
