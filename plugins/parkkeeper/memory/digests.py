"""Keyed digests: what lets a key, a turn or a subject be recognised without being kept."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parkkeeper.memory.turns import CheckedTurn


class Digests:
    """HMAC-SHA256 with the namespace's secret; what is digested for one purpose never equals what is for another."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def key(self, scope: str, idempotency_key: str) -> bytes:
        """Return the digest of an idempotency key in its scope."""
        return self._digest({"scope": scope, "key": idempotency_key})

    def content(self, turn: CheckedTurn) -> bytes:
        """Return the digest of all that a caller gives for a turn; a time that is left out stays left out."""
        occurred_at = turn.occurred_at.timestamp() if turn.occurred_at else None
        content = {"subject": turn.subject, "occurred_at": occurred_at, "messages": turn.messages}
        # Left out where there is none: so the digests from before there were languages stay what they are.
        return self._digest(content if turn.language is None else content | {"language": turn.language})

    def subject(self, subject: str) -> bytes:
        """Return the digest of a subject, for receipts."""
        return self._digest({"receipt": subject})

    def _digest(self, content: Mapping[str, object]) -> bytes:
        return hmac.digest(self._secret, json.dumps(content, separators=(",", ":")).encode(), hashlib.sha256)
