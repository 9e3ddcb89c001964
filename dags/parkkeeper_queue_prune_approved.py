"""An Airflow DAG; what it does and which arguments it takes stands in parkkeeper.dags."""

from parkkeeper.dags import parkkeeper_queue_prune_approved

dag = parkkeeper_queue_prune_approved()
