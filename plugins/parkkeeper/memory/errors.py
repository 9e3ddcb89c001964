"""What only the memory namespace raises; the refusals of arguments are in :mod:`parkkeeper.errors`.

No message here ever carries a turn's content, a provider's error text, a subject or an idempotency key.
"""

from __future__ import annotations

from parkkeeper.errors import InvalidArgument, ParkkeeperError


class InvalidTurn(InvalidArgument):
    """A turn cannot be appended as it is; the message names the message and the position, never the content."""


class BacklogFull(ParkkeeperError):
    """An append would make a backlog larger than its cap; nothing was stored."""


class FormationPaused(ParkkeeperError):
    """The scope or the extractor is paused, so nothing was extracted."""


class IdempotencyConflict(ParkkeeperError):
    """The idempotency key was used in this scope for another turn; nothing was stored."""


class NamespaceInUse(ParkkeeperError):
    """Workers have turns of the namespace in hand; nothing was dropped."""


class RebuildActive(ParkkeeperError):
    """The scope has a rebuild that has not ended: another one, or this one in other hands; nothing was done."""


class RebuildCancelled(ParkkeeperError):
    """The rebuild was cancelled while it was worked on; what it had replaced until then stays."""


class TurnErased(ParkkeeperError):
    """The turn of this idempotency key was erased: a retry does not bring it back; nothing was stored."""


class UnknownRequest(ParkkeeperError):
    """There is no request of an erasure under this id."""
