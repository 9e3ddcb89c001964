"""One client for one turn: what it sends where is what it was told, and nothing that the environment says."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import openai
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

#: Before a model's name: which API its address speaks.
OPENAI, ANTHROPIC = "openai:", "anthropic:"

# Whose loggers print addresses at INFO and whole requests at DEBUG.
_TALKATIVE = ("anthropic", "httpcore", "httpcore2", "httpx", "httpx2", "openai", "pydantic_ai")


@asynccontextmanager
async def opened(model: str, api_key: str, base_url: str, seconds: float) -> AsyncIterator[Model]:
    """Open a client of this event loop's own, which asks once; all that it holds is closed at the end.

    Parameters
    ----------
    model
        With ``anthropic:`` before its name the address speaks Anthropic's API, else OpenAI's.
    seconds
        How long a read or a write may take; a connection is given up after ten.
    """
    # A redirect would send the turn to an address that nobody named.
    async with openai.DefaultAsyncHttpxClient(follow_redirects=False) as http:
        make = _anthropic if model.startswith(ANTHROPIC) else _openai
        yield make(model, api_key, base_url, openai.Timeout(seconds, connect=10), http)


def _openai(
    model: str, api_key: str, base_url: str, timeout: openai.Timeout, http: httpx2.AsyncClient
) -> Model:
    # An empty admin key keeps the library from looking for one in the environment.
    client = AsyncOpenAI(
        api_key=api_key,
        admin_api_key="",
        base_url=base_url,
        max_retries=0,
        timeout=timeout,
        http_client=http,
    )
    # From OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS: another's account, or another key.
    client.organization = client.project = None
    client._custom_headers = {}
    return OpenAIChatModel(model.removeprefix(OPENAI), provider=OpenAIProvider(openai_client=client))


def _anthropic(
    model: str, api_key: str, base_url: str, timeout: openai.Timeout, http: httpx2.AsyncClient
) -> Model:
    client = AsyncAnthropic(
        api_key=api_key,
        base_url=base_url,
        max_retries=0,
        timeout=timeout,
        open_telemetry=False,
        http_client=http,
    )
    # From ANTHROPIC_CUSTOM_HEADERS.
    client._custom_headers = {}
    return AnthropicModel(model.removeprefix(ANTHROPIC), provider=AnthropicProvider(anthropic_client=client))


def quiet() -> None:
    """Raise the loggers of the libraries to WARNING in this process: at DEBUG they print what a turn says.

    Before each turn, because a level may have been set since, on a logger that did not exist before.
    """
    for name in [*_TALKATIVE, *logging.root.manager.loggerDict]:
        if name.split(".")[0] in _TALKATIVE:
            logger = logging.getLogger(name)
            if logger.getEffectiveLevel() < logging.WARNING:
                logger.setLevel(logging.WARNING)
