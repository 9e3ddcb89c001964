"""Migrate namespaces with the code of the release whose packages are in the folder that is named: a JSON line each."""

from __future__ import annotations

import json
import sys

sys.path.insert(0, sys.argv[1])

from parkkeeper import database, migrations

for line in sys.stdin:
    request = json.loads(line)
    with database.connect(request.pop("dsn"), application_name="this-release") as connection:
        migrations.migrate(connection, **request)
    sys.stdout.write("done\n")
    sys.stdout.flush()
