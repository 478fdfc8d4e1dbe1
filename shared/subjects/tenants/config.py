"""A tenant's configuration by its operator; absent fields mean the server's settings (docs/tenants.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from planq.shared.agentic.agents.checks import NAMED_AGENT, NamedAgent, read_named_agent
from planq.shared.agentic.models.ending import OnIncomplete
from planq.shared.agentic.models.names import MODEL_PATTERN, check_model_name
from planq.shared.agentic.plan.document import WHOLE
from planq.shared.agentic.references.grammar import walk_strings
from planq.shared.agentic.results.artifacts import MAX_STORED_BYTES
from planq.shared.agentic.tools.definition import MCP_SOURCE, ToolDefinition
from planq.shared.agentic.tools.names import is_reserved
from planq.shared.agentic.tools.policy import read_tool_policy
from planq.shared.agentic.turns.channel_kinds import DEFAULT_CHANNELS
from planq.shared.agentic.turns.messages import Policy
from planq.shared.kernel.budget import read_budget
from planq.shared.kernel.ids import TENANT
from planq.shared.kernel.limits import Limits, read_tenant_limits
from planq.shared.kernel.questions import MAX_OPEN_QUESTIONS
from planq.shared.kernel.states import Strategy, StrategyName
from planq.shared.platform.errors import InvalidRequest, capped
from planq.shared.platform.values.defects import body_refused, defects_of_fields
from planq.shared.platform.values.pointers import to_pointer
from planq.shared.platform.values.schedule import MAX_REMINDERS
from planq.shared.subjects.tenants.prompt import check_tenant_prompt

_NAME = Annotated[str, Field(min_length=1, max_length=200)]
_MODEL = Annotated[str, Field(min_length=1, max_length=200, json_schema_extra={"pattern": MODEL_PATTERN})]
_CHANNEL = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
_AGENT = Annotated[str, Field(max_length=139, pattern=rf"^{NAMED_AGENT}$")]
_DAYS = Annotated[float, Field(gt=0, le=36_500)]

MAX_NAMES = 1_000

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class RetentionDays(BaseModel):
    """Days for which jobs are kept after their end, messages, and versions of documents that were replaced.

    An absent one is as the server's settings say.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    completed_days: _DAYS | None = None
    failed_days: _DAYS | None = None
    cancelled_days: _DAYS | None = None
    conversations_days: _DAYS | None = None
    versions_days: _DAYS | None = None


class TenantConfig(BaseModel):
    """One tenant's configuration, as it is stored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    model: _MODEL | None = Field(default=None, description="Model of jobs that name none.")
    planner_model: _MODEL | None = Field(
        default=None, description="Model of the planning call of `guided`; by default the job's."
    )
    fallback_models: Annotated[list[_MODEL], Field(max_length=5)] = Field(
        default=[], description="Used in this order if the model's provider is unavailable."
    )
    on_incomplete: OnIncomplete = Field(
        default="accept",
        description="What happens to an answer that was cut off: `accept` it, let one more call `continue` it, "
        "or `fail` its job. An agent's setting takes precedence.",
    )
    models: Annotated[list[_NAME], Field(max_length=MAX_NAMES)] | None = Field(
        default=None,
        description="Models allowed with the server's keys, with `*`; null: the server's default and those "
        "above, for the tenant `default` all. With its own keys a tenant may use any.",
    )
    planning_enabled: bool = Field(
        default=True, description="Messages become jobs of the strategy `guided`; off, of `react`."
    )
    strategy: StrategyName | None = Field(
        default=None, description="Strategy of messages' jobs; replaces `planning_enabled`."
    )
    max_tool_steps: Annotated[int, Field(ge=1, le=1_000), WHOLE] = Field(
        default=10, description="Maximum turns with tool calls of a message's job, and maximum calls of one turn."
    )
    plan_timeout_seconds: Annotated[float, Field(gt=0, le=604_800)] = Field(
        default=300.0, description="Maximum time of all turns of a message's job."
    )
    prompt: Annotated[str, Field(max_length=100_000)] = Field(
        default="", description="Instructions for its assistant, after the server's own prompts."
    )
    tools: Annotated[list[_NAME], Field(max_length=MAX_NAMES)] | None = Field(
        default=None, description="Names of the allowed tools, with `*`; null: all."
    )
    mcp_servers: Annotated[list[_NAME], Field(max_length=MAX_NAMES)] | None = Field(
        default=None, description="Names of the MCP servers whose tools are allowed, with `*`; null: all."
    )
    knowledge_prefixes: Annotated[list[_NAME], Field(max_length=MAX_NAMES)] | None = Field(
        default=None, description="Documents are searched if their source begins with one of these; null: all."
    )
    limits: dict[str, Any] = Field(
        default={}, description="Limits of its jobs that replace the server's, lower or higher, by name."
    )
    budget: dict[str, Any] | None = Field(default=None, description="Budget of a message's job.")
    retention: RetentionDays = Field(
        default=RetentionDays(),
        description="Days to keep jobs after their end (`completed_days`, `failed_days`, `cancelled_days`), "
        "messages, and conversations after the last one (`conversations_days`), and versions of "
        "agents and skills after the next one (`versions_days`).",
    )
    channels: Annotated[list[_CHANNEL], Field(min_length=1, max_length=100)] = Field(
        default=list(DEFAULT_CHANNELS), description="Channels that may send messages."
    )
    agent: _AGENT | None = Field(
        default=None, description="Agent of its messages and tasks, `name` or `name@version`; null: none."
    )
    channel_agents: Annotated[dict[_CHANNEL, _AGENT], Field(max_length=100)] = Field(
        default={},
        description="Agents of messages by channel, instead of `agent`; tasks belong to `api`.",
        json_schema_extra={"additionalProperties": False},
    )
    rate_limit: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=100, description="Maximum messages and tasks within 60 seconds."
    )
    channel_rate_limit: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=50, description="Maximum messages of one channel within 60 seconds."
    )
    job_rate_limit: Annotated[int, Field(ge=1, le=10_000_000), WHOLE] = Field(
        default=100_000, description="Maximum jobs from `/jobs` within 60 seconds, with forks and executions."
    )
    max_unfinished_jobs: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=100_000, description="Maximum unfinished jobs from `/jobs`."
    )
    max_uploads: Annotated[int, Field(ge=1, le=1_000), WHOLE] = Field(
        default=8,
        description="Maximum batch files being received at once; a file sent by the page counts once it is complete.",
    )
    max_waiting_lines: Annotated[int, Field(ge=1, le=100_000_000), WHOLE] = Field(
        default=1_000_000, description="Maximum lines of its batches that have not ended."
    )
    max_streams: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=2_000, description="Maximum open event streams over all API processes."
    )
    max_waits: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=10_000, description="Maximum requests that wait for a job, over all API processes."
    )
    max_open_questions: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=MAX_OPEN_QUESTIONS, description="Maximum open questions and approvals of its jobs."
    )
    max_reminders: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=MAX_REMINDERS, description="Maximum future reminders of all its users."
    )
    max_stored_bytes: Annotated[int, Field(ge=1_000_000, le=10**15), WHOLE] = Field(
        default=MAX_STORED_BYTES, description="Maximum bytes of stored large outputs and artifacts."
    )
    max_endpoints: Annotated[int, Field(ge=1, le=200), WHOLE] = Field(
        default=50, description="Maximum webhook endpoints; the end of a job can write one delivery for each."
    )
    conversation_policy: Literal["queue", "reject", "interrupt", "merge"] = Field(
        default="queue", description="What happens to a message that arrives while a job of its conversation runs."
    )
    question_policy: Literal["keep", "cancel"] = Field(
        default="keep",
        description="What happens to a job's open questions if a message answers none: they are kept or cancelled.",
    )
    tool_policy: dict[str, Any] = Field(
        default={},
        description="By tool, with `*` and `?`: `auto`, `ask` (an operator), `ask:asker`, `{ask: [ids]}`, or `deny`; "
        "it narrows the server's.",
    )
    answers_from: Literal["asker", "anyone"] | Annotated[list[_NAME], Field(max_length=100)] = Field(
        default="asker",
        description="Who may answer a turn's questions: the person who began it, anyone in its thread, or also "
        "those of a list.",
    )
    approvals_from: Literal["asker", "anyone"] | Annotated[list[_NAME], Field(max_length=100)] = Field(
        default="asker",
        description="Who may answer the approvals that are for the asker; values as for `answers_from`.",
    )
    debounce_ms: Annotated[int, Field(ge=0, le=60_000), WHOLE] = Field(
        default=0, description="Messages within this time of each other become one job; 0: each its own."
    )
    debounce_most_ms: Annotated[int, Field(ge=0, le=600_000), WHOLE] = Field(
        default=10_000, description="Maximum time that the first of them waits."
    )
    insights: Literal["off", "shadow", "on"] | None = Field(
        default=None,
        description="Whether its jobs teach insights and planners see them; `shadow`: learned and chosen, but "
        "not shown. null: as `PLANQ_INSIGHTS`.",
    )
    insights_model: _MODEL | None = Field(
        default=None,
        description="Model that adds a sentence to lessons on failed calls, in `bulk` jobs; null: only rules "
        "write them.",
    )
    insights_tokens: Annotated[int, Field(ge=500, le=100_000), WHOLE] = Field(
        default=4_000, description="Maximum tokens of one such job."
    )
    history_tokens: Annotated[int, Field(ge=0, le=1_000_000), WHOLE] = Field(
        default=2_000, description="Maximum tokens of a conversation that a model sees."
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Validate limits, models' names, policies, and that texts can be stored."""
        for tokens, text in walk_strings(self.model_dump(mode="json")):
            if (found := text.find("\x00")) >= 0:
                raise ValueError(f"{to_pointer(tokens)}: NUL (U+0000) cannot be stored; found at {found}")
        read_tenant_limits({"config": self.limits})
        try:
            read_tool_policy(self.tool_policy)
        except ValueError as error:
            raise ValueError(f"tool_policy: {error}") from None
        if unknown := [channel for channel in self.channel_agents if channel not in self.channels]:
            raise ValueError(f"channel_agents: {unknown[0]!r} is not among the channels {', '.join(self.channels)}")
        for name in filter(None, [self.model, self.planner_model, self.insights_model, *self.fallback_models]):
            try:
                check_model_name(name, allow_cassette=False)
            except InvalidRequest as error:
                raise ValueError(error.message) from None
        return self

    @property
    def policy(self) -> Policy:
        """What happens to a message while a job of its conversation runs."""
        return Policy(self.conversation_policy)

    def agent_of(self, channel: str) -> NamedAgent | None:
        """Return a channel's default agent."""
        named = self.channel_agents.get(channel, self.agent)
        return None if named is None else read_named_agent(named)

    def message_strategy(self) -> Strategy:
        """Return the strategy of messages' jobs (docs/decisions.md, D28)."""
        if self.strategy is not None:
            return Strategy(self.strategy)
        return Strategy.GUIDED if self.planning_enabled else Strategy.REACT

    def job_limits(self, present: Limits) -> Limits:
        return present.of_tenant(read_tenant_limits({"config": self.limits})["config"])

    def message_limits(self, present: Limits) -> Limits:
        """Return the limits of messages' jobs."""
        own = self.job_limits(present)
        return own.lowered(
            {
                "max_tool_steps": min(self.max_tool_steps, own.max_tool_steps),
                "plan_timeout_seconds": min(self.plan_timeout_seconds, own.plan_timeout_seconds),
            }
        )


def is_tenant_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None or (_UUID.fullmatch(text) is not None and text == text.lower())


def read_tenant_id(text: str) -> str:
    """Return a tenant's id in its stored form: a slug, or a UUID in lower case; raises `InvalidRequest`."""
    if _ID.fullmatch(text) is None and _UUID.fullmatch(text) is None:
        raise InvalidRequest(
            "tenant: expected 1 to 63 lower-case letters, digits and hyphens that do not begin with a hyphen, or a "
            f"UUID; found {capped(text, 80)!r}"
        )
    return text.lower()


def checked_tenant_config(raw: Any) -> TenantConfig:
    """Return a configuration that may be stored; raises `InvalidRequest`."""
    config = read_tenant_config(raw)
    check_storable(config)
    return config


def check_storable(config: TenantConfig) -> None:
    """Raise `InvalidRequest` for an unsafe prompt or a bad budget; stored ones stay in use."""
    check_tenant_prompt(config.prompt)
    if config.budget is not None:
        read_budget(config.budget)


def read_tenant_config(raw: Any) -> TenantConfig:
    """Return the configuration; raises `InvalidRequest` with the place of each defect."""
    try:
        return TenantConfig.model_validate(raw)
    except ValidationError as error:
        defects = [replace(one, pointer=one.pointer or "config") for one in defects_of_fields(error)[:100]]
        raise body_refused(defects, most=10) from None


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant, with the default limits of its jobs and of its messages' jobs."""

    id: str
    name: str
    is_disabled: bool
    config: TenantConfig
    limits: Limits
    message_limits: Limits


class Tenants(Protocol):
    """The tenants, at most a second old."""

    async def of(self, tenant_id: str) -> Tenant:
        """Return a tenant; raises `NotFound` and `DatabaseUnavailable`."""
        ...


def narrowed_tools(config: TenantConfig, tools: Mapping[str, ToolDefinition]) -> Mapping[str, ToolDefinition]:
    """Return the published tools that a tenant may use, by `tools` and `mcp_servers`.

    Reserved names are planq's own and always allowed; unnarrowed, `tools` itself is returned.
    """
    if config.tools is None and config.mcp_servers is None:
        return tools
    names, servers = _matcher(config.tools), _matcher(config.mcp_servers)
    return {
        name: tool
        for name, tool in tools.items()
        if is_reserved(name) or (names.fullmatch(name) and servers.fullmatch(_server_of(tool)))
    }


def may_name_model(tenant_id: str, config: TenantConfig, model: str, default: str) -> bool:
    """Return whether a tenant may use a model with the server's keys.

    Allowed are the operator's choices and `models`; if that is null, all for the tenant `default`.
    """
    if model in (default, config.model, config.planner_model, *config.fallback_models):
        return True
    if config.models is None:
        return tenant_id == TENANT
    return bool(model and _matcher(config.models).fullmatch(model))


def _server_of(tool: ToolDefinition) -> str:
    return tool.source.removeprefix(MCP_SOURCE) if tool.source.startswith(MCP_SOURCE) else ""


def _matcher(patterns: Sequence[str] | None) -> re.Pattern[str]:
    wanted = ["*"] if patterns is None else patterns
    meant = (".*".join(re.escape(part) for part in pattern.split("*")) for pattern in wanted)
    return re.compile("|".join(["", *meant]), re.DOTALL)
