"""Webhooks: the endpoints that are told, and what became of each delivery; tried, paused and sent again."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Caller, Who
from planq.api.deps import Services, Use
from planq.api.page.rendering import page
from planq.api.page.route import add_acts, body_of, fields_of, page_router, seen, values_of
from planq.api.webhooks.routes import (
    EndpointChange,
    EndpointRequest,
    change_endpoint,
    create_endpoint,
    delete_endpoint,
    get_delivery,
    get_endpoint,
    list_deliveries,
    list_endpoints,
    redeliver_delivery,
    rotate_endpoint_secret,
    test_endpoint,
)
from planq.shared.subjects.webhooks.rules import EVENT_NAMES, DeliveryStatus

webhook_page_routes = page_router()
add_acts(webhook_page_routes, "/deliveries/{delivery_id}", redeliver=redeliver_delivery)

_PAGE = 30
_EVENT = "event."
_STATES = {
    DeliveryStatus.PENDING: ("idle", "Waits"),
    DeliveryStatus.SENDING: ("run", "Being sent"),
    DeliveryStatus.SENT: ("ok", "Sent"),
    DeliveryStatus.UNCERTAIN: ("ask", "Uncertain"),
    DeliveryStatus.FAILED: ("bad", "Failed"),
}
_SHOWN = {str(status): state for status, state in _STATES.items()}
_Cursor = Annotated[str | None, Query()]


@webhook_page_routes.get("/ui/endpoints")
async def endpoints_page(request: Request, services: Use, who: Who, cursor: _Cursor = None) -> Response:
    listed = values_of(await list_endpoints(services, who, limit=_PAGE, cursor=cursor))
    return page(request, "endpoints.html", listed=listed, events=EVENT_NAMES)


@webhook_page_routes.post("/ui/endpoints")
async def post_new_endpoint(request: Request, services: Use, who: Who) -> Response:
    """Store an endpoint, and show it with its secret: this once, so that nobody is led on."""
    fields = fields_of(request)
    sent = {
        "url": fields.get("url", "").strip(),
        "description": fields.get("description", ""),
        "events": [name.removeprefix(_EVENT) for name in fields if name.startswith(_EVENT)],
    }
    made = values_of(await create_endpoint(await body_of(EndpointRequest, sent), services, who))
    return await _endpoint_page(request, services, who, made["id"], secret=made["secret"])


@webhook_page_routes.get("/ui/endpoints/{endpoint_id}")
async def show_endpoint(
    request: Request, endpoint_id: str, services: Use, who: Who, cursor: _Cursor = None
) -> Response:
    return await _endpoint_page(request, services, who, endpoint_id, cursor=cursor)


async def _endpoint_page(
    request: Request,
    services: Services,
    who: Caller,
    endpoint_id: str,
    *,
    cursor: str | None = None,
    secret: str | None = None,
) -> Response:
    endpoint = values_of(await get_endpoint(endpoint_id, services, who))
    listed = values_of(
        await list_deliveries(services, who, endpoint=UUID(endpoint["id"]), limit=_PAGE, cursor=cursor)
    )
    return page(request, "endpoint.html", endpoint=endpoint, listed=listed, states=_SHOWN, secret=secret)


@webhook_page_routes.post("/ui/endpoints/{endpoint_id}/pause")
async def post_pause_of_endpoint(request: Request, endpoint_id: str, services: Use, who: Who) -> Response:
    change = await body_of(EndpointChange, {"is_disabled": "on" not in fields_of(request)})
    await change_endpoint(endpoint_id, change, services, who)
    return seen(f"/endpoints/{endpoint_id}")


@webhook_page_routes.post("/ui/endpoints/{endpoint_id}/test")
async def post_test(endpoint_id: str, services: Use, who: Who) -> Response:
    delivery = values_of(await test_endpoint(endpoint_id, services, who))
    return seen(f"/deliveries/{delivery['id']}")


@webhook_page_routes.post("/ui/endpoints/{endpoint_id}/rotate")
async def post_rotation(request: Request, endpoint_id: str, services: Use, who: Who) -> Response:
    """Make another secret for an endpoint, and show it, this once."""
    made = values_of(await rotate_endpoint_secret(endpoint_id, services, who))
    return await _endpoint_page(request, services, who, endpoint_id, secret=made["secret"])


@webhook_page_routes.post("/ui/endpoints/{endpoint_id}/remove")
async def post_removal(endpoint_id: str, services: Use, who: Who) -> Response:
    await delete_endpoint(endpoint_id, services, who)
    return seen("/endpoints")


@webhook_page_routes.get("/ui/deliveries")
async def deliveries_page(
    request: Request, services: Use, who: Who, status: Annotated[str, Query()] = "", cursor: _Cursor = None
) -> Response:
    wanted = DeliveryStatus(status) if status in _SHOWN else None
    listed = values_of(await list_deliveries(services, who, status=wanted, limit=_PAGE, cursor=cursor))
    return page(request, "deliveries.html", listed=listed, states=_SHOWN, chosen=status)


@webhook_page_routes.get("/ui/deliveries/{delivery_id}")
async def show_delivery(request: Request, delivery_id: str, services: Use, who: Who) -> Response:
    delivery = values_of(await get_delivery(delivery_id, services, who))
    return page(request, "delivery.html", delivery=delivery, states=_SHOWN)
