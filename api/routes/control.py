"""Jobs that are held, taken up again, or begun anew from what is done."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header
from starlette.requests import Request
from starlette.responses import Response

from api.body import digest
from api.deps import KEY, StepPath, Use, job_id_of, router, step_index_of
from api.documents import fork_preview
from api.forking import fork_of
from api.recovery import asks_nothing, doubts_about, verdict_of
from api.responses import JsonResponse, encode, error_responses
from api.routes.jobs import ACCEPTED, JobPath
from api.schemas import ForkPreview, ForkRequest, JobDocument, ResumeRequest, SettleRequest
from api.service import document_of, replayed, stored
from api.submission import TENANT, check_key, trace_id
from shared.domain.errors import Conflict, NotFound, capped
from shared.domain.states import JobStatus, Settlement, StepStatus

control = router("jobs")

_LOOKS = 3
"""How often a resume looks again at a job that ended between its look and its change."""


@control.post("/jobs/{job_id}/pause", response_model=JobDocument, responses=error_responses(404, 409))
async def pause(job_id: JobPath, services: Use) -> Response:
    """Begin nothing more of a job, and return it; what runs goes on to its end.

    Pausing twice changes nothing; a job that has ended is refused: 409.
    """
    found = job_id_of(job_id)
    asked = await services.requests.pause(TENANT, found)
    if asked.status.is_terminal:
        raise Conflict(
            f"job {found} is already {asked.status}; only an unfinished job can be paused", job_status=asked.status
        )
    return JsonResponse(await document_of(services, found))


@control.post("/jobs/{job_id}/resume", response_model=JobDocument, responses=error_responses(400, 404, 409, 415))
async def resume(job_id: JobPath, services: Use, body: ResumeRequest | None = None) -> Response:
    """Let a job go on, and return it.

    A paused one goes on where it stood. One that failed, or completed with failed steps, tries again what has not
    succeeded, and keeps what has. One that goes on anyway is not changed. Failed calls of `unsafe` tools that may
    have taken effect are not repeated: 409 with `code` `outcome_unknown` lists them.
    """
    found = job_id_of(job_id)
    repeat_unsafe = body is not None and body.repeat_unsafe
    for _ in range(_LOOKS):
        job, steps = await services.requests.planned(TENANT, found)
        if JobStatus(job["status"]).is_terminal:
            in_doubt = doubts_about(job, steps, repeat_unsafe=repeat_unsafe)
            asked = await services.requests.resume(TENANT, found, after=job["resumes"], in_doubt=in_doubt)
        else:
            asked = await services.requests.resume(TENANT, found)
        if asked.applied or not asked.status.is_terminal:
            services.publisher.publish_soon(asked.wakes)
            return JsonResponse(await document_of(services, found))
    raise Conflict(f"job {found} keeps ending while it is being resumed; look at it, and try again")


@control.post(
    "/jobs/{job_id}/fork",
    status_code=202,
    response_model=JobDocument,
    responses={
        200: {"description": "With `dry_run`: what the fork would do. Nothing is stored.", "model": ForkPreview},
        202: ACCEPTED,
        **error_responses(400, 404, 409, 413, 415),
    },
)
async def fork(
    request: Request,
    job_id: JobPath,
    services: Use,
    body: ForkRequest | None = None,
    idempotency_key: Annotated[
        str | None,
        Header(json_schema_extra=KEY, description="1 to 255 visible ASCII characters; repeats are then harmless."),
    ] = None,
    traceparent: Annotated[str | None, Header(description="W3C Trace Context; its trace id goes to tools.")] = None,
) -> Response:
    """Make a new job with the plan of another, as it was or edited, that takes over what the edit leaves untouched.

    Taken over are outcomes of steps that have succeeded by now; the source may be unfinished, and is not changed. All
    else runs, calls of `unsafe` tools too: `dry_run` tells which. Where the same call in the source may have taken
    effect, or is still made, the fork is refused: 409 with `code` `outcome_unknown` lists the steps.
    """
    found = job_id_of(job_id)
    wanted = body or ForkRequest()
    key = None if wanted.dry_run else check_key(idempotency_key)
    fingerprint = None
    if key is not None:
        sent = await request.json() if await request.body() else None
        fingerprint = digest({"fork_of": str(found), "body": sent})
        earlier = await services.requests.earlier(TENANT, key, fingerprint)
        if earlier is not None:
            return await replayed(services, earlier)
    job, steps = await services.requests.planned(TENANT, found)
    forked = await fork_of(
        wanted,
        job,
        steps,
        await services.requests.tools(TENANT),
        services.settings,
        trace_id=trace_id(traceparent),
        idempotency_key=key,
        request_hash=fingerprint,
    )
    if wanted.dry_run:
        return JsonResponse(fork_preview(found, forked.steps, forked.reuse, forked.doubts))
    return await stored(services, forked.submission)


@control.post(
    "/jobs/{job_id}/steps/{index}/settle",
    response_model=JobDocument,
    responses=error_responses(400, 404, 409, 413, 415),
)
async def settle(job_id: JobPath, index: StepPath, body: SettleRequest, services: Use) -> Response:
    """Say what became of a call that was cut off, for a step that waits to be told, and return its job.

    The first answer counts. The same one again changes nothing; another one is refused.
    """
    found = job_id_of(job_id)
    job, steps = await services.requests.planned(TENANT, found, step_index_of(found, index))
    if not steps:
        raise NotFound(f"job {found} has no step {capped(index, 20)}")
    step = steps[0]
    repeated = Settlement(body.outcome), encode(body.output)
    if step["question"] is None and await services.requests.was_settled(TENANT, found, step["index"], *repeated):
        return JsonResponse(await document_of(services, found))
    tools = await services.requests.tools(TENANT)
    verdict = await verdict_of(body, job, step, tools, services.settings, services.payloads)
    asked = await services.requests.settle(TENANT, found, step["index"], verdict)
    if not asked.applied and not await services.requests.was_settled(TENANT, found, step["index"], *repeated):
        _, (now,) = await services.requests.planned(TENANT, found, step["index"])
        raise asks_nothing(job, step["index"], StepStatus(now["status"]))
    services.publisher.publish_soon(asked.wakes)
    return JsonResponse(await document_of(services, found))
