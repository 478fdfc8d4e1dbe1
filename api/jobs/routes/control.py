"""Jobs that are held, taken up again, or begun anew from what is done."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.callers import Caller, Who, answered_by
from planq.api.deps import JobPath, KeyHeader, Services, StepPath, TraceHeader, Use, step_index_of, strict_router
from planq.api.documents import fork_preview
from planq.api.http.exchange import JsonResponse, error_responses, json_bytes
from planq.api.http.ids import job_id_of
from planq.api.intake.recovery import again_of, asks_nothing, fork_of, verdict_of
from planq.api.intake.submission import SubmittedJob, trace_id
from planq.api.intake.turns import TurnSubmissions
from planq.api.jobs.routes.jobs import ACCEPTED, accepted, answer_with
from planq.api.schemas import Answer, ForkRequest, JobDocument, Origin, ResumeRequest, SettleRequest
from planq.shared.kernel.states import Effect, JobStatus, Settlement, StepStatus
from planq.shared.platform.errors import Conflict, NotFound, capped
from planq.shared.subjects.jobs.again import seconds_again, steps_with_unknown_outcome

control_routes = strict_router("jobs")


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


@control_routes.post("/jobs/{job_id}/pause", response_model=JobDocument, responses=error_responses(404, 409))
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


@control_routes.post(
    "/jobs/{job_id}/resume", response_model=JobDocument, responses=error_responses(400, 404, 409, 415)
)
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


@control_routes.post(
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
    forked = await fork_of(wanted, job, steps, tools, services.settings, limits, given=given)
    if wanted.dry_run:
        return JsonResponse(fork_preview(found, forked.steps, forked.reuse, forked.doubts))
    return await accepted(services.requests, who, await services.submissions.store(forked.submission))


async def run_again(job_id: str, services: Services, who: Caller) -> SubmittedJob:
    """Store a new job with the request of another, as a turn where that one is a turn; raises as `again_of` does."""
    job, _ = await services.requests.planned(who.tenant_id, job_id_of(job_id))
    tools, limits = await services.catalogue.renewed(who.tenant_id), (await services.tenants.of(who.tenant_id)).limits
    made = await again_of(job, tools, limits, given={"trace_id": trace_id(None)})
    return await services.subject(TurnSubmissions).store(made, job["conversation_id"])


@control_routes.post(
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
