"""Registers Parkkeeper's plugin when this folder is Airflow's plugins folder and nothing else does.

An installed distribution, editable or not, registers the plugin by its entry point, and Airflow shows
a plugin that is registered twice as an import error.
"""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="parkkeeper"):
    from parkkeeper.plugin import ParkkeeperPlugin  # noqa: F401
