"""Webhooks: where a tenant wants to be told of what, with which secrets, and the log of what was delivered."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import Path, Query
from pydantic import Field
from starlette.responses import Response

from planq.api.access.scopes import Who
from planq.api.deps import Use, strict_router
from planq.api.http.exchange import HttpRefusal, JsonResponse, error_responses
from planq.api.http.ids import CursorQuery, Limit, id_of_cursor, page_of, uuid_of
from planq.api.intake.submission import callback_of, require_signing
from planq.api.schemas import Answer, CallbackUrl, ErrorDocument, Id, PageDocument, RequestBody, Time
from planq.shared.subjects.webhooks.rules import EVENT_NAMES, DeliveryKind, DeliveryStatus, checked_events

webhook_routes = strict_router("webhooks")

_MAX_DESCRIPTION_CHARS = 200

_Events = Annotated[
    list[str],
    Field(
        max_length=len(EVENT_NAMES),
        description="What it is told; `job.*`, `batch.*` and `channel.*` stand for all of their kind.",
        json_schema_extra={"minItems": 1, "items": {"type": "string", "enum": list(EVENT_NAMES)}},
    ),
]
_Description = Annotated[
    str, Field(max_length=_MAX_DESCRIPTION_CHARS, pattern=r"^[^\x00-\x1f\x7f]*$", description="What people call it.")
]


class EndpointRequest(RequestBody):
    """Where a tenant wants to be told."""

    url: CallbackUrl
    events: _Events
    description: _Description = ""


class EndpointChange(RequestBody):
    """What becomes different; what is left out, or null, stays."""

    url: CallbackUrl | None = None
    events: _Events | None = None
    description: _Description | None = None
    is_disabled: bool | None = Field(None, description="A disabled one is told nothing: what waits for it fails.")


class EndpointDocument(Answer):
    """Where a tenant is told, and of what."""

    id: Id
    url: str
    events: list[str]
    description: str
    is_disabled: bool
    disabled_reason: str | None = Field(description="Why planq has disabled it by itself.")
    created_at: Time
    updated_at: Time


class NewEndpointDocument(EndpointDocument):
    """An endpoint with its secret, which is shown now and never again."""

    secret: str = Field(description="What signs, `whsec_…`.")


class SecretDocument(Answer):
    """What signs; for a day after a rotation the one before does so, too."""

    secret: str


class EndpointPage(PageDocument[EndpointDocument]):
    """Endpoints, newest first; `next_cursor` is null on the last page."""


class DeliverySummary(Answer):
    """A delivery: to whom, of what, and what became of it."""

    id: Id = Field(description="The receiver sees it as `webhook-id`, in every attempt.")
    kind: DeliveryKind
    event: str
    status: DeliveryStatus
    endpoint_id: Id | None = Field(description="Null for a callback.")
    url: str | None = Field(description="Null for a message of a conversation.")
    channel: str | None = Field(description="Over which a message of a conversation goes; null for webhooks.")
    conversation_id: Id | None
    job_id: Id | None
    batch_id: Id | None
    attempt: int = Field(description="How many attempts were begun.")
    doubts: int = Field(description="After how many of them nobody knew whether it had arrived.")
    external_id: str | None = Field(description="What the receiver calls the last part that has arrived.")
    next_attempt_at: Time | None = Field(description="While it is pending.")
    response_status: int | None = Field(description="What the receiver answered last.")
    error: ErrorDocument | None = Field(description="Why the last attempt did not succeed.")
    created_at: Time
    finished_at: Time | None


class DeliveryDocument(DeliverySummary):
    """A delivery with what is sent."""

    body: str = Field(
        description="JSON, byte for byte as it is signed; empty for a message, which its conversation keeps."
    )


class DeliveryPage(PageDocument[DeliverySummary]):
    """Deliveries, newest first; `next_cursor` is null on the last page."""


EndpointPath = Annotated[str, Path(json_schema_extra={"format": "uuid"}, description="The endpoint's id.")]
DeliveryPath = Annotated[str, Path(json_schema_extra={"format": "uuid"}, description="The delivery's id.")]


@webhook_routes.post(
    "/endpoints", status_code=201, response_model=NewEndpointDocument, responses=error_responses(400, 413, 415, 429)
)
async def create_endpoint(body: EndpointRequest, services: Use, who: Who) -> Response:
    """Store an endpoint and return it with its secret."""
    url, events = callback_of(services.settings, body.url, "url"), checked_events(body.events)
    most = (await services.tenants.of(who.tenant_id)).config.max_endpoints
    row = await services.webhooks.create(who.tenant_id, url, events, body.description, most)
    left = 0 if row is None else most - row["others"] - 1
    headers = {"X-RateLimit-Endpoints-Limit": str(most), "X-RateLimit-Endpoints-Remaining": str(left)}
    if row is None:
        message = f"expected at most {most} endpoints of this tenant; remove one that is not used any more"
        raise HttpRefusal(HTTPStatus.TOO_MANY_REQUESTS, "too_many_endpoints", message, headers=headers)
    (secret,) = await services.signing.of(who.tenant_id, row["id"])
    return JsonResponse(NewEndpointDocument.of(row, secret=secret), status_code=201, headers=headers)


@webhook_routes.get("/endpoints", response_model=EndpointPage)
async def list_endpoints(services: Use, who: Who, limit: Limit = 20, cursor: CursorQuery = None) -> Response:
    """List endpoints, newest first."""
    rows = await services.webhooks.endpoints(who.tenant_id, below=id_of_cursor(cursor), limit=limit + 1)
    return page_of(rows, limit, EndpointDocument.of)


@webhook_routes.get("/endpoints/{endpoint_id}", response_model=EndpointDocument, responses=error_responses(404))
async def get_endpoint(endpoint_id: EndpointPath, services: Use, who: Who) -> Response:
    """Return an endpoint, without its secret."""
    row = await services.webhooks.endpoint(who.tenant_id, uuid_of("endpoint", endpoint_id))
    return JsonResponse(EndpointDocument.of(row))


@webhook_routes.patch(
    "/endpoints/{endpoint_id}", response_model=EndpointDocument, responses=error_responses(400, 404, 409, 413, 415)
)
async def change_endpoint(endpoint_id: EndpointPath, body: EndpointChange, services: Use, who: Who) -> Response:
    """Change what is named, and return the endpoint. What waits for it goes to its new address."""
    row = await services.webhooks.change(
        who.tenant_id,
        uuid_of("endpoint", endpoint_id),
        url=None if body.url is None else callback_of(services.settings, body.url, "url"),
        events=None if body.events is None else checked_events(body.events),
        description=body.description,
        is_disabled=body.is_disabled,
    )
    return JsonResponse(EndpointDocument.of(row))


@webhook_routes.delete(
    "/endpoints/{endpoint_id}", status_code=204, response_class=Response, responses=error_responses(404)
)
async def delete_endpoint(endpoint_id: EndpointPath, services: Use, who: Who) -> Response:
    """Remove an endpoint with its secrets and the log of its deliveries."""
    await services.webhooks.delete(who.tenant_id, uuid_of("endpoint", endpoint_id))
    return Response(status_code=204)


@webhook_routes.post(
    "/endpoints/{endpoint_id}/rotate", response_model=SecretDocument, responses=error_responses(404, 409)
)
async def rotate_endpoint_secret(endpoint_id: EndpointPath, services: Use, who: Who) -> Response:
    """Make another secret for an endpoint, and return it; the one before signs too for 24 hours."""
    found = uuid_of("endpoint", endpoint_id)
    await services.webhooks.endpoint(who.tenant_id, found)
    require_signing(services.settings)
    return JsonResponse({"secret": await services.signing.rotate(who.tenant_id, found)})


@webhook_routes.post(
    "/endpoints/{endpoint_id}/test",
    status_code=202,
    response_model=DeliveryDocument,
    responses=error_responses(404, 409),
)
async def test_endpoint(endpoint_id: EndpointPath, services: Use, who: Who) -> Response:
    """Send an endpoint the event `endpoint.test`, and return the delivery; ask for it to see what became of it."""
    delivery_id = await services.webhooks.test(who.tenant_id, uuid_of("endpoint", endpoint_id))
    return JsonResponse(await services.webhooks.delivery(who.tenant_id, delivery_id), status_code=202)


@webhook_routes.get("/webhook-secret", response_model=SecretDocument, responses=error_responses(409))
async def get_callback_secret(services: Use, who: Who) -> Response:
    """Return what signs a delivery to a `callback_url`; it is made when it is first asked for."""
    require_signing(services.settings)
    return JsonResponse({"secret": (await services.signing.of(who.tenant_id, None))[0]})


@webhook_routes.post("/webhook-secret/rotate", response_model=SecretDocument, responses=error_responses(409))
async def rotate_callback_secret(services: Use, who: Who) -> Response:
    """Make another secret for callbacks, and return it; the one before signs too for 24 hours."""
    require_signing(services.settings)
    return JsonResponse({"secret": await services.signing.rotate(who.tenant_id, None)})


@webhook_routes.get("/webhook-secret/inbound", response_model=SecretDocument, responses=error_responses(409))
async def get_inbound_secret(services: Use, who: Who) -> Response:
    """Return what proves a post to the tenant's channels; it is made when it is first asked for.

    Where channels were connected before, the secret of callbacks proves such a post for another 24 hours.
    """
    require_signing(services.settings)
    return JsonResponse({"secret": await services.signing.begin_inbound(who.tenant_id)})


@webhook_routes.post("/webhook-secret/inbound/rotate", response_model=SecretDocument, responses=error_responses(409))
async def rotate_inbound_secret(services: Use, who: Who) -> Response:
    """Make another secret for posts to channels, and return it; the one before proves them for another 24 hours."""
    require_signing(services.settings)
    return JsonResponse({"secret": await services.signing.rotate_inbound(who.tenant_id)})


@webhook_routes.get("/deliveries", response_model=DeliveryPage)
async def list_deliveries(
    services: Use,
    who: Who,
    status: Annotated[DeliveryStatus | None, Query(description="Only deliveries that stand here.")] = None,
    endpoint: Annotated[UUID | None, Query(description="Only those to this endpoint.")] = None,
    job: Annotated[UUID | None, Query(description="Only those of this job.")] = None,
    limit: Limit = 20,
    cursor: CursorQuery = None,
) -> Response:
    """List deliveries, newest first, without what is sent."""
    rows = await services.webhooks.deliveries(
        who.tenant_id, status=status, endpoint_id=endpoint, job_id=job, below=id_of_cursor(cursor), limit=limit + 1
    )
    return page_of(rows, limit)


@webhook_routes.get("/deliveries/{delivery_id}", response_model=DeliveryDocument, responses=error_responses(404))
async def get_delivery(delivery_id: DeliveryPath, services: Use, who: Who) -> Response:
    """Return a delivery with what is sent."""
    return JsonResponse(await services.webhooks.delivery(who.tenant_id, uuid_of("delivery", delivery_id)))


@webhook_routes.post(
    "/deliveries/{delivery_id}/redeliver",
    status_code=202,
    response_model=DeliveryDocument,
    responses=error_responses(404, 409),
)
async def redeliver_delivery(delivery_id: DeliveryPath, services: Use, who: Who) -> Response:
    """Send a delivery at once, under its id: one that waits, or anew one that has ended; return it."""
    found = uuid_of("delivery", delivery_id)
    await services.webhooks.redeliver(who.tenant_id, found)
    return JsonResponse(await services.webhooks.delivery(who.tenant_id, found), status_code=202)
