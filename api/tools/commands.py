"""`planq tools`, `validate`: what the workers can do, and what is wrong with a plan that uses it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planq.api.cli.connection import AsJson, CommandClient, api_command
from planq.api.cli.console import as_line, err, out, plain, print_columns, print_json
from planq.api.cli.outcome import NOT_OK, OK, describe_defect, end
from planq.shared.platform.errors import NotFound
from planq.shared.platform.values.pointers import array_index, from_pointer

if TYPE_CHECKING:
    from planq.shared.agentic.source import DocumentSource


@api_command
def tools(
    client: CommandClient,
    name: Annotated[str | None, typer.Argument(help="Show this tool's schemas.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """List the published tools, or show one of them."""
    found = client.ask("GET", "tools")["items"]
    tool = None if name is None else _named(name, found)
    if as_json:
        print_json({"items": found} if tool is None else tool)
    elif tool is not None:
        _show(tool)
    elif found:
        print_columns([_row(one) for one in found])
    else:
        err.print("no worker has published a tool yet; is one running? `planq doctor` tells")
        end(NOT_OK)


def _named(name: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tool that a name stands for, in any accepted spelling (docs/decisions.md, D24)."""
    from planq.shared.agentic.tools.names import resolve_name, suggestion

    known = {tool["name"]: tool for tool in found}
    registered = resolve_name(name, known)
    if registered is None:
        published = ", ".join(sorted(known)) or "none"
        raise NotFound(f"there is no tool {name[:80]!r}; {suggestion(name, known)}published are {published}")
    return known[registered]


def _row(tool: dict[str, Any]) -> list[str]:
    return [tool["name"], tool["effect"], tool["pool"], as_line(tool["description"], 90)]


def _show(tool: dict[str, Any]) -> None:
    out.print(tool["name"], style="bold")
    out.print(tool["description"])
    facts = {
        "effect class": tool["effect"],
        "pool": tool["pool"],
        "timeout": f"{tool['timeout_seconds']:g} s",
        "retries": str(tool["retries"]),
        "skill": tool.get("skill_id") or "none",
        "comes from": tool.get("source") or "unknown",
    }
    print_columns([[f"  {label}", value] for label, value in facts.items()])
    for label, schema in (("input", tool["input_schema"]), ("output", tool.get("output_schema"))):
        out.print(f"{label} schema", style="bold")
        out.print(plain(json.dumps(schema, ensure_ascii=False, indent=2)))


@api_command
def validate(
    client: CommandClient,
    plan: Annotated[
        str, typer.Argument(metavar="FILE|-", help="The plan: JSON, or YAML in a .yaml file; - reads standard input.")
    ],
    as_json: AsJson = False,
) -> None:
    """Check a plan, in any of its forms, against the published tools.

    Prints every defect with its place (the file, the line of YAML, and a JSON pointer into it); exit code 1 when
    there is one.
    """
    from planq.api.cli.inputs import read_plan_file

    source = read_plan_file(plan)
    result = client.ask("POST", "plans", "validate", body={"plan": source.value})
    errors = result["errors"]
    if as_json:
        print_json(result)
    elif result["valid"]:
        out.print("the plan is valid", style="green")
        if result.get("dropped"):
            out.print(f"after its question or abort it is planned anew; steps left out: {result['dropped']}")
    else:
        out.print(f"the plan has {len(errors)} {'error' if len(errors) == 1 else 'errors'}", style="red")
        name = "standard input" if plan == "-" else plan
        for error in errors:
            line = _line(source, error.get("place") or "")
            at = f"{name}:{line}" if line else name
            place = f"{plain(at)}#{plain(error['place'])}: " if error.get("place") else ""
            out.print(f"- {place}{describe_defect(error)}")
    end(OK if result["valid"] else NOT_OK)


def _line(source: DocumentSource, place: str) -> int | None:
    path: tuple[str | int, ...] = ()
    value = source.value
    for token in from_pointer(place):
        at = array_index(token) if isinstance(value, list) else None
        path = (*path, token if at is None else at)
        if isinstance(value, list):
            value = value[at] if at is not None and at < len(value) else None
        else:
            value = value.get(token) if isinstance(value, dict) else None
    return source.defect(path, "").line
