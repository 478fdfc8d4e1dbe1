"""`planq cancel`, `pause`, `resume`, `fork`, `settle`: a job that is ended, held, taken up again, or begun anew."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from planq.api.cli.connection import AsJson, CommandClient, JobId, api_command
from planq.api.cli.console import as_line, err, print_columns, print_json, print_result, shown_status
from planq.api.jobs.commands.submit import show_submitted, watch_job


class CallOutcome(StrEnum):
    """What a person can say about a call that was cut off; the API's words, as one types them."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did-not-happen"
    UNKNOWN = "unknown"


@api_command
def cancel(client: CommandClient, job_id: JobId, as_json: AsJson = False) -> None:
    """Cancel a job: no new step starts.

    Exit code 1 when the job has completed or failed already.
    """
    job = client.ask("POST", "jobs", job_id, "cancel")
    _show(job, as_json=as_json)


@api_command
def pause(client: CommandClient, job_id: JobId, as_json: AsJson = False) -> None:
    """Pause a job: nothing of it is begun until it is resumed; what runs goes on to its end.

    Exit code 1 when the job has ended.
    """
    job = client.ask("POST", "jobs", job_id, "pause")
    _show(job, as_json=as_json)


@api_command
def resume(
    client: CommandClient,
    job_id: JobId,
    repeat_unsafe: Annotated[
        bool, typer.Option("--repeat-unsafe", help="Repeat also calls of unsafe tools that may have taken effect.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let a paused job go on, or one with failures try again what has not succeeded.

    Exit code 1 when there is nothing to try again, or when an unsafe call may have taken effect.
    """
    job = client.ask("POST", "jobs", job_id, "resume", body={"repeat_unsafe": repeat_unsafe})
    _show(job, as_json=as_json)


@api_command
def fork(
    client: CommandClient,
    job_id: JobId,
    from_step: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Run step N of the new plan, and later ones, in any case.")
    ] = None,
    plan: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="The edited plan (JSON); else the plan as it was.")
    ] = None,
    repeat_unsafe: Annotated[
        bool,
        typer.Option("--repeat-unsafe", help="Call unsafe tools also where the same call may have taken effect."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which steps would run, and which need not.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Tell its progress and wait for its end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a new job with the plan of another, as it was or edited; it runs only what the edit touches.

    Prints the new job's id. Exit code 1 when it is refused, or with --wait when the new job fails.
    """
    from planq.api.cli.inputs import read_plan_file

    if dry_run and wait:
        raise typer.BadParameter("--dry-run makes no job that could be waited for")
    body: dict[str, Any] = {"dry_run": True} if dry_run else {}
    if repeat_unsafe:
        body["repeat_unsafe"] = True
    if from_step is not None:
        body["from_step"] = from_step
    if plan is not None:
        body["plan"] = read_plan_file(plan).value
    made = client.ask("POST", "jobs", job_id, "fork", body=body)
    if dry_run:
        _show_preview(made, as_json=as_json)
    elif wait:
        watch_job(client, made, as_json=as_json)
    else:
        show_submitted(made, as_json=as_json)


@api_command
def settle(
    client: CommandClient,
    job_id: JobId,
    step: Annotated[int, typer.Argument(metavar="STEP", min=0, help="The step that asks, by its number from 0.")],
    outcome: Annotated[CallOutcome, typer.Argument(help="What became of the call.")],
    output: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="Where it happened: what the tool would have returned.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a call that was cut off took effect, for a step that waits for the answer.

    happened: the step succeeds with --output. did-not-happen: it runs again. unknown: it fails.
    """
    from planq.api.cli.inputs import json_or_file

    body: dict[str, Any] = {"outcome": outcome.replace("-", "_")}
    if output is not None:
        body["output"] = json_or_file(output, "the output")
    job = client.ask("POST", "jobs", job_id, "steps", step, "settle", body=body)
    _show(job, as_json=as_json)


def _show(job: dict[str, Any], *, as_json: bool) -> None:
    print_result(job, f"job {job['id']} {shown_status(job)}", as_json=as_json)


def _show_preview(preview: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(preview)
        return
    notes = {step["index"]: f"takes over ${step['reused_from']['index']}" for step in preview["reuse"]}
    doubts = preview["in_doubt"]
    notes |= {step["index"]: f"runs, but ${step['same_as']['index']} may have taken effect" for step in doubts}
    steps = sorted([*preview["reuse"], *preview["run"]], key=lambda step: int(step["index"]))
    print_columns(
        [
            [f"${step['index']}", as_line(step["tool_name"]), step["effect"], notes.get(step["index"], "runs")]
            for step in steps
        ]
    )
    if doubts:
        err.print("refused unless with --repeat-unsafe", style="yellow")
    err.print("nothing was stored", style="dim")
