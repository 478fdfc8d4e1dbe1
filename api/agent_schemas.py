"""What goes over the wire about agents, skills and executions; beside `schemas`, which has what jobs need.

Documents of agents are checked by `shared.domain.agents.document`, not here. Specifications S1 and S3.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from api.schemas import (
    SAYS_SOMETHING,
    AgentReference,
    BudgetRequest,
    ChildDocument,
    ErrorDocument,
    Id,
    RetryDocument,
    StepReference,
    Time,
    UsageDocument,
    User,
    WarningDocument,
    one_of,
)
from shared.domain.agents.document import OutputMode
from shared.domain.plan import WHOLE
from shared.domain.states import JobStatus
from shared.domain.tool import MAX_TIMEOUT_SECONDS

_SOMETHING_TO_DO: JsonDict = {
    "anyOf": [
        one_of(wanted, **{wanted: "string", unset: "null"})
        for wanted in ("action", "prompt")
        for unset in ("timeout_ms", "timeout_seconds")
    ]
}
"""Which fields of an execution's request go together, for `/openapi.json`."""


class ExecutionRequest(BaseModel):
    """What an agent shall do: `action`, `prompt`, or both."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_SOMETHING_TO_DO)

    action: str | None = Field(default=None, description="One of the agent's actions.")
    prompt: str | None = Field(
        default=None,
        description="What is asked, at most 100 kB of UTF-8.",
        json_schema_extra={"pattern": SAYS_SOMETHING},
    )
    with_: dict[str, Any] | None = Field(
        default=None, alias="with", description="What the agent, or its action, is given to work on; at most 100 kB."
    )
    timeout_ms: Annotated[int, Field(ge=1), WHOLE] | None = Field(
        default=None,
        description="How long it may take, at most 300 000 ms; or `timeout_seconds`.",
        json_schema_extra={"maximum": MAX_TIMEOUT_SECONDS * 1000},
    )
    timeout_seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="How long it may take, at most 300 s; or `timeout_ms`.",
        json_schema_extra={"maximum": MAX_TIMEOUT_SECONDS},
    )
    user: User = None
    metadata: dict[str, Any] | None = Field(default=None, description="Kept and returned as it is; at most 16 kB.")
    budget: BudgetRequest | None = Field(default=None, description="For it and all executions below it.")


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScheduleDocument(_Answer):
    """A job that is made at a time, once or, with `cron`, again and again."""

    id: Id
    name: str
    user_id: str
    agent: str | None = Field(description="Who gets the job; null for planq's planner.")
    input: str = Field(description="What the job is asked.")
    cron: str | None = Field(description="Minute, hour, day of month, month, day of week; null for one that is once.")
    timezone: str
    is_active: bool = Field(description="False when it is over, or was switched off.")
    next_at: Time | None = Field(description="When it is due next; null when it is over.")
    last_job_id: Id | None = Field(description="The job that it made last.")
    error: str | None = Field(description="Why it was switched off.")
    created_at: Time


class SchedulePage(_Answer):
    """Schedules, newest first; `next_cursor` is null on the last page."""

    items: list[ScheduleDocument]
    next_cursor: str | None


class ExecutionDocument(_Answer):
    """One run of an agent, or of a plan of agents: a job, seen from its result."""

    exec_id: Id = Field(description="The id of the job that it is.")
    status: JobStatus
    agent: AgentReference | None = Field(description="Null where it is a plan of agents.")
    user: str | None = Field(description="Whose it is, as the caller named them.")
    action: str | None
    output: Any = Field(description="The object of a structured agent, else `{text}`; null unless it has completed.")
    chained: dict[str, Any] | None = Field(description="What became of the agent's chained tool.")
    error: ErrorDocument | None
    elapsed_ms: int | None = Field(description="From its submission to its end; null before.")
    model_calls: int
    usage: UsageDocument
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    parent: StepReference | None
    depth: int
    children: list[ChildDocument]
    warnings: list[WarningDocument] = Field(description="What the agent missed, and went on without.")
    retry: RetryDocument | None


class StoredAgent(_Answer):
    """An agent in one of its versions."""

    name: str
    version: int
    document: dict[str, Any] = Field(description="As it was stored, unknown keys too.")
    created_at: Time
    retired_at: Time | None = Field(description="Since then no new job may name it.")


class DocumentWarning(_Answer):
    """A name in an agent's document that stands for nothing now."""

    path: str = Field(description="A JSON pointer into the document.")
    code: Literal["tool_missing", "skill_missing", "chained_tool_missing", "chained_tool_unused", "agent_missing"]
    name: str
    message: str


class KeptAgent(StoredAgent):
    """An agent as it has just been stored."""

    warnings: list[DocumentWarning] = Field(description="What it names and nobody offers; it is stored all the same.")


class AgentSummary(_Answer):
    """An agent in its newest version, without its document."""

    name: str
    version: int
    description: str
    output_mode: OutputMode
    tools: list[str]
    skills: list[str]
    actions: list[str]
    created_at: Time


class AgentPage(_Answer):
    """Agents in the order of their names; `next_cursor` is null on the last page."""

    items: list[AgentSummary]
    next_cursor: str | None


class SkillSummary(_Answer):
    """A skill in its newest version, without its text."""

    name: str
    version: int
    characters: int
    created_at: Time


class SkillPage(_Answer):
    """Skills in the order of their names; `next_cursor` is null on the last page."""

    items: list[SkillSummary]
    next_cursor: str | None
