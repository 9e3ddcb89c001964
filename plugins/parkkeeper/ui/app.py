"""The web application that the plugin mounts: one page and the same figures as JSON, for people who are logged in."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import psycopg
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from airflow.sdk.exceptions import AirflowNotFoundException
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, HTMLResponse

from parkkeeper.errors import DatabaseUnavailable, InvalidArgument, MigrationError, UnknownNamespace
from parkkeeper.hooks import ParkkeeperHook
from parkkeeper.provider import option
from parkkeeper.ui import figures, words

log = logging.getLogger(__name__)

STATEMENT_TIMEOUT = timedelta(seconds=5)
LOCK_TIMEOUT = timedelta(seconds=1)

_HERE = Path(__file__).parent
_STATIC = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}

# Nothing but our own style and script; shown in a frame of Airflow's UI and in no other site's.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'; "
    "frame-ancestors 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Unreadable(Exception):
    """The figures cannot be had.

    Attributes
    ----------
    status
        The HTTP status of the answer.
    reason, remedy
        A sentence each for people: what is wrong and what to do.
    names
        The namespaces to choose from, if they could be read.
    """

    def __init__(self, status: int, reason: str, remedy: str, names: list[str]) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.remedy = remedy
        self.names = names


def create_app() -> FastAPI:
    """Return the application; every one of its endpoints demands a user who may see Airflow's UI."""
    app = FastAPI(
        title="Parkkeeper",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_access_view(AccessView.WEBSITE))],
    )
    app.middleware("http")(_add_headers)
    app.get("/", response_class=HTMLResponse)(page)
    app.get("/figures")(figures_as_json)
    app.get("/static/{name}")(static)
    return app


def page(namespace: str | None = None) -> HTMLResponse:
    """Show the figures of a namespace: the one that was asked for, else the one that the site has configured."""
    try:
        names, found = _read(namespace)
    except Unreadable as error:
        return HTMLResponse(
            _render("unreadable.html", names=error.names, chosen=namespace, error=error),
            status_code=error.status,
        )
    return HTMLResponse(
        _render("page.html", names=names, chosen=found.namespace if found else None, found=found)
    )


def figures_as_json(namespace: str | None = None) -> dict[str, Any]:
    """Return the figures that the page shows, and the names of all namespaces."""
    try:
        names, found = _read(namespace)
    except Unreadable as error:
        raise HTTPException(error.status, error.reason) from None
    return {"namespaces": names, "figures": asdict(found) if found else None}


def static(name: str) -> FileResponse:
    """Return the page's style or script."""
    if name not in _STATIC:
        raise HTTPException(404)
    return FileResponse(_HERE / "static" / name, media_type=_STATIC[name])


async def _add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers.update(_HEADERS)
    if "/static/" not in request.url.path:
        response.headers["Cache-Control"] = "no-store"
    return response


def _read(namespace: str | None) -> tuple[list[str], figures.Figures | None]:
    """Return all namespaces and the figures of one; None when none was asked for and there is none to show.

    Raises
    ------
    Unreadable
        With what to tell the user; a database's own words go nowhere.
    """
    conn_id = option("conn_id")
    names: list[str] = []
    try:
        with ParkkeeperHook(conn_id).session(
            application_name="parkkeeper:ui",
            statement_timeout=STATEMENT_TIMEOUT,
            lock_timeout=LOCK_TIMEOUT,
            read_only=True,
        ) as connection:
            names = figures.namespaces(connection)
            chosen = namespace or _default(names)
            return names, figures.read(connection, chosen) if chosen else None
    except UnknownNamespace:
        raise Unreadable(
            404,
            f"There is no namespace {namespace!r} in this database.",
            "Choose another one, or make it with the DAG parkkeeper_migrate.",
            names,
        ) from None
    except MigrationError as error:
        reason = f"The figures cannot be read: {error}."
        raise Unreadable(
            409, reason, "Bring the package and the namespace to the same release.", names
        ) from None
    except (AirflowNotFoundException, DatabaseUnavailable, InvalidArgument) as error:
        log.warning("The page cannot use connection %s: %s", conn_id, error)
        reason = f"The database of connection {conn_id} cannot be reached."
    except psycopg.Error as error:
        log.warning("The page failed on connection %s: %s %s", conn_id, type(error).__name__, error.sqlstate)
        reason = f"The database of connection {conn_id} did not answer as it should ({error.sqlstate or 'no code'})."
    raise Unreadable(
        503, reason, "The log of the API server says more. Nothing was changed; try again.", names
    )


def _default(names: list[str]) -> str | None:
    configured = option("namespace")
    return configured if configured in names else (names[0] if names else None)


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _render(template: str, **values: Any) -> str:
    return _templates().get_template(template).render(words=words, **values)
