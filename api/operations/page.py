"""Workers and queues: who lives, what runs where, and what waits for a worker."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Who
from planq.api.deps import Use
from planq.api.operations.routes import get_workers
from planq.api.page.rendering import page
from planq.api.page.route import page_router, values_of
from planq.api.page.words import status_state
from planq.api.tools.routes import list_tools
from planq.shared.kernel.states import JobStatus

worker_page_routes = page_router()

_SLOW_LAG_MS = 1_000
"""An event loop that is so late has too little of a processor, or a tool that blocks it."""


@worker_page_routes.get("/ui/workers")
async def show_workers(request: Request, services: Use, who: Who) -> Response:
    shown = values_of(await get_workers(services, who))
    tools = values_of(await list_tools(services, who))["items"]
    workers = [
        {**one, **_state(one), "running": [_told(work) for work in one["running"]]} for one in shown["workers"]
    ]
    return page(
        request, "workers.html", workers=workers, pools=_pools(shown["backlog"], workers, tools), most=shown["most"]
    )


def _state(worker: dict[str, Any]) -> dict[str, Any]:
    if worker["missing"]:
        return {"state": ("bad", "Lacks something")}
    if worker["lag_ms"] >= _SLOW_LAG_MS:
        return {"state": ("ask", "Slow")}
    return {"state": ("run", "Works") if worker["in_flight"] else ("ok", "Idle")}


def _told(work: dict[str, Any]) -> dict[str, Any]:
    name = work["what"] if work["step_index"] is not None else status_state(JobStatus(work["what"]))[1]
    return {**work, "name": name}


def _pools(
    backlog: list[dict[str, Any]], workers: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    return [
        {
            "name": pool,
            "alive": sum(pool in worker["pools"] for worker in workers),
            "tools": sum(tool["pool"] == pool for tool in tools),
            "queues": list(queues),
        }
        for pool, queues in groupby(backlog, lambda one: one["pool"])
    ]
