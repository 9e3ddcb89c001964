"""A provider of language models on this machine: it answers the real client over HTTP as a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from parkkeeper.memory.extractors import Message, Turn
from parkkeeper.memory.extractors.llm import Llm

API_KEY = "pk0test0key0rosebud7Q"
MODEL = "test-model"


@dataclass(frozen=True)
class Reply:
    """What is sent back: a status, headers, and a body as JSON, or as it is when it is bytes."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Request:
    """What the provider was sent."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> dict[str, Any]:
        """The turn, as the model was given it."""
        return json.loads(self.body["messages"][-1]["content"])

    @property
    def contents(self) -> list[str]:
        return [message["content"] for message in self.prompt["messages"]]


Answer = Callable[[Request], Reply]


def said(content: str | None, finish_reason: str | None = "stop", **message: Any) -> Reply:
    """Return the reply of a model that says `content`."""
    choice = {
        "index": 0,
        "finish_reason": finish_reason,
        "message": {"role": "assistant", "content": content, **message},
    }
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    reply = {"id": "r", "object": "chat.completion", "created": 1, "model": MODEL, "usage": usage}
    return Reply({**reply, "choices": [choice]})


def remembered(*texts: str) -> Reply:
    """Return the reply of a model that remembers `texts`, as it was asked to."""
    return said(json.dumps({"memories": [{"text": text, "kind": "fact"} for text in texts]}))


def echo(request: Request) -> Reply:
    """Remember each message as it stands."""
    return remembered(*request.contents)


class Provider:
    """A server on a port of its own. `answer` may be changed at any time; `requests` are kept in order."""

    def __init__(self) -> None:
        self.answer: Answer = echo
        self.requests: list[Request] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(length))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.path, headers, body)
                provider.requests.append(request)
                reply = provider.answer(request)
                content = reply.content()
                self.send_response(reply.status)
                for name, value in {"content-type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # A client that did not wait for the answer.

        self.server = Server(("127.0.0.1", 0), Handler)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1"

    def llm(self, **more: Any) -> Llm:
        """Return an extractor that asks this provider."""
        return Llm(MODEL, api_key=API_KEY, base_url=self.base_url, **more)


@contextmanager
def running() -> Iterator[Provider]:
    """Serve until the end of the context."""
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.server.shutdown()
        provider.server.server_close()
        thread.join()


def turn(*contents: str, scope: str = "s", seconds: float = 30) -> Turn:
    """Return a turn as a batch would hand it over, with that much time left."""
    now = datetime.now(UTC)
    messages: tuple[Message, ...] = tuple({"role": "user", "content": content} for content in contents)
    return Turn(scope, 0, now, messages, now + timedelta(seconds=seconds))
