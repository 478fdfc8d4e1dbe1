"""The pages on the HTTP API, one for each resource, made from the OpenAPI document.

A route stands on the page that `page_of` names, and on no other. An object stands on the page whose routes take or
give it themselves; else on the page from whose routes the fewest links lead to it.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from planq.api.access.guard import OPEN_PATHS
from planq.api.access.scopes import opening_of
from planq.api.app import create_api
from planq.shared.settings.settings import Settings
from planq.shared.subjects.tenants.keys import KeyScope
from tests.support.markdown import table

Json = Mapping[str, Any]

RESOURCES: Mapping[str, str] = {
    "jobs": r"/jobs|/job-actions",
    "questions": r"/elicitations|.*/elicitations$",
    "conversations": r"/messages|/conversations|/webhooks/channels|/channels|.*/messages$",
    "events": r"/events|.*/events$",
    "tasks": r"/tasks|/plans(?!/validate)|/agentic",
    "agents": r"/agents|/skills|/executions",
    "schedules": r"/schedules",
    "batches": r"/batches",
    "webhooks": r"/endpoints|/deliveries|/webhook-secret",
    "insights": r"/insights|.*/insights$",
    "tenants": r"/tenants|/costs",
    "tools": r"/tools|/plans/validate",
    "artifacts": r"/artifacts|.*/artifacts$",
    "operations": r"/healthz|/readyz|/statusz|/metrics",
}
"""Which paths each page `docs/http-….md` has; of several that match, the last one has it."""

OTHERS = "operations"
"""The page of a route whose resource has none of its own yet."""

OF_ALL: Mapping[str, str] = {"Problem": "api"}
"""What every route may give, and so stands beside the rules for all."""

ELSEWHERE: Mapping[str, str] = {"TenantConfig": "tenants.md#configure"}
"""Objects that other pages describe in full."""

PAGES = tuple(f"http-{name}.md" for name in RESOURCES)


@functools.cache
def openapi() -> Json:
    """Return the OpenAPI document of an API with default settings."""
    return create_api(Settings(database_url="postgresql://none", broker_url="redis://none")).openapi()


def routes() -> Iterator[tuple[str, str, Json]]:
    """Yield method, path and description of every route, in the order of the document."""
    for path, methods in openapi()["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def page_of(path: str) -> str:
    """Return the name of the page that a path stands on."""
    named = [name for name, pattern in RESOURCES.items() if re.match(rf"(?:{pattern})(?:$|/)", path)]
    return (named or [OTHERS])[-1]


# --- routes -----------------------------------------------------------------------------------------------------


def endpoints(page: str) -> str:
    """Every endpoint of a page: what it does, its parameters, its body, and its answers."""
    found = [one for one in routes() if page_of(one[1]) == page]
    listed = "\n".join(f"- [`{method} {path}`](#{slug(f'{method} {path}')})" for method, path, _ in found)
    return f"{listed}\n\n" + "\n".join(_endpoint(page, *one) for one in found)


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub writes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _endpoint(page: str, method: str, path: str, operation: Json) -> str:
    parts = [f"### `{method} {path}`", inspect.cleandoc(operation["description"])]
    rows = [
        (
            f"`{one['name']}`",
            one["in"],
            _kind(page, one["schema"]),
            _shown_default(one["schema"]),
            one.get("description", ""),
        )
        for one in operation.get("parameters", ())
    ]
    if rows:
        parts.append(table("parameter, in, type, default, meaning", rows).rstrip())
    if body := operation.get("requestBody"):
        kinds = "; ".join(f"`{media}` {_kind(page, content['schema'])}" for media, content in body["content"].items())
        parts.append(f"Body: {kinds}.")
    parts.append(f"Answers: {'; '.join(_answers(page, operation['responses']))}.")
    return "\n\n".join(parts) + "\n"


def _answers(page: str, responses: Json) -> Iterator[str]:
    """Yield what is answered where it is well, then the codes of refusals."""
    refused = []
    for code, answer in sorted(responses.items()):
        if code >= "400" and not _is_own(answer):
            refused.append(code)
            continue
        kinds = " or ".join(
            filter(None, (_kind(page, one.get("schema", {})) for one in answer.get("content", {}).values()))
        )
        told = answer["description"].rstrip(".")
        yield " ".join(filter(None, (code, kinds, "" if told == "Successful Response" else f"({told})")))
    if refused:
        yield f"[refused](http-api.md#codes-of-refusals) with {', '.join(refused)}"


def _is_own(answer: Json) -> bool:
    return any("Problem" not in str(content) for content in answer.get("content", {}).values())


def scopes() -> str:
    """Every route, and which scopes open it."""
    return table(
        f"route, {', '.join(f'`{scope}`' for scope in KeyScope)}",
        (
            (f"`{method} {path}`", *(_opens(scope, method, path) for scope in KeyScope))
            for method, path, _ in sorted(routes(), key=lambda route: (route[1], route[0]))
            if path not in OPEN_PATHS
        ),
    )


def _opens(scope: KeyScope, method: str, path: str) -> str:
    opening = opening_of(method, path)
    return "part" if scope in opening.in_part else "yes" if scope in opening.scopes else ""


def resources() -> str:
    """Every page with its routes."""
    return table(
        "page, routes",
        (
            (
                f"[{name}](http-{name}.md)",
                ", ".join(f"`{method} {path}`" for method, path, _ in routes() if page_of(path) == name),
            )
            for name in RESOURCES
        ),
    )


# --- objects ----------------------------------------------------------------------------------------------------


def objects(page: str) -> str:
    """Every object that stands on a page: its fields with type, default and meaning."""
    return "\n".join(
        _object(page, name, openapi()["components"]["schemas"][name])
        for name, place in sorted(places().items())
        if place == page
    )


@functools.cache
def places() -> Mapping[str, str]:
    """Return the page of every object that has fields."""
    schemas = openapi()["components"]["schemas"]
    shown = {
        name
        for name, schema in schemas.items()
        if schema.get("properties") and not name.startswith(("HTTPValidation", "Validation_", *ELSEWHERE))
    }
    reached: dict[str, list[str]] = {name: [] for name in RESOURCES}
    for _, path, operation in routes():
        reached[page_of(path)] += _named(operation)
    found = dict(OF_ALL)
    while any(reached.values()):
        for page, names in reached.items():
            for name in names:
                found.setdefault(name, page)
        reached = {
            page: [below for name in names for below in _named(schemas[name]) if below not in found]
            for page, names in reached.items()
        }
    return {name: found.get(name, OTHERS) for name in shown}


def _named(schema: Any) -> list[str]:
    """Return the names of the objects that a part of the document refers to itself."""
    return re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(schema))


def _object(page: str, name: str, schema: Json) -> str:
    required = set(schema.get("required", ()))
    rows = (
        (
            f"`{field}`",
            _kind(page, one) or "JSON",
            "required" if field in required else _shown_default(one),
            one.get("description", ""),
        )
        for field, one in schema["properties"].items()
    )
    about = " ".join(inspect.cleandoc(schema.get("description", "")).split())
    return f"### {name}\n\n{about}\n\n{table('field, type, default, meaning', rows)}"


def _shown_default(schema: Json) -> str:
    value = schema.get("default")
    return "" if value is None else f"`{json.dumps(value)}`"


def _kind(page: str, schema: Json) -> str:
    """Return the type of a schema in a word or a few: a link for one of the objects of these pages."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name == "Json":
            return "JSON"
        if name in ELSEWHERE:
            return f"[{name}]({ELSEWHERE[name]})"
        place = places().get(name)
        if place is None:
            return _kind(page, openapi()["components"]["schemas"].get(name, {})) or name
        return f"[{name}]({'' if place == page else f'http-{place}.md'}#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            kinds = list(dict.fromkeys(filter(None, (_kind(page, one) for one in schema[key]))))
            return " or ".join(kind for kind in kinds if kind != "null") + (" or null" if "null" in kinds else "")
    kind = schema.get("format") or schema.get("type", "")
    if schema.get("type") == "array":
        return f"array of {_kind(page, schema.get('items', {})) or 'JSON'}"
    if isinstance(kind, list):
        return " or ".join(kind)
    bounds = [
        f"{sign} {schema[key]:g}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if _is_small(schema, key)
    ]
    return f"{kind} {', '.join(bounds)}".strip()


def _is_small(schema: Json, key: str) -> bool:
    return key in schema and abs(schema[key]) < 2**31 - 1
