"""The description of the API: what FastAPI derives from the routes, plus the one shape of every problem."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.guard import OPEN_PATHS
from api.problems import Problem


def describe(app: FastAPI, *, with_keys: bool) -> None:
    """Make `app.openapi` return the description, built when it is first asked for."""
    kept: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not kept:
            kept.update(_build(app, with_keys=with_keys))
        return kept

    app.openapi = openapi  # type: ignore[method-assign]


def _build(app: FastAPI, *, with_keys: bool) -> dict[str, Any]:
    document: dict[str, Any] = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = Problem.model_json_schema()
    if with_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        for path in OPEN_PATHS:
            document["paths"][path]["get"]["security"] = []
    return document
