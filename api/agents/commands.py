"""`planq agents`: agents and skills as files, stored by the API.

NAME.yaml  NAME.yml  NAME.json    an agent; the document contains its name
skills/NAME.md                    a skill; also NAME.md if the file itself is an argument
NAME/SKILL.md                     a skill
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planq.api.cli.connection import AsJson, CommandClient, api_command
from planq.api.cli.console import as_line, document_yaml, err, out, plain, print_columns, print_json
from planq.api.cli.outcome import NOT_OK, end
from planq.shared.platform.errors import InvalidRequest
from planq.shared.platform.values.defects import Defect

if TYPE_CHECKING:
    from planq.api.cli.reading import FoundFile

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
        with client.opened("skills", name, version=version) as response:
            text = response.read().decode()
        print_json({"name": name, "text": text}) if as_json else out.print(text)
        return
    found = client.ask("GET", "agents", name, version=version)
    if as_json:
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
    stored_now = {("agent_missing", one["name"]) for one in applied if one["kind"] == "agent"}
    for kept in applied:
        found = kept["warnings"]
        kept["warnings"] = [warning for warning in found if (warning["code"], warning.get("name")) not in stored_now]
    return applied


def _agent_row(agent: dict[str, Any]) -> list[str]:
    mode = "structured" if agent["output_mode"] == "object" else "text"
    able = ", ".join([*agent["tools"], *(f"skill {name}" for name in agent["skills"])])
    version = f"version {agent['version']}"
    return ["agent", agent["name"], version, mode, as_line(able, 60), as_line(agent["description"], 60)]


_MAX_BYTES = 2 * 1024 * 1024
"""Read of a file; what is valid is far shorter."""

_MEDIA_TYPES = {".yaml": "application/yaml", ".yml": "application/yaml", ".json": "application/json"}


@dataclass(frozen=True, slots=True)
class PreparedDocument:
    """A document that can be sent: `kind` is `agents` or `skills`, as in its address."""

    kind: str
    name: str
    body: bytes
    media_type: str
    source: str


def prepare(paths: Iterable[Path]) -> tuple[Sequence[PreparedDocument], Sequence[Defect]]:
    """Read every agent and skill in these files and folders; skills come first, for agents list them.

    Returns what can be sent and everything that is wrong; other files in a folder are passed over.
    """
    from planq.api.cli.reading import find_files

    named = {path.resolve() for path in paths if path.is_file()}
    ready: dict[tuple[str, str], PreparedDocument] = {}
    defects: list[Defect] = []
    for found in find_files(paths):
        is_named = found.path.resolve() in named
        kind = _kind(found.path, is_named=is_named)
        if kind is None:
            if is_named:
                message = "expected .yaml, .yml or .json (an agent) or .md (a skill)"
                defects.append(_file_defect(found.source, message))
            continue
        one = _read(found, kind, defects)
        if one is None:
            continue
        earlier = ready.setdefault((one.kind, one.name), one)
        if earlier is not one:
            defects.append(_file_defect(one.source, f"{one.name!r} stands in {earlier.source} already"))
    return sorted(ready.values(), key=lambda one: (one.kind != "skills", one.name)), defects


def _kind(path: Path, *, is_named: bool) -> str | None:
    if path.suffix.lower() in _MEDIA_TYPES:
        return "agents"
    is_skill = path.name == "SKILL.md" or path.parent.name == "skills" or is_named
    return "skills" if path.suffix.lower() == ".md" and is_skill else None


def _read(found: FoundFile, kind: str, defects: list[Defect]) -> PreparedDocument | None:
    if found.reason is not None:
        defects.append(_file_defect(found.source, found.reason))
        return None
    try:
        with found.path.open("rb") as file:
            body = file.read(_MAX_BYTES + 1)
    except OSError as error:
        defects.append(_file_defect(found.source, f"cannot be read ({error.strerror})"))
        return None
    try:
        return _checked(found, kind, body)
    except InvalidRequest as error:
        defects += _defects(found.source, error)
        return None


def _checked(found: FoundFile, kind: str, body: bytes) -> PreparedDocument:
    from planq.shared.agentic.agents.checks import parse_skill
    from planq.shared.agentic.agents.document import parse_agent

    if kind == "agents":
        document = parse_agent(body)
        return PreparedDocument(kind, document.name, body, _MEDIA_TYPES[found.path.suffix.lower()], found.source)
    path = found.path
    skill = parse_skill(path.parent.name if path.name == "SKILL.md" else path.stem, body)
    return PreparedDocument(kind, skill.name, skill.text.encode(), "text/markdown", found.source)


def _defects(source: str, error: InvalidRequest) -> Iterator[Defect]:
    errors = error.details.get("errors") or [{"message": error.message}]
    for one in errors:
        yield Defect(one.get("path") or "", "", one["message"], one.get("line"), source)


def _file_defect(source: str, message: str) -> Defect:
    return Defect("", "", message, file=source)
