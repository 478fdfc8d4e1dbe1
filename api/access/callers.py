"""Who asks: the tenant, the key and its scopes that the guard found for a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple
from uuid import UUID

from fastapi import Depends
from starlette.requests import Request

from planq.shared.kernel.ids import TENANT
from planq.shared.subjects.jobs.store import AnsweredBy
from planq.shared.subjects.tenants.keys import KeyScope

CALLER = "planq.caller"
"""Key of the ASGI scope under which the guard puts the `Caller`; paths that need no key have none."""


class Caller(NamedTuple):
    """One who was let in; `key_id` is None where no row of `api_keys` stands behind it.

    A tuple, because every request makes one, and a frozen dataclass takes four times as long.
    """

    tenant_id: str
    scopes: frozenset[KeyScope]
    key_id: UUID | None
    key_name: str

    @property
    def sees_all_jobs(self) -> bool:
        """False for who sees of jobs those of the message flow alone: turns, tasks, and the jobs below them."""
        return KeyScope.JOBS in self.scopes

    @property
    def sees_all_questions(self) -> bool:
        """False for who sees the questions of the message flow alone."""
        return not self.scopes.isdisjoint((KeyScope.JOBS, KeyScope.APPROVE, KeyScope.ADMIN))


LOCAL = Caller(TENANT, frozenset(KeyScope), None, "")
"""Whoever asks from this machine while no key is needed."""


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Return who asks, by an ASGI scope that has passed the guard on a path that needs a key."""
    caller: Caller = scope[CALLER]
    return caller


async def _caller(request: Request) -> Caller:
    return caller_of(request.scope)


Who = Annotated[Caller, Depends(_caller)]
"""Who asks, as a parameter of a route."""


def answered_by(who: Caller, name: str | None = None, channel: str = "api", reason: str | None = None) -> AnsweredBy:
    """Return who answers over HTTP: the person whom the caller names, and the caller's own key."""
    is_operator = not who.scopes.isdisjoint((KeyScope.APPROVE, KeyScope.ADMIN))
    return AnsweredBy(name, channel, reason, who.key_id, who.key_name or None, is_operator)
