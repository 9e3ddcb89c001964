"""The rights of three roles in a namespace, as a script."""

from __future__ import annotations

from psycopg import sql

from parkkeeper.database import statements
from parkkeeper.errors import InvalidArgument
from parkkeeper.namespace import Namespace

_SQL = statements("grants")
_LONGEST = 63  # bytes of a role's name


def grants(namespace: str | Namespace, *, migrator: str, maintainer: str, application: str) -> str:
    """Return a script that gives three roles what each needs in `namespace` and no more.

    It can be run again, and is to be after each migration. It needs no database here; who applies it owns the schema
    or is a superuser, and the roles exist.

    Parameters
    ----------
    migrator
        The role that runs migrations and so owns the tables.
    maintainer
        The role of rotate, prune, rescue, roll-up, sweeps, retries and settings.
    application
        The role of producers, workers, and whoever appends, forms and recalls.

    Raises
    ------
    InvalidArgument
        A role's name is empty, longer than 63 bytes, or holds a NUL; or two are the same.
    """
    space = Namespace.of(namespace)
    roles = {"migrator": migrator, "maintainer": maintainer, "application": application}
    for field, name in roles.items():
        if not name or len(name.encode()) > _LONGEST or "\0" in name:
            raise InvalidArgument(f"{field} {name!r} is refused: the name of a role, 1 to {_LONGEST} bytes")
    if len(set(roles.values())) < len(roles):
        raise InvalidArgument("migrator, maintainer and application are refused: they are to be three roles")
    quoted = {field: sql.Identifier(name).as_string() for field, name in roles.items()}
    quoted["application_literal"] = sql.Literal(quoted["application"]).as_string()
    parts = [_SQL.render(name, space).decode() % quoted for name in _SQL]
    return (
        f"-- namespace {space}\n\nBEGIN;\nSET LOCAL search_path TO '';\n\n"
        + "\n\n".join(parts)
        + "\n\nCOMMIT;\n"
    )
