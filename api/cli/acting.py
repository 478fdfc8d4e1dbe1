"""`planq act`: cancel, pause, resume or retry all jobs that a filter selects."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from planq.api.cli.connection import ApiKey, AsJson, Url, connect
from planq.api.cli.console import as_line, err, out, print_json
from planq.api.cli.outcome import NOT_OK, OK, end, reported
from planq.shared.domain.jobs.states import JobStatus, Priority, Strategy
from planq.shared.domain.overview.selection import ActionStatus, JobAct

_POLL_SECONDS = 0.5


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(act)


def act(
    what: Annotated[JobAct, typer.Argument(metavar="cancel|pause|resume|retry", help="What is done to each job.")],
    status: Annotated[JobStatus | None, typer.Option(help="Only jobs in this state.", show_default=False)] = None,
    strategy: Annotated[
        Strategy | None, typer.Option(help="Only jobs with this strategy.", show_default=False)
    ] = None,
    priority: Annotated[
        Priority | None, typer.Option(help="Only jobs with this priority.", show_default=False)
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this agent.")] = None,
    batch: Annotated[str | None, typer.Option(metavar="ID", help="Only jobs of this batch.")] = None,
    words: Annotated[str | None, typer.Option(help="Only jobs in whose input this stands.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only jobs with this in their metadata; repeatable.")
    ] = None,
    older_than: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Only jobs that were submitted before then.")
    ] = None,
    newer_than: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Only jobs that were submitted since then.")
    ] = None,
    before: Annotated[str | None, typer.Option(metavar="TIME", help="Only jobs submitted before this.")] = None,
    after: Annotated[str | None, typer.Option(metavar="TIME", help="Only jobs submitted since this.")] = None,
    min_cost: Annotated[
        float | None, typer.Option(metavar="USD", min=0, help="Only jobs that have cost so much.")
    ] = None,
    repeat_unsafe: Annotated[
        bool, typer.Option("--repeat-unsafe", help="A retry repeats calls that may have taken effect, too.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the jobs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until it is done.")] = True,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Do something to all jobs that fit; child jobs end and go on with those above them.

    It says how many there are and asks first. Workers carry it out, also when this command is interrupted. Exit code
    1 where a job refused it, or nobody said yes.
    """
    from planq.api.cli.inputs import pairs_of

    given = {
        "status": status and status.value,
        "strategy": strategy and strategy.value,
        "priority": priority and priority.value,
        "agent": agent,
        "batch_id": batch,
        "words": words,
        "metadata": dict(pairs_of(metadata, "--metadata")) if metadata else None,
        "older_than_seconds": older_than,
        "newer_than_seconds": newer_than,
        "created_before": before,
        "created_after": after,
        "min_cost_usd": min_cost,
    }
    with reported(as_json=as_json):
        body: dict[str, Any] = {
            "act": what.value,
            "filter": {name: value for name, value in given.items() if value is not None},
            "repeat_unsafe": repeat_unsafe,
        }
        with connect(url, api_key) as client:
            counted = client.act({**body, "dry_run": True})
            told = f"{counted['count']}{' or more' if counted['or_more'] else ''}"
            if dry_run:
                print_json(counted) if as_json else out.print(f"{told} to {what.value}")
                return
            if not yes and not typer.confirm(f"{what.value} {told} jobs?", err=True):
                end(NOT_OK)
            action = client.act(body)
            err.print(f"job action {action['id']}", style="dim")
            while wait and action["status"] == ActionStatus.RUNNING:
                time.sleep(_POLL_SECONDS)
                action = client.action(action["id"])
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
