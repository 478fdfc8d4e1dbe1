"""`planq tools`, `validate`: what the workers can do, and what is wrong with a plan that uses it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from api.cli.connection import ApiKey, AsJson, Url, connect
from api.cli.console import columns, err, one_line, out, plain, print_json
from api.cli.outcome import NOT_OK, OK, describe, end, reported
from shared.domain.errors import NotFound


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(validate)
    app.command()(tools)


def tools(
    name: Annotated[str | None, typer.Argument(help="Show this tool's schemas.", show_default=False)] = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """List the published tools, or show one of them."""
    with reported(as_json=as_json):
        with connect(url, api_key) as client:
            found = client.tools()
        tool = None if name is None else _named(name, found)
    if as_json:
        print_json({"items": found} if tool is None else tool)
    elif tool is not None:
        _show(tool)
    elif found:
        for line in columns([_row(one) for one in found]):
            out.print(line)
    else:
        err.print("no worker has published a tool yet; is one running? `planq doctor` tells")
        end(NOT_OK)


def _named(name: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tool that a name stands for, in any accepted spelling (docs/decisions.md, D24)."""
    from shared.domain.names import resolve_name, suggestion

    known = {tool["name"]: tool for tool in found}
    registered = resolve_name(name, known)
    if registered is None:
        published = ", ".join(sorted(known)) or "none"
        raise NotFound(f"there is no tool {name[:80]!r}; {suggestion(name, known)}published are {published}")
    return known[registered]


def _row(tool: dict[str, Any]) -> list[str]:
    return [tool["name"], tool["effect"], tool["lane"], one_line(tool["description"], 90)]


def _show(tool: dict[str, Any]) -> None:
    out.print(tool["name"], style="bold")
    out.print(tool["description"])
    facts = {
        "effect class": tool["effect"],
        "lane": tool["lane"],
        "timeout": f"{tool['timeout_seconds']:g} s",
        "retries": str(tool["retries"]),
        "skill": tool.get("skill_id") or "none",
        "comes from": tool.get("source") or "unknown",
    }
    for line in columns([[f"  {label}", value] for label, value in facts.items()]):
        out.print(line)
    for label, schema in (("input", tool["input_schema"]), ("output", tool.get("output_schema"))):
        out.print(f"{label} schema", style="bold")
        out.print(plain(json.dumps(schema, ensure_ascii=False, indent=2)))


def validate(
    plan: Annotated[str, typer.Argument(metavar="FILE|-", help="The plan (JSON); - reads standard input.")],
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Check a plan against the published tools.

    Prints every defect with its place; exit code 1 when there is one.
    """
    from api.cli.inputs import read_json

    with reported(as_json=as_json):
        document = read_json(plan, "the plan")
        with connect(url, api_key) as client:
            result = client.validate(document)
    errors = result["errors"]
    if as_json:
        print_json(result)
    elif result["valid"]:
        out.print("the plan is valid", style="green")
    else:
        out.print(f"the plan has {len(errors)} {'error' if len(errors) == 1 else 'errors'}", style="red")
        for error in errors:
            out.print(f"- {describe(error)}")
    end(OK if result["valid"] else NOT_OK)
