"""DAGs as functions: a file of a site's DAG folder calls one, and gives it what is different there."""

from parkkeeper.dags.approved import parkkeeper_erasure, parkkeeper_queue_prune_approved
from parkkeeper.dags.memory import parkkeeper_memory_formation, parkkeeper_park_sweep
from parkkeeper.dags.migrate import parkkeeper_migrate
from parkkeeper.dags.migrate_all import parkkeeper_migrate_all
from parkkeeper.dags.queue import parkkeeper_queue_maintenance
from parkkeeper.dags.rebuild import parkkeeper_memory_rebuild
from parkkeeper.dags.redrive import parkkeeper_queue_redrive

__all__ = [
    "parkkeeper_erasure",
    "parkkeeper_memory_formation",
    "parkkeeper_memory_rebuild",
    "parkkeeper_migrate",
    "parkkeeper_migrate_all",
    "parkkeeper_park_sweep",
    "parkkeeper_queue_maintenance",
    "parkkeeper_queue_prune_approved",
    "parkkeeper_queue_redrive",
]
