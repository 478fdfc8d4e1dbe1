"""Writes the reference pages of docs/ from the code: `make docs`. A test compares them with what this gives.

A page is prose with blocks between two marks. What stands inside a block comes from one place in the code: settings
from `shared/settings.py`, errors from `shared/domain/errors.py` and `api/http.py`, the command line from typer, the
HTTP API from its OpenAPI document.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from typer.main import get_command

from planq.api.access import opening_of
from planq.api.app import create_api
from planq.api.http import STATUS_OF
from planq.api.middleware import OPEN_PATHS
from planq.deploy.cli.main import create_app as create_cli
from planq.shared.domain import errors
from planq.shared.domain.errors import PlanqError
from planq.shared.domain.tenants.config import TenantConfig
from planq.shared.domain.tenants.keys import KeyScope
from planq.shared.environment import variables_of
from planq.shared.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(<!-- made by `make docs`: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
UNITS = {"seconds": "s", "days": "days", "bytes": "bytes", "chars": "characters", "tokens": "tokens", "hosts": ""}

Json = Mapping[str, Any]


def table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; `head` names the columns, separated by commas."""
    columns = head.split(", ")
    lines = [columns, ["---"] * len(columns), *(map(_cell, row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# --- settings ---------------------------------------------------------------------------------------------------


def settings() -> str:
    """Every setting: its variables, default, unit, what is allowed, and its meaning."""
    return table(
        "variable, default, unit, allowed, meaning",
        (
            (
                ", ".join(f"`{name}`" for name in variables_of(field)),
                _default(info.default),
                UNITS.get(field.rpartition("_")[2], ""),
                _allowed(info),
                info.description or "",
            )
            for field, info in Settings.model_fields.items()
        ),
    )


def tenant_fields() -> str:
    """Every field of a tenant's configuration: its default, what is allowed, and its meaning."""
    return table(
        "field, default, allowed, meaning",
        (
            (
                f"`{name}`",
                _json_default(info.get_default(call_default_factory=True)),
                _allowed(info),
                info.description or "",
            )
            for name, info in TenantConfig.model_fields.items()
        ),
    )


def _json_default(value: Any) -> str:
    return "" if isinstance(value, BaseModel) else f"`{json.dumps(value)}`"


def _default(value: Any) -> str:
    if value in ("", None):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:.15g}`" if isinstance(value, float) else f"`{value}`"


def _allowed(info: Any) -> str:
    annotation = info.annotation
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation) if choice)
    if annotation is bool:
        return "`true`, `false`"
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    bounds = [(sign, getattr(rule, name)) for rule in info.metadata for name, sign in signs if hasattr(rule, name)]
    return ", ".join(f"{sign} {bound:,}".replace(",", " ") for sign, bound in bounds)


# --- errors -----------------------------------------------------------------------------------------------------


def error_codes() -> str:
    """Every error code: its HTTP status, whether a retry may help, its meaning and what to do."""
    return table(
        "code, HTTP, retryable, meaning, what to do",
        (
            (f"`{kind.code}`", str(_status(kind)), "yes" if kind.retryable else "no", *_meaning(kind))
            for kind in raised_errors()
        ),
    )


def raised_errors() -> Iterator[type[PlanqError]]:
    """Yield every class of the tree that has a code of its own, in the order of the tree."""
    known: set[str] = set()
    for kind in _below(PlanqError):
        if kind.__module__ == errors.__name__ and _meaning(kind)[1] and kind.code not in known:
            known.add(kind.code)
            yield kind


def _below(kind: type[PlanqError]) -> Iterator[type[PlanqError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


def _status(kind: type[PlanqError]) -> int:
    return next((STATUS_OF[one] for one in kind.__mro__ if one in STATUS_OF), 503)


def _meaning(kind: type[PlanqError]) -> tuple[str, str]:
    """Return the two first paragraphs of a docstring: what the error means, and what to do."""
    paragraphs = (inspect.cleandoc(kind.__doc__ or "")).split("\n\n")
    todo = next((one.removeprefix("To do: ") for one in paragraphs if one.startswith("To do: ")), "")
    return paragraphs[0], todo[:1].upper() + todo[1:]


# --- command line -----------------------------------------------------------------------------------------------

COMMON = {"--url", "--api-key", "--json"}
PLANQ: Any = get_command(create_cli())
CONTEXT = PLANQ.context_class(PLANQ)


def commands() -> str:
    """Every command: how it is called, what it does, its arguments and options."""
    return "\n".join(_command(words, command) for words, command in cli_commands().items())


def cli_commands() -> dict[str, Any]:
    """Return every command by its words: `jobs`, `knowledge load`."""
    found: dict[str, Any] = {}
    for name, command in PLANQ.commands.items():
        for below, inner in getattr(command, "commands", {"": command}).items():
            found[f"{name} {below}".strip()] = inner
    return found


def _command(words: str, command: Any) -> str:
    own = [one for one in command.params if not COMMON & set(one.opts) and one.name != "help"]
    arguments = [one for one in own if one.param_type_name == "argument"]
    options = [one for one in own if one.param_type_name == "option"]
    usage = " ".join([f"planq {words}", *(_argument(one) for one in arguments), *(["[OPTIONS]"] if options else [])])
    common = sorted(COMMON & {name for one in command.params for name in one.opts})
    parts = [f"### `{usage}`", inspect.cleandoc(command.help or "")]
    if rows := [
        (_names(one), _shown_default(one), getattr(one, "help", None) or "") for one in (*arguments, *options)
    ]:
        parts.append(table("argument or option, default, meaning", rows).rstrip())
    if common:
        parts.append("Also " + ", ".join(f"`{name}`" for name in common) + ".")
    return "\n\n".join(parts) + "\n"


def _argument(one: Any) -> str:
    name = (one.metavar or one.name or "").upper().strip("[].")
    name = f"{name}..." if one.nargs == -1 else name
    return name if one.required else f"[{name}]"


def _names(one: Any) -> str:
    if one.param_type_name == "argument":
        return f"`{_argument(one).strip('[]')}`"
    names = " / ".join((*one.opts, *one.secondary_opts))
    is_flag = getattr(one, "is_flag", False)
    kind = one.metavar or one.display_type(CONTEXT).strip("<>")
    kind = kind.removesuffix(" range").removeprefix("list[").removesuffix("]").upper()
    return f"`{names}`" if is_flag else f"`{names} {kind}`"


def _shown_default(one: Any) -> str:
    default = one.default
    if default is None or default == "" or callable(default) or one.required:
        return ""
    return _default(getattr(default, "value", default))


# --- HTTP -------------------------------------------------------------------------------------------------------


@functools.cache
def openapi() -> Json:
    """Return the OpenAPI document of an API with default settings."""
    return create_api(Settings(database_url="postgresql://none", broker_url="redis://none")).openapi()


def endpoints() -> str:
    """Every endpoint: what it does, its parameters, its body, and its answers."""
    return "\n".join(
        _endpoint(method.upper(), path, operation)
        for path, methods in openapi()["paths"].items()
        for method, operation in methods.items()
    )


def _endpoint(method: str, path: str, operation: Json) -> str:
    parts = [f"### `{method} {path}`", inspect.cleandoc(operation["description"])]
    rows = [
        (f"`{one['name']}`", one["in"], _kind(one["schema"]), one.get("description", ""))
        for one in operation.get("parameters", ())
    ]
    if rows:
        parts.append(table("parameter, in, type, meaning", rows).rstrip())
    if body := operation.get("requestBody"):
        kinds = "; ".join(f"`{media}` {_kind(content['schema'])}" for media, content in body["content"].items())
        parts.append(f"Body: {kinds}.")
    parts.append(f"Answers: {'; '.join(_answers(operation['responses']))}.")
    return "\n\n".join(parts) + "\n"


def _answers(responses: Json) -> Iterator[str]:
    """Yield what is answered where it is well, then the codes of refusals."""
    refused = []
    for code, answer in sorted(responses.items()):
        if code >= "400" and not _is_own(answer):
            refused.append(code)
            continue
        kinds = " or ".join(
            filter(None, (_kind(one.get("schema", {})) for one in answer.get("content", {}).values()))
        )
        told = answer["description"].rstrip(".")
        yield " ".join(filter(None, (code, kinds, "" if told == "Successful Response" else f"({told})")))
    if refused:
        yield f"refused with {', '.join(refused)}"


def _is_own(answer: Json) -> bool:
    return any("Problem" not in str(content) for content in answer.get("content", {}).values())


def scopes() -> str:
    """Every route, and which scopes open it."""
    return table(
        f"route, {', '.join(f'`{scope}`' for scope in KeyScope)}",
        (
            (f"`{method.upper()} {path}`", *(_opens(scope, method.upper(), path) for scope in KeyScope))
            for path, methods in sorted(openapi()["paths"].items())
            for method in sorted(methods)
            if path not in OPEN_PATHS
        ),
    )


def _opens(scope: KeyScope, method: str, path: str) -> str:
    opening = opening_of(method, path)
    return "part" if scope in opening.in_part else "yes" if scope in opening.scopes else ""


def objects() -> str:
    """Every object that goes over the wire: its fields with type and meaning."""
    schemas = openapi()["components"]["schemas"]
    return "\n".join(
        _object(name, schema)
        for name, schema in sorted(schemas.items())
        if schema.get("properties") and not name.startswith(("HTTPValidation", "Validation_"))
    )


def _object(name: str, schema: Json) -> str:
    required = set(schema.get("required", ()))
    rows = (
        (f"`{field}`{'' if field in required else ' (optional)'}", _kind(one) or "JSON", one.get("description", ""))
        for field, one in schema["properties"].items()
    )
    about = " ".join(inspect.cleandoc(schema.get("description", "")).split())
    return f"### {name}\n\n{about}\n\n{table('field, type, meaning', rows)}"


def _kind(schema: Json) -> str:
    """Return the type of a schema in a word or a few: a link for one of the objects of this page."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name == "Json":
            return "JSON"
        found = openapi()["components"]["schemas"].get(name, {})
        return f"[{name}](#{name.lower()})" if found.get("properties") else _kind(found) or name
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            kinds = list(dict.fromkeys(filter(None, map(_kind, schema[key]))))
            return " or ".join(kind for kind in kinds if kind != "null") + (" or null" if "null" in kinds else "")
    kind = schema.get("format") or schema.get("type", "")
    if schema.get("type") == "array":
        return f"array of {_kind(schema.get('items', {})) or 'JSON'}"
    if isinstance(kind, list):
        return " or ".join(kind)
    bounds = [
        f"{sign} {schema[key]:g}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if _is_small(schema, key)
    ]
    return f"{kind} {', '.join(bounds)}".strip()


def _is_small(schema: Json, key: str) -> bool:
    return key in schema and abs(schema[key]) < 2**31 - 1


# --- pages ------------------------------------------------------------------------------------------------------

BLOCKS: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "tenant_fields": tenant_fields,
    "error_codes": error_codes,
    "commands": commands,
    "endpoints": endpoints,
    "scopes": scopes,
    "objects": objects,
}
PAGES = ("settings.md", "errors.md", "cli.md", "http-api.md", "tenants.md", "scopes.md")


def renewed(text: str) -> str:
    """Return a page with every block made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n{found[3]}", text)


def main() -> None:
    """Write the pages."""
    for name in PAGES:
        page = DOCS / name
        page.write_text(renewed(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
