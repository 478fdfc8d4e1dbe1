"""Agents and skills: store, look, list, retire.

A document is put as YAML or JSON and answered as JSON; a skill is Markdown both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Who
from planq.api.deps import Use, strict_router
from planq.api.documents import agent_document, agent_summary, kept_agent_document, skill_summary
from planq.api.http.exchange import JsonResponse, decode_body, error_responses
from planq.api.http.ids import MAX_PAGE, Limit, no_cursor, page_of
from planq.api.intake.assignments import Assignments
from planq.api.schemas import SAYS_SOMETHING, Answer, PageDocument, Time
from planq.shared.agentic.agents.checks import AGENT_NAME, parse_skill
from planq.shared.agentic.agents.document import AgentDocument, OutputMode, parse_agent
from planq.shared.agentic.agents.warnings import DocumentWarning, document_warnings, named_agents, prompt_skills
from planq.shared.agentic.source import MAX_CHARS
from planq.shared.platform.computing import off_loop
from planq.shared.platform.database import json_text
from planq.shared.platform.errors import InvalidRequest
from planq.shared.platform.values.defects import Defect
from planq.shared.subjects.agents.store import PutResult
from planq.shared.subjects.tools.catalogue import Catalogue

agent_routes = strict_router("agents")


class StoredAgent(Answer):
    """An agent in one of its versions."""

    name: str
    version: int
    document: dict[str, Any] = Field(description="As it was stored, unknown keys too.")
    created_at: Time
    retired_at: Time | None = Field(description="Since then no new job may name it.")


class KeptAgent(StoredAgent):
    """An agent as it has just been stored."""

    warnings: list[DocumentWarning] = Field(
        description="What in it stands for nothing, or cannot work; it is stored all the same."
    )


class AgentSummary(Answer):
    """An agent in its newest version, without its document."""

    name: str
    version: int
    description: str
    output_mode: OutputMode
    tools: list[str]
    skills: list[str]
    actions: list[str]
    created_at: Time


class AgentPage(PageDocument[AgentSummary]):
    """Agents in the order of their names; `next_cursor` is null on the last page."""


class SkillSummary(Answer):
    """A skill in its newest version, without its text."""

    name: str
    version: int
    characters: int
    created_at: Time


class SkillPage(PageDocument[SkillSummary]):
    """Skills in the order of their names; `next_cursor` is null on the last page."""


NamePath = Annotated[
    str,
    Path(
        json_schema_extra={"pattern": f"^{AGENT_NAME.pattern}$"},
        description="The name, as it stands in the document.",
    ),
]
Version = Annotated[
    int | None, Query(ge=1, le=2**31 - 1, description="This version, a retired one too; else the newest in use.")
]
Cursor = Annotated[
    str | None,
    Query(json_schema_extra={"pattern": f"^{AGENT_NAME.pattern}$"}, description="`next_cursor` of the page before."),
]

_OBJECT = {"type": "object", "additionalProperties": True, "description": "An agent's document; see docs/agents.md."}
_TEXT = {"type": "string", "format": "binary", "pattern": SAYS_SOMETHING, "maxLength": MAX_CHARS}
_LOCATED = {"Location": {"description": "Where this version can be had.", "schema": {"type": "string"}}}
_MARKDOWN: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The text.",
        "content": {"text/markdown": {"schema": {"type": "string"}}},
        "headers": {"Planq-Version": {"description": "Which version this is.", "schema": {"type": "string"}}},
    }
}


def _stored(model: type[Any]) -> dict[int | str, dict[str, Any]]:
    return {
        200: {"description": "The version in use is the same; nothing has changed.", "model": model},
        201: {"description": "Stored as a new version.", "model": model, "headers": _LOCATED},
        **error_responses(400, 409, 413, 415),
    }


def _body(*media_types: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {one: {"schema": schema} for one in media_types}}}


@agent_routes.get("/agents", response_model=AgentPage)
async def list_agents(services: Use, who: Who, limit: Limit = MAX_PAGE, cursor: Cursor = None) -> Response:
    """List the agents in use, by name."""
    found = await services.agents.page(who.tenant_id, after=_after(cursor), limit=limit + 1)
    return page_of(found, limit, agent_summary, attrgetter("name"))


@agent_routes.get("/agents/{agent_id}", response_model=StoredAgent, responses=error_responses(404))
async def get_agent(agent_id: NamePath, services: Use, who: Who, version: Version = None) -> Response:
    """Return an agent with its document."""
    return JsonResponse(agent_document(await services.agents.get(who.tenant_id, agent_id, version)))


@agent_routes.put(
    "/agents/{agent_id}",
    response_model=KeptAgent,
    responses=_stored(KeptAgent),
    openapi_extra=_body("application/json", "application/yaml", schema=_OBJECT),
)
async def store_agent(request: Request, agent_id: NamePath, services: Use, who: Who) -> Response:
    """Store an agent's document, as a new version unless it is the one in use already.

    A document that is refused comes back with everything that is wrong with it: `errors` has `path` (a JSON pointer),
    `line` and `message` of each defect; a `pattern` must do without look-around and back-references. One that names
    tools, skills, a chained tool or agents that are missing is stored, and `warnings` lists these.
    """
    body = await request.body()
    if request.headers.get("content-type", "").startswith("application/json"):
        decode_body(body, is_unique=False)  # says better what is wrong with JSON that is none
    # Reading YAML with its lines takes seconds for the largest documents: meanwhile the loop serves others.
    document = await off_loop(parse_agent, body)
    if document.name != agent_id:
        names = f"the document names itself {document.name!r:.100}, the path names {agent_id!r:.100}"
        message = f"{names}; expected the same"
        raise InvalidRequest(message, errors=[Defect("/name", "", message).of_document()])
    content = json_text(document.to_json())
    block = document.loop_block()
    kept = await services.agents.put(
        who.tenant_id,
        document.name,
        content,
        skills=document.skills,
        strategy=document.strategy,
        loop=None if block is None else block.to_json(),
    )
    stored = await services.agents.get(who.tenant_id, document.name, kept.version)
    return _kept(
        kept,
        kept_agent_document(
            stored, await _warnings(services.assignments, services.catalogue, who.tenant_id, document)
        ),
        "agents",
    )


@agent_routes.delete("/agents/{agent_id}", status_code=204, response_class=Response, responses=error_responses(404))
async def delete_agent(agent_id: NamePath, services: Use, who: Who) -> Response:
    """Retire an agent: no new job may name it; jobs that have it go on, and its versions can still be had."""
    await services.agents.retire(who.tenant_id, agent_id)
    return Response(status_code=204)


@agent_routes.get("/skills", response_model=SkillPage)
async def list_skills(services: Use, who: Who, limit: Limit = MAX_PAGE, cursor: Cursor = None) -> Response:
    """List the skills in use, by name."""
    found = await services.skills.page(who.tenant_id, after=_after(cursor), limit=limit + 1)
    return page_of(found, limit, skill_summary, attrgetter("name"))


@agent_routes.get("/skills/{skill_id}", response_class=Response, responses={**_MARKDOWN, **error_responses(404)})
async def get_skill(skill_id: NamePath, services: Use, who: Who, version: Version = None) -> Response:
    """Return a skill's text."""
    found = await services.skills.get(who.tenant_id, skill_id, version)
    headers = {"Planq-Version": str(found.version)}
    return Response(found.content, media_type="text/markdown", headers=headers)


@agent_routes.put(
    "/skills/{skill_id}",
    response_model=SkillSummary,
    responses=_stored(SkillSummary),
    openapi_extra=_body("text/markdown", schema=_TEXT),
)
async def store_skill(request: Request, skill_id: NamePath, services: Use, who: Who) -> Response:
    """Store a skill, as a new version unless it is the one in use already; new jobs of agents that list it get it."""
    skill = parse_skill(skill_id, await request.body())
    kept = await services.skills.put(who.tenant_id, skill.name, skill.text)
    return _kept(kept, skill_summary(await services.skills.get(who.tenant_id, skill.name, kept.version)), "skills")


@agent_routes.delete("/skills/{skill_id}", status_code=204, response_class=Response, responses=error_responses(404))
async def delete_skill(skill_id: NamePath, services: Use, who: Who) -> Response:
    """Retire a skill: agents that list it can do no new job; jobs that have it go on."""
    await services.skills.retire(who.tenant_id, skill_id)
    return Response(status_code=204)


async def _warnings(
    there: Assignments, catalogue: Catalogue, tenant_id: str, document: AgentDocument
) -> Sequence[DocumentWarning]:
    """Return what the document names in vain, by what is published and stored now."""
    known: dict[str, Any] = {
        "skills": await there.skills.newest(tenant_id, [*document.skills, *prompt_skills(document)]),
        "agents": await there.agents.newest(tenant_id, named_agents(document)),
        "planners": await there.workers.planners(),
    }
    found = document_warnings(document, tools=await catalogue.tools(tenant_id), **known)
    if any(one.code in _OF_TOOLS for one in found):  # the tools of a moment ago may lack one that is there
        found = document_warnings(document, tools=await catalogue.renewed(tenant_id), **known)
    return found


_OF_TOOLS = ("tool_missing", "chained_tool_missing", "arguments_invalid")


def _kept(kept: PutResult, document: dict[str, Any], kind: str) -> Response:
    if not kept.is_new:
        return JsonResponse(document)
    place = f"/{kind}/{document['name']}?version={kept.version}"
    return JsonResponse(document, status_code=201, headers={"Location": place})


def _after(cursor: str | None) -> str:
    if cursor is not None and not AGENT_NAME.fullmatch(cursor):
        raise no_cursor()
    return cursor or ""
