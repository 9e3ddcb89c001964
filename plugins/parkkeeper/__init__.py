"""Parkkeeper keeps two Postgres-backed stores healthy and honest: a job queue and a memory namespace.

Importing the package is cheap: each part is imported by its own name (`parkkeeper.queue`,
`parkkeeper.memory`, `parkkeeper.migrations`, `parkkeeper.operators`, ...).
"""

__version__ = "0.1.0"
