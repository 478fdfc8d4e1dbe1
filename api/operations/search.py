"""Find what an id is of, whichever it is."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from fastapi.responses import Response
from pydantic import Field

from planq.api.access.callers import Who
from planq.api.deps import Use, strict_router
from planq.api.http.exchange import JsonResponse
from planq.api.intake.message_flow import job_id_of_plan
from planq.api.schemas import Answer, Id
from planq.shared.platform.errors import NotFound, storable
from planq.shared.subjects.jobs.operations import FoundKind, JobOverview, NamedId, named_id

search_routes = strict_router("jobs")


class FoundThing(Answer):
    """What has an id, and where it belongs."""

    kind: FoundKind
    id: str = Field(description="Its own id; of a line its `custom_id`, of a step or a plan that of the job.")
    job_id: Id | None = Field(description="The job that it is, belongs to, or has last made.")
    step_index: int | None = Field(description="Of a step.")
    batch_id: Id | None = Field(description="The batch that it is, or of its line.")
    line: int | None = Field(description="The number of a line in its batch.")


class FoundThings(Answer):
    """What has an id; nothing for one that nobody of this tenant has."""

    items: list[FoundThing]


@search_routes.get("/search", response_model=FoundThings)
async def get_search(
    services: Use,
    who: Who,
    id: Annotated[str, Query(min_length=1, max_length=600, description="An id of whatever kind.")],
) -> Response:
    """Say what has an id: a job, a plan, a conversation, a batch, a schedule, a question or a job action.

    The id of a Celery task as Flower shows it (`<job>.r0.s2.1`) and a step's idempotency key (`<job>/2`) find the
    step. Any other text is looked for as the `custom_id` of a line, in the newest 1,000 batches.
    """
    named = named_id(id)
    found = [] if named is None else await _of_id(services.overview, who.tenant_id, named)
    if not found:
        rows = await services.overview.lines(who.tenant_id, storable(id))
        found = [
            _found(FoundKind.LINE, row["custom_id"], row["job_id"], batch_id=row["batch_id"], line=row["line"])
            for row in rows
        ]
    return JsonResponse({"items": found})


async def _of_id(overview: JobOverview, tenant_id: str, named: NamedId) -> list[dict[str, Any]]:
    rows = await overview.with_id(tenant_id, named.id)
    if not rows:
        return await _of_plan(overview, tenant_id, named.id)
    found = []
    for row in rows:
        kind = FoundKind(row["kind"])
        if kind is FoundKind.JOB and named.step_index is not None:
            found.append(_found(FoundKind.STEP, row["id"], row["id"], step_index=named.step_index))
        else:
            job_id = row["id"] if kind is FoundKind.JOB else row["job_id"]
            batch_id = row["id"] if kind is FoundKind.BATCH else None
            found.append(_found(kind, row["id"], job_id, batch_id=batch_id))
    return found


async def _of_plan(overview: JobOverview, tenant_id: str, id: UUID) -> list[dict[str, Any]]:
    try:
        job_id = job_id_of_plan(str(id))
    except NotFound:
        return []
    rows = await overview.with_id(tenant_id, job_id)
    return [_found(FoundKind.PLAN, id, job_id) for row in rows if row["kind"] == FoundKind.JOB]


def _found(
    kind: FoundKind,
    id: object,
    job_id: UUID | None,
    *,
    step_index: int | None = None,
    batch_id: UUID | None = None,
    line: int | None = None,
) -> dict[str, Any]:
    return {
        "kind": kind,
        "id": str(id),
        "job_id": None if job_id is None else str(job_id),
        "step_index": step_index,
        "batch_id": None if batch_id is None else str(batch_id),
        "line": line,
    }
