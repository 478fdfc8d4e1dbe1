"""Child jobs: what a step hands over to, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from planq.shared.kernel.states import JobStatus, JoinPolicy
from planq.shared.platform.errors import ErrorRecord


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """A child job that a step wants carried out: an agent's, or with `plan` that of a plan document.

    `input` may be blank beside a plan or an `action`. `with_` is what the action's prompt is rendered from.
    `timeout_seconds` is lowered to 300 s and to what the parent has left. `key` names the result within a group.
    `plan_source` says who made the plan; `model` None takes the parent's. It is shown the conversation that its root
    is shown in the form `history` (`HistoryForm`), None for not at all.
    """

    agent: str | None
    input: str
    timeout_seconds: float
    action: str | None = None
    with_: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    plan: Mapping[str, Any] | None = None
    plan_source: str = "agent"
    model: str | None = None
    history: str | None = None


@dataclass(frozen=True, slots=True)
class Delegated:
    """A tool's way to let child jobs do its work: the step waits without a worker, then `Gathers.gather` is called.

    `children` is not empty; at most `max_parallel` of them are begun at once, in their order. `note` is JSON that
    `gather` gets back. A child whose agent does not exist ends at once, failed with `unknown_agent`.
    """

    children: Sequence[ChildRequest]
    until: JoinPolicy = JoinPolicy.ALL
    max_parallel: int = 4
    note: Any = None


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """How a child job stands. `output` is its structured output, None where it has none: then there is `answer`.

    One that has not ended has a `status` that is not terminal and no `ended_at`; it is cancelled when the step ends.
    `has_begun` is false for one that no worker ever claimed.
    """

    job_id: UUID
    position: int
    key: str | None
    agent: str | None
    action: str | None
    status: JobStatus
    output: Any = None
    answer: str | None = None
    chained: Any = None
    error: ErrorRecord | None = None
    elapsed_ms: int = 0
    ended_at: datetime | None = None
    has_begun: bool = True
    tenant_id: str = ""
