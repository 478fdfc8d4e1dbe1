"""`planq inbox`, `planq answer`: the questions that jobs put to people, and the answers."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import typer

from planq.api.cli.connection import AsJson, AtMost, CommandClient, api_command
from planq.api.cli.console import as_line, print_list, print_result
from planq.api.cli.form import content_asked_for

_CHANNEL = "cli"


@api_command
def inbox(
    client: CommandClient,
    job: Annotated[
        UUID | None, typer.Option(metavar="ID", help="Only what this job and the jobs below it ask.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also questions that are closed.")] = False,
    limit: AtMost = 100,
    as_json: AsJson = False,
) -> None:
    """List the questions that wait for an answer, newest first."""
    page = client.pages("elicitations", most=limit, job=job, status=None if everything else "open")
    print_list(page, _row, "nobody asks anything", as_json=as_json)


@api_command
def answer(
    client: CommandClient,
    question_id: Annotated[UUID, typer.Argument(metavar="ID", help="The id that `planq inbox` shows.")],
    content: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="The answers by name; else they are asked for here.")
    ] = None,
    decline: Annotated[bool, typer.Option("--decline", help="Say no.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Say that it is not to be answered.")] = False,
    reason: Annotated[str | None, typer.Option(help="Why; it is kept, and shown to who asked.")] = None,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who answers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question: accept it with its content, or --decline or --cancel it.

    Without --content each answer is asked for, as the question's schema wants it, and again after a wrong entry. Exit
    code 1 when somebody was faster, or the content breaks the schema; then the question stays open.
    """
    from planq.api.cli.inputs import json_or_file

    if decline + cancel + (content is not None) > 1:
        raise typer.BadParameter("expected one of --content, --decline and --cancel")
    body: dict[str, Any] = {"action": "decline" if decline else "cancel" if cancel else "accept"}
    body |= {name: value for name, value in (("reason", reason), ("by", by)) if value is not None}
    body["channel"] = _CHANNEL
    if body["action"] == "accept":
        if content is None:
            body["content"] = content_asked_for(client.ask("GET", "elicitations", question_id))
        else:
            body["content"] = json_or_file(content, "the content")
    answered = client.ask("POST", "elicitations", question_id, body=body)
    print_result(answered, f"question {answered['id']} {answered['status']}", as_json=as_json)


def _row(question: dict[str, Any]) -> list[str]:
    place = f"{question['job_id']} ${question['step_index']}"
    whom = question["asked_of"]
    return [question["id"], question["kind"], question["status"], whom, place, as_line(question["message"], 100)]
