"""For whoever runs planq: is the process alive, would a job run, what is going on."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from api.deps import Use, router
from api.errors import RETRY_AFTER_SECONDS
from api.responses import JsonResponse, error_responses
from api.schemas import Health, Readiness

operations = router("operations", 403, 421, 422, 500)


@operations.get("/healthz", response_model=Health)
async def alive() -> Response:
    """Answer as long as the process is alive; asks nobody else."""
    return JsonResponse({"status": "ok"})


@operations.get(
    "/readyz",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "Something is missing; each check says what to do."}},
)
async def ready(services: Use) -> Response:
    """Say whether a job that is submitted now would run: database, broker, and a live worker for each lane.

    A full disk is named.
    """
    document = await services.readiness.document()
    if document["status"] == "ready":
        return JsonResponse(document)
    return JsonResponse(document, status_code=503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


@operations.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **error_responses(401),
    },
)
async def metrics(services: Use) -> Response:
    """Return the metrics of this process and the state of unfinished work."""
    return Response(await services.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})
