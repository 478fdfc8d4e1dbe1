"""`planq agents`: agents and skills as files, stored by the API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from planq.api.cli.connection import AsJson, CommandClient, api_command
from planq.api.cli.console import as_line, document_yaml, err, out, plain, print_columns, print_json
from planq.api.cli.outcome import NOT_OK, end

_AsSkill = Annotated[bool, typer.Option("--skill", help="A skill, not an agent.")]
_Name = Annotated[str, typer.Argument(help="The name of the agent, or of the skill with --skill.")]


@api_command
def apply_documents(
    client: CommandClient,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", exists=True, help="Files and folders.")],
    as_json: AsJson = False,
) -> None:
    """Store the agents (YAML, JSON) and skills (skills/NAME.md) of files and folders.

    Everything is checked first: any mistake is printed by file and line, and nothing is stored then. What has not
    changed keeps its version. Names of missing tools, skills and agents cause warnings, and are stored. Exit
    code 1 when something is wrong.
    """
    applied = _apply(client, paths, as_json=as_json)
    if as_json:
        print_json({"items": applied})
        return
    for one in applied:
        out.print(f"{one['kind']} {one['name']} version {one['version']}{'' if one['is_new'] else ' (unchanged)'}")
        for warning in one["warnings"]:
            err.print(plain(f"warning: {one['file']}: {warning['path']}: {warning['message']}"), style="yellow")


@api_command
def show_documents(client: CommandClient, as_json: AsJson = False) -> None:
    """List the agents and skills in use."""
    agents, skills = client.pages("agents").items, client.pages("skills").items
    if as_json:
        print_json({"agents": agents, "skills": skills})
        return
    rows = [_agent_row(one) for one in agents]
    rows += [
        ["skill", one["name"], f"version {one['version']}", f"{one['characters']} characters", "", ""]
        for one in skills
    ]
    if not rows:
        err.print("no agents and no skills yet; `planq agents apply` stores some")
    print_columns(rows)


@api_command
def show_document(
    client: CommandClient,
    name: _Name,
    version: Annotated[int | None, typer.Option(min=1, help="This version; else the newest in use.")] = None,
    skill: _AsSkill = False,
    as_json: AsJson = False,
) -> None:
    """Show an agent's document as YAML, or a skill's text: what `planq agents apply` takes."""
    if skill:
        text = client.skill(name, version)
    else:
        found = client.ask("GET", "agents", name, version=version)
    if skill:
        print_json({"name": name, "text": text}) if as_json else out.print(text)
    elif as_json:
        print_json(found)
    else:
        out.print(plain(document_yaml(found["document"])))
        retired = f", retired {found['retired_at']}" if found["retired_at"] else ""
        err.print(f"version {found['version']} of {found['created_at']}{retired}", style="dim")


@api_command
def retire_documents(
    client: CommandClient,
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of agents, or of skills with --skill.")],
    skill: _AsSkill = False,
) -> None:
    """Retire agents or skills: no new job may name them; jobs that have them go on."""
    kind = "skills" if skill else "agents"
    for name in names:
        client.remove(kind, name)
        out.print(f"{kind[:-1]} {name} retired")


def _apply(client: CommandClient, paths: list[Path], *, as_json: bool) -> list[dict[str, Any]]:
    from planq.api.agents.commands.files import prepare

    ready, defects = prepare(paths)
    if defects:
        if as_json:
            errors = [defect.of_file() for defect in defects]
            message = "; ".join(defect.render() for defect in defects)
            print_json({"error": {"code": "invalid_request", "message": message, "errors": errors}})
        for defect in () if as_json else defects:
            err.print(defect.render(), style="red")
        end(NOT_OK)
    if not ready:
        err.print("there is no agent (.yaml, .yml, .json) and no skill (skills/NAME.md) here", style="red")
        end(NOT_OK)
    applied = []
    for one in ready:
        stored, is_new = client.put(one.kind, one.name, one.body, one.media_type)
        applied.append(
            {
                "kind": one.kind[:-1],
                "name": one.name,
                "version": stored["version"],
                "is_new": is_new,
                "file": one.source,
                "warnings": stored.get("warnings") or [],
            }
        )
    for kept in applied:
        kept["warnings"] = [warning for warning in kept["warnings"] if not _came_with(warning, applied)]
    return applied


def _came_with(warning: dict[str, Any], applied: list[dict[str, Any]]) -> bool:
    """Return whether the agent that was missing has been stored since, by the same command."""
    return warning["code"] == "agent_missing" and warning["name"] in {
        one["name"] for one in applied if one["kind"] == "agent"
    }


def _agent_row(agent: dict[str, Any]) -> list[str]:
    mode = "structured" if agent["output_mode"] == "object" else "text"
    able = ", ".join([*agent["tools"], *(f"skill {name}" for name in agent["skills"])])
    version = f"version {agent['version']}"
    return ["agent", agent["name"], version, mode, as_line(able, 60), as_line(agent["description"], 60)]
