"""`planq artifacts`, `artifact`: what a job has made, and one of it as a file."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from planq.api.cli.connection import AsJson, CommandClient, JobId, To, api_command
from planq.api.cli.console import as_line, err, print_items, write_pieces
from planq.shared.platform.errors import Misconfigured


@api_command
def artifacts(client: CommandClient, job_id: JobId, as_json: AsJson = False) -> None:
    """List what a job has made, every version, in the order of its steps."""
    found = client.ask("GET", "jobs", job_id, "artifacts")
    print_items(found, _row, "this job has made no artifacts", as_json=as_json)
    if found["items"] and not as_json:
        err.print("`planq artifact ID --to FILE` keeps one", style="dim")


def _row(made: dict[str, Any]) -> list[str]:
    kind = made.get("media_type") or made.get("type") or "JSON"
    tool, model = made["tool_name"], (made["metadata"] or {}).get("model")
    return [
        as_line(made["artifact_id"], 255),
        f"version {made['version']}",
        as_line(kind),
        f"{made['bytes']} bytes",
        as_line(str(model)) if tool is None else f"${made['step_index']} {as_line(tool)}",
    ]


@api_command
def artifact(
    client: CommandClient,
    artifact_id: Annotated[str, typer.Argument(metavar="ID", help="The `artifact_id`.", show_default=False)],
    version: Annotated[
        int | None, typer.Option(min=1, help="Which version; the newest by default.", show_default=False)
    ] = None,
    to: To = None,
) -> None:
    """Get an artifact as it was made: JSON, or the bytes of a file.

    On a terminal texts are shown without what could steer the terminal; of other bytes --to makes a file.
    """
    with client.artifact(artifact_id, version) as (media_type, pieces):
        is_text = media_type.startswith(("text/", "application/json"))
        if to is None and not is_text and sys.stdout.isatty():
            raise Misconfigured(f"the artifact is {as_line(media_type)}, which no terminal shows; add --to FILE")
        write_pieces(pieces, to)
