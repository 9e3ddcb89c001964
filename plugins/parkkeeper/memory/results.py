"""What came of an extraction: memories that can be stored, or a failure with a class of the list.

All of this looks at objects of the extractor's, which may do anything when they are looked at, or never be done with
it. So it runs in the thread that extracts, within the turn's time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from parkkeeper.error_text import kept_error
from parkkeeper.memory.extractors import ExtractionError, Memory
from parkkeeper.memory.turns import CONTENT_LENGTH, storable

_LOG = logging.getLogger(__name__)
_KIND_LENGTH = 64


def checked(result: object) -> Sequence[Memory]:
    """Return what an extractor has returned as memories that can be stored.

    Raises
    ------
    ExtractionError
        Of class ``malformed``, which says what cannot be.
    """
    if not isinstance(result, list | tuple):
        raise ExtractionError(
            "malformed", f"extract returned a {type(result).__name__}, not a list of Memory"
        )
    memories = tuple(result)
    for number, memory in enumerate(memories):
        if not isinstance(memory, Memory):
            raise ExtractionError(
                "malformed", f"memories[{number}] is a {type(memory).__name__}, not a Memory"
            )
        for field, value, longest in (
            ("text", memory.text, CONTENT_LENGTH),
            ("kind", memory.kind, _KIND_LENGTH),
        ):
            if not isinstance(value, str) or not 0 < len(value) <= longest or not storable(value):
                raise ExtractionError(
                    "malformed",
                    f"memories[{number}].{field} is not 1 to {longest} characters that Postgres can store",
                )
    return memories


def classed(error: BaseException) -> ExtractionError:
    """Return `error` as a failure with a class of the list, whatever a derived class has made of it.

    Its message is the text to keep; None when that cannot be read.
    """
    try:
        if isinstance(error, ExtractionError):
            found = ExtractionError(error.error_class, error.message, retry_after=error.retry_after)
            return _read(found)
    except BaseException:  # whatever its attributes raise
        _LOG.info("an %s without a class of the list is recorded as other", type(error).__name__)
    return _read(ExtractionError("other", error))


def _read(failure: ExtractionError) -> ExtractionError:
    try:
        failure.message = kept_error(failure.message)
    except BaseException:  # whatever the message's own __str__ raises
        _LOG.info("the text of a %s failure cannot be read; its class is recorded alone", failure.error_class)
        failure.message = None
    return failure
