"""Executions of agents: a job with an agent, asked for and looked at from its result.

Nothing runs here by a way of its own: the body becomes a request for a job, and an execution's id is the job's.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import ConfigDict, Field
from pydantic.config import JsonDict
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Who, caller_of
from planq.api.agents.routes import NamePath
from planq.api.deps import KeyHeader, TraceHeader, Use, WaitQuery, strict_router
from planq.api.documents import decoded, job_document
from planq.api.http.exchange import JsonResponse, error_responses
from planq.api.http.ids import job_id_of
from planq.api.intake.messages import TurnSubmissions
from planq.api.intake.submission import SubmittedJob
from planq.api.intake.waits import client_closed_response
from planq.api.jobs.routes.jobs import ACCEPTED
from planq.api.schemas import (
    INCOMPLETE,
    SAYS_SOMETHING,
    AgentReference,
    Answer,
    BudgetRequest,
    ChildDocument,
    ConversationId,
    ConversationUse,
    Id,
    JobErrorDocument,
    JobRequest,
    Metadata,
    OpenQuestion,
    OutputReference,
    RequestBody,
    RetryDocument,
    StepReference,
    Time,
    TreeUsageDocument,
    UsageDocument,
    User,
    WarningDocument,
    object_with,
)
from planq.shared.agentic.plan.document import WHOLE
from planq.shared.kernel.limits import MAX_TIMEOUT_SECONDS
from planq.shared.kernel.states import JobStatus, Outcome, StopReason
from planq.shared.platform.errors import AGENT_TIMEOUTS, InvalidRequest, NotFound, TimedOut
from planq.shared.subjects.jobs.job_view import JobView

execution_routes = strict_router("agents")

_SOMETHING_TO_DO: JsonDict = {
    "anyOf": [
        object_with(wanted, **{wanted: "string"}, **dict.fromkeys(unset, "null"))
        for wanted in ("action", "prompt")
        for unset in (("timeout_seconds", "timeout"), ("timeout_ms", "timeout"), ("timeout_ms", "timeout_seconds"))
    ]
}
"""Which fields of an execution's request go together, for `/openapi.json`."""


class ExecutionRequest(RequestBody):
    """What an agent is asked: `action`, `prompt`, or both."""

    model_config = ConfigDict(json_schema_extra=_SOMETHING_TO_DO)

    action: str | None = Field(None, description="One of the agent's actions.")
    prompt: str | None = Field(
        None, description="What is asked, at most 100 kB of UTF-8.", json_schema_extra={"pattern": SAYS_SOMETHING}
    )
    with_: dict[str, Any] | None = Field(
        None, alias="with", description="What the agent, or its action, is given to work on; at most 100 kB."
    )
    timeout_ms: Annotated[int, Field(ge=1), WHOLE] | None = Field(
        None,
        description="How long it may take, at most 300 000 ms; or `timeout_seconds`.",
        json_schema_extra={"maximum": MAX_TIMEOUT_SECONDS * 1000},
    )
    timeout_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="How long it may take, at most 300 s; or `timeout_ms`.",
        json_schema_extra={"maximum": MAX_TIMEOUT_SECONDS},
    )
    timeout: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Another name of `timeout_seconds`.", json_schema_extra={"maximum": MAX_TIMEOUT_SECONDS}
    )
    user: User = None
    metadata: Metadata = None
    budget: BudgetRequest | None = Field(None, description="For it and all executions below it.")
    conversation_id: ConversationId = None
    conversation: ConversationUse = None


class ExecutionDocument(Answer):
    """One run of an agent, or of a plan of agents: a job, seen from its result."""

    exec_id: Id = Field(description="The id of the job that it is.")
    status: JobStatus
    outcome: Outcome | None = Field(description="What it came to, as that of its job; null before its end.")
    incomplete: dict[str, str | None] | None = Field(description=INCOMPLETE)
    agent: AgentReference | None = Field(description="Null where it is a plan of agents.")
    user: str | None = Field(description="Whose it is, as the caller named them.")
    action: str | None
    output: Any = Field(
        description="The object of a structured agent, else `{text}`; null unless it has completed, and where it is "
        "large."
    )
    output_ref: OutputReference | None = Field(description="Where a large output can be had.")
    preview: str | None = Field(description="A shortened text of a large output, for people; null for any other.")
    chained: dict[str, Any] | None = Field(
        description="What became of the agent's chained tool: its `result` or `error`; a long result has a "
        "`preview`, and as `output_ref` the `step` that has the whole."
    )
    error: JobErrorDocument | None
    stop_reason: StopReason | None = Field(description="Why the loop of `loop` and `react` ended with an answer.")
    elapsed_ms: int | None = Field(description="From its submission to its end; null before.")
    model_calls: int
    usage: UsageDocument
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    parent: StepReference | None
    depth: int
    children: list[ChildDocument]
    tree_usage: TreeUsageDocument = Field(description="Of this job and all jobs below it; `usage` is its own part.")
    warnings: list[WarningDocument] = Field(description="What the agent missed, and went on without.")
    retry: RetryDocument | None
    open_questions: list[OpenQuestion] = Field(description="What a person is asked by it or by those below it.")


ExecPath = Annotated[str, Path(json_schema_extra={"format": "uuid"}, description="The execution's id.")]

_RUNS: dict[str, Any] = {
    **ACCEPTED,
    "description": "It is stored and runs; the same Idempotency-Key and body give the same execution.",
    "model": ExecutionDocument,
}
_ENDED: dict[str, Any] = {**_RUNS, "description": "It has ended within the wait limit, well or badly: see `status`."}


@execution_routes.post(
    "/agents/{agent_id}/executions",
    response_model=ExecutionDocument,
    responses={200: _ENDED, 202: _RUNS, **error_responses(400, 404, 409, 413, 415, 429)},
)
async def execute_agent(
    request: Request,
    agent_id: NamePath,
    body: ExecutionRequest,
    services: Use,
    idempotency_key: KeyHeader = None,
    traceparent: TraceHeader = None,
) -> Response:
    """Let an agent do something, and wait for it.

    It has 60 s if nothing is said, 300 s at most: its own durable timers do not count, and what it delegates gets no
    more time by waiting. The answer is its result, or after `PLANQ_MAX_WAIT_SECONDS` a 202 with `Location`.
    """
    made = await _submit(services.turns, request, agent_id, body, idempotency_key, traceparent)
    async with services.waits.place(request) as may_wait:
        seconds = services.settings.max_wait_seconds if may_wait else 0.0
        view = await services.waits.ended(made.job_id, seconds, request, has_place=True)
    return client_closed_response() if view is None else _shown(view, 200 if view.has_ended else 202, made)


@execution_routes.post(
    "/agents/{agent_id}/executions/async",
    status_code=202,
    response_model=ExecutionDocument,
    responses={202: _RUNS, **error_responses(400, 404, 409, 413, 415, 429)},
)
async def submit_execution(
    request: Request,
    agent_id: NamePath,
    body: ExecutionRequest,
    services: Use,
    who: Who,
    idempotency_key: KeyHeader = None,
    traceparent: TraceHeader = None,
) -> Response:
    """Let an agent do something, and answer at once; `Location` names the execution."""
    made = await _submit(services.turns, request, agent_id, body, idempotency_key, traceparent)
    return _shown(await services.requests.view(who.tenant_id, made.job_id), 202, made)


@execution_routes.get(
    "/executions/agents/{exec_id}", response_model=ExecutionDocument, responses=error_responses(404, 429)
)
async def get_execution(request: Request, exec_id: ExecPath, services: Use, wait: WaitQuery = 0.0) -> Response:
    """Return an execution, of any depth, while it runs and afterwards; with `wait`, once it ends or asks a person.

    Its id is that of its job.
    """
    found = job_id_of(exec_id)
    view = await services.waits.ended(found, wait, request)
    if view is None:
        return client_closed_response()
    if view.row["agent_name"] is None and view.row["parent_job_id"] is None:
        raise NotFound(f"job {found} is no execution of an agent; look at /jobs/{found}")
    return JsonResponse(execution_document(view))


async def _submit(
    turns: TurnSubmissions,
    request: Request,
    agent_id: str,
    body: ExecutionRequest,
    idempotency_key: str | None,
    traceparent: str | None,
) -> SubmittedJob:
    tenant_id = caller_of(request.scope).tenant_id
    limits = (await turns.submissions.tenants.of(tenant_id)).limits
    wanted = _as_job(agent_id, body, limits.agent_timeout_seconds)
    sent = {"execution_of": agent_id, "body": await request.json()}
    return await turns.submit(tenant_id, wanted, sent, idempotency_key=idempotency_key, traceparent=traceparent)


def _as_job(agent_id: str, body: ExecutionRequest, default_seconds: float) -> JobRequest:
    if body.prompt is None and body.action is None:
        raise InvalidRequest("expected an action or a prompt, found neither")
    if body.prompt is not None and not body.prompt.strip():
        found = "only white space" if body.prompt else "an empty one"
        raise InvalidRequest(f"prompt: expected a text that says what to do, found {found}")
    kept = {"action", "with_", "user", "metadata", "conversation_id", "conversation"}
    wanted = body.model_dump(include=kept, by_alias=True, exclude_none=True)
    budget = None if body.budget is None else body.budget.model_dump(exclude_none=True)
    limits = {"job_timeout_seconds": _timeout(body, default_seconds), "budget": budget}
    return JobRequest.model_validate({**wanted, "agent": agent_id, "input": body.prompt, "limits": limits})


def _timeout(body: ExecutionRequest, default_seconds: float) -> float:
    given = {"timeout_ms": body.timeout_ms, "timeout_seconds": body.timeout_seconds, "timeout": body.timeout}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InvalidRequest(f"expected one of {', '.join(given)}; found {' and '.join(named)}")
    if not named:
        return default_seconds
    seconds = float(given[named[0]] or 0) / (1000 if body.timeout_ms is not None else 1)
    if seconds > MAX_TIMEOUT_SECONDS:
        raise InvalidRequest(f"timeout: expected at most {MAX_TIMEOUT_SECONDS:g} s, found {seconds:g} s")
    return seconds


def _shown(view: JobView, status: int, made: SubmittedJob) -> Response:
    headers = {"Location": f"/executions/agents/{made.job_id}", **made.headers}
    if made.submission is None:
        headers["Idempotency-Replayed"] = "true"
    return JsonResponse(execution_document(view), status_code=status, headers=headers)


def execution_document(view: JobView) -> dict[str, Any]:
    row, job = view.row, job_document(view)
    output = job["output"]
    if output is None and job["output_ref"] is None and row["status"] == JobStatus.COMPLETED:
        output = {"text": row["answer"]}
    took = None if row["finished_at"] is None else row["finished_at"] - row["created_at"]
    return ExecutionDocument.of(
        job,
        exec_id=job["id"],
        error=_agent_error(row["error"]),
        action=row["action"],
        output=output,
        elapsed_ms=None if took is None else round(took.total_seconds() * 1000),
    )


def _agent_error(stored: Any) -> Any:
    """Return the error of an agent's job as its caller sees it, with the job's own code as `cause`."""
    if stored is None:
        return None
    error = decoded(stored)
    if (code := error["code"]) not in AGENT_TIMEOUTS or code == TimedOut.code:
        return stored
    return {**error, "code": TimedOut.code, "details": {**(error.get("details") or {}), "cause": code}}
