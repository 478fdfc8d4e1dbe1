"""What tools may keep beside their outputs: moments, what is known of a user, reminders, events of their job.

Everything belongs to a tenant, and all but events to one of its users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from planq.shared.agentic.tools.contract import ToolContext


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to a user; `body` is a JSON object with whatever else is known of it.

    `starts_at` None stands for the time at which it is saved. Texts hold no NUL and no lone surrogates.
    """

    id: UUID
    name: str
    summary: str
    body: Mapping[str, Any]
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MomentRecord:
    """A moment that was found; `score` grows with relevance, and is 0 where no words were asked for."""

    id: UUID
    name: str
    summary: str
    body: Mapping[str, Any]
    starts_at: datetime
    ends_at: datetime | None
    tags: Sequence[str]
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class MomentQuery:
    """Which moments: with any word of `query`, all of `tags`, begun at or after `since` and before `until`.

    Best matches first where words are asked for, else the newest.
    """

    query: str | None = None
    tags: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 20


@dataclass(frozen=True, slots=True)
class Reminder:
    """A job to be made with `input` and for `agent`: once, at a moment or after a delay, or by a cron expression.

    Exactly one of `at`, `delay` and `cron` is set. `zone` is the IANA name of the time zone that `cron` is meant in.
    """

    id: UUID
    name: str
    input: str
    agent: str | None = None
    at: datetime | None = None
    delay: timedelta | None = None
    cron: str | None = None
    zone: str = "UTC"


class Memory(Protocol):
    """What tools may keep. Repeating a call with the same ids changes nothing. All raise `DatabaseUnavailable`."""

    async def save_moments(self, tenant_id: str, user_id: str, moments: Sequence[Moment]) -> int:
        """Save moments in one commit; returns how many were not there yet: an id that is known stays as it is."""
        ...

    async def find_moments(self, tenant_id: str, user_id: str, wanted: MomentQuery) -> Sequence[MomentRecord]:
        """Return the moments of one user that `wanted` describes, at most its limit."""
        ...

    async def change_user(
        self, tenant_id: str, user_id: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Put `change(present)` in the place of what is kept of a user and return it; nobody else changes it between.

        What `change` raises is passed on, and nothing is changed.
        """
        ...

    async def emit(self, context: ToolContext, kind: str, data: Mapping[str, Any]) -> bool:
        """Append an event to the job's stream, once for each step and kind, however often its attempts ask.

        `data` is not empty. False when the attempt does not run any more: nothing is emitted then.
        """
        ...

    async def schedule(self, context: ToolContext, reminder: Reminder, *, most: int) -> datetime | None:
        """Store a reminder for the caller's user, with model, tools and limits of its job; returns when it is due.

        All that it ever makes shares what the budget of the job's tree has left now. One with this id that is stored
        already stays as it is: None then means that it has been fired for good.
        Raises `InvalidRequest` for a time that has passed or lies too far ahead, a cron expression that is never due,
        and an agent that is not there; `Conflict` when the user has `most` reminders already, however many ask at
        once; `BudgetExceeded` when nothing is left of the budget.
        """
        ...
