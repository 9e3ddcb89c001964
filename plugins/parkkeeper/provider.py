"""What Airflow is told about this distribution, and what a site may set in its section of the configuration.

Airflow imports this module in each of its processes, long before anything of Parkkeeper is used: it imports
nothing.
"""

from __future__ import annotations

from typing import Any

from parkkeeper import __version__

#: The options of the section and their defaults, which hold where the distribution is used without being
#: installed.
OPTIONS = {
    "conn_id": "parkkeeper_default",
    "namespace": "parkkeeper",
    "deadline_notifier": "",
    "deadline_notifier_kwargs": "",
}


def option(name: str) -> str:
    """Return what the site has set for an option of the ``[parkkeeper]`` section, else its default.

    Reads the configuration and the environment (``AIRFLOW__PARKKEEPER__NAMESPACE``), never a database, so
    that a DAG file may ask.
    """
    from airflow.sdk import conf

    return str(conf.get("parkkeeper", name, fallback=OPTIONS[name]))


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata in the shape of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-parkkeeper",
        "name": "Parkkeeper",
        "description": "Keeps a Postgres job queue and a memory namespace healthy and honest.",
        "versions": [__version__],
        "integrations": [{"integration-name": "Parkkeeper", "tags": ["software"]}],
        "operators": [{"integration-name": "Parkkeeper", "python-modules": ["parkkeeper.operators"]}],
        "sensors": [{"integration-name": "Parkkeeper", "python-modules": ["parkkeeper.sensors"]}],
        "hooks": [{"integration-name": "Parkkeeper", "python-modules": ["parkkeeper.hooks"]}],
        "extra-links": ["parkkeeper.operators.links.NamespaceLink"],
        "connection-types": [
            {
                "connection-type": "parkkeeper",
                "hook-class-name": "parkkeeper.hooks.ParkkeeperHook",
                "hook-name": "Parkkeeper (Postgres)",
                "ui-field-behaviour": {
                    "relabeling": {"schema": "Database"},
                    "placeholders": {
                        "host": "db.example.org",
                        "port": "5432",
                        "login": "parkkeeper",
                        "schema": "postgres",
                    },
                },
                "conn-fields": {
                    "sslmode": {
                        "label": "SSL mode",
                        "description": "How the connection is encrypted and the server verified; "
                        "libpq's default is prefer.",
                        "schema": {
                            "type": ["string", "null"],
                            "enum": ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"],
                        },
                    }
                },
            }
        ],
        "config": {
            "parkkeeper": {
                "description": "Defaults of Parkkeeper's DAGs and of its page.",
                "options": {
                    "conn_id": {
                        "description": "The Airflow connection, of type Parkkeeper or Postgres, that the "
                        "DAGs and the page use.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "postgres_default",
                        "default": OPTIONS["conn_id"],
                    },
                    "namespace": {
                        "description": "The namespace (schema) that scheduled runs look after, and that a "
                        "manual run proposes.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "orders",
                        "default": OPTIONS["namespace"],
                    },
                    "deadline_notifier": {
                        "description": "The dotted path of an Airflow notifier with async_notify, which is "
                        "told of each run of Parkkeeper's DAGs that missed its deadline. Empty: none.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "airflow.providers.slack.notifications.slack_webhook.SlackWebhookNotifier",
                        "default": OPTIONS["deadline_notifier"],
                    },
                    "deadline_notifier_kwargs": {
                        "description": "Its arguments, as a JSON object; empty: none. Templates may use dag_id, "
                        "run_id, state and deadline.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": '{"text": "{{ dag_id }} is late: {{ run_id }}"}',
                        "default": OPTIONS["deadline_notifier_kwargs"],
                    },
                },
            }
        },
    }
