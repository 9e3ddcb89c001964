"""The half of the memory's front door that erases: at once, by request, by age, a whole scope."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

from parkkeeper.errors import InvalidArgument
from parkkeeper.memory import erasure, erasure_request, expiry, log
from parkkeeper.memory.arguments import check_counts, check_subject, checked_ids
from parkkeeper.memory.digests import Digests
from parkkeeper.memory.erasure import Wanted
from parkkeeper.memory.outcomes import ErasureReceipt, ErasureRequest
from parkkeeper.memory.session import Session
from parkkeeper.names import checked_name


class Forgetting:
    """Methods of :class:`parkkeeper.memory.MemoryStore`."""

    _session: Session
    _digests: Digests | None

    def erase(
        self,
        *,
        scope: str | None = None,
        subject: str | None = None,
        observation_ids: Iterable[int] | None = None,
        reason: str,
    ) -> ErasureReceipt:
        """Erase turns and all that came of them, in one transaction; their offsets stay assigned and count as erased.

        Parameters
        ----------
        scope, subject, observation_ids
            All that are given must hold; at least one is to be given. `scope` None means every scope.
        reason
            A code such as ``subject_request``; it is kept with the receipt, so it must not be a sentence.

        Returns
        -------
        ErasureReceipt
            `residual` counts what still meets the same conditions: a turn that was appended while this ran. Not `clean`
            means: call it again.
        """
        wanted = _wanted(scope, subject, observation_ids)
        erasure.check_reason(reason)
        with self._session.action("erase"):
            return erasure.erase(self._session, wanted, reason, self._subject_digest(subject))

    def request_erasure(
        self,
        *,
        scope: str | None = None,
        subject: str | None = None,
        observation_ids: Iterable[int] | None = None,
        reason: str,
    ) -> ErasureRequest:
        """Ask for an erasure that :meth:`erase_requested` carries out, with the arguments of :meth:`erase`.

        Nothing is erased here. What is kept of a subject is its keyed digest, so that whoever is to approve or to carry
        it out is told nothing but a `request_id`.
        """
        wanted = _wanted(scope, subject, observation_ids)
        erasure.check_reason(reason)
        with self._session.action("request_erasure"):
            return erasure_request.request(self._session, wanted, reason, self._subject_digest(subject))

    def erasure_request(self, request_id: UUID | str) -> ErasureRequest:
        """Return what became of a request, and how many turns meet its conditions now.

        Raises
        ------
        UnknownRequest
            There is none of this id; the receipts of :meth:`expire` and :meth:`drop` are none.
        """
        with self._session.action("erasure_request"):
            return erasure_request.look(self._session, erasure_request.checked_id(request_id), self._digest())

    def erasure_requests(self, *, limit: int = 100) -> list[ErasureRequest]:
        """Return the requests that wait to be carried out, or left something, the oldest first."""
        check_counts(limit=limit)
        with self._session.action("erasure_requests"):
            return erasure_request.waiting(self._session, limit, self._digest())

    def erase_requested(self, request_id: UUID | str) -> ErasureReceipt:
        """Carry a request out, as :meth:`erase` does; one that has been carried out and was clean stays as it is.

        Returns
        -------
        ErasureReceipt
            The receipt of the request: what all tries together have deleted. Not `clean` means: call it again.

        Raises
        ------
        UnknownRequest
            There is none of this id.
        """
        with self._session.action("erase_requested"):
            return erasure_request.carry_out(
                self._session, erasure_request.checked_id(request_id), self._digest()
            )

    def expire(self, older_than: timedelta, *, reason: str) -> ErasureReceipt:
        """Erase turns that were stored longer ago than `older_than`, of all scopes, the oldest first.

        See :func:`parkkeeper.memory.expiry.expire`.
        """
        expiry.check_age(older_than)
        erasure.check_reason(reason)
        with self._session.action("expire"):
            return expiry.expire(self._session, older_than, reason)

    def drop(self, scope: str, *, reason: str) -> ErasureReceipt:
        """Erase all turns of `scope`, and what is kept about it beside its numbers.

        See :func:`parkkeeper.memory.expiry.drop`.
        """
        checked_name("scope", scope)
        erasure.check_reason(reason)
        with self._session.action("drop"):
            return expiry.drop(self._session, scope, reason)

    def _subject_digest(self, subject: str | None) -> bytes | None:
        return None if subject is None else self._digest().subject(subject)

    def _digest(self) -> Digests:
        if self._digests is None:
            self._digests = log.digests(self._session)
        return self._digests


def _wanted(scope: str | None, subject: str | None, observation_ids: Iterable[int] | None) -> Wanted:
    if scope is None and subject is None and observation_ids is None:
        raise InvalidArgument("erase needs at least one of scope, subject and observation_ids")
    if scope is not None:
        checked_name("scope", scope)
    check_subject(subject)
    return Wanted(scope, subject, checked_ids(observation_ids))
