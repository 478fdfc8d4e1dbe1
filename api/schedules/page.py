"""The page of schedules."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Who
from planq.api.deps import Use
from planq.api.page.rendering import page
from planq.api.page.route import page_router, seen, values_of
from planq.api.schedules.routes import delete_schedule, list_schedules

operation_page_routes = page_router()


@operation_page_routes.get("/ui/schedules")
async def schedules_page(request: Request, services: Use, who: Who) -> Response:
    listed = values_of(await list_schedules(services, who, everything=True))
    return page(request, "schedules.html", schedules=listed["items"])


@operation_page_routes.post("/ui/schedules/{schedule_id}/delete")
async def post_deletion(schedule_id: str, services: Use, who: Who) -> Response:
    await delete_schedule(schedule_id, services, who)
    return seen("/schedules")
