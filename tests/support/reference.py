"""Writes the reference pages of docs/ from the code: `make docs`. A test compares them with what this gives.

A page is prose with blocks between two marks. What stands inside a block comes from one place in the code: settings
from `shared/settings/settings.py`, errors from `shared/platform/errors.py` and `api/http/exchange.py`, the command
line from typer, the HTTP API from its OpenAPI document (`http_reference.py`).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from typer.main import get_command

from planq.api.http.exchange import STATUS_OF
from planq.deploy.cli.main import create_app as create_cli
from planq.shared.platform import errors
from planq.shared.platform.errors import PlanqError
from planq.shared.settings.environment import variables_of
from planq.shared.settings.settings import Settings
from planq.shared.subjects.tenants.config import TenantConfig
from tests.support import http_reference
from tests.support.markdown import plain, table

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(<!-- made by `make docs`: (\w+)(?: (\w+))? -->\n).*?(<!-- end -->\n)", re.DOTALL)
UNITS = {"seconds": "s", "days": "days", "bytes": "bytes", "chars": "characters", "tokens": "tokens", "hosts": ""}

Json = Mapping[str, Any]


# --- settings ---------------------------------------------------------------------------------------------------


def settings() -> str:
    """Every setting: its variables, default, unit, what is allowed, and its meaning."""
    return table(
        "variable, default, unit, allowed, meaning",
        (
            (
                ", ".join(f"`{name}`" for name in variables_of(field)),
                plain(info.get_default(call_default_factory=True)),
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


def statuses() -> str:
    """Every HTTP status of a refusal, and the codes that come with it."""
    codes: dict[int, list[str]] = {}
    for kind in raised_errors():
        codes.setdefault(_status(kind), []).append(f"`{kind.code}`")
    return table("status, codes", ((str(status), ", ".join(codes[status])) for status in sorted(codes)))


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
    """Return the two parts of a docstring: what the error means, and what to do."""
    meaning, _, todo = " ".join((kind.__doc__ or "").split()).partition(" To do: ")
    return meaning, todo[:1].upper() + todo[1:]


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
    return plain(getattr(default, "value", default))


# --- pages ------------------------------------------------------------------------------------------------------

BLOCKS: Mapping[str, Callable[..., str]] = {
    "settings": settings,
    "tenant_fields": tenant_fields,
    "error_codes": error_codes,
    "statuses": statuses,
    "commands": commands,
    "resources": http_reference.resources,
    "endpoints": http_reference.endpoints,
    "scopes": http_reference.scopes,
    "objects": http_reference.objects,
}
PAGES = ("settings.md", "errors.md", "cli.md", "http-api.md", "tenants.md", "scopes.md", *http_reference.PAGES)


def renewed(text: str) -> str:
    """Return a page with every block made anew."""

    def made(found: re.Match[str]) -> str:
        block = BLOCKS[found[2]]
        return f"{found[1]}\n{block(found[3]) if found[3] else block()}\n{found[4]}"

    return BLOCK.sub(made, text)


def main() -> None:
    """Write the pages."""
    for name in PAGES:
        page = DOCS / name
        page.write_text(renewed(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
