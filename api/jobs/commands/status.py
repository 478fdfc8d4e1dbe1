"""`planq status`, `output`, `traceback`, `jobs`, `find`, `artifacts`, `artifact`, and the filter options."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from inspect import Parameter
from typing import Annotated, Any

import typer

from planq.api.cli.connection import AsJson, AtMost, CommandClient, JobId, To, api_command
from planq.api.cli.console import (
    as_line,
    err,
    out,
    print_columns,
    print_items,
    print_json,
    print_page,
    shown_status,
    tell_of_more,
    write_pieces,
)
from planq.api.cli.outcome import NOT_OK, OK, describe_defect, end
from planq.api.jobs.commands.submit import LONG_POLL_SECONDS, code_of, watch_job
from planq.shared.kernel.states import JobStatus, Priority, StepStatus
from planq.shared.platform.errors import Misconfigured
from planq.shared.subjects.jobs.selection import FILTER_FIELDS, FilterField, takes


def filter_options() -> list[Parameter]:
    """Return the parameters of a command for every field of a filter."""
    return [
        Parameter(one.option, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=_type(one))
        for one in FILTER_FIELDS
    ]


def _type(one: FilterField) -> Any:
    kind: Any = list[str] if one.name == "metadata" else one.kind
    lowest = 0 if one.kind is float else None
    return Annotated[kind | None, typer.Option(metavar=one.metavar, min=lowest, help=one.help, show_default=False)]


def job_filter(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the API's filter that are given; raises `typer.BadParameter` for metadata without `=`."""
    from planq.api.cli.inputs import pairs_of

    known = {one.name: value for one in FILTER_FIELDS if (value := given.get(one.option)) is not None}
    wanted = {name: value.value if isinstance(value, StrEnum) else value for name, value in known.items()}
    if metadata := wanted.pop("metadata", None):
        wanted["metadata"] = dict(pairs_of(metadata, "--metadata"))
    return wanted


RESUMABLE = frozenset({JobStatus.COMPLETED, JobStatus.FAILED})


@api_command
def status(
    client: CommandClient,
    job_id: JobId,
    wait: Annotated[bool, typer.Option("--wait", help="Tell its progress and wait for its end.")] = False,
    tree: Annotated[bool, typer.Option("--tree", help="With the jobs that its steps have handed over to.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a job: its steps, answer and cost.

    Exit code 1 when the job failed or was cancelled, 3 when it is partial, 4 when its
    answer is incomplete.
    """
    job = client.job(str(job_id))
    if tree:
        job = _with_children(client, job, wait=wait)
    elif wait:
        watch_job(client, job, as_json=as_json)
    code = code_of(job)
    shows_why = not as_json and not JobStatus(job["status"]).is_terminal
    why = client.ask("GET", "jobs", job["id"], "why")["sentence"] if shows_why else None
    workers = {} if as_json or tree else _names_of_workers(client, job)
    if as_json:
        print_json(job)
    elif tree:
        _show_tree(job)
    else:
        show_job(job, workers)
    if why is not None:
        out.print(as_line(why, 500))
    end(code)


def _with_children(client: Any, job: dict[str, Any], *, wait: bool) -> dict[str, Any]:
    from planq.api.jobs.commands.progress import with_children

    while wait and not JobStatus(job["status"]).is_terminal:
        job = client.job(job["id"], wait=LONG_POLL_SECONDS)
    return with_children(client, job)


def _show_tree(job: dict[str, Any]) -> None:
    from planq.api.jobs.commands.progress import print_tree, tree_totals

    print_tree(job, out)
    out.print(tree_totals(job), style="dim")
    _show_budget(job)


_COUNTED = (
    ("max_tokens", "tokens", "tokens"),
    ("max_cost_usd", "cost_usd", "USD"),
    ("max_model_calls", "model_calls", "model calls"),
    ("max_steps", "steps", "steps"),
)
"""Each limit, what is used of it, and in which words."""


def _show_budget(job: dict[str, Any]) -> None:
    if not (budget := job.get("budget")):
        return
    used = budget.get("used") or {}
    is_unpriced = used.get("tokens") and not used.get("cost_usd")
    parts = [
        f"{_amount(None if unit == 'USD' and is_unpriced else used.get(kind) or 0, unit)} of "
        f"{_amount(budget[limit], unit)} {unit}"
        for limit, kind, unit in _COUNTED
        if budget.get(limit) is not None
    ]
    out.print(f"budget: {', '.join(parts)}", style="dim")


def _amount(amount: float | None, unit: str) -> str:
    if amount is None:
        return "–"
    return f"{amount:.4f}" if unit == "USD" else f"{amount:.0f}"


def _names_of_workers(client: Any, job: dict[str, Any]) -> dict[str, str]:
    """Return the names of the workers, by id, that a job is shown with; of one that has gone its id is shown."""
    if not any(_is_repeated(step) and step.get("worker_id") for step in job.get("steps") or []):
        return {}
    return {worker["id"]: worker["name"] for worker in client.ask("GET", "workers")["workers"]}


def _is_repeated(step: dict[str, Any]) -> bool:
    return step.get("kind", "tool") == "tool" and (step.get("attempt") or 0) > 1


def show_job(job: dict[str, Any], workers: Mapping[str, str]) -> None:
    """Print a job as it stands; `workers` are names by id."""
    from planq.api.jobs.commands.progress import print_outcome, questions

    out.print(f"job {job['id']} {shown_status(job)}", style="bold")
    _show_origin(job)
    rounds = job.get("rounds") or []
    for defect in (found for one in rounds for found in one["plan_errors"] or []):
        out.print(f"- {describe_defect(defect)}", style="red")
    _show_steps(job, workers)
    for question in questions(job):
        out.print(question, style="yellow")
    print_outcome(job, out)
    _show_budget(job)
    _show_way_on(job)


def _show_origin(job: dict[str, Any]) -> None:
    if job.get("forked_from"):
        out.print(f"forked from {job['forked_from']}")
    if agent := job.get("agent"):
        out.print(f"agent {as_line(agent['name'])} version {agent['version']}")
    if job.get("priority") == Priority.BULK:
        out.print("priority: bulk")
    if parent := job.get("parent"):
        out.print(f"works for {parent['job_id']} ${parent['step_index']}")
    if job.get("input"):
        out.print(f"input: {as_line(job['input'], 200)}")


def _show_steps(job: dict[str, Any], workers: Mapping[str, str]) -> None:
    steps = job.get("steps") or []
    rows = [_step_row(step, workers) for step in steps]
    if any(step.get("round") for step in steps):
        rows = [[f"round {step['round']}", *row] for step, row in zip(steps, rows, strict=True)]
    print_columns(rows)
    for step in steps:
        if large := step.get("output_ref"):
            size = large["bytes"] / 1024**2
            out.print(f"${step['index']} has {size:.1f} MiB of output: planq output {job['id']} {step['index']}")
    if children := job.get("children"):
        noun = "job" if len(children) == 1 else "jobs"
        out.print(f"{len(children)} child {noun}: planq status --tree {job['id']}")


def _show_way_on(job: dict[str, Any]) -> None:
    steps = job.get("steps") or []
    # What a loop's planner was shown is none of the job's failures.
    is_answered = job["status"] == JobStatus.COMPLETED and job.get("stop_reason")
    has_failures = not is_answered and any(step["status"] == StepStatus.FAILED for step in steps)
    if job.get("paused_at"):
        err.print(f"paused; `planq resume {job['id']}` lets it go on", style="dim")
    elif job["status"] in RESUMABLE and has_failures:
        err.print(f"steps have failed; `planq resume {job['id']}` tries them again", style="dim")


def _step_row(step: dict[str, Any], workers: Mapping[str, str]) -> list[str]:
    after = ", ".join(f"${index}" for index in step.get("depends_on") or [])
    error = step.get("error") or {}
    note = as_line(error["message"], 120) if error.get("message") else _progress(step.get("progress") or {})
    note = note or as_line(step.get("content") or "", 120)
    cost = f"{step['cost_usd']:.4f} USD" if step.get("cost_usd") else ""
    origin, worker = step.get("reused_from") or {}, step.get("worker_id")
    ran = f"attempt {step.get('attempt')}" + (f", worker {as_line(workers.get(worker, worker))}" if worker else "")
    return [
        f"${step['index']}",
        as_line(step["tool_name"]),
        step["status"],
        f"as in {origin['job_id']} ${origin['index']}" if origin else ran if _is_repeated(step) else "",
        f"after {after}" if after else "",
        " ".join(part for part in (cost, note) if part),
    ]


def _progress(progress: dict[str, Any]) -> str:
    done, message = progress.get("done"), as_line(progress.get("message") or "", 120)
    return message if done is None else f"{done:.0%} {message}".strip()


@api_command
def output(
    client: CommandClient,
    job_id: JobId,
    index: Annotated[int, typer.Argument(metavar="STEP", min=0, help="The step's number, from 0.")],
    to: To = None,
) -> None:
    """Get the output of a step that succeeded, of any size, as JSON.

    On a terminal it is shown without what could steer the terminal.
    """
    with client.opened("jobs", job_id, "steps", index, "output") as response:
        write_pieces(response.iter_bytes(), to)


@api_command
def traceback(
    client: CommandClient,
    job_id: JobId,
    index: Annotated[int, typer.Argument(metavar="STEP", min=0, help="The step's number, from 0.")],
    as_json: AsJson = False,
) -> None:
    """Show where in the code of its tool the exceptions of a step came from; needs a key with the scope `admin`."""
    found = client.ask("GET", "jobs", job_id, "steps", index, "tracebacks")
    if as_json:
        print_json(found)
        return
    if not found["items"]:
        err.print("no exception of a tool has ended an attempt of this step")
    for kept in found["items"]:
        out.print(f"attempt {kept['attempt']}, {kept['created_at']}")
        out.print(kept["text"])


@api_command
@takes(filter_options(), before="tenant")
def jobs(
    client: CommandClient,
    tenant: Annotated[str | None, typer.Option(metavar="ID", help="Another tenant's, for the scope admin.")] = None,
    limit: AtMost = 20,
    children: Annotated[
        bool, typer.Option("--children", help="Also those that steps of other jobs have made.")
    ] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """List jobs, newest first: those for which all that is given holds."""
    given = job_filter(options)
    if "metadata" in given:
        given["metadata"] = json.dumps(given["metadata"])
    if tenant is not None:
        given["tenant"] = tenant
    shown = {name: str(value) for name, value in given.items()}
    page = client.pages("jobs", most=limit, roots=None if children else "true", **shown)
    if as_json:
        print_page(page)
    elif page.items:
        print_columns([_job_row(job) for job in page.items])
        tell_of_more(page)
    else:
        err.print("no jobs fit" if given else "no jobs yet; `planq submit` makes one")


def _job_row(job: dict[str, Any]) -> list[str]:
    begun = datetime.fromisoformat(job["created_at"]).astimezone()
    agent = f"{job['agent']['name']}: " if job.get("agent") else ""
    asked = job.get("input") or ("(an action)" if agent else "(a plan)")
    return [job["id"], f"{begun:%Y-%m-%d %H:%M:%S}", shown_status(job), as_line(f"{agent}{asked}", 60)]


@api_command
def find_by_id(
    client: CommandClient,
    id: Annotated[str, typer.Argument(metavar="ID", help="An id of whatever kind, or a custom_id.")],
    as_json: AsJson = False,
) -> None:
    """Say what has an id: a job, a Celery task, a plan, a conversation, a batch, a line, a schedule, a question.

    Exit code 1 where nothing has it.
    """
    found = client.ask("GET", "search", id=id)
    print_items(
        found,
        lambda one: [one["kind"], as_line(one["id"], 80), _belongs_to(one)],
        "nothing has this id",
        as_json=as_json,
    )
    end(OK if found["items"] else NOT_OK)


def _belongs_to(found: dict[str, Any]) -> str:
    step = f" step {found['step_index']}" if found["step_index"] is not None else ""
    batch = f"line {found['line']} of batch {found['batch_id']} " if found["line"] is not None else ""
    return f"{batch}{'' if found['job_id'] is None else 'job ' + found['job_id']}{step}"


@api_command
def artifacts(client: CommandClient, job_id: JobId, as_json: AsJson = False) -> None:
    """List what a job has made, every version, in the order of its steps."""
    found = client.ask("GET", "jobs", job_id, "artifacts")
    print_items(found, _artifact_row, "this job has made no artifacts", as_json=as_json)
    if found["items"] and not as_json:
        err.print("`planq artifact ID --to FILE` keeps one", style="dim")


def _artifact_row(made: dict[str, Any]) -> list[str]:
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
    with client.opened("artifacts", artifact_id, version=version) as response:
        media_type = response.headers.get("content-type", "")
        is_text = media_type.startswith(("text/", "application/json"))
        if to is None and not is_text and sys.stdout.isatty():
            raise Misconfigured(f"the artifact is {as_line(media_type)}, which no terminal shows; add --to FILE")
        write_pieces(response.iter_bytes(), to)
