"""Agents for jobs: what a request that names one has to fulfil, and the job that it becomes.

The version is pinned here, so that a job keeps the agent it began with. The one way in for `POST /jobs` and for
executions. Specifications S1 ("Executions") and S3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from api.body import encode
from api.schemas import JobRequest
from shared.domain.agents.asking import misfits, refused, unstorable
from shared.domain.agents.document import AgentDocument
from shared.domain.errors import InvalidRequest, TooLarge, capped
from shared.domain.model_names import check_model_name
from shared.domain.schemas import MAX_DEPTH, is_deeper_than
from shared.settings import Settings
from shared.store.agents import StoredDocument
from shared.store.submissions import Submission


def checked_agent(request: JobRequest) -> str:
    """Return the agent that a request names; raises `InvalidRequest` with every field that does not fit to one."""
    errors = [
        _defect(name, "is only understood together with agent")
        for name, given in (("action", request.action), ("with", request.with_))
        if given is not None and request.agent is None
    ]
    if request.plan is not None and request.agent is not None:
        errors.append(_defect("plan", "an agent makes its own plan; send an agent or a plan, not both"))
    if errors or request.agent is None:
        raise InvalidRequest("; ".join(f"{one['field']}: {one['message']}" for one in errors), errors=errors)
    return request.agent


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent as it is stored, with the newest versions of those of its skills that are there."""

    stored: StoredDocument
    document: AgentDocument
    skills: Mapping[str, int]


def assigned(submission: Submission, request: JobRequest, agent: Agent, settings: Settings) -> Submission:
    """Return the job that this agent does: its version and those of its skills pinned, its model chosen.

    Raises `InvalidArguments` for an action that the agent does not have and a `with` that breaks the action's input
    schema, `InvalidRequest` for a skill that is not there, `TooLarge` for a long `with`.
    """
    document, skills = agent.document, agent.skills
    _check_size(request.with_, settings.max_input_bytes)
    if found := [*unstorable(request.with_), *misfits(document, request.action, request.with_)]:
        raise refused(document, found)
    if missing := [name for name in document.skills if name not in skills]:
        listed = ", ".join(repr(capped(name, 80)) for name in missing)
        raise InvalidRequest(f"agent {document.name!r} lists skills that are not stored: {listed}; store them first")
    model = submission.model
    if request.model is None and document.model is not None:
        model = document.options(model=settings.model).model
        if model != settings.model:
            check_model_name(model, allow_cassette=False)
    return replace(
        submission,
        agent=agent.stored.name,
        agent_version=agent.stored.version,
        skill_versions=[skills[name] for name in document.skills],
        action=request.action,
        with_=request.with_,
        model=model,
    )


def _check_size(with_: Mapping[str, Any] | None, limit: int) -> None:
    if with_ is None:
        return
    if is_deeper_than(with_, MAX_DEPTH):
        raise InvalidRequest(f"with: expected at most {MAX_DEPTH} levels, found more")
    size = len(encode(with_))
    if size > limit:
        raise TooLarge(f"with: expected at most {limit} bytes of JSON, found {size}", limit=limit, actual=size)


def _defect(field: str, message: str) -> dict[str, str]:
    return {"in": "body", "field": field, "message": message}
