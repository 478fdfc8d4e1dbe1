"""`planq inbox`, `planq answer`: the questions that jobs put to people, and the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any
from uuid import UUID

import typer

from planq.api.cli.connection import ApiKey, AsJson, AtMost, Url, connect
from planq.api.cli.console import as_line, err, out, print_json, print_list, shown_json
from planq.api.cli.outcome import reported
from planq.shared.domain.errors import InvalidRequest
from planq.shared.domain.values.pointers import to_pointer

_CHANNEL = "cli"
_LONGEST_DEFAULT = 1_000


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(inbox)
    app.command()(answer)


def inbox(
    job: Annotated[
        UUID | None, typer.Option(metavar="ID", help="Only what this job and the jobs below it ask.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also questions that are closed.")] = False,
    limit: AtMost = 100,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """List the questions that wait for an answer, newest first."""
    with reported(as_json=as_json), connect(url, api_key) as client:
        about, status = None if job is None else str(job), None if everything else "open"
        page = client.elicitations(limit, job=about, status=status)
    print_list(page, _row, "nobody asks anything", as_json=as_json)


def answer(
    elicitation_id: Annotated[UUID, typer.Argument(metavar="ID", help="The id that `planq inbox` shows.")],
    content: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="The answers by name; else they are asked for here.")
    ] = None,
    decline: Annotated[bool, typer.Option("--decline", help="Say no.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Say that it is not to be answered.")] = False,
    reason: Annotated[str | None, typer.Option(help="Why; it is kept, and shown to who asked.")] = None,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who answers.")] = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question: accept it with its content, or --decline or --cancel it.

    Without --content each answer is asked for, as the question's schema wants it, and again after a wrong entry. Exit
    code 1 when somebody was faster, or the content breaks the schema; then the question stays open.
    """
    from planq.api.cli.inputs import json_or_file

    with reported(as_json=as_json):
        if decline + cancel + (content is not None) > 1:
            raise typer.BadParameter("expected one of --content, --decline and --cancel")
        body: dict[str, Any] = {"action": "decline" if decline else "cancel" if cancel else "accept"}
        body |= {name: value for name, value in (("reason", reason), ("by", by)) if value is not None}
        body["channel"] = _CHANNEL
        with connect(url, api_key) as client:
            if body["action"] == "accept":
                given = None if content is None else json_or_file(content, "the content")
                body["content"] = (
                    content_asked_for(client.elicitation(str(elicitation_id))) if content is None else given
                )
            answered = client.answer(str(elicitation_id), body)
    if as_json:
        print_json(answered)
    else:
        out.print(f"question {answered['id']} {answered['status']}")


def content_asked_for(question: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for the content of an answer, one property after the other; one left empty is left out unless required."""
    err.print(as_line(question["message"], 2_000), style="bold")
    if question["url"]:
        err.print(as_line(question["url"], 2_000))
    for name, value in (question["details"] or {}).items():
        err.print(f"  {as_line(name, 60)}: {as_line(value, 300)}", style="dim")
    return dict(_properties(question["schema"] or {}))


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    required = schema.get("required", ())
    for name, described in schema.get("properties", {}).items():
        wanted = described if isinstance(described, Mapping) else {}
        hint = wanted.get("enum") or wanted.get("type") or "JSON"
        shown = " | ".join(map(str, hint)) if isinstance(hint, list) else str(hint)
        told = f"{as_line(wanted.get('title') or name, 80)} ({as_line(shown, 200)})"
        if text := wanted.get("description"):
            err.print(as_line(text, 500), style="dim")
        default = wanted.get("default", "" if name not in required else None)
        while True:
            # What is taken by Enter is shown to the last character, and never by click, which prints it as it is.
            typed = typer.prompt(f"{told}{_shown_default(default)}", default=default, show_default=False, err=True)
            if typed == "" and name not in required:
                break
            try:
                value = _checked(_value(typed, wanted, name), schema, name)
            except InvalidRequest as error:
                err.print(as_line(error.message, 500), style="red")
                continue
            yield name, value
            break


def _shown_default(default: Any) -> str:
    if default in (None, ""):
        return ""
    is_clear = isinstance(default, str) and default == as_line(default, _LONGEST_DEFAULT)
    shown = default if is_clear else shown_json(default)
    return f" [{shown[:_LONGEST_DEFAULT]}{'…' if len(shown) > _LONGEST_DEFAULT else ''}]"


def _checked(value: Any, schema: Mapping[str, Any], name: str) -> Any:
    """Return one answer as it is; raises `InvalidRequest` where it breaks what the question's schema says of it."""
    from planq.shared.domain.questions.answering import content_defects

    place = "/content" + to_pointer((None, name))
    # References in the schema of one property may lead anywhere in the whole; that others are missing is not meant.
    found = content_defects({**schema, "required": []}, {name: value})
    mine = [defect["message"] for defect in found if (defect["pointer"] + "/").startswith(place + "/")]
    if mine:
        raise InvalidRequest(f"{name}: {'; '.join(mine)}")
    return value


def _value(typed: Any, wanted: Mapping[str, Any], name: str) -> Any:
    """Return what was typed as the schema wants it: a text as it stands, all else as JSON."""
    from planq.api.cli.inputs import parse_json

    choices = wanted.get("enum") or [None]
    if not isinstance(typed, str) or wanted.get("type") == "string" or all(isinstance(one, str) for one in choices):
        return typed
    if wanted.get("type") == "boolean" and typed.lower() in _BOOLEANS:
        return _BOOLEANS[typed.lower()]
    return parse_json(typed, name)


_BOOLEANS = {"y": True, "yes": True, "n": False, "no": False}


def _row(question: dict[str, Any]) -> list[str]:
    place = f"{question['job_id']} ${question['step_index']}"
    whom = question["asked_of"]
    return [question["id"], question["kind"], question["status"], whom, place, as_line(question["message"], 100)]
