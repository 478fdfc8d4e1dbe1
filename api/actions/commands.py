"""`planq act`: cancel, pause, resume or retry all jobs that a filter selects."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from planq.api.cli.connection import AsJson, CommandClient, api_command
from planq.api.cli.console import as_line, err, out, print_json
from planq.api.cli.outcome import NOT_OK, OK, end
from planq.api.jobs.commands.status import filter_options, job_filter
from planq.shared.subjects.jobs.selection import ActionStatus, JobAct, takes

_POLL_SECONDS = 0.5


@api_command
@takes(filter_options(), before="repeat_unsafe")
def act(
    client: CommandClient,
    what: Annotated[JobAct, typer.Argument(metavar="cancel|pause|resume|retry", help="What is done to each job.")],
    repeat_unsafe: Annotated[
        bool, typer.Option("--repeat-unsafe", help="A retry repeats calls that may have taken effect, too.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the jobs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until it is done.")] = True,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Do something to all jobs that fit; child jobs end and go on with those above them.

    It says how many there are and asks first. Workers carry it out, also when this command is interrupted. Exit code
    1 where a job refused it, or nobody said yes.
    """
    wanted = job_filter(options)
    body: dict[str, Any] = {"act": what.value, "filter": wanted, "repeat_unsafe": repeat_unsafe}
    counted = client.ask("POST", "job-actions", body={**body, "dry_run": True})
    selected = f"{counted['count']}{' or more' if counted['or_more'] else ''}"
    if dry_run:
        print_json(counted) if as_json else out.print(f"{selected} to {what.value}")
        return
    if not yes and not typer.confirm(f"{what.value} {selected} jobs?", err=True):
        end(NOT_OK)
    action = client.ask("POST", "job-actions", body=body)
    err.print(f"job action {action['id']}", style="dim")
    while wait and action["status"] == ActionStatus.RUNNING:
        time.sleep(_POLL_SECONDS)
        action = client.ask("GET", "job-actions", action["id"])
    _show(action, as_json=as_json)
    end(NOT_OK if action["refused"] else OK)


def _show(action: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(action)
        return
    out.print(
        f"{action['status']}: {action['done']} changed, {action['unchanged']} had gone on, "
        f"{action['refused']} refused"
    )
    for one in action["problems"]:
        out.print(f"- {one['job_id']} {one['code']}: {as_line(one['message'], 200)}")
