"""Agents in use with their documents and versions, and the tools that workers have published, to be tried."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Caller, Who
from planq.api.agents.routes import get_agent, list_agents
from planq.api.deps import Services, Use
from planq.api.jobs.page.listing import submitted
from planq.api.page.fields import content_of, fields_in
from planq.api.page.rendering import is_open, page
from planq.api.page.route import fields_of, page_router, seen, values_of
from planq.api.page.trees import changes_between
from planq.api.tools.routes import list_tools
from planq.shared.kernel.states import Effect
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import NotFound, capped

catalogue_page_routes = page_router()

_MOST_VERSIONS = 30
_Number = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@catalogue_page_routes.get("/ui/agents")
async def show_agents(request: Request, services: Use, who: Who) -> Response:
    return page(request, "agents.html", listed=values_of(await list_agents(services, who)))


@catalogue_page_routes.get("/ui/agents/{name}")
async def show_agent(
    request: Request, name: str, services: Use, who: Who, version: _Number = None, against: _Number = None
) -> Response:
    agent = values_of(await get_agent(name, services, who, version))
    newest = agent["version"] if version is None else await _newest(services, who, name, version)
    compared = against or (agent["version"] - 1) or None
    return page(
        request,
        "agent.html",
        agent=agent,
        versions=list(range(newest, max(newest - _MOST_VERSIONS, 0), -1)),
        compared=compared,
        changes=None if compared is None else await _changes(services, who, agent, compared),
        may_talk=is_open(who, "/chat"),
    )


async def _newest(services: Services, who: Caller, name: str, known: int) -> int:
    try:
        newest: int = values_of(await get_agent(name, services, who, None))["version"]
    except NotFound:
        return known
    return max(newest, known)


async def _changes(services: Services, who: Caller, agent: dict[str, Any], compared: int) -> str:
    other = values_of(await get_agent(agent["name"], services, who, compared))
    names = f"version {compared}", f"version {agent['version']}"
    return await off_loop(changes_between, other["document"], agent["document"], names)


@catalogue_page_routes.get("/ui/tools")
async def show_tools(
    request: Request, services: Use, who: Who, q: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    tools = values_of(await list_tools(services, who))["items"]
    words = q.strip().lower()
    found = [tool for tool in tools if words in tool["name"].lower() or words in tool["description"].lower()]
    return page(request, "tools.html", tools=found, words=q.strip(), is_empty=not tools)


@catalogue_page_routes.get("/ui/tools/{name}")
async def show_tool(request: Request, name: str, services: Use, who: Who) -> Response:
    tool = await _tool(services, who, name)
    return page(request, "tool.html", tool=tool, fields=fields_in(tool["input_schema"]), **_asks(tool))


@catalogue_page_routes.post("/ui/tools/{name}")
async def post_call(request: Request, name: str, services: Use, who: Who) -> Response:
    """Call a tool by a job of one step, and lead to that; one that is `unsafe` has to be approved there."""
    tool = await _tool(services, who, name)
    given = await off_loop(content_of, tool["input_schema"], fields_of(request))
    call = {"tool_name": tool["name"], "arguments": {} if given is None else given}
    sent: dict[str, Any] = {"input": f"Try the tool {tool['name']}", "plan": {"calls": [call]}, "respond": "output"}
    if _asks(tool)["asks"]:
        sent["loop"] = {"policy": {tool["name"]: "ask"}}
    made = await submitted(request, services, sent)
    return seen(f"/jobs/{made['id']}")


def _asks(tool: dict[str, Any]) -> dict[str, bool]:
    return {"asks": tool["effect"] == Effect.UNSAFE}


async def _tool(services: Services, who: Caller, name: str) -> dict[str, Any]:
    tools: list[dict[str, Any]] = values_of(await list_tools(services, who))["items"]
    for tool in tools:
        if tool["name"] == name:
            return tool
    raise NotFound(f"there is no tool {capped(name, 80)!r}; no live worker has one, or this tenant may not use it")
