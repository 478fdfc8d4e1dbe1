"""For operators: is the process alive, can it serve, would a job run; and the interactive description at `/docs`.

That page works without the internet: its scripts are files of the package `fastapi-offline`, whose code is not used.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from planq.api.access.scopes import CALLER, Caller
from planq.api.deps import Use, strict_router
from planq.api.http.exchange import RETRY_AFTER_SECONDS, JsonResponse, error_responses
from planq.api.schemas import Answer
from planq.shared.kernel.schema_version import needed
from planq.shared.platform.version import VERSION, commit
from planq.shared.subjects.tenants.keys import KeyScope

operation_routes = strict_router("operations", 403, 421, 422, 500)


class Release(Answer):
    """Which planq this process runs."""

    version: str
    commit: str | None = Field(description="The first 12 digits; null where the package does not know its commit.")
    schema_version: str = Field(description="What the database must have: the revision of its tables, `+`, a digest.")


class Health(Answer):
    """The process is alive."""

    status: Literal["ok"]


class Check(Answer):
    """One thing that planq stands on; `detail` says what is there, or what to do."""

    ok: bool
    detail: str


class Readiness(Answer):
    """Whether this process can serve."""

    status: Literal["ready", "not_ready"]
    checks: dict[str, Check]


class SystemStatus(Answer):
    """Whether jobs that are submitted now would run."""

    status: Literal["working", "not_working"]
    checks: dict[str, Check] | None = Field(default=None, description="Only for a key with `admin`.")


@operation_routes.get("/healthz", response_model=Health)
async def get_health() -> Response:
    """Answer as long as the process is alive; asks no other process."""
    return JsonResponse({"status": "ok"})


@operation_routes.get("/version", response_model=Release)
async def get_version() -> Response:
    """Say which planq this process runs; asks no other process."""
    return JsonResponse({"version": VERSION, "commit": commit(), "schema_version": needed()})


@operation_routes.get(
    "/readyz",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "It cannot; each check says why."}},
)
async def get_readiness(services: Use) -> Response:
    """Say whether this process can serve: the database answers and has the schema of this release.

    Jobs are accepted without a broker and without workers: see `/statusz`.
    """
    found = await services.readiness.document()
    status = "ready" if found["is_good"] else "not_ready"
    return _probed({"status": status, "checks": found["checks"]}, is_good=found["is_good"])


@operation_routes.get(
    "/statusz",
    response_model=SystemStatus,
    responses={503: {"model": SystemStatus, "description": "Something is missing; each check says what to do."}},
)
async def get_status(request: Request, services: Use) -> Response:
    """Say whether a job that is submitted now would run: database, broker, and a live worker for each pool.

    A key with `admin` gets the single checks, which name what is missing, a full disk included. Without a key the
    answer is one word.
    """
    found = await services.status.document()
    document: dict[str, Any] = {"status": "working" if found["is_good"] else "not_working"}
    caller: Caller | None = request.scope.get(CALLER)
    if caller is not None and KeyScope.ADMIN in caller.scopes:
        document["checks"] = found["checks"]
    return _probed(document, is_good=found["is_good"])


def _probed(document: dict[str, Any], *, is_good: bool) -> Response:
    headers = {"Cache-Control": "no-store"}  # it holds for a second, and /statusz says more to some
    if is_good:
        return JsonResponse(document, headers=headers)
    return JsonResponse(document, status_code=503, headers={**headers, "Retry-After": str(RETRY_AFTER_SECONDS)})


@operation_routes.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **error_responses(401),
    },
)
async def get_metrics(services: Use) -> Response:
    """Return the metrics of this process; one process shows those of the whole installation, too: sum over all."""
    return Response(await services.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})


ASSETS = "/docs/assets"
START = "/docs/start.js"

page_routes = APIRouter(include_in_schema=False)


def page_assets() -> StaticFiles:
    package = importlib.util.find_spec("fastapi_offline")
    if package is None or package.origin is None:
        raise RuntimeError("the package fastapi-offline is not installed; `make` installs it with the others")
    return StaticFiles(directory=Path(package.origin).parent / "static")


# Every address in it is relative, so that it does below any path.
_PAGE = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{ASSETS[1:]}/swagger-ui.css">
<link rel="icon" href="{ASSETS[1:]}/favicon.png">
<title>planq</title>
</head>
<body>
<div id="swagger-ui"></div>
<script src="{ASSETS[1:]}/swagger-ui-bundle.js"></script>
<script src="{START[1:]}"></script>
</body>
</html>
"""

_START = """\
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  layout: "BaseLayout",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
"""
"""FastAPI's own page has this in itself, where the content policy forbids it."""


@page_routes.get("/docs")
async def get_docs() -> HTMLResponse:
    return HTMLResponse(_PAGE)


@page_routes.get(START)
async def get_docs_start() -> Response:
    return Response(_START, media_type="text/javascript")
