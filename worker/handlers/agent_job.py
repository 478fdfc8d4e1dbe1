"""An agent's job as its stages see it: what is asked in its name, and with which tools.

Skills come first, then the agent's own prompt; what the caller sent stays data.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planq.shared.agentic.agents.document import AgentDocument, full_model_name
from planq.shared.agentic.agents.input import agent_question
from planq.shared.agentic.models.call_settings import AgentCallSettings, CallSettings
from planq.shared.agentic.models.exchange import CONTEXT, Ask, Background, StageAttempt
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.names import is_reserved
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.job_store import JobStore
from planq.shared.kernel.states import Priority, StepKind
from planq.shared.platform.errors import UnknownAgent
from planq.shared.platform.values.parts import parts_of
from planq.worker.engine.persist import persist

_log = logging.getLogger("planq.engine")

ASKED_BY_NAME = ("ask_agent", "cp__call_agent", "cp__call_agents", "cp__agent_orchestrate")
"""Tools by which a turn lets agents work, where its agent or its tenant lists them."""

_NO_SETTINGS = AgentCallSettings()
_CALL_LIMITS = ("request_limit", "input_tokens_limit", "output_tokens_limit", "total_tokens_limit")


@dataclass(frozen=True, slots=True)
class AgentJob:
    """What a claim's job runs: the document that it pinned, and the question that both stages put."""

    document: AgentDocument
    ask: Ask

    @classmethod
    def of(cls, claim: StageClaim, background: Background) -> AgentJob | None:
        """Return the agent's side of a claim, None for a job without an agent.

        Raises `InvalidArguments` for an action that the document does not have, and for input data that does not
        satisfy the action's schema; `UnknownAgent` when the document is gone.
        """
        if claim.agent is None:
            if claim.agent_name is not None:
                raise UnknownAgent(
                    f"version {claim.agent_version} of agent {claim.agent_name!r} is not stored any more"
                )
            return None
        document = AgentDocument.of(claim.agent)
        # A child job's model is its parent's, so an agent's own one wins there; a caller's choice stands.
        own = full_model_name(document.model) if claim.parent is not None and document.model else claim.model
        ask = Ask(
            job_id=str(claim.job_id),
            input=agent_question(document, claim.action, claim.input, claim.with_),
            model=own,
            instructions=[*claim.instructions, document.system_prompt()],
            data=dict(claim.with_) or None,
            answer_schema=document.answer_schema(),
            **_settings_of(claim, document),
            **_fields_of(claim, background),
        )
        return cls(document, ask)

    def knowing(self, tools: Iterable[str]) -> AgentJob:
        """Return it with the notes on its tools under the names by which the model calls them."""
        names = self.document.tool_names(list(tools))
        instructions = [*self.ask.instructions[:-1], self.document.system_prompt(names)]
        return replace(self, ask=replace(self.ask, instructions=instructions))

    @property
    def limits(self) -> Mapping[str, int]:
        given = self.document.limits.model_dump(exclude_none=True) if self.document.limits else {}
        return {name: given[name] for name in _CALL_LIMITS if name in given}

    def max_tool_steps(self, limit: int) -> int:
        """Return how many steps a plan may have: the job's limit, or the agent's own where that is lower."""
        own = self.document.limits.tool_calls_limit if self.document.limits else None
        return limit if own is None else min(limit, own)


def ask_of(claim: StageClaim, job: AgentJob | None, background: Background) -> Ask:
    """Return the question of a claim's job: its agent's, or without one the caller's own words."""
    if job is not None:
        return job.ask
    return Ask(
        job_id=str(claim.job_id),
        input=claim.input,
        model=claim.model,
        data=claim.with_.get(CONTEXT),
        **_settings_of(claim),
        **_fields_of(claim, background),
    )


def _fields_of(claim: StageClaim, background: Background) -> dict[str, Any]:
    return {
        "tenant_id": claim.tenant_id,
        "tenant_prompt": background.tenant_prompt,
        "history": background.history,
        "speaker": background.speaker,
        "tells_people": background.tells_people,
        "fallback_models": background.fallback_models,
        "insights": background.insights,
        "stage": StageAttempt(claim.status, claim.attempt),
        "on_incomplete": (
            claim.on_incomplete or (claim.agent or {}).get("on_incomplete") or background.on_incomplete
        ),
        "parts": parts_of(claim.parts),
        "is_bulk": claim.priority is Priority.BULK,
    }


def _settings_of(claim: StageClaim, document: AgentDocument | None = None) -> dict[str, Any]:
    """Return how the job's models are called: each setting is the job's, else the agent's."""
    given, of_agent = claim.model_settings, None if document is None else document.model_settings
    own = _NO_SETTINGS if given is None else AgentCallSettings.model_validate(given)
    said: CallSettings | None = of_agent if given is None else own.over(of_agent)
    fields = {name: getattr(said, name, None) for name in ("temperature", "max_tokens")}
    if document is not None:  # an agent's own fields of these names win over its `model_settings`
        for name in fields:
            if getattr(own, name) is None and (value := getattr(document, name)) is not None:
                fields[name] = value
    return {**fields, "settings": said}


def call_limits(job: AgentJob | None) -> Mapping[str, int]:
    """Return the limits of a job's agent on its model calls, none without an agent."""
    return {} if job is None else job.limits


def most_steps(claim: StageClaim, job: AgentJob | None) -> int:
    """Return how many steps a plan that a model makes for the job may have."""
    most = claim.limits.max_tool_steps
    return most if job is None else job.max_tool_steps(most)


async def offered_tools(
    store: JobStore,
    claim: StageClaim,
    job: AgentJob | None,
    known: Mapping[str, ToolDefinition],
    listed: Collection[str] = (),
) -> Mapping[str, ToolDefinition]:
    """Return the tools that a model may plan for the job: its agent's, and of these what the request leaves.

    A tool that the agent lists and no worker offers is reported in an event; the job goes on without it. A job
    without an agent is offered every tool but those that work for other tools or make child jobs, which it has to ask
    for; a turn is offered these where its tenant has `listed` them by name.
    """
    if job is not None:
        names, missing = job.document.select_tools(list(known))
        if missing:
            _log.warning("agent_tools_missing", extra={"job": str(claim.job_id), "tools": missing})
            data = {"agent": claim.agent_name, "tools": missing}
            await persist(store.note, claim, "agent_tools_missing", data)
    elif claim.tools is None:
        names = [
            name
            for name, tool in known.items()
            if (tool.kind is StepKind.TOOL and not is_reserved(name)) or (name in ASKED_BY_NAME and name in listed)
        ]
    else:
        names = [name for name in claim.tools if name in known]
    return {name: known[name] for name in names if claim.tools is None or name in claim.tools}
