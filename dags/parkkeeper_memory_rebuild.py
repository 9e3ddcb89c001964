"""An Airflow DAG; what it does and which arguments it takes stands in parkkeeper.dags."""

from parkkeeper.dags import parkkeeper_memory_rebuild

dag = parkkeeper_memory_rebuild()
