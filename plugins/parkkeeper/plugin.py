"""The plugin: Parkkeeper's page in the navigation of Airflow's UI."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

URL_PREFIX = "/parkkeeper"


class ParkkeeperPlugin(AirflowPlugin):
    """Adds the page and its endpoints to the API server."""

    name = "parkkeeper"
    external_views: list[Any] = [  # noqa: RUF012
        {
            "name": "Parkkeeper",
            # Relative, so that it holds where Airflow is served below a path.
            "href": f"{URL_PREFIX[1:]}/",
            "icon": f"{URL_PREFIX[1:]}/static/icon.svg",
            "destination": "nav",
            "url_route": "parkkeeper",
        }
    ]

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The web application, made when the API server asks for it: each task loads the plugin too."""
        from parkkeeper.ui import create_app

        return [{"app": create_app(), "url_prefix": URL_PREFIX, "name": "Parkkeeper"}]
