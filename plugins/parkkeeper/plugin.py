"""The plugin: Parkkeeper's page in the navigation of Airflow's UI, and its timetable."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

URL_PREFIX = "/parkkeeper"


class ParkkeeperPlugin(AirflowPlugin):
    """Adds the page and its endpoints to the API server, and to all of Airflow the timetable of backfills."""

    name = "parkkeeper"
    external_views: list[Any] = [  # noqa: RUF012
        {
            "name": "Parkkeeper",
            # Relative, so that it holds where Airflow is served below a path.
            "href": f"{URL_PREFIX[1:]}/",
            "icon": f"{URL_PREFIX[1:]}/static/icon.svg",
            "destination": "nav",
            "url_route": "parkkeeper",
        },
        # Airflow offers a tab on every DAG or on none: of another's DAG it says that nothing is on record.
        {
            "name": "Parkkeeper",
            "href": f"{URL_PREFIX[1:]}/?view=runs&dag_id={{DAG_ID}}",
            "icon": f"{URL_PREFIX[1:]}/static/icon.svg",
            "destination": "dag",
            "url_route": "parkkeeper-dag",
        },
        {
            "name": "Parkkeeper",
            "href": f"{URL_PREFIX[1:]}/?view=runs&dag_id={{DAG_ID}}&dag_run_id={{RUN_ID}}",
            "icon": f"{URL_PREFIX[1:]}/static/icon.svg",
            "destination": "dag_run",
            "url_route": "parkkeeper-run",
        },
    ]

    @cached_property
    def timetables(self) -> list[Any]:  # type: ignore[override]
        """The timetable, imported when a DAG that has one is written down or read: each task loads the plugin too."""
        from parkkeeper.timetables import BackfillTimetable

        return [BackfillTimetable]

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The web application, made when the API server asks for it: each task loads the plugin too."""
        from parkkeeper.ui import create_app

        return [{"app": create_app(), "url_prefix": URL_PREFIX, "name": "Parkkeeper"}]
