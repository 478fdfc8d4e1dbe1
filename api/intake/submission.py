"""From a request to a stored job with its wake-up published: every check, then one commit, then one message.

    Submissions.submit   what a route does with a body that becomes a job
    JobBuilder.build     the checks alone: a line of a batch becomes a job later (`api/batches/validation.py`)
    Submissions.store    the commit and the message alone: a fork has its own checks (`api/intake/recovery.py`)

A refusal leaves no trace. An execution of an agent is a job too, and comes the same way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from planq.api.access.limits import RateLimits, UnfinishedJobs, job_headers, too_many, too_many_jobs
from planq.api.http import bounds
from planq.api.http.exchange import HttpRefusal, body_digest, json_bytes
from planq.api.http.ids import conversation_id_of
from planq.api.intake.assignments import Assignment, Assignments, without_rounds
from planq.api.intake.parts import PartIntake
from planq.api.intake.plan_checks import agent_errors, known_names, refused_plan, valid_plan
from planq.api.schemas import MAX_METADATA_BYTES, JobRequest
from planq.api.streams.waiting import Waiters
from planq.shared.agentic.agents.checks import read_named_agent
from planq.shared.agentic.agents.input import input_defects, input_refused, unstorable_texts
from planq.shared.agentic.models.exchange import CONTEXT
from planq.shared.agentic.models.input_parts import check_reads_parts, read_input
from planq.shared.agentic.models.names import check_model_name
from planq.shared.agentic.rounds.block import LoopBlock, block_refused, read_block
from planq.shared.agentic.rounds.evaluate import rule_defects
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.names import NameIndex, suggestion
from planq.shared.broker.publisher import CeleryPublisher
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Priority, Respond, Strategy
from planq.shared.kernel.submission import COLUMNS, Submission
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import Conflict, InvalidRequest, PlanInvalid, TooLarge, capped
from planq.shared.platform.values.defects import Defect, body_refused
from planq.shared.platform.values.describe import is_deeper_than
from planq.shared.platform.values.encoding import JsonText, is_larger
from planq.shared.settings.settings import Settings
from planq.shared.subjects.agents.store import PinnedAgent
from planq.shared.subjects.conversations.store import ConversationStore
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.tenants.directory import TenantDirectory
from planq.shared.subjects.tools.catalogue import Catalogue
from planq.shared.subjects.webhooks.rules import checked_url

_INLINE_BLOCK_BYTES = 4 * 1024
"""A longer loop block may hold hundreds of expressions, and is checked in a thread."""

CHANNEL_OF_TASKS = "api"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")

# W3C Trace Context, Level 1, section 3.2: version, trace-id, parent-id, flags; zero ids and version ff are invalid.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


_CHECKED = {
    *("input", "strategy", "plan", "respond", "model", "model_settings", "tools", "limits", "agent", "with_"),
    *("priority", "loop", "callback_url"),
}
_AS_SENT = (COLUMNS.keys() & JobRequest.model_fields.keys()) - _CHECKED
"""Fields of a request that need no check beyond their types."""


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """The job of a request: a new one with its `submission`, or the earlier one of its idempotency key."""

    job_id: UUID
    submission: Submission | None = None
    created_at: datetime | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Rate headers of the answer; none if the job was not counted."""


@dataclass(frozen=True, slots=True)
class JobBuilder:
    """Checks requests and builds their jobs; it stores only the bytes of their parts."""

    settings: Settings
    tenants: TenantDirectory
    catalogue: Catalogue
    conversations: ConversationStore
    assignments: Assignments
    parts: PartIntake

    async def build(
        self,
        tenant_id: str,
        body: JobRequest,
        given: Mapping[str, Any],
        *,
        strategy: Strategy = Strategy.PLAN,
        is_task: bool = False,
    ) -> Submission:
        """Return the job of a request, with the fields `given` that came with its headers.

        `strategy` is that of an agent if neither it nor the request names one. Raises as `Submissions.submit` does
        for a defect of the request.
        """
        agent = _agent_of(body)
        history_of = await self._conversation_read(tenant_id, body)
        tenant = await self.tenants.of(tenant_id)
        if body.strategy is not None and body.strategy not in set(Strategy):
            known = ", ".join(Strategy)
            raise InvalidRequest(f"unknown strategy {capped(body.strategy, 80)!r}; known strategies are {known}")
        needs_input = body.plan is None and (body.agent is None or body.action is None)
        given_input = read_input(body.input)
        may_be_absent = not needs_input or bool(given_input.parts)
        text = checked_input(given_input.text, bounds.MAX_INPUT_BYTES, may_be_absent=may_be_absent)
        model = body.model if body.model is not None else tenant.config.model or self.settings.model
        if model != self.settings.model:
            check_model_name(model, allow_cassette=False)
        check_object("metadata", body.metadata, MAX_METADATA_BYTES)
        limits = tenant.limits if body.limits is None else tenant.limits.lowered(body.limits.bounds())
        tools = block = plan = None
        if body.plan is not None or body.tools is not None or body.loop is not None:
            tools, block, plan = await self._checked_by_tools(tenant_id, body, limits)
        respond = _respond(body)
        asked = body.model_settings
        model_settings = None if asked is None else asked.model_dump(exclude_none=True)
        budget = None if body.limits is None else body.limits.checked_budget()
        context = _context(body, bounds.MAX_INPUT_BYTES)
        callback_url = None if body.callback_url is None else callback_of(self.settings, body.callback_url)
        if body.plan is not None:
            wrong = await agent_errors(self.assignments.agents, tenant_id, body.plan)
            if wrong:
                raise refused_plan(wrong)
        assignment = Assignment(Strategy(body.strategy or Strategy.PLAN), model, limits)
        if block is not None:
            assignment = assignment._replace(limits=block.lowered(limits), loop=block.to_json())
        if agent is not None:
            assignment = await self._assigned(tenant_id, body, agent, assignment, block, strategy)
        if assignment.loop is not None:
            assignment = await self.assignments.completed(tenant_id, assignment)
        check_reads_parts(assignment.model, (part.type for _, part in given_input.parts))
        parts = await self.parts.stored(tenant_id, given_input.parts)
        return Submission(
            id=new_id(),
            tenant_id=tenant_id,
            input=text,
            parts=parts,
            respond=respond,
            model_settings=model_settings or None,
            priority=Priority(body.priority or Priority.INTERACTIVE),
            budget=budget,
            plan=plan,
            tools=tools,
            user_id=body.user or "",
            with_=context if agent is None else body.with_,
            callback_url=callback_url,
            is_task=is_task,
            history_of=history_of,
            **{name: getattr(body, name) for name in _AS_SENT},
            **assignment._asdict(),
            **given,
        )

    async def _conversation_read(self, tenant_id: str, body: JobRequest) -> UUID | None:
        """Return the conversation that a job only reads; raises `NotFound` and `InvalidRequest`."""
        if body.conversation is not None and body.conversation_id is None:
            raise body_refused([Defect("conversation", "", "is only understood together with conversation_id")])
        if body.conversation != "read" or body.conversation_id is None:
            return None
        found: UUID = (await self.conversations.get(tenant_id, conversation_id_of(body.conversation_id)))["id"]
        return found

    async def _checked_by_tools(self, tenant_id: str, body: JobRequest, limits: Limits) -> _Checked:
        """Check a request against the published tools: those of a moment ago, or if it fails, the present ones.

        A plan that old tools accept may still fail: the engine checks it again.
        """
        known = await self.catalogue.tools(tenant_id)
        try:
            return await _checked(body, known, limits)
        except (InvalidRequest, PlanInvalid):
            now = await self.catalogue.renewed(tenant_id)
            if now == known:
                raise
            return await _checked(body, now, limits)

    async def _assigned(
        self,
        tenant_id: str,
        body: JobRequest,
        named: str,
        assignment: Assignment,
        asked: LoopBlock | None,
        default: Strategy,
    ) -> Assignment:
        name = read_named_agent(named)
        agent = await self.assignments.pinned(tenant_id, name)
        work = (body, name.name, agent, assignment, asked, default, bounds.MAX_INPUT_BYTES)
        # The agent's schema may take seconds to check, which others would wait for.
        return _to_agent(*work) if body.with_ is None else await off_loop(_to_agent, *work)


@dataclass(frozen=True, slots=True)
class Submissions:
    """Stores jobs, and publishes their wake-ups."""

    builder: JobBuilder
    tenants: TenantDirectory
    requests: RequestStore
    publisher: CeleryPublisher
    waiters: Waiters
    limits: RateLimits
    unfinished: UnfinishedJobs

    async def submit(
        self,
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

        `strategy` is that of an agent if neither it nor the request names one. Raises `InvalidRequest`, `TooLarge`,
        `PlanInvalid`, `NotFound` for an unknown agent, `InvalidArguments` for its input, `Conflict` for a key of
        another request, and `HttpRefusal` for a bad key.
        """
        given, earlier = await self.sender_of(tenant_id, sent, idempotency_key, traceparent)
        if earlier is not None:
            return SubmittedJob(earlier)
        return await self.store(await self.builder.build(tenant_id, body, given, strategy=strategy, is_task=is_task))

    async def sender_of(
        self, tenant_id: str, sent: Any, idempotency_key: str | None, traceparent: str | None
    ) -> tuple[dict[str, str | None], UUID | None]:
        """Return the fields of a `Submission` that come with headers, and the earlier job of the key, if any.

        Raises `Conflict` if the key was used for another request than `sent`, and `HttpRefusal` as `check_key` does.
        """
        key = check_key(idempotency_key)
        given = {"trace_id": trace_id(traceparent), "idempotency_key": key, "request_hash": None}
        if key is None:
            return given, None
        given["request_hash"] = fingerprint = body_digest(sent)
        return given, await self.requests.earlier(tenant_id, key, fingerprint)

    async def store(self, submission: Submission) -> SubmittedJob:
        """Store a checked job and publish its wake-up; raises as `RequestStore.submit` and `let_in` do.

        The sweeper publishes a wake-up that the broker did not accept.
        """
        headers = await self.let_in(submission)
        job_id, created_at = await self.requests.submit(submission)
        if created_at is None:
            return SubmittedJob(job_id, headers=headers)
        self.waiters.submitted(job_id, submission.tenant_id)
        wake = Wake.plan(job_id, priority=submission.priority, name=submission.agent, tenant=submission.tenant_id)
        self.publisher.publish_soon([wake])
        return SubmittedJob(job_id, submission, created_at, headers)

    async def let_in(self, submission: Submission) -> Mapping[str, str]:
        """Count a job, or a task as a message, for its tenant's rates; return the headers.

        Raises `HttpRefusal` (429).
        """
        tenant = await self.tenants.of(submission.tenant_id)
        if submission.is_task:
            verdict = await self.limits.check(tenant.id, CHANNEL_OF_TASKS, tenant.config)
            if not verdict.is_allowed:
                raise too_many(verdict)
            return verdict.headers()
        await self.unfinished.check(tenant.id, tenant.config)  # first: it counts nothing
        verdict = await self.limits.check_job(tenant.id, tenant.config)
        if not verdict.is_allowed:
            raise too_many_jobs(verdict)
        self.unfinished.add(tenant.id)
        return job_headers(verdict)


def trace_id(traceparent: str | None) -> str:
    """Return the trace id of a `traceparent` header, or a new one if it has none."""
    found = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent else None
    return found[1] if found else os.urandom(16).hex()


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


_Checked = tuple[list[str] | None, LoopBlock | None, JsonText | None]
"""The registered names of the tools that a request allows, its loop block, and its plan."""


async def _checked(body: JobRequest, known: Mapping[str, ToolDefinition], limits: Limits) -> _Checked:
    tools = None if body.tools is None else known_names(body.tools, known)
    block = None
    if body.loop is not None:
        is_long = is_larger(body.loop, _INLINE_BLOCK_BYTES)
        block = await off_loop(_block, body, limits, known) if is_long else _block(body, limits, known)
    if body.plan is None:
        return tools, block, None
    plan = await valid_plan(body.plan, tools, known, limits)
    return tools, block, JsonText(plan.model_dump_json(exclude_none=True).encode())


def _respond(request: JobRequest) -> Respond:
    why = "an agent answers with its model" if request.agent is not None else None
    if why is None and Strategy(request.strategy or Strategy.PLAN).has_rounds:
        why = f"the rounds of the strategy {request.strategy} end with the answer of a model"
    if why is None:
        return Respond(request.respond or (Respond.MODEL if request.plan is None else Respond.OUTPUT))
    if request.respond not in (None, Respond.MODEL):
        raise InvalidRequest(f"respond: expected model, or none at all; found {request.respond}: {why}")
    if isinstance(request.plan, Mapping) and request.plan.get("on_failure") is not None:
        raise InvalidRequest(f"plan/on_failure: {why}, which is told of failures; leave it out")
    return Respond.MODEL


def _context(request: JobRequest, limit: int) -> Mapping[str, str] | None:
    if request.context is None or not request.context.strip():
        return None
    return {CONTEXT: checked_input(request.context, limit, field="context")}


def callback_of(settings: Settings, url: str, field: str = "callback_url") -> str:
    """Return an address that webhooks may be sent to; raises `InvalidRequest`, and as `require_signing`."""
    checked = checked_url(url, field, settings.webhook_hosts)
    require_signing(settings)
    return checked


def require_signing(settings: Settings) -> None:
    """Raise `Conflict` if this server has no key that encrypts the secrets of signatures."""
    if not settings.master_keys:
        raise Conflict(
            "webhooks cannot be signed here: PLANQ_SECRET_KEYS is not set; an operator has to set it for every "
            "process to a key that `openssl rand -base64 32` makes"
        )


def _block(request: JobRequest, limits: Limits, tools: Mapping[str, ToolDefinition]) -> LoopBlock:
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
        if not Strategy(request.strategy).has_rounds if request.strategy else request.agent is None:
            found += without_rounds(block)
    if block is None or found:
        raise block_refused(found)
    return block


def checked_input(text: str | None, limit: int, *, may_be_absent: bool = False, field: str = "input") -> str:
    """Return an input of at most `limit` bytes, empty for an absent one; `field` is its name in messages.

    Raises `InvalidRequest` for an empty one, `TooLarge` for a longer one.
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


def _to_agent(
    body: JobRequest,
    name: str,
    agent: PinnedAgent,
    assignment: Assignment,
    asked: LoopBlock | None,
    default: Strategy,
    max_input_bytes: int,
) -> Assignment:
    """Pin the versions of an agent and its skills, and choose its model.

    Raises `InvalidArguments` for an unknown action or a `with` that breaks its schema, `InvalidRequest` for an
    unknown skill, `TooLarge` for a long `with`.
    """
    check_object("with", body.with_, max_input_bytes)
    if found := [*unstorable_texts(body.with_), *input_defects(agent.document, body.action, body.with_)]:
        raise input_refused(agent.document, found)
    strategy = agent.strategy(default) if body.strategy is None else Strategy(body.strategy)
    if asked is not None and not strategy.has_rounds and (needless := without_rounds(asked)):
        raise block_refused(needless)
    model = agent.model_or(assignment.model) if body.model is None else assignment.model
    return assignment.to_agent(name, agent, strategy, model, asked)
