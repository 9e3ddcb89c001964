"""The page in Airflow's UI, and the same figures as JSON. It only reads."""

from parkkeeper.ui.app import create_app

__all__ = ["create_app"]
