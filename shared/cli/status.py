"""`planq status`: one job with its steps and its answer."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import typer

from shared.cli.connection import ApiKey, AsJson, Url, connect
from shared.cli.console import columns, err, one_line, out, print_json
from shared.cli.outcome import describe, end, reported
from shared.cli.submit import code_of, watch
from shared.domain.states import JobStatus, StepStatus

RESUMABLE = frozenset({JobStatus.COMPLETED, JobStatus.FAILED})


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(status)


def status(
    job_id: Annotated[UUID, typer.Argument(metavar="ID", help="The job's id.")],
    wait: Annotated[bool, typer.Option("--wait", help="Tell its progress and wait for its end.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Show a job: its steps, answer and cost.

    Exit code 1 when the job failed or was cancelled.
    """
    with reported(as_json=as_json), connect(url, api_key) as client:
        job = client.job(str(job_id))
        if wait:
            watch(client, job, as_json=as_json)
    if as_json:
        print_json(job)
    else:
        show(job)
    end(code_of(job))


def show(job: dict[str, Any]) -> None:
    """Print a job as it stands."""
    from shared.cli.progress import print_outcome, questions

    out.print(f"job {job['id']} {job['status']}{', paused' if job.get('paused_at') else ''}", style="bold")
    if job.get("forked_from"):
        out.print(f"forked from {job['forked_from']}")
    if job.get("input"):
        out.print(f"input: {one_line(job['input'], 200)}")
    for defect in job.get("plan_errors") or []:
        out.print(f"- {describe(defect)}", style="red")
    steps = job.get("steps") or []
    if steps:
        for line in columns([_row(step) for step in steps]):
            out.print(line)
    for step in steps:
        if large := step.get("output_ref"):
            size = large["bytes"] / 1024**2
            out.print(f"${step['index']} has {size:.1f} MB of output: planq output {job['id']} {step['index']}")
    for question in questions(job):
        out.print(question, style="yellow")
    print_outcome(job, out)
    _show_way_on(job)


def _show_way_on(job: dict[str, Any]) -> None:
    has_failures = any(step["status"] == StepStatus.FAILED for step in job.get("steps") or [])
    if job.get("paused_at"):
        err.print(f"paused; `planq resume {job['id']}` lets it go on", style="dim")
    elif job["status"] in RESUMABLE and has_failures:
        err.print(f"steps have failed; `planq resume {job['id']}` tries them again", style="dim")


def _row(step: dict[str, Any]) -> list[str]:
    after = ", ".join(f"${index}" for index in step.get("depends_on") or [])
    error = step.get("error") or {}
    note = one_line(error["message"], 120) if error.get("message") else ""
    attempt = step.get("attempt") or 0
    origin = step.get("reused_from") or {}
    return [
        f"${step['index']}",
        one_line(step["tool_name"]),
        step["status"],
        f"as in {origin['job_id']} ${origin['index']}" if origin else f"attempt {attempt}" if attempt > 1 else "",
        f"after {after}" if after else "",
        note,
    ]
