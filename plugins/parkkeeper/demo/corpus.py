"""The demo's turns: conversations that the ``chatterbot-corpus`` package ships, in several languages and scripts."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import yaml

from parkkeeper.database import statements
from parkkeeper.errors import ParkkeeperError
from parkkeeper.memory import MemoryStore
from parkkeeper.memory.extractors import ExtractionError, Memory, Message, Turn
from parkkeeper.namespace import Namespace

#: One scope of the memory namespace each.
LANGUAGES = ("chinese", "english", "hebrew", "hindi", "japanese", "russian", "thai", "ukrainian")
#: The corpus has two turns here that lost their reply: the lines of the conversation became one message.
BROKEN_SCOPE = "ukrainian"
MAX_ATTEMPTS = 6

_SQL = statements("demo")
_ROLES = ("user", "assistant")


class CorpusMissing(ParkkeeperError):
    """The package with the conversations is not installed."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One turn to append: `scope` is its language, `subject` who it is from, which here is a topic."""

    scope: str
    subject: str
    messages: tuple[str, ...] = field(repr=False)

    def turn(self) -> dict[str, Any]:
        """Return the turn as ``append_many`` takes it: the two speakers take turns."""
        return {
            "subject": self.subject,
            "messages": [
                {"role": _ROLES[number % 2], "content": message}
                for number, message in enumerate(self.messages)
            ],
        }


def read(languages: Iterable[str] = LANGUAGES) -> list[Conversation]:
    """Return the conversations of `languages`, topic by topic, in the order of the files.

    Raises
    ------
    CorpusMissing
        ``chatterbot-corpus`` is not installed.
    """
    spec = importlib.util.find_spec("chatterbot_corpus")
    if spec is None or not spec.submodule_search_locations:
        raise CorpusMissing(
            "chatterbot-corpus is not installed: pip install 'airflow-provider-parkkeeper[demo]'"
        )
    data = Path(spec.submodule_search_locations[0]) / "data"
    loader = getattr(
        yaml, "CSafeLoader", yaml.SafeLoader
    )  # the C one is ten times as fast, where there is one
    found = []
    for language in languages:
        for path in sorted((data / language).glob("*.yml")):
            content = yaml.load(path.read_text(encoding="utf-8"), loader)
            found += [
                Conversation(language, f"{language}/{path.stem}", tuple(map(str, messages)))
                for messages in content["conversations"]
            ]
    return found


def append(
    connection: psycopg.Connection[Any], namespace: Namespace, conversations: Sequence[Conversation]
) -> int:
    """Append each conversation as one turn of its scope; return how many were stored."""
    by_scope = defaultdict(list)
    for conversation in conversations:
        by_scope[conversation.scope].append(conversation.turn())
    store = MemoryStore(connection, namespace)
    return sum(len(store.append_many(scope, turns)) for scope, turns in by_scope.items())


def broken_offsets(conversations: Iterable[Conversation], scope: str = BROKEN_SCOPE) -> list[int]:
    """Return where in `scope` the turns stand that have no reply."""
    of_scope = [conversation for conversation in conversations if conversation.scope == scope]
    return [offset for offset, conversation in enumerate(of_scope) if len(conversation.messages) < 2]


class Pairs:
    """Keeps what was said and what was replied as one memory; a turn without a reply is malformed to it."""

    name = "demo-pairs"
    version = "1"

    def extract(self, turn: Turn) -> list[Memory]:
        """Return a memory for each message and the reply to it."""
        if len(turn.messages) < 2:
            raise ExtractionError("malformed", "the turn has no reply")
        contents = [message["content"] for message in turn.messages]
        return [Memory(f"{said}\n{reply}", "pair") for said, reply in pairwise(contents)]

    def canary(self) -> Turn:
        """Return a turn that must work: the usual canary is one message, which has no reply."""
        now = datetime.now(UTC)
        said, replied = Message(role="user", content="Ping."), Message(role="assistant", content="Pong.")
        return Turn("", -1, now, (said, replied), now)


def form_until_parked(connection: psycopg.Connection[Any], namespace: Namespace) -> int:
    """Form `BROKEN_SCOPE` by pairs, again and again, until what fails is parked; return how many turns that is.

    What has failed is tried again later: the wait is cut short by backdating, which is what time does to a row.
    """
    store = MemoryStore(connection, namespace)
    parked = 0
    for _ in range(MAX_ATTEMPTS):
        parked += store.form_batch(
            Pairs(), scope=BROKEN_SCOPE, limit=10_000, max_attempts=MAX_ATTEMPTS
        ).parked
        connection.execute(_SQL.render("make_due", namespace), {"scope": BROKEN_SCOPE})
    return parked
