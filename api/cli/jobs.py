"""`planq jobs`: the jobs, newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from api.cli.connection import ApiKey, AsJson, Url, connect
from api.cli.console import columns, err, one_line, out, print_json
from api.cli.outcome import reported
from shared.domain.states import JobStatus

PAGE = 100  # the API's largest page


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(jobs)


def jobs(
    status: Annotated[JobStatus | None, typer.Option(help="Only jobs in this state.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    children: Annotated[
        bool, typer.Option("--children", help="Also those that steps of other jobs have made.")
    ] = False,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with reported(as_json=as_json), connect(url, api_key) as client:
        found: list[dict[str, Any]] = []
        cursor = None
        while len(found) < limit:
            page = client.jobs(
                status=status.value if status else None,
                cursor=cursor,
                limit=min(PAGE, limit - len(found)),
                roots=None if children else True,
            )
            found += page["items"]
            cursor = page.get("next_cursor")
            if not cursor or not page["items"]:
                break
    if as_json:
        print_json({"items": found, "next_cursor": cursor})
    elif found:
        for line in columns([_row(job) for job in found]):
            out.print(line)
        if cursor:
            err.print("there are more; --limit shows them", style="dim")
    else:
        err.print("no jobs" + (f" are {status.value}" if status else " yet; `planq submit` makes one"))


def _row(job: dict[str, Any]) -> list[str]:
    begun = datetime.fromisoformat(job["created_at"]).astimezone()
    status = f"{job['status']}{', paused' if job.get('paused_at') else ''}"
    agent = f"{job['agent']['name']}: " if job.get("agent") else ""
    asked = job.get("input") or ("(an action)" if agent else "(a plan)")
    return [job["id"], f"{begun:%Y-%m-%d %H:%M:%S}", status, one_line(f"{agent}{asked}", 60)]
