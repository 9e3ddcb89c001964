"""What people decide about a memory: what formation leaves alone, and how far backlogs may grow."""

from __future__ import annotations

from parkkeeper.database import statements
from parkkeeper.errors import InvalidArgument
from parkkeeper.memory.errors import FormationPaused
from parkkeeper.memory.outcomes import MemorySettings, ScopeSettings
from parkkeeper.memory.session import Session
from parkkeeper.names import checked_name

_SQL = statements("memory/control")


def chosen(scope: str | None, extractor: str | None) -> tuple[str, str]:
    """Return which kind of thing is to be paused or resumed and its name; refuse both and neither."""
    if (scope is None) == (extractor is None):
        raise InvalidArgument("scope and extractor: give one of them, and call again for the other")
    if scope is not None:
        return "scope", checked_name("scope", scope)
    return "extractor", checked_name("extractor", extractor or "")


def pause(session: Session, kind: str, name: str) -> bool:
    """Let no turn be claimed; tell whether that is new."""
    return session.execute(_SQL, f"pause_{kind}", {"name": name}).rowcount > 0


def resume(session: Session, kind: str, name: str) -> bool:
    """Let turns be claimed again; tell whether they were not."""
    return session.execute(_SQL, f"resume_{kind}", {"name": name}).rowcount > 0


def paused(session: Session, scope: str | None, extractor: str) -> tuple[str, ...]:
    """Return what of the two is paused."""
    row = session.execute(_SQL, "paused", {"scope": scope, "extractor": extractor}).fetchone()
    assert row is not None
    return tuple(
        kind for kind, is_paused in (("scope", row.scope), ("extractor", row.extractor)) if is_paused
    )


def refuse_paused(session: Session, scope: str, extractor: str) -> None:
    """Refuse to extract what is paused."""
    if found := paused(session, scope, extractor):
        name = scope if found[0] == "scope" else extractor
        raise FormationPaused(f"{found[0]} {name} is paused: resume it first")


def set_backlog_cap(session: Session, cap: int | None, scope: str | None) -> None:
    """Set from which backlog on `append` is refused with `BacklogFull`; at first there is no cap.

    Parameters
    ----------
    cap
        The most turns that may wait to be formed; None: no cap.
    scope
        Whose backlog; None: that of the namespace, all scopes together. With a cap of the namespace each append
        reads the counts of all scopes, and appends to several scopes at the same moment may go past it together.
    """
    if scope is not None:
        session.execute(_SQL, "cap_scope", {"scope": scope, "backlog_cap": cap})
    elif cap is not None:
        session.execute(_SQL, "cap_namespace", {"backlog_cap": cap})
    else:
        session.execute(_SQL, "uncap_namespace", {})


def settings(session: Session) -> MemorySettings:
    """Return what is decided at present."""
    cap = session.execute(_SQL, "namespace_cap", {}).fetchone()
    scopes = [ScopeSettings(*row) for row in session.execute(_SQL, "scopes", {})]
    extractors = {row.extractor: row.paused_at for row in session.execute(_SQL, "extractors", {})}
    return MemorySettings(None if cap is None else cap.backlog_cap, scopes, extractors)
