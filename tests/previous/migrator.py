"""Migrate or verify namespaces with the code of the release whose packages are in the folder that is named.

A line of JSON asks, and a line answers: "done", or what differs from a fresh install.
"""

from __future__ import annotations

import json
import sys

sys.path.insert(0, sys.argv[1])

from parkkeeper import database, migrations

for line in sys.stdin:
    request = json.loads(line)
    action = request.pop("action")
    with database.connect(request.pop("dsn"), application_name="this-release") as connection:
        if action == "migrate":
            migrations.migrate(connection, **request)
            differences = ()
        else:
            differences = migrations.verify(connection, **request).differences
    sys.stdout.write(f"{list(differences) or 'done'}\n")
    sys.stdout.flush()
