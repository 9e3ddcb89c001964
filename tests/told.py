"""A notifier as a site might have one: it keeps what it is told."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.sdk import BaseNotifier


class Told(BaseNotifier):
    """Keeps its text, rendered, and the context."""

    template_fields = ("text",)
    messages: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    async def async_notify(self, context: Any) -> None:
        self.messages.append((self.text, {key: value for key, value in context.items() if key != "text"}))
