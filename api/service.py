"""What is done for the requests that make a job and look at one, whichever way they came: by a route or a shortcut.

submit      a checked request body becomes a stored job
look        a job as it stands, or as it has ended

Agents' executions are jobs too, and have no other way in than `submit_quietly`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import Any
from uuid import UUID

from starlette.responses import Response
from starlette.types import Receive, Scope

from api.body import digest
from api.deps import Services
from api.documents import Document, job_document, new_job_document
from api.responses import JsonResponse, encode
from api.schemas import JobRequest
from api.submission import TENANT, accept, check_key, trace_id
from api.waiting import WAITED
from shared.domain.agents.asking import misfits, refused, unstorable
from shared.domain.agents.document import AgentDocument, read_agent
from shared.domain.errors import InvalidRequest, PlanInvalid, TooLarge, capped
from shared.domain.model_names import check_model_name
from shared.domain.schemas import MAX_DEPTH, is_deeper_than
from shared.ports import PlanWake
from shared.settings import Settings
from shared.store.agents import StoredDocument
from shared.store.submissions import Submission
from shared.store.views import JobView, parsed

_CLIENT_GONE = 499  # nginx' number for it; nobody reads it but our metrics


async def submit(
    services: Services, body: JobRequest, sent: Any, *, idempotency_key: str | None, traceparent: str | None
) -> Response:
    """Store a job and publish its wake-up; `sent` is the decoded body, the headers are as they came.

    Raises what `accept`, `assigned` and `RequestStore.submit` raise, and `Refusal` for an idempotency key that is
    none.
    """
    found = await _wanted(services, body, sent, idempotency_key, traceparent)
    return await (replayed(services, found) if isinstance(found, UUID) else stored(services, found))


async def submit_quietly(
    services: Services, body: JobRequest, sent: Any, *, idempotency_key: str | None, traceparent: str | None
) -> tuple[UUID, bool]:
    """Store a job and publish its wake-up; return its id, and False if it was stored before under its key.

    Raises as `submit` does.
    """
    found = await _wanted(services, body, sent, idempotency_key, traceparent)
    if isinstance(found, UUID):
        return found, False
    job_id, created_at = await _store(services, found)
    return job_id, created_at is not None


async def look(services: Services, job_id: UUID, seconds: float, *, scope: Scope, receive: Receive) -> Response:
    """Answer with a job: as soon as it has ended, or as it stands after so many seconds. Raises `NotFound`.

    The time waited is noted in `scope`. When the client has gone the answer is an empty one that nobody reads.
    """
    view = await wait_for(services, job_id, seconds, scope=scope, receive=receive)
    return nobody_reads() if view is None else JsonResponse(job_document(view))


async def wait_for(
    services: Services, job_id: UUID, seconds: float, *, scope: Scope, receive: Receive
) -> JobView | None:
    """Return a job as soon as it has ended, or as it stands after so many seconds; None when the client has gone.

    The time waited is noted in `scope`. Raises `NotFound`.
    """
    if seconds > 0:
        begun = monotonic()
        with services.waiters.watch(job_id) as waiter:
            # Registered first, looked at afterwards: an ending between the two is not missed.
            if not services.waiters.has_surely_not_ended(job_id):
                view = await services.requests.view(TENANT, job_id, only_ended=True)
                if view.is_whole:
                    return view
            stayed = await waiter.wait(min(seconds, services.settings.max_wait_seconds), receive)
        scope[WAITED] = monotonic() - begun
        if not stayed:
            return None
    return await services.requests.view(TENANT, job_id)


def nobody_reads() -> Response:
    """Return the answer to a client that has gone."""
    return Response(status_code=_CLIENT_GONE)


async def document_of(services: Services, job_id: UUID) -> Document:
    """Return a job as it stands; raises `NotFound`."""
    return job_document(await services.requests.view(TENANT, job_id))


async def replayed(services: Services, job_id: UUID) -> Response:
    """Answer with the job that was made under the same key before."""
    response = _accepted(await document_of(services, job_id))
    response.headers["Idempotency-Replayed"] = "true"
    return response


async def stored(services: Services, submission: Submission) -> Response:
    """Store a job and publish its wake-up; or answer with the job that was stored before under its key."""
    job_id, created_at = await _store(services, submission)
    if created_at is None:
        return await replayed(services, job_id)
    return _accepted(new_job_document(submission, created_at))


async def _store(services: Services, submission: Submission) -> tuple[UUID, datetime | None]:
    """Store a job and publish its wake-up; as `RequestStore.submit`, whose answer it returns."""
    job_id, created_at = await services.requests.submit(submission)
    if created_at is not None:
        services.waiters.submitted(job_id)
        services.publisher.publish_soon([PlanWake(job_id)])
    return job_id, created_at


async def _wanted(
    services: Services, body: JobRequest, sent: Any, idempotency_key: str | None, traceparent: str | None
) -> Submission | UUID:
    """Return the job that a request becomes, or the id of the one that it became before under its key."""
    key = check_key(idempotency_key)
    fingerprint = digest(sent) if key is not None else None
    if key is not None and fingerprint is not None:
        earlier = await services.requests.earlier(TENANT, key, fingerprint)
        if earlier is not None:
            return earlier
    given = {"trace_id": trace_id(traceparent), "idempotency_key": key, "request_hash": fingerprint}
    if body.agent is None and body.action is None and body.with_ is None:
        return await _accepted_by_tools(services, body, given)
    return await _accepted_for_agent(services, body, given)


async def _accepted_by_tools(services: Services, body: JobRequest, given: dict[str, str | None]) -> Submission:
    """Return the job that a request becomes with the published tools, as they were a moment ago or as they are.

    Tools of a moment ago may let a plan pass that those of now refuse; so may tools that change right afterwards, and
    the engine checks again. But they never refuse one that the tools of now let pass.
    """
    if body.plan is None and body.tools is None:
        return await accept(body, {}, services.settings, **given)
    known = await services.catalogue.tools(TENANT)
    try:
        return await accept(body, known, services.settings, **given)
    except (InvalidRequest, PlanInvalid):
        now = await services.catalogue.renewed(TENANT)
        if now == known:
            raise
        return await accept(body, now, services.settings, **given)


async def _accepted_for_agent(services: Services, body: JobRequest, given: dict[str, str | None]) -> Submission:
    """Return the job that a request about an agent becomes; raises `NotFound` for an agent that is not there."""
    name = checked_agent(body)
    accepted = await _accepted_by_tools(services, body, given)
    stored = await services.agents.get(TENANT, name)
    document = read_agent(parsed(stored.content))
    skills = await services.skills.newest(TENANT, document.skills)
    agent = Agent(stored, document, skills)
    if body.with_ is None:
        return assigned(accepted, body, agent, services.settings)
    # The agent's schema may take seconds to check, which others would wait for.
    return await asyncio.to_thread(assigned, accepted, body, agent, services.settings)


def _accepted(document: Document) -> Response:
    """Answer with a job that is stored and will run."""
    return JsonResponse(document, status_code=202, headers={"Location": f"/jobs/{document['id']}"})


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
