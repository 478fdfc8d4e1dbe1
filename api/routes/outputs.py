"""Outputs by themselves: what is too large to stand in a job's document. Issue 3, item 11."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from api.body import JsonResponse
from api.deps import StepPath, Use, job_id_of, router, step_index_of
from api.documents import artifact_record
from api.problems import error_responses
from api.routes.jobs import JobPath
from api.schemas import ArtifactPage
from api.stored import STORED, IfNoneMatch, stored_json
from api.submission import TENANT

outputs = router("jobs")


@outputs.get("/jobs/{job_id}/artifacts", response_model=ArtifactPage, responses=error_responses(404))
async def artifacts(job_id: JobPath, services: Use) -> Response:
    """List what a job has made: every version of every artifact, in the order of its steps, without the bodies."""
    rows = await services.requests.artifacts(TENANT, job_id_of(job_id))
    return JsonResponse({"items": [artifact_record(row) for row in rows]})


@outputs.get("/jobs/{job_id}/steps/{index}/output", response_model=Any, responses={**STORED, **error_responses(404)})
async def output(job_id: JobPath, index: StepPath, services: Use, if_none_match: IfNoneMatch = None) -> Response:
    """Return the output of a step that succeeded, of any size, as it is stored."""
    found = job_id_of(job_id)
    stored = await services.requests.output(TENANT, found, step_index_of(found, index))
    return await stored_json(services.payloads, TENANT, stored, if_none_match)
