"""Jobs: submit, read, wait, list, cancel, pause, resume, fork and settle."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Caller, Who, answered_by, caller_of
from planq.api.deps import (
    JobPath,
    KeyHeader,
    Services,
    StepPath,
    StrictRequest,
    TraceHeader,
    Use,
    WaitQuery,
    step_index_of,
    strict_router,
)
from planq.api.documents import fork_preview, job_document, job_summary, new_job_document, steps_document
from planq.api.http.exchange import HttpRefusal, JsonResponse, accepted_response, error_responses, json_bytes
from planq.api.http.ids import CursorQuery, Limit, cursor_of, id_of_cursor, job_id_of
from planq.api.intake.filters import filter_of, query_parameters
from planq.api.intake.plan_checks import submission_warnings
from planq.api.intake.recovery import again_of, asks_nothing, fork_of, verdict_of
from planq.api.intake.submission import SubmittedJob, trace_id
from planq.api.intake.waits import JobWaits, client_closed_response
from planq.api.quick import field_of, quick, usual_body, wait_of
from planq.api.schemas import (
    Answer,
    ForkRequest,
    JobDocument,
    JobPage,
    JobRequest,
    Origin,
    ResumeRequest,
    SettleRequest,
    StepList,
)
from planq.shared.kernel.states import Effect, JobStatus, Settlement, StepStatus
from planq.shared.platform.errors import Conflict, DatabaseUnavailable, NotFound, capped, storable
from planq.shared.subjects.jobs.again import seconds_again, steps_with_unknown_outcome
from planq.shared.subjects.jobs.job_view import JobView
from planq.shared.subjects.jobs.selection import FILTER_FIELDS, takes
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.tenants.keys import KeyScope

job_routes = strict_router("jobs")

_TENANT = "Whose jobs; another tenant's for the scope `admin`, together with `jobs`."

_PREFERRED = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([0-9]{1,6})\"?\s*(?=$|[,;])", re.IGNORECASE)

PreferHeader = Annotated[
    str | None,
    Header(alias="Prefer", description="`wait=30` (RFC 7240) does what the query `wait` does; that one goes first."),
]
ACCEPTED = accepted_response(
    "The job is stored and will run; the same Idempotency-Key and body give the same job.",
    "Where to look at the job.",
    "`true` when the job was submitted before under this key.",
)
"""How a job that was accepted is answered, for `/openapi.json`."""


async def _post_quickly(request: StrictRequest, services: Services) -> Response | None:
    wait = wait_of(request.scope)
    if wait is None or (body := await usual_body(request, JobRequest)) is None:
        return None
    return await submit_job(
        request,
        body,
        services,
        caller_of(request.scope),
        field_of(request, b"idempotency-key"),
        field_of(request, b"traceparent"),
        wait,
        field_of(request, b"prefer"),
    )


@job_routes.post(
    "/jobs",
    status_code=202,
    response_model=JobDocument,
    responses={
        200: {
            "description": "With `wait`: the job, which has ended.",
            "headers": ACCEPTED["headers"],
            "model": JobDocument,
        },
        202: ACCEPTED,
        **error_responses(400, 404, 409, 413, 415, 429),
    },
)
@quick(_post_quickly)
async def submit_job(
    request: Request,
    body: JobRequest,
    services: Use,
    who: Who,
    idempotency_key: KeyHeader = None,
    traceparent: TraceHeader = None,
    wait: WaitQuery = 0.0,
    prefer: PreferHeader = None,
) -> Response:
    """Submit a job. It is committed before the answer, and runs also if the broker is down at this moment.

    `Location` names the job. With an `Idempotency-Key`, the same body gives the same job, another body a 409. With
    `wait`, 200 and the job as soon as it has ended; 202 as it stands when the time is over, or it asks a person.
    """
    sent = await request.json()
    made = await services.turns.submit(
        who.tenant_id, body, sent, idempotency_key=idempotency_key, traceparent=traceparent
    )
    seconds, applied = seconds_to_wait(wait, prefer)
    if seconds <= 0:
        return await accepted(services.requests, who, made)
    view = await ended_of(services.waits, made, seconds, request)
    if isinstance(view, Response):
        return view
    if view is None:
        return await accepted(services.requests, who, made)
    return JsonResponse(
        job_document(view), status_code=200 if view.has_ended else 202, headers={**located(made), **applied}
    )


def seconds_to_wait(wait: float, prefer: str | None) -> tuple[float, dict[str, str]]:
    """Return how long a request that stores a job waits for its end, and the headers that say what was preferred."""
    if wait > 0 or prefer is None or (found := _PREFERRED.search(prefer)) is None:
        return wait, {}
    return float(found[1]), {"Preference-Applied": f"wait={found[1]}"}


async def ended_of(
    waits: JobWaits, made: SubmittedJob, seconds: float, request: Request
) -> JobView | Response | None:
    """Return a job that is stored as soon as it has ended, or asks a person, or as it stands after so many seconds.

    None where nobody can wait for it just now: the job is stored, and a refusal would look like one of the job. A
    response where the client has gone. Raises what a request with the caller's key is refused by, if that key ends.
    """
    try:
        view = await waits.ended(made.job_id, seconds, request)
    except (HttpRefusal, DatabaseUnavailable) as error:
        if isinstance(error, HttpRefusal) and error.status_code != 429:
            raise
        return None
    return client_closed_response() if view is None else view


def located(made: SubmittedJob) -> dict[str, str]:
    """Return the headers of an answer with a job that is stored."""
    replayed = {} if made.submission is not None else {"Idempotency-Replayed": "true"}
    return {"Location": f"/jobs/{made.job_id}", **made.headers, **replayed}


async def _get_quickly(request: StrictRequest, services: Services) -> Response | None:
    if (wait := wait_of(request.scope)) is None:
        return None
    return await get_job(request, request.scope["path"].rpartition("/")[2], services, wait)


@job_routes.get("/jobs/{job_id}", response_model=JobDocument, responses=error_responses(404, 429))
@quick(_get_quickly)
async def get_job(request: Request, job_id: JobPath, services: Use, wait: WaitQuery = 0.0) -> Response:
    """Return a job; with `wait`, as soon as it has ended or asks a person, or as it stands when the time is over."""
    view = await services.waits.ended(job_id_of(job_id), wait, request)
    return client_closed_response() if view is None else JsonResponse(job_document(view))


async def accepted(requests: RequestStore, who: Caller, made: SubmittedJob) -> Response:
    """Answer with a job that is stored and will run, or with the one that had its idempotency key before."""
    if made.submission is not None and made.created_at is not None:
        document = new_job_document(made.submission, made.created_at)
        if warnings := await submission_warnings(made.submission.plan):
            document["warnings"] = warnings
    else:
        document = job_document(await requests.view(who.tenant_id, made.job_id))
    return JsonResponse(document, status_code=202, headers=located(made))


async def answer_with(requests: RequestStore, who: Caller, job_id: UUID) -> Response:
    """Answer with a job of the caller as it stands; raises `NotFound`."""
    return JsonResponse(job_document(await requests.view(who.tenant_id, job_id)))


_INDEXED = ("status", "strategy")


@job_routes.get("/jobs", response_model=JobPage, responses=error_responses(403))
@takes(query_parameters(*_INDEXED), before="limit")
@takes(query_parameters(*(one.name for one in FILTER_FIELDS if one.name not in _INDEXED)), before="tenant")
async def list_jobs(
    services: Use,
    who: Who,
    limit: Limit = 20,
    cursor: CursorQuery = None,
    roots: Annotated[bool, Query(description="Without child jobs.")] = False,
    tenant: Annotated[str | None, Query(min_length=1, max_length=63, description=_TENANT)] = None,
    **given: Any,
) -> Response:
    """List jobs, newest first, without their plans and steps: those for which all that is given holds.

    No index knows more of a job than its `status`, its `strategy` and when it came. Where more is asked for, a page
    looks at 5,000 jobs and no more: it may have fewer than `limit`, or none, and `next_cursor` goes on behind them.
    """
    below = id_of_cursor(cursor)
    tenant_id = _listed_tenant(who, tenant)
    wanted = filter_of(given, datetime.now(UTC))
    found = await services.overview.found(tenant_id, wanted, below=below, limit=limit, roots=roots)
    rows = await services.requests.summaries(tenant_id, found.ids)
    following = None if found.next_below is None else cursor_of(found.next_below.bytes)
    return JsonResponse({"items": [job_summary(row) for row in rows], "next_cursor": following})


def _listed_tenant(who: Caller, tenant: str | None) -> str:
    if tenant is None or tenant == who.tenant_id:
        return who.tenant_id
    if KeyScope.ADMIN not in who.scopes:
        raise HttpRefusal(
            403, "insufficient_scope", "tenant: the jobs of another tenant are listed for keys with the scope admin"
        )
    return storable(tenant)


@job_routes.get("/jobs/{job_id}/steps", response_model=StepList, responses=error_responses(404))
async def list_steps(
    job_id: JobPath,
    services: Use,
    who: Who,
    number: Annotated[
        int | None, Query(alias="round", ge=0, lt=2**31, description="Only the steps of this round.")
    ] = None,
) -> Response:
    """Return the steps of a job, of all its rounds or of one; none where there is no such round (yet)."""
    return JsonResponse(steps_document(await services.requests.view(who.tenant_id, job_id_of(job_id)), number))


@job_routes.post("/jobs/{job_id}/cancel", response_model=JobDocument, responses=error_responses(404, 409))
async def cancel_job(job_id: JobPath, services: Use, who: Who) -> Response:
    """Cancel a job at once, also before anything of it has begun, and return it.

    Running work ends within a second: a `cpu` step with its process; a synchronous tool of the `io` pool is
    abandoned, for a thread cannot be stopped. In a conversation an `unsafe` call on that pool ends within its own
    time, and its outcome is told there; the job is cancelled at once all the same. Cancelling a cancelled job changes
    nothing; one that has completed or failed is refused: 409.
    """
    found = job_id_of(job_id)
    ended, status = await services.requests.cancel(who.tenant_id, found)
    if status is not JobStatus.CANCELLED:
        raise Conflict(f"job {found} is already {status}; only an unfinished job can be cancelled", job_status=status)
    services.endings.announce(ended)
    services.publisher.publish_soon(await services.conversations.settle(found))
    return await answer_with(services.requests, who, found)


class ForkedStep(Answer):
    """A step of a plan that is only looked at."""

    index: int
    tool_name: str
    effect: Effect


class TakenOverStep(ForkedStep):
    """A step that takes over the outcome of another."""

    reused_from: Origin


class DoubtfulStep(ForkedStep):
    """A step that would run although the same step of the source may have taken effect, or still may."""

    same_as: Origin


class ForkPreview(Answer):
    """What a fork would do; nothing is stored. With any `in_doubt`, part of `run`, it needs `repeat_unsafe`."""

    reuse: list[TakenOverStep]
    run: list[ForkedStep]
    in_doubt: list[DoubtfulStep]


_LOOKS = 3
"""How often a resume looks again at a job that ended between its look and its change."""


@job_routes.post("/jobs/{job_id}/pause", response_model=JobDocument, responses=error_responses(404, 409))
async def pause_job(job_id: JobPath, services: Use, who: Who) -> Response:
    """Begin nothing more of a job, and return it; what runs goes on to its end.

    Pausing twice changes nothing; a job that has ended is refused: 409.
    """
    found = job_id_of(job_id)
    asked = await services.requests.pause(who.tenant_id, found)
    if asked.status.is_terminal:
        raise Conflict(
            f"job {found} is already {asked.status}; only an unfinished job can be paused", job_status=asked.status
        )
    return await answer_with(services.requests, who, found)


@job_routes.post("/jobs/{job_id}/resume", response_model=JobDocument, responses=error_responses(400, 404, 409, 415))
async def resume_job(job_id: JobPath, services: Use, who: Who, body: ResumeRequest | None = None) -> Response:
    """Let a job go on, and return it.

    A paused one goes on where it stood. One that failed, or completed with failed steps, tries again what has not
    succeeded, and keeps what has. One of `loop` or `react` that failed goes on with the steps that were cut off with
    it, or plans the next round; failures that its planner was shown stay. One that goes on anyway is not changed.
    Failed calls of `unsafe` tools that may have taken effect are not repeated: 409 with `code` `outcome_unknown`
    lists them.
    """
    found = job_id_of(job_id)
    repeat_unsafe = body is not None and body.repeat_unsafe
    for _ in range(_LOOKS):
        job, steps = await services.requests.planned(who.tenant_id, found)
        if JobStatus(job["status"]).is_terminal:
            in_doubt = steps_with_unknown_outcome(job, steps, repeat_unsafe=repeat_unsafe)
            asked = await services.requests.resume(
                who.tenant_id, found, after=job["resumes"], in_doubt=in_doubt, seconds=seconds_again(job)
            )
        else:
            asked = await services.requests.resume(who.tenant_id, found)
        if asked.applied or not asked.status.is_terminal:
            services.publisher.publish_soon(asked.wakes)
            return await answer_with(services.requests, who, found)
    raise Conflict(f"job {found} keeps ending while it is being resumed; look at it, and try again")


@job_routes.post(
    "/jobs/{job_id}/fork",
    status_code=202,
    response_model=JobDocument,
    responses={
        200: {"description": "With `dry_run`: what the fork would do. Nothing is stored.", "model": ForkPreview},
        202: ACCEPTED,
        **error_responses(400, 404, 409, 413, 415, 429),
    },
)
async def fork_job(
    request: Request,
    job_id: JobPath,
    services: Use,
    who: Who,
    body: ForkRequest | None = None,
    idempotency_key: KeyHeader = None,
    traceparent: TraceHeader = None,
) -> Response:
    """Make a new job with the plan of another, as it was or edited, that takes over what the edit leaves untouched.

    Taken over are outcomes of steps that have succeeded by now; the source may be unfinished, and is not changed. All
    else runs, calls of `unsafe` tools too: `dry_run` tells which. Where the same call in the source may have taken
    effect, or is still made, the fork is refused: 409 with `code` `outcome_unknown` lists the steps. A fork of a job
    of `loop` or `react` needs a `plan`, whose steps take over outcomes of any round; then its planner goes on.
    """
    found = job_id_of(job_id)
    wanted = body or ForkRequest()
    sent = await request.json() if await request.body() else None
    key = None if wanted.dry_run else idempotency_key
    given, earlier = await services.submissions.sender_of(
        who.tenant_id, {"fork_of": str(found), "body": sent}, key, traceparent
    )
    if earlier is not None:
        return await accepted(services.requests, who, SubmittedJob(earlier))
    job, steps = await services.requests.planned(who.tenant_id, found)
    tools, limits = await services.catalogue.renewed(who.tenant_id), (await services.tenants.of(who.tenant_id)).limits
    forked = await fork_of(wanted, job, steps, tools, limits, given=given)
    if wanted.dry_run:
        return JsonResponse(fork_preview(found, forked.steps, forked.reuse, forked.doubts))
    return await accepted(services.requests, who, await services.submissions.store(forked.submission))


async def run_again(job_id: str, services: Services, who: Caller) -> SubmittedJob:
    """Store a new job with the request of another, as a turn where that one is a turn; raises as `again_of` does."""
    job, _ = await services.requests.planned(who.tenant_id, job_id_of(job_id))
    tools, limits = await services.catalogue.renewed(who.tenant_id), (await services.tenants.of(who.tenant_id)).limits
    made = await again_of(job, tools, limits, given={"trace_id": trace_id(None)})
    return await services.turns.store(made, job["conversation_id"])


@job_routes.post(
    "/jobs/{job_id}/steps/{index}/settle",
    response_model=JobDocument,
    responses=error_responses(400, 404, 409, 413, 415),
)
async def settle_step(job_id: JobPath, index: StepPath, body: SettleRequest, services: Use, who: Who) -> Response:
    """Say what became of a call that was cut off, for a step that waits for the answer, and return its job.

    The first answer counts. The same one again changes nothing; another one is refused.
    """
    found = job_id_of(job_id)
    job, steps = await services.requests.planned(who.tenant_id, found, step_index_of(found, index))
    if not steps:
        raise NotFound(f"job {found} has no step {capped(index, 20)}")
    step = steps[0]
    repeated = Settlement(body.outcome), json_bytes(body.output)
    if step["asks"] is None and await services.requests.was_settled(who.tenant_id, found, step["index"], *repeated):
        return await answer_with(services.requests, who, found)
    tools = await services.catalogue.renewed(who.tenant_id)
    verdict = await verdict_of(body, job, step, tools, services.settings, services.payloads)
    asked = await services.requests.settle(who.tenant_id, found, step["index"], verdict, answered_by(who))
    if not asked.applied and not await services.requests.was_settled(who.tenant_id, found, step["index"], *repeated):
        _, (now,) = await services.requests.planned(who.tenant_id, found, step["index"])
        raise asks_nothing(job, step["index"], StepStatus(now["status"]))
    services.publisher.publish_soon(asked.wakes)
    return await answer_with(services.requests, who, found)
