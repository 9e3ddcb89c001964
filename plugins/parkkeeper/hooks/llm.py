"""From an Airflow connection to the extractor that asks a language model."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from parkkeeper.errors import InvalidArgument
from parkkeeper.memory.extractors import Extractor


def llm_extractor(conn_id: str) -> Extractor:
    """Return the extractor ``llm`` with what a connection holds, of whatever type it is.

    Parameters
    ----------
    conn_id
        Of its fields, `host` is the API's address with its scheme, `password` the key, and the extra's ``model`` the
        model; ``limits`` in the extra may hold the fields of :class:`~parkkeeper.memory.extractors.limits.Limits`.
        Nothing is taken from elsewhere when a field is empty.

    Raises
    ------
    InvalidArgument
        A field is missing or cannot be used, or the extra ``llm`` of the distribution is not installed; the message
        shows no value.
    """
    try:
        from parkkeeper.memory.extractors.limits import Limits
        from parkkeeper.memory.extractors.llm import Llm
    except ImportError:
        raise InvalidArgument(
            "extractor 'llm' cannot be imported: install airflow-provider-parkkeeper[llm]"
        ) from None
    connection = BaseHook.get_connection(conn_id)
    extra: dict[str, Any] = connection.extra_dejson
    found = {"host": connection.host, "password": connection.password, "extra.model": extra.get("model")}
    if missing := [name for name, value in found.items() if not value]:
        raise InvalidArgument(f"connection {conn_id} is refused: it has no {', no '.join(missing)}")
    try:
        limits = Limits(**extra.get("limits", {}))
        return Llm(
            extra["model"],
            api_key=str(connection.password),
            base_url=str(connection.host),
            connection=conn_id,
            limits=limits,
        )
    except TypeError:
        raise InvalidArgument(f"connection {conn_id} is refused: extra.limits has unknown fields") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"connection {conn_id} is refused: {error}") from None
