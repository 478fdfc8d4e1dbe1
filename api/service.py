"""What is done for the requests that make a job and look at one, whichever way they came: by a route or a shortcut.

submit      a checked request body becomes a stored job
look        a job as it stands, or as it has ended
"""

from __future__ import annotations

from time import monotonic
from typing import Any
from uuid import UUID

from starlette.responses import Response
from starlette.types import Receive, Scope

from api.body import JsonResponse, digest
from api.deps import Services
from api.documents import Document, job_document, new_job_document
from api.schemas import JobRequest
from api.submission import TENANT, accept, check_key, trace_id
from api.waiting import WAITED
from shared.domain.errors import InvalidRequest, PlanInvalid
from shared.ports import PlanWake
from shared.store.submissions import Submission

_CLIENT_GONE = 499  # nginx' number for it; nobody reads it but our metrics


async def submit(
    services: Services, body: JobRequest, sent: Any, *, idempotency_key: str | None, traceparent: str | None
) -> Response:
    """Store a job and publish its wake-up; `sent` is the decoded body, the headers are as they came.

    Raises what `accept` and `RequestStore.submit` raise, and `Refusal` for an idempotency key that is none.
    """
    key = check_key(idempotency_key)
    fingerprint = digest(sent) if key is not None else None
    if key is not None and fingerprint is not None:
        earlier = await services.requests.earlier(TENANT, key, fingerprint)
        if earlier is not None:
            return await replayed(services, earlier)
    given = {"trace_id": trace_id(traceparent), "idempotency_key": key, "request_hash": fingerprint}
    return await stored(services, await _accepted_by_tools(services, body, given))


async def look(services: Services, job_id: UUID, seconds: float, *, scope: Scope, receive: Receive) -> Response:
    """Answer with a job: as soon as it has ended, or as it stands after so many seconds. Raises `NotFound`.

    The time waited is noted in `scope`. When the client has gone the answer is an empty one that nobody reads.
    """
    if seconds > 0:
        begun = monotonic()
        with services.waiters.watch(job_id) as waiter:
            # Registered first, looked at afterwards: an ending between the two is not missed.
            if not services.waiters.has_surely_not_ended(job_id):
                view = await services.requests.view(TENANT, job_id, only_ended=True)
                if view.is_whole:
                    return JsonResponse(job_document(view))
            stayed = await waiter.wait(min(seconds, services.settings.max_wait_seconds), receive)
        scope[WAITED] = monotonic() - begun
        if not stayed:
            return Response(status_code=_CLIENT_GONE)
    return JsonResponse(await document_of(services, job_id))


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
    job_id, created_at = await services.requests.submit(submission)
    if created_at is None:
        return await replayed(services, job_id)
    services.waiters.submitted(job_id)
    services.publisher.publish_soon([PlanWake(job_id)])
    return _accepted(new_job_document(submission, created_at))


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


def _accepted(document: Document) -> Response:
    """Answer with a job that is stored and will run."""
    return JsonResponse(document, status_code=202, headers={"Location": f"/jobs/{document['id']}"})
