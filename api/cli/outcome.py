"""How a command ends: what is printed about an error, and the exit code.

0    done; for a job: it succeeded, or it runs; or the reader of the output went away before the end
1    the request was refused, the plan is invalid, the job failed or was cancelled, `doctor` found something
2    wrong usage, a bad setting, a key that is not accepted, something that does not answer, or an output that
     cannot be written
3    the job completed and is partial: a step failed or the plan was refused, and it answers from what there was;
     it answers with the output of a plan of agents that did not succeed;
     every line of the batch completed, and some are partial or incomplete
4    the job completed and its answer is incomplete: the model's answer was cut off;
     the batch is paused, and waits for `planq batch resume`
130  interrupted (Ctrl-C)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from planq.api.cli.console import as_line, err, print_json
from planq.shared.platform.errors import Misconfigured, PlanqError, Unauthorized, Unavailable

OK = 0
NOT_OK = 1
CANNOT = 2
PARTIAL = 3
INCOMPLETE = 4
RESTS = 4
INTERRUPTED = 130  # 128 + SIGINT, as shells report it

_LONGEST_ERROR = 500


def exit_code(error: PlanqError) -> int:
    return CANNOT if isinstance(error, (Unavailable, Misconfigured, Unauthorized)) else NOT_OK


def report(error: PlanqError, *, as_json: bool) -> None:
    """Print an error: for people on standard error, with every single defect; for programs on standard output.

    {"error": {"code": "invalid_request", "message": "…", "title": "Unprocessable Content", "errors": […]}}
    """
    if as_json:
        print_json({"error": {"code": error.code, "message": error.message, **error.details}})
        return
    title = error.details.get("title")
    err.print(f"planq: {f'{title}: ' if title else ''}{error.message}", style="red")
    for line in map(describe_defect, error.details.get("errors") or []):
        if line not in error.message:
            err.print(f"- {line}", style="red")


def describe_defect(defect: Any) -> str:
    """Return one line for one entry of a problem's `errors`: its place, then what is wrong."""
    from planq.shared.agentic.plan.errors import PlanError
    from planq.shared.platform.values.defects import Defect

    if isinstance(defect, Mapping):
        try:
            return PlanError.from_json(defect).render()
        except (KeyError, TypeError, AttributeError, ValueError):
            pass  # another kind of defect, or one that a later release knows
        if defect.get("file"):  # as the message of its refusal tells it
            line, place = defect.get("line"), defect.get("path") or ""
            return Defect(place, "", defect["message"], line, defect["file"]).render()
        if "message" in defect:
            place = defect.get("field") or defect.get("in") or defect.get("pointer") or defect.get("path")
            if defect.get("line"):
                place = f"line {defect['line']}{f', {place}' if place else ''}"
            if "step" in defect:
                place = f"${defect['step']} ({defect.get('tool_name')})"
            return as_line(f"{f'{place}: ' if place else ''}{defect['message']}", _LONGEST_ERROR)
    return as_line(json.dumps(defect, ensure_ascii=False), _LONGEST_ERROR)


@contextmanager
def reported(*, as_json: bool) -> Iterator[None]:
    """Turn a deliberate error into what is printed about it and the exit code."""
    try:
        yield
    except PlanqError as error:
        report(error, as_json=as_json)
        raise typer.Exit(exit_code(error)) from error


def end(code: int) -> NoReturn:
    raise typer.Exit(code)
