"""The description of the API: what FastAPI derives from the routes, plus the one shape of every problem."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from planq.api.access.guard import OPEN_PATHS
from planq.api.http.exchange import Problem
from planq.api.http.prefix import below_prefix
from planq.shared.kernel.limits import Limits


def describe_api(app: FastAPI, limits: Limits, *, with_keys: bool) -> None:
    """Make `app.openapi` return the description, built when it is first asked for; `limits` are the server's."""
    kept: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not kept:
            kept.update(_build(app, with_keys=with_keys))
            _bound_limits(kept, limits)
            _bound_integers(kept)
            _spare_generators(kept["components"]["schemas"])
        root = below_prefix("")
        return kept | {"servers": [{"url": root}]} if root else kept

    app.openapi = openapi  # type: ignore[method-assign]


def operation_name(route: APIRoute) -> str:
    """Return the name of an operation, after which generated clients name their functions. It must never change."""
    name = _NAMES.get(route.name, route.name)
    return name.replace("_", "_agentic_", 1) if route.path.startswith("/agentic/") else name


_NAMES = {
    "get_question": "get_elicitation",
    "get_questions": "list_elicitations",
    "get_questions_of_job": "list_elicitations_of_job",
}
"""Operations of questions: the description has MCP's word for a question."""

_SCHEMAS = {
    "QuestionDocument": "ElicitationDocument",
    "QuestionKind": "ElicitationKind",
    "QuestionPage": "ElicitationPage",
    "QuestionStatus": "ElicitationStatus",
}
"""The same for schemas."""


def _build(app: FastAPI, *, with_keys: bool) -> dict[str, Any]:
    document: dict[str, Any] = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for operation in (one for path in document["paths"].values() for one in path.values()):
        # FastAPI's own are the names of the functions.
        operation["summary"] = _first_sentence(operation["description"])
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = Problem.model_json_schema()
    if with_keys:
        what = "A key that `planq keys create` has made, or one of PLANQ_API_KEYS."
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": what}}
        document["security"] = [{"key": []}]
        for path in OPEN_PATHS & document["paths"].keys():
            document["paths"][path]["get"]["security"] = []
    named: dict[str, Any] = _with_schema_names(document)
    return named


def _with_schema_names(part: Any) -> Any:
    """Return a part of the document with the names of `_SCHEMAS`: as keys, as titles and in references."""
    if isinstance(part, dict):
        return {_SCHEMAS.get(name, name): _with_schema_names(one) for name, one in part.items()}
    if isinstance(part, list):
        return [_with_schema_names(one) for one in part]
    if not isinstance(part, str):
        return part
    path, slash, name = part.rpartition("/")
    return path + slash + _SCHEMAS.get(name, name)


def _bound_limits(document: dict[str, Any], limits: Limits) -> None:
    """Say which limits a request may ask for: only lower ones, and whole numbers of what is counted.

    Of what they bound, say it of the calls of a plan.
    """
    described = document["components"]["schemas"]["LimitsRequest"]["properties"]
    for name, most in asdict(limits).items():
        if name in described:
            described[name]["maximum"] = most
            if isinstance(most, int):
                described[name]["multipleOf"] = 1
    for request in ("JobRequest", "ForkRequest"):
        plan, _ = document["components"]["schemas"][request]["properties"]["plan"]["anyOf"]
        plan["properties"]["calls"]["maxItems"] = limits.max_plan_steps


_BOUNDS = {"minimum": -(2**63), "maximum": 2**64 - 1}
_ANY: dict[str, str] = {"$ref": "#/components/schemas/Json"}
_JSON: dict[str, Any] = {
    "title": "Json",
    "description": "Any JSON (RFC 8259) whose integers need at most 64 bits.",
    "anyOf": [
        {"type": ["null", "boolean", "string"]},
        {"type": "number", **_BOUNDS},
        {"type": "array", "items": _ANY},
        {"type": "object", "additionalProperties": _ANY},
    ],
}
_TELLING = {"$ref", "allOf", "anyOf", "const", "enum", "type"}
"""A schema without any of these allows whatever is JSON."""


def _bound_integers(document: dict[str, Any]) -> None:
    """Say of all integers in requests, also in free-form JSON, that 64 bits must do; in answers they have any size.

    JSON Schema takes 1e30 for an integer too: such numbers, with an exponent, are taken though not described.
    """
    described = document["components"]["schemas"]
    seen: set[str] = set()
    for operation in (one for path in document["paths"].values() for one in path.values()):
        for content in operation.get("requestBody", {}).get("content", {}).values():
            _bound(content["schema"], described, seen)
    described["Json"] = dict(_JSON)


def _bound(schema: dict[str, Any], described: dict[str, Any], seen: set[str]) -> None:
    name = schema.get("$ref", "").rpartition("/")[2]
    if name in described and name not in seen:
        seen.add(name)
        _bound(described[name], described, seen)
    if schema.get("type") == "integer" and not {"minimum", "exclusiveMinimum"} & schema.keys():
        schema.update(_BOUNDS)
    if schema.get("additionalProperties") is True:
        schema["additionalProperties"] = _ANY
    parts = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    for part in parts:
        if not _TELLING & part.keys():
            part.update(_ANY)
    for below in (*parts, *schema.get("anyOf", ())):
        _bound(below, described, seen)


def _spare_generators(schemas: dict[str, Any]) -> None:
    """Say what generators of clients cannot make a type of under `then`, which they pass over and validators heed.

    That is which fields of an object go together, and that JSON is made of JSON.
    """
    for schema in schemas.values():
        if "anyOf" in schema and ("properties" in schema or schema["title"] == _JSON["title"]):
            schema["if"], schema["then"] = {}, {"anyOf": schema.pop("anyOf")}


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).split(". ")[0].removesuffix(".")
