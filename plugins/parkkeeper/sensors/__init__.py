"""Airflow sensors: each waits until a figure of a namespace has reached a threshold, and holds nothing meanwhile."""

from parkkeeper.sensors.memory import BacklogSensor, ParkedSensor

__all__ = ["BacklogSensor", "ParkedSensor"]
