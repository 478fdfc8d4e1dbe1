"""What tools store in addition to outputs: moments, user data, reminders, events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from planq.shared.agentic.tools.contract import ToolContext


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to a user; `starts_at` None is the time of saving. Texts are storable."""

    id: UUID
    name: str
    summary: str
    body: Mapping[str, Any]
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MomentRecord:
    """A found moment; a higher `score` is more relevant, 0 without words."""

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
    """Any word of `query`, all `tags`, from `since` to before `until`; best matches first, else newest."""

    query: str | None = None
    tags: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 20


@dataclass(frozen=True, slots=True)
class Reminder:
    """A job with `input` for `agent`, by exactly one of `at`, `delay` and `cron` (in the IANA `zone`)."""

    id: UUID
    name: str
    input: str
    agent: str | None = None
    at: datetime | None = None
    delay: timedelta | None = None
    cron: str | None = None
    zone: str = "UTC"


class Memory(Protocol):
    """What tools store. Repeated calls with the same ids change nothing. Raises `DatabaseUnavailable`."""

    async def save_moments(self, tenant_id: str, user_id: str, moments: Sequence[Moment]) -> int:
        """Save moments in one commit; return how many were new."""
        ...

    async def find_moments(self, tenant_id: str, user_id: str, wanted: MomentQuery) -> Sequence[MomentRecord]:
        """Return a user's moments that match."""
        ...

    async def change_user(
        self, tenant_id: str, user_id: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """Replace a user's data by `change(present)`, exclusively, and return it; errors change nothing."""
        ...

    async def emit(self, context: ToolContext, kind: str, data: Mapping[str, Any]) -> bool:
        """Append an event with data, once per step and kind; False if the attempt no longer runs."""
        ...

    async def schedule(self, context: ToolContext, reminder: Reminder, *, most: int) -> datetime | None:
        """Store a reminder with the model, tools and limits of the caller's job; return its due time.

        Its jobs share the budget that the job's tree has left. An existing id stays as it is; None: it is over.
        Raises `InvalidRequest` for an impossible time or unknown agent, `Conflict` at `most` reminders of the user,
        and `BudgetExceeded`.
        """
        ...
