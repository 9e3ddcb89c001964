"""The link from a task to the page of its namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.sdk import BaseOperator, BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class NamespaceLink(BaseOperatorLink):
    """A button of a task instance that opens the page on its namespace."""

    name = "Parkkeeper"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the page's address; without a namespace of its own, the one that the site has configured is shown."""
        base = str(conf.get("api", "base_url", fallback="/")).rstrip("/")
        namespace = getattr(operator, "namespace", None)
        return f"{base}/parkkeeper/" + (f"?{urlencode({'namespace': namespace})}" if namespace else "")
