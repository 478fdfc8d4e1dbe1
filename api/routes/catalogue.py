"""What jobs are made of and what they leave: tools, plans to be checked, artifacts."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Path, Query
from starlette.responses import Response

from api.deps import Use, router
from api.responses import STORED, IfNoneMatch, JsonResponse, error_responses, stored_json
from api.schemas import ArtifactDocument, ToolList, ValidationRequest, ValidationResult
from api.submission import TENANT, allowed_tools, check_plan, known_names
from shared.domain.errors import NotFound
from shared.domain.plan import Plan
from shared.store.requests import StoredJson

catalogue = router("catalogue")


@catalogue.get("/tools", response_model=ToolList)
async def tools(services: Use) -> Response:
    """List the tools that workers have published: with schemas, effect class, lane, timeout and retries."""
    known = await services.requests.tools(TENANT)
    return JsonResponse({"items": [definition.model_dump(mode="json") for definition in known.values()]})


@catalogue.post("/plans/validate", response_model=ValidationResult, responses=error_responses(400, 413, 415))
async def validate(body: ValidationRequest, services: Use) -> Response:
    """Check a plan against the published tools and report everything that is wrong with it; nothing is stored."""
    known = await services.requests.tools(TENANT)
    allowed = allowed_tools(None if body.tools is None else known_names(body.tools, known), known)
    checked = await check_plan(body.plan, allowed, max_steps=services.settings.max_plan_steps)
    errors = [] if isinstance(checked, Plan) else [error.to_json() for error in checked]
    return JsonResponse({"valid": not errors, "errors": errors})


_HEADERS: dict[str, Any] = {
    "Artifact-Version": {"description": "Which version this is.", "schema": {"type": "integer", "minimum": 1}},
    "Artifact-Skill-Id": {
        "description": "The skill on whose behalf it was made, percent-encoded; absent without one.",
        "schema": {"type": "string"},
    },
}
_ARTIFACT: dict[int | str, dict[str, Any]] = {
    **STORED,
    200: {**STORED[200], "headers": {**STORED[200]["headers"], **_HEADERS}},
}


@catalogue.get(
    "/artifacts/{artifact_id:path}", response_model=ArtifactDocument, responses={**_ARTIFACT, **error_responses(404)}
)
async def artifact(
    artifact_id: Annotated[str, Path(description="`artifact_id` of a step's output.")],
    services: Use,
    version: Annotated[int | None, Query(ge=1, lt=2**31, description="Which version; the newest by default.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return a version of an artifact as its tool produced it.

    Every output under one id is a version. The headers `Artifact-Version` and `Artifact-Skill-Id` tell of it.
    """
    if "\x00" in artifact_id:
        raise NotFound("there is no artifact whose id contains the character NUL")
    found = await services.requests.artifact(TENANT, artifact_id, version)
    stored = StoredJson.of(found["body"], found["payload_hash"])
    more = {"Artifact-Version": str(found["version"])}
    if found["skill_id"] is not None:
        more["Artifact-Skill-Id"] = quote(found["skill_id"], safe="")
    return await stored_json(services.payloads, TENANT, stored, if_none_match, more)
