"""From a request to a stored job with its wake-up published: every check, then one commit, then one message.

    submit_job           what a route does with a body that becomes a job
    checked_submission   the checks alone: a line of a batch becomes a job later (`api/batches/validation.py`)
    store_job            the commit and the message alone: a fork has its own checks (`api/jobs/recovery.py`)

A refusal leaves no trace. An execution of an agent is a job too, and comes the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from planq.api.access.limits import job_headers, too_many, too_many_jobs
from planq.api.deps import Services
from planq.api.http.exchange import HttpRefusal, body_digest, json_bytes
from planq.api.http.ids import conversation_id_of
from planq.api.plan_checks import known_names, listed, refused_plan, unknown_agents, valid_plan
from planq.api.schemas import MAX_METADATA_BYTES, JobRequest
from planq.shared.computing import off_loop
from planq.shared.domain.agents.input import input_defects, input_refused, unstorable_texts
from planq.shared.domain.agents.naming import read_named_agent
from planq.shared.domain.agents.source import Finding
from planq.shared.domain.errors import Conflict, InvalidRequest, PlanInvalid, TooLarge, capped
from planq.shared.domain.jobs.limits import Limits
from planq.shared.domain.jobs.states import Priority, Respond, Strategy
from planq.shared.domain.models.exchange import CONTEXT
from planq.shared.domain.models.names import check_model_name
from planq.shared.domain.rounds.block import LoopBlock, block_refused, merged, parse_block, read_block
from planq.shared.domain.rounds.evaluate import rule_defects
from planq.shared.domain.schema.schemas import MAX_DEPTH
from planq.shared.domain.tools.definition import ToolDefinition
from planq.shared.domain.tools.names import NameIndex, suggestion
from planq.shared.domain.values.defects import Defect, body_refused
from planq.shared.domain.values.describe import is_deeper_than
from planq.shared.domain.values.encoding import JsonText, is_larger
from planq.shared.domain.webhooks.endpoints import checked_url
from planq.shared.ports import PlanWake, Tenant
from planq.shared.settings import Settings
from planq.shared.store.agents.documents import PinnedAgent, pin_agent, with_prompt
from planq.shared.store.ids import new_id
from planq.shared.store.requests import Submission

_INLINE_BLOCK_BYTES = 4 * 1024
"""A longer loop block may hold hundreds of expressions, and is checked in a thread."""

CHANNEL_OF_TASKS = "api"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")

# W3C Trace Context, Level 1, section 3.2: version, trace-id, parent-id, flags; zero ids and version ff are invalid.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """The job of a request: a new one with its `submission`, or the one that its idempotency key had before."""

    job_id: UUID
    submission: Submission | None = None
    created_at: datetime | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """What the answer says of the tenant's rates; nothing where nothing was counted."""


async def submit_job(
    services: Services,
    tenant_id: str,
    body: JobRequest,
    sent: Any,
    *,
    idempotency_key: str | None,
    traceparent: str | None,
    is_task: bool = False,
    strategy: Strategy = Strategy.PLAN,
) -> SubmittedJob:
    """Store a job and publish its wake-up; `sent` is the decoded body, the headers are as they came.

    An agent whose document names no strategy, asked by a request that names none, has `strategy`.

    Raises `InvalidRequest`, `TooLarge`, `PlanInvalid` with the plan's first defects, `NotFound` for an agent that is
    not there, `InvalidArguments` for what the agent cannot do, `Conflict` for a key that another request used, and
    `HttpRefusal` for a key that is none.
    """
    given, earlier = await sender_of(services, tenant_id, sent, idempotency_key, traceparent)
    if earlier is not None:
        return SubmittedJob(earlier)
    submission = await checked_submission(services, tenant_id, body, given, strategy)
    return await store_job(services, replace(submission, is_task=is_task))


async def checked_submission(
    services: Services,
    tenant_id: str,
    body: JobRequest,
    given: Mapping[str, Any],
    strategy: Strategy = Strategy.PLAN,
) -> Submission:
    """Return the job that a request becomes, with the fields `given` beside it; nothing is stored.

    `strategy` is that of an agent where neither it nor the request names one.

    Raises as `submit_job` does for what is wrong with the request.
    """
    agent = _agent_of(body)
    reads = await _conversation_read(services, tenant_id, body)
    tenant = await services.tenants.of(tenant_id)
    if body.plan is None and body.tools is None and body.loop is None:
        submission = await _checked(tenant, body, {}, services.settings, given)
    else:
        submission = await _checked_by_tools(services, tenant, body, given)
    if unknown := await unknown_agents(services.agents, tenant_id, body.plan):
        raise refused_plan(unknown)
    if agent is not None:
        submission = await _assigned(services, submission, body, agent, strategy)
    return await ready(services, replace(submission, history_of=reads))


async def _conversation_read(services: Services, tenant_id: str, body: JobRequest) -> UUID | None:
    """Return the conversation that a job reads without being a turn of it.

    Raises `NotFound` for one that is not there, and `InvalidRequest` where no conversation is named.
    """
    if body.conversation is not None and body.conversation_id is None:
        raise body_refused([Defect("conversation", "", "is only understood together with conversation_id")])
    if body.conversation != "read" or body.conversation_id is None:
        return None
    found: UUID = (await services.conversations.get(tenant_id, conversation_id_of(body.conversation_id)))["id"]
    return found


async def ready(services: Services, submission: Submission) -> Submission:
    """Return a job with the text of the skill that its loop block names as prompt.

    Raises `InvalidRequest` for a skill that is none, and for a planner that no worker alive has.
    """
    await _check_planner(services, submission)
    return replace(submission, loop=await with_prompt(services.skills, submission.tenant_id, submission.loop))


async def _check_planner(services: Services, submission: Submission) -> None:
    """Raise `InvalidRequest` for a planner that no worker alive has; while none is there nobody knows."""
    name = None if submission.loop is None else submission.loop.get("planner")
    if name is None or (known := await services.workers.planners()) is None or name in known:
        return
    there = listed(sorted(known)) or "none"
    message = f"no worker has a planner {capped(name, 80)!r}; {suggestion(name, known)}there are {there}"
    raise block_refused([(("planner",), message)])


async def store_job(services: Services, submission: Submission) -> SubmittedJob:
    """Store a checked job and publish its wake-up; raises as `RequestStore.submit` does.

    It counts for its tenant's rates, a task as a message: raises `HttpRefusal` (429). A wake-up that the broker does
    not take is published later, by the sweeper.
    """
    headers = await let_in(services, submission)
    job_id, created_at = await services.requests.submit(submission)
    if created_at is None:
        return SubmittedJob(job_id, headers=headers)
    services.waiters.submitted(job_id, submission.tenant_id)
    wake = PlanWake(job_id, priority=submission.priority, agent=submission.agent, tenant=submission.tenant_id)
    services.publisher.publish_soon([wake])
    return SubmittedJob(job_id, submission, created_at, headers)


async def let_in(services: Services, submission: Submission) -> Mapping[str, str]:
    """Count a job for its tenant's rates; returns the headers that say so. Raises `HttpRefusal` (429)."""
    tenant = await services.tenants.of(submission.tenant_id)
    if submission.is_task:
        verdict = await services.limits.check(tenant.id, CHANNEL_OF_TASKS, tenant.config)
        if not verdict.is_allowed:
            raise too_many(verdict)
        return verdict.headers()
    await services.unfinished.check(tenant.id, tenant.config)  # first: it counts nothing
    verdict = await services.limits.check_job(tenant.id, tenant.config)
    if not verdict.is_allowed:
        raise too_many_jobs(verdict)
    services.unfinished.add(tenant.id)
    return job_headers(verdict)


async def sender_of(
    services: Services, tenant_id: str, sent: Any, idempotency_key: str | None, traceparent: str | None
) -> tuple[dict[str, str | None], UUID | None]:
    """Return the fields of a `Submission` that come with headers, and the job that the key was used for before.

    Raises `Conflict` when that was for another request than `sent`, and `HttpRefusal` as `check_key` does.
    """
    key = check_key(idempotency_key)
    given = {"trace_id": trace_id(traceparent), "idempotency_key": key, "request_hash": None}
    if key is None:
        return given, None
    given["request_hash"] = fingerprint = body_digest(sent)
    return given, await services.requests.earlier(tenant_id, key, fingerprint)


def trace_id(traceparent: str | None) -> str:
    """Return the trace id of a `traceparent` header, or a fresh one where there is none that is valid."""
    found = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent else None
    return found[1] if found else uuid4().hex


def check_key(key: str | None) -> str | None:
    """Return an Idempotency-Key; raises `HttpRefusal` (400) unless it is 1 to 255 visible ASCII characters."""
    if key is not None and not _KEY.fullmatch(key):
        shown = f"{len(key)} characters" if not key or len(key) > 255 else ascii(key)
        raise HttpRefusal(
            400,
            "invalid_idempotency_key",
            f"expected an Idempotency-Key of 1 to 255 visible ASCII characters, found {shown}",
        )
    return key


async def _checked_by_tools(
    services: Services, tenant: Tenant, body: JobRequest, given: Mapping[str, Any]
) -> Submission:
    """Check a request against the published tools, as they were a moment ago or as they are.

    Tools of a moment ago may let a plan pass that those of now refuse; so may tools that change right afterwards, and
    the engine checks again. But they never refuse one that the tools of now let pass.
    """
    known = await services.catalogue.tools(tenant.id)
    try:
        return await _checked(tenant, body, known, services.settings, given)
    except (InvalidRequest, PlanInvalid):
        now = await services.catalogue.renewed(tenant.id)
        if now == known:
            raise
        return await _checked(tenant, body, now, services.settings, given)


async def _checked(
    tenant: Tenant,
    request: JobRequest,
    tools: Mapping[str, ToolDefinition],
    settings: Settings,
    given: Mapping[str, Any],
) -> Submission:
    """Return the job of a tenant that a request becomes, under the tenant's limits.

    Raises `InvalidRequest`, `TooLarge` or `PlanInvalid`.
    """
    if request.strategy is not None and request.strategy not in set(Strategy):
        known = ", ".join(Strategy)
        raise InvalidRequest(f"unknown strategy {capped(request.strategy, 80)!r}; known strategies are {known}")
    needs_input = request.plan is None and (request.agent is None or request.action is None)
    text = checked_input(request.input, settings.max_input_bytes, may_be_absent=not needs_input)
    model = request.model if request.model is not None else tenant.config.model or settings.model
    if model != settings.model:
        check_model_name(model, allow_cassette=False)
    check_object("metadata", request.metadata, MAX_METADATA_BYTES)
    limits = tenant.limits
    if request.limits is not None:
        limits = limits.lowered(request.limits.bounds())
    names = None if request.tools is None else known_names(request.tools, tools)
    block = None
    if request.loop is not None:
        is_long = is_larger(request.loop, _INLINE_BLOCK_BYTES)
        work = (request, limits, tools)
        block = await off_loop(_block, *work) if is_long else _block(*work)
    plan = None
    if request.plan is not None:
        checked = await valid_plan(request.plan, names, tools, limits)
        plan = JsonText(checked.model_dump_json(exclude_none=True).encode())
    return Submission(
        id=new_id(),
        tenant_id=tenant.id,
        input=text,
        respond=_respond(request),
        strategy=Strategy(request.strategy or Strategy.PLAN),
        priority=Priority(request.priority or Priority.INTERACTIVE),
        loop=None if block is None else block.to_json(),
        model=model,
        limits=limits if block is None else block.lowered(limits),
        budget=None if request.limits is None else request.limits.checked_budget(),
        plan=plan,
        tools=names,
        metadata=request.metadata,
        user_id=request.user or "",
        with_=_context(request, settings.max_input_bytes),
        callback_url=None if request.callback_url is None else callback_of(settings, request.callback_url),
        **given,
    )


def _respond(request: JobRequest) -> Respond:
    """Return what a job answers with; raises `InvalidRequest` where only a model can answer."""
    why = "an agent answers with its model" if request.agent is not None else None
    if why is None and request.strategy not in (None, Strategy.PLAN):
        why = f"the rounds of the strategy {request.strategy} end with the answer of a model"
    if why is None:
        return Respond(request.respond or (Respond.MODEL if request.plan is None else Respond.OUTPUT))
    if request.respond not in (None, Respond.MODEL):
        raise InvalidRequest(f"respond: expected model, or none at all; found {request.respond}: {why}")
    if isinstance(request.plan, Mapping) and request.plan.get("on_failure") is not None:
        raise InvalidRequest(f"plan/on_failure: {why}, which is told of failures; leave it out")
    return Respond.MODEL


def _context(request: JobRequest, limit: int) -> Mapping[str, str] | None:
    """Return a request's context as its job keeps it; raises as `checked_input` does."""
    if request.context is None or not request.context.strip():
        return None
    return {CONTEXT: checked_input(request.context, limit, field="context")}


def callback_of(settings: Settings, url: str, field: str = "callback_url") -> str:
    """Return an address that webhooks may be sent to; raises `InvalidRequest`, and as `require_signing`."""
    checked = checked_url(url, field, settings.webhook_hosts)
    require_signing(settings)
    return checked


def require_signing(settings: Settings) -> None:
    """Raise `Conflict` where this server has no key under which the secrets that sign could lie."""
    if not settings.master_keys:
        raise Conflict(
            "webhooks cannot be signed here: PLANQ_SECRET_KEYS is not set; an operator has to set it for every "
            "process to a key that `openssl rand -base64 32` makes"
        )


def _block(request: JobRequest, limits: Limits, tools: Mapping[str, ToolDefinition]) -> LoopBlock:
    """Return a request's loop block; raises `InvalidRequest` with everything that is wrong with it."""
    block, found = read_block(request.loop)
    if block is not None:
        known = NameIndex(tools)
        found += block.above(limits)
        found += [
            (path, f"unknown tool {capped(name, 80)!r}; {suggestion(name, tools)}".rstrip("; "))
            for path, name in block.called()
            if len(known.candidates(name)) != 1
        ]
        found += rule_defects(block, tools)
        if request.strategy == Strategy.PLAN or (request.strategy is None and request.agent is None):
            found += _without_rounds(block)
    if block is None or found:
        raise block_refused(found)
    return block


def _without_rounds(block: LoopBlock) -> list[Finding]:
    message = "only a job with rounds has it; send strategy: loop, or strategy: react"
    return [((name,), message) for name in block.of_loops_alone()]


def checked_input(text: str | None, limit: int, *, may_be_absent: bool = False, field: str = "input") -> str:
    """Return an input of at most `limit` bytes, empty for an absent one; `field` is what its sender calls it.

    Raises `InvalidRequest` for one that says nothing, `TooLarge` for a longer one.
    """
    if text is None and may_be_absent:
        return ""
    if text is None or not text.strip():
        found = "none" if text is None else "only white space" if text else "an empty one"
        raise InvalidRequest(f"{field}: expected a text that says what to do (or a plan), found {found}")
    size = len(text.encode())
    if size > limit:
        raise TooLarge(f"{field}: expected at most {limit} bytes of UTF-8, found {size}", limit=limit, actual=size)
    if "\x00" in text:
        raise InvalidRequest(f"{field}: the character NUL (U+0000) cannot be stored; found at {text.index(chr(0))}")
    return text


def check_object(field: str, value: Mapping[str, Any] | None, limit: int) -> None:
    """Raise `InvalidRequest` for free-form JSON nested too deeply, `TooLarge` for more than `limit` bytes."""
    if value is None:
        return
    if is_deeper_than(value, MAX_DEPTH):
        raise InvalidRequest(f"{field}: expected at most {MAX_DEPTH} levels, found more")
    size = len(json_bytes(value))
    if size > limit:
        raise TooLarge(f"{field}: expected at most {limit} bytes of JSON, found {size}", limit=limit, actual=size)


def _agent_of(request: JobRequest) -> str | None:
    """Return the agent that a request names; raises `InvalidRequest` with every field that does not fit to it."""
    defects = [
        Defect(name, "", "is only understood together with agent")
        for name, given in (("action", request.action), ("with", request.with_))
        if given is not None and request.agent is None
    ]
    if request.plan is not None and request.agent is not None:
        defects.append(Defect("plan", "", "an agent makes its own plan; send an agent or a plan, not both"))
    if request.context is not None and request.agent is not None:
        defects.append(Defect("context", "", "an agent is given data by `with`"))
    if defects:
        raise body_refused(defects)
    return request.agent


async def _assigned(
    services: Services, submission: Submission, request: JobRequest, text: str, strategy: Strategy
) -> Submission:
    """Return the job as an agent does it, in its newest version or the one named.

    Raises `NotFound` for one that is not there.
    """
    named = read_named_agent(text)
    agent = await pin_agent(services.agents, services.skills, submission.tenant_id, named.name, named.version)
    work = (submission, request, named.name, agent, services.settings, strategy)
    # The agent's schema may take seconds to check, which others would wait for.
    return _pinned(*work) if request.with_ is None else await off_loop(_pinned, *work)


def _pinned(
    submission: Submission,
    request: JobRequest,
    name: str,
    agent: PinnedAgent,
    settings: Settings,
    default: Strategy,
) -> Submission:
    """Pin the agent's version and those of its skills, and choose its model.

    Raises `InvalidArguments` for an action that the agent does not have and a `with` that breaks the action's input
    schema, `InvalidRequest` for a skill that is not there, `TooLarge` for a long `with`.
    """
    check_object("with", request.with_, settings.max_input_bytes)
    if found := [*unstorable_texts(request.with_), *input_defects(agent.document, request.action, request.with_)]:
        raise input_refused(agent.document, found)
    strategy = agent.strategy(default) if request.strategy is None else Strategy(request.strategy)
    asked = None if submission.loop is None else parse_block(submission.loop)
    if asked is not None and strategy is Strategy.PLAN and (needless := _without_rounds(asked)):
        raise block_refused(needless)
    model = agent.model_or(submission.model) if request.model is None else submission.model
    made = for_agent(submission, name, agent, strategy=strategy, model=model, asked=asked)
    return replace(made, action=request.action, with_=request.with_)


def for_agent(
    submission: Submission,
    name: str,
    agent: PinnedAgent,
    *,
    strategy: Strategy,
    model: str,
    asked: LoopBlock | None = None,
) -> Submission:
    """Return a job as an agent's, with the agent's loop block, which `asked` narrows.

    Raises `InvalidRequest` for a skill that is not there.
    """
    own = agent.document.loop_block()
    block = merged(own, asked)
    return replace(
        submission,
        strategy=strategy,
        loop=None if block is None else block.to_json(),
        limits=submission.limits if own is None else own.lowered(submission.limits),
        agent=name,
        agent_version=agent.version,
        skill_versions=agent.skill_versions(),
        model=model,
    )
