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

    model: _MODEL | None = Field(default=None, description="The model of its jobs that name none.")
    planner_model: _MODEL | None = Field(
        default=None, description="The model of the planning call of `guided`; else that of the job."
    )
    fallback_models: Annotated[list[_MODEL], Field(max_length=5)] = Field(
        default=[], description="Asked in this order where the model's provider is away."
    )
    on_incomplete: OnIncomplete = Field(
        default="accept",
        description="What becomes of an answer that was cut off: `accept` it, let one more call `continue` it, or "
        "`fail` its job. An agent's own wins.",
    )
    models: Annotated[list[_NAME], Field(max_length=MAX_NAMES)] | None = Field(
        default=None,
        description="Models that it may name on the server's keys, with `*`; null: the server's default and those "
        "above, and all for the tenant `default`. On keys of its own it names any.",
    )
    planning_enabled: bool = Field(
        default=True, description="Messages become jobs of the strategy `guided`; off, of `react`."
    )
    strategy: StrategyName | None = Field(
        default=None, description="The strategy of jobs of messages, whatever `planning_enabled` says."
    )
    max_tool_steps: Annotated[int, Field(ge=1, le=1_000), WHOLE] = Field(
        default=10, description="Bounds the turns of a message's job that call tools, and the calls of one turn."
    )
    plan_timeout_seconds: Annotated[float, Field(gt=0, le=604_800)] = Field(
        default=300.0, description="Bounds the time of all turns of a message's job."
    )
    prompt: Annotated[str, Field(max_length=100_000)] = Field(
        default="", description="What its assistant is told, below the server's own prompts."
    )
    tools: Annotated[list[_NAME], Field(max_length=MAX_NAMES)] | None = Field(
        default=None, description="Names of the tools that it may use, with `*`; null: all."
    )
    mcp_servers: Annotated[list[_NAME], Field(max_length=MAX_NAMES)] | None = Field(
        default=None, description="Names of the MCP servers whose tools it may use, with `*`; null: all."
    )
    knowledge_prefixes: Annotated[list[_NAME], Field(max_length=MAX_NAMES)] | None = Field(
        default=None, description="How sources of documents begin that it may search; null: all."
    )
    limits: dict[str, Any] = Field(
        default={}, description="Limits of its jobs in the place of the server's, lower or higher, by their names."
    )
    budget: dict[str, Any] | None = Field(default=None, description="What the job of a message may use up.")
    retention: RetentionDays = Field(
        default=RetentionDays(),
        description="`completed_days`, `failed_days`, `cancelled_days`: how long its jobs are kept after their end. "
        "`conversations_days`: how long messages are, and conversations after the last one. `versions_days`: how "
        "long versions of agents and skills are after the next one.",
    )
    channels: Annotated[list[_CHANNEL], Field(min_length=1, max_length=100)] = Field(
        default=list(DEFAULT_CHANNELS), description="The channels over which messages may come."
    )
    agent: _AGENT | None = Field(
        default=None, description="The agent of its messages and tasks, `name` or `name@version`; null: none."
    )
    channel_agents: Annotated[dict[_CHANNEL, _AGENT], Field(max_length=100)] = Field(
        default={},
        description="By channel the agent of its messages, in the place of `agent`; tasks are of `api`.",
        json_schema_extra={"additionalProperties": False},  # else a name that is no channel's would fit
    )
    rate_limit: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=100, description="Messages and tasks within 60 seconds."
    )
    channel_rate_limit: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=50, description="Messages within 60 seconds over one channel."
    )
    job_rate_limit: Annotated[int, Field(ge=1, le=10_000_000), WHOLE] = Field(
        default=100_000, description="Jobs within 60 seconds that come by `/jobs`, forks and executions among them."
    )
    max_unfinished_jobs: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=100_000, description="Unfinished jobs of these at once."
    )
    max_uploads: Annotated[int, Field(ge=1, le=1_000), WHOLE] = Field(
        default=8,
        description="Files of batches that come in at once; of those that the page sends, what has come whole.",
    )
    max_waiting_lines: Annotated[int, Field(ge=1, le=100_000_000), WHOLE] = Field(
        default=1_000_000, description="Lines of its batches that have not ended."
    )
    max_streams: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=2_000, description="Streams of events that are open at once, over all API processes."
    )
    max_waits: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=10_000, description="Requests that wait for a job at once, over all API processes."
    )
    max_open_questions: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=MAX_OPEN_QUESTIONS, description="Questions and approvals of its jobs that are open at once."
    )
    max_reminders: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] = Field(
        default=MAX_REMINDERS, description="Reminders of all its users that are still to come."
    )
    max_stored_bytes: Annotated[int, Field(ge=1_000_000, le=10**15), WHOLE] = Field(
        default=MAX_STORED_BYTES, description="Bytes of its large outputs and its artifacts that are kept."
    )
    max_endpoints: Annotated[int, Field(ge=1, le=200), WHOLE] = Field(
        default=50, description="Endpoints of webhooks; each end of a job may write so many deliveries."
    )
    conversation_policy: Literal["queue", "reject", "interrupt", "merge"] = Field(
        default="queue", description="What becomes of a message that comes while a job of its conversation runs."
    )
    question_policy: Literal["keep", "cancel"] = Field(
        default="keep",
        description="What becomes of open questions of a job when a message answers none: kept, or cancelled.",
    )
    tool_policy: dict[str, Any] = Field(
        default={},
        description="By tool, with `*` and `?`: `auto`, `ask` (an operator), `ask:asker`, `{ask: [ids]}`, or `deny`; "
        "it narrows the server's.",
    )
    answers_from: Literal["asker", "anyone"] | Annotated[list[_NAME], Field(max_length=100)] = Field(
        default="asker",
        description="Who may answer what a turn asks: who began it, anyone in its thread, or those of a list, too.",
    )
    approvals_from: Literal["asker", "anyone"] | Annotated[list[_NAME], Field(max_length=100)] = Field(
        default="asker", description="The same for approvals that are the asker's, apart from other questions."
    )
    debounce_ms: Annotated[int, Field(ge=0, le=60_000), WHOLE] = Field(
        default=0, description="Messages so close to one another become one job; 0 gathers nothing."
    )
    debounce_most_ms: Annotated[int, Field(ge=0, le=600_000), WHOLE] = Field(
        default=10_000, description="The longest that the first of them waits."
    )
    insights: Literal["off", "shadow", "on"] | None = Field(
        default=None,
        description="Whether its jobs teach insights, and planners are offered them; `shadow`: learned and chosen, "
        "shown to no planner. null: as `PLANQ_INSIGHTS` says.",
    )
    insights_model: _MODEL | None = Field(
        default=None,
        description="Adds a sentence to lessons on failed calls, by `bulk` jobs; null: rules alone write them.",
    )
    insights_tokens: Annotated[int, Field(ge=500, le=100_000), WHOLE] = Field(
        default=4_000, description="What one such job may use up."
    )
    history_tokens: Annotated[int, Field(ge=0, le=1_000_000), WHOLE] = Field(
        default=2_000, description="How much of a conversation a model is shown."
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
            raise ValueError(f"channel_agents: {unknown[0]!r} is none of the channels {', '.join(self.channels)}")
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
