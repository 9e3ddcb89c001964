"""What Parkkeeper raises on purpose: one base class, one sentence each.

A message names the field, the value, the rule and what to do. It never carries message content, the text of a
provider's error, a password or a key. Everything else that a caller may see is a :mod:`psycopg` error.
"""

from __future__ import annotations


class ParkkeeperError(Exception):
    """The base of every error that Parkkeeper raises on purpose."""


class InvalidArgument(ParkkeeperError, ValueError):
    """An argument is outside what the field allows; nothing was touched."""


class InvalidName(InvalidArgument):
    """A queue, kind or scope name breaks the rule for names; the message names the field."""


class InvalidNamespace(InvalidArgument):
    """A namespace is not a name that Parkkeeper accepts for a schema of its own."""


class UnknownNamespace(ParkkeeperError):
    """The namespace has no tables of the family that was asked for."""


class DatabaseUnavailable(ParkkeeperError):
    """No session could be had with the database."""


class TransactionOpen(ParkkeeperError):
    """A method that is a transaction of its own was called inside the caller's transaction."""


class MigrationError(ParkkeeperError):
    """A migration could not be planned or applied; the namespace is as it was before it."""


class MigrationDrift(MigrationError):
    """A migration that was applied reads differently in this package."""


class DatabaseNewer(MigrationError):
    """The namespace has migrations that this package does not know."""


class DatabaseOutdated(MigrationError):
    """The namespace lacks migrations that this package needs."""


class LedgerMissing(MigrationError):
    """The schema holds objects already, and no ledger says which migrations made them."""


class MigrationBlocked(MigrationError):
    """A lock that a migration needs was not had in the time allowed."""


class ForeignObjects(ParkkeeperError):
    """Something that Parkkeeper did not make would have to go too; the message names it, and nothing was dropped."""


class EmbeddedPostgresError(ParkkeeperError):
    """The embedded Postgres could not be found, started or stopped."""
