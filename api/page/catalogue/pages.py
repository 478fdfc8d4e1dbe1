"""Agents in use with their documents, and the tools that workers have published."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.callers import Who
from planq.api.deps import Use
from planq.api.page.frame.rendering import page
from planq.api.page.frame.route import page_router, values_of
from planq.api.routes.agents import get_agent, list_agents
from planq.api.routes.catalogue import get_tools

catalogue_page_routes = page_router()


@catalogue_page_routes.get("/ui/agents")
async def show_agents(request: Request, services: Use, who: Who) -> Response:
    """Show the agents in use, by name."""
    return page(request, "agents.html", listed=values_of(await list_agents(services, who)))


@catalogue_page_routes.get("/ui/agents/{name}")
async def show_agent(
    request: Request,
    name: str,
    services: Use,
    who: Who,
    version: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> Response:
    """Show one version of an agent, the newest by default, with what it is asked."""
    return page(request, "agent.html", agent=values_of(await get_agent(name, services, who, version)))


@catalogue_page_routes.get("/ui/tools")
async def show_tools(request: Request, services: Use, who: Who) -> Response:
    """Show the tools that this tenant may use, by name."""
    return page(request, "tools.html", tools=values_of(await get_tools(services, who))["items"])
