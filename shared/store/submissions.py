"""Jobs on their way into the store: those that arrive together are inserted by one statement, in one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from shared.domain.encoding import JsonText
from shared.domain.limits import Limits
from shared.domain.states import Strategy
from shared.store.database import Database, Row, json_text, stored_text
from shared.store.grouping import Group

_BYTES_OF_AN_ITEM = 64 * 1024
"""A plan that is longer counts as several jobs of a batch, so that a batch stays small enough for one statement."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request that has been checked and may become a job.

    In a fork, `reuse` says which steps of its plan take over the outcome of which step of `forked_from`. An `agent`
    is pinned to the version that is named here, and so are the skills that its document lists, in their order. The
    `budget` is that of the whole tree of jobs (`shared/domain/budget.py`).
    """

    id: UUID
    tenant_id: str
    input: str
    strategy: Strategy
    model: str
    limits: Limits
    plan: Mapping[str, Any] | JsonText | None = None
    tools: Sequence[str] | None = None
    metadata: Mapping[str, Any] | None = None
    user_id: str = ""
    trace_id: str = ""
    idempotency_key: str | None = None
    request_hash: str | None = None
    forked_from: UUID | None = None
    reuse: Mapping[int, int] | None = None
    agent: str | None = None
    agent_version: int | None = None
    skill_versions: Sequence[int] | None = None
    action: str | None = None
    with_: Mapping[str, Any] | None = None
    budget: Mapping[str, Any] | None = None

    @property
    def expires_in(self) -> timedelta:
        """How long after its creation the job is given up unless a worker begins it."""
        return timedelta(seconds=min(self.limits.queue_timeout_seconds, self.limits.job_timeout_seconds))


_Values = dict[str, object]


class Submissions:
    """Inserts jobs; lives on one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._group = Group(self._insert, weigh=_weight)

    async def insert(self, submission: Submission) -> Row:
        """Insert a job; return `created_at` and `is_gone` as `planq_submit_jobs` does."""
        values = _values(submission)
        if submission.forked_from is not None:
            # It may wait for retention, which holds the lock of the job it forks; nobody else shall wait with it.
            return (await self._insert([values]))[0]
        return await self._group.do(values)

    async def _insert(self, batch: Sequence[_Values]) -> Sequence[Row]:
        # Two processes that insert the same keys in different orders would wait for one another.
        ordered = sorted(batch, key=lambda values: str(values["idempotency_key"] or ""))
        rows = await self._database.call_table("planq_submit_jobs", json_text(ordered))
        found = {str(row["id"]): row for row in rows}
        return [found[str(values["id"])] for values in batch]


def _values(submission: Submission) -> _Values:
    reuse, skills = submission.reuse, submission.skill_versions
    return {
        "id": str(submission.id),
        "tenant_id": submission.tenant_id,
        "strategy": str(submission.strategy),
        "model": submission.model,
        "limits": _limits_text(submission.limits),
        "tools": None if submission.tools is None else list(submission.tools),
        "metadata": stored_text(submission.metadata),
        "input": submission.input,
        "user_id": submission.user_id,
        "trace_id": submission.trace_id,
        "idempotency_key": submission.idempotency_key,
        "request_hash": submission.request_hash,
        "plan": stored_text(submission.plan),
        "expires_seconds": submission.expires_in.total_seconds(),
        "forked_from": None if submission.forked_from is None else str(submission.forked_from),
        "reuse": None if reuse is None else json_text({str(index): source for index, source in reuse.items()}),
        "agent_name": submission.agent,
        "agent_version": submission.agent_version,
        "skill_versions": None if skills is None else list(skills),
        "action": submission.action,
        "budget": stored_text(submission.budget),
        "with_input": stored_text(submission.with_),
    }


@lru_cache(maxsize=64)
def _limits_text(limits: Limits) -> str:
    return json_text(limits.to_json())


def _weight(values: _Values) -> int:
    return 1 + sum(len(str(values[name])) for name in ("plan", "input", "with_input")) // _BYTES_OF_AN_ITEM
