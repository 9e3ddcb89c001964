"""The web application that the plugin mounts: the page and its figures as JSON, for people who are logged in.

Nothing here writes: what changes anything is a DAG, which the page's script starts through Airflow's own API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exception_handlers import http_exception_handler, request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse

from parkkeeper import __version__
from parkkeeper.ui import api, charts, figures, history, models, page, reading
from parkkeeper.ui.reading import Unreadable

_HERE = Path(__file__).parent
_STATIC = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}

# Nothing but our own style and script; shown in a frame of Airflow's UI and in no other site's. The script talks to
# the server that it came from, where Airflow's API is too.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


_REFUSALS = {
    401: ("You are not logged in.", "Load Airflow's page again and log in."),
    403: ("Your role may not see Airflow's UI.", "Ask for a role that may: Viewer is enough to look."),
}


def create_app() -> FastAPI:
    """Return the application; every one of its endpoints demands a user who may see Airflow's UI."""
    app = FastAPI(
        title="Parkkeeper",
        version=__version__,
        description="The figures of Parkkeeper's namespaces. Nothing here writes.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_access_view(AccessView.WEBSITE))],
    )
    app.middleware("http")(_add_headers)
    app.exception_handler(Unreadable)(_unreadable)
    app.exception_handler(HTTPException)(_refused)
    app.exception_handler(RequestValidationError)(_refused)
    app.include_router(api.router)
    app.get("/figures", tags=["Figures"], responses=api.PROBLEMS)(figures_as_json)
    app.get("/", response_class=HTMLResponse, include_in_schema=False)(show_page)
    app.get("/charts", include_in_schema=False)(draw_charts)
    app.get("/static/{name}", include_in_schema=False)(static)
    app.get("/openapi.json", include_in_schema=False)(describe)
    return app


def show_page(
    namespace: str | None = None,
    view: str = "overview",
    hours: api.Hours = 24,
    queue: api.Filter = None,
    kind: api.Filter = None,
    scope: api.Filter = None,
    error_class: api.Filter = None,
    dag_id: api.Filter = None,
    dag_run_id: api.Filter = None,
) -> HTMLResponse:
    """Show a part of the page about a namespace: the one that was asked for, else the one that the site has configured.

    A filter that is empty, as a form sends it, filters nothing.
    """
    asked = page.Asked(
        namespace=namespace or None,
        view=view,
        hours=hours,
        queue=queue or None,
        kind=kind or None,
        scope=scope or None,
        error_class=error_class or None,
        dag_id=dag_id or None,
        dag_run_id=dag_run_id or None,
    )
    status, html = page.show(asked)
    return HTMLResponse(html, status_code=status)


def draw_charts(namespace: Annotated[str, Query(max_length=63)], hours: api.Hours = 24) -> Response:
    """Draw what maintenance did as SVG."""
    with reading.reader(namespace) as reader:
        found = history.read(reader, hours)
    return Response(charts.draw(found), media_type="image/svg+xml")


def figures_as_json(
    namespace: Annotated[
        str | None,
        Query(description="The namespace; without it the one that the site has configured, or the first."),
    ] = None,
) -> models.AllFigures:
    """All figures of a namespace's queues, ring and scopes, and the names of all namespaces."""
    with reading.session(namespace) as (connection, names):
        chosen = namespace or reading.default_namespace(names)
        found = figures.read(connection, chosen) if chosen else None
    return models.AllFigures(namespaces=names, figures=found)


def static(name: str) -> FileResponse:
    """Return the page's style or script."""
    if name not in _STATIC:
        raise HTTPException(404)
    return FileResponse(_HERE / "static" / name, media_type=_STATIC[name])


def describe(request: Request) -> dict[str, Any]:
    """Return the OpenAPI document of the endpoints that answer in JSON."""
    app: FastAPI = request.app
    return app.openapi()


def _unreadable(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Unreadable)
    return JSONResponse({"detail": f"{error.reason} {error.remedy}"}, status_code=error.status)


async def _refused(request: Request, error: Exception) -> Response:
    """Answer as FastAPI does, but people, who see the answer in a frame, with a page."""
    wants_page = request.scope.get("endpoint") is show_page and "application/json" not in request.headers.get(
        "accept", ""
    )
    if isinstance(error, RequestValidationError):
        field = str(error.errors()[0]["loc"][-1])
        if wants_page:
            return _page(
                422, f"The address is not understood: {field} is out of range.", "Open the page anew."
            )
        return await request_validation_exception_handler(request, error)
    assert isinstance(error, HTTPException)
    if wants_page and error.status_code in _REFUSALS:
        return _page(error.status_code, *_REFUSALS[error.status_code])
    return await http_exception_handler(request, error)


def _page(status: int, reason: str, remedy: str) -> HTMLResponse:
    return HTMLResponse(page.refuse(reason, remedy), status_code=status)


async def _add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers.update(_HEADERS)
    if "/static/" not in request.url.path:
        response.headers["Cache-Control"] = "no-store"
    return response
