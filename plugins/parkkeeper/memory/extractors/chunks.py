"""The embedded extractor: each message becomes a memory that recall can find. No network, always the same result."""

from __future__ import annotations

from parkkeeper.memory.extractors import Memory, Turn


class Chunks:
    """Keeps each message that is not blank as one memory of kind ``message``."""

    name = "chunks"
    version = "1"

    def extract(self, turn: Turn) -> list[Memory]:
        """Return the messages of `turn` as memories, in their order."""
        return [
            Memory(message["content"], "message") for message in turn.messages if message["content"].strip()
        ]
