"""For who looks after jobs: why one waits, and how many stand where."""

from __future__ import annotations

from fastapi.responses import Response
from pydantic import Field

from planq.api.callers import Who
from planq.api.deps import Use, job_id_of, strict_router
from planq.api.http import JsonResponse, error_responses
from planq.api.routes.jobs import JobPath
from planq.api.schemas import Answer, Id
from planq.shared.domain.jobs.states import JobStatus
from planq.shared.domain.overview.waiting import WaitKind, wait_of
from planq.shared.store.overview import COUNTED_UP_TO

overview_routes = strict_router("jobs")


class WhyDocument(Answer):
    """For what a job waits."""

    job_id: Id
    status: JobStatus
    waits_for: WaitKind = Field(description="`work`: it waits for nothing, it runs; `nothing`: it has ended.")
    sentence: str = Field(description="The same for people, as the page and `planq status` say it.")


class CountDocument(Answer):
    """How many jobs that no other job has made stand in each status."""

    counts: dict[str, int]
    most: int = Field(description="A status is counted up to here: so many stands for at least so many.")


@overview_routes.get("/jobs/{job_id}/why", response_model=WhyDocument, responses=error_responses(404))
async def get_why(job_id: JobPath, services: Use, who: Who) -> Response:
    """Say why a job waits: for whose answer, which worker, what time, which other job. It is read in one look."""
    found = job_id_of(job_id)
    job = await services.overview.reading(who.tenant_id, found)
    wait = wait_of(job)
    return JsonResponse(
        {"job_id": str(found), "status": job["status"], "waits_for": wait.kind, "sentence": wait.sentence}
    )


@overview_routes.get("/job-counts", response_model=CountDocument)
async def get_job_counts(services: Use, who: Who) -> Response:
    """Count the jobs in each status, without child jobs."""
    return JsonResponse({"counts": await services.overview.counts(who.tenant_id), "most": COUNTED_UP_TO})
