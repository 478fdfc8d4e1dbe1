"""The services of this process for tools.

A tool function gets this record as a parameter annotated `ToolServices`, which is not part of its input schema. Built
once by the composition root, constant for the life of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from planq.shared.agentic.tools.contract import Knowledge, Passage, ToolContext
from planq.shared.platform.errors import Misconfigured
from planq.shared.subjects.channels.telegram import BOT_API
from planq.shared.subjects.moments.contract import Memory, Moment, MomentQuery, MomentRecord, Reminder
from planq.worker.egress import Egress, HostPlaces, LeastRate
from planq.worker.subprocesses import Apart


class NoDatabase:
    """`Knowledge` and `Memory` of a process without a database; every call raises `Misconfigured`."""

    async def search(self, tenant_id: str, query: str, limit: int) -> Sequence[Passage]:
        raise self._refusal()

    async def save_moments(self, tenant_id: str, user_id: str, moments: Sequence[Moment]) -> int:
        raise self._refusal()

    async def find_moments(self, tenant_id: str, user_id: str, wanted: MomentQuery) -> Sequence[MomentRecord]:
        raise self._refusal()

    async def change_user(
        self, tenant_id: str, user_id: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        raise self._refusal()

    async def emit(self, context: ToolContext, kind: str, data: Mapping[str, Any]) -> bool:
        raise self._refusal()

    async def schedule(self, context: ToolContext, reminder: Reminder, *, most: int) -> datetime | None:
        raise self._refusal()

    def _refusal(self) -> Misconfigured:
        return Misconfigured("this process keeps nothing: it has no database")


@dataclass(frozen=True, slots=True)
class WebSearch:
    """A web search service: its name in `builtin/web.py`, its address, its key (empty for none)."""

    engine: str
    url: str
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServices:
    """The services of tools.

    `web_search` is None if none is configured. `telegram_url` is the address of the Bot API, which may be private.
    `max_reminders` bounds the pending reminders of a user. `allow_private_hosts` names hosts (`host` or `host:port`)
    that `http_fetch` may reach although they resolve to a private address. `http_max_bytes` bounds a fetched body,
    `http_timeout_seconds` a whole fetch with its redirects and the wait for a place at a host. `egress` creates HTTP
    clients; `apart` are processes for long work.
    """

    knowledge: Knowledge = field(default_factory=NoDatabase)
    memory: Memory = field(default_factory=NoDatabase)
    web_search: WebSearch | None = None
    telegram_url: str = BOT_API
    max_reminders: int = 100
    allow_private_hosts: frozenset[str] = frozenset()
    http_max_bytes: int = 5 << 20
    http_timeout_seconds: float = 30.0
    http_places: HostPlaces = field(default_factory=HostPlaces)
    http_least_rate: LeastRate = field(default_factory=LeastRate)
    egress: Egress = field(default_factory=Egress)
    apart: Apart = field(default_factory=Apart)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
