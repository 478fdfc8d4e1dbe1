"""The child jobs of a job: each opens within its parent's page, and many are counted by state and paged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.callers import Who
from planq.api.deps import Use
from planq.api.jobs.page.outcomes import first_error, structured
from planq.api.jobs.routes.jobs import get_job
from planq.api.operations.routes import get_why
from planq.api.page.rendering import page
from planq.api.page.route import page_router, values_of
from planq.api.page.words import job_state
from planq.shared.kernel.states import JobStatus, StepStatus

below_routes = page_router()

_FEW = 10
"""So many child jobs of a step stand with it; of more the first that are not done, and the first."""

_AT_ONCE = 50

_MOST_STEPS = 30
"""So many steps of a child job stand within another's page."""

_WORST_FIRST = ("bad", "ask", "run", "idle", "ok")

_CALM = (StepStatus.SUCCEEDED, StepStatus.PENDING, StepStatus.SKIPPED)


class ChildJobs(NamedTuple):
    """The child jobs of one step: those that are shown, how many there are, and how many in each state."""

    shown: Sequence[dict[str, Any]]
    total: int
    states: Sequence[tuple[tuple[str, str], int]]

    @property
    def left_out(self) -> int:
        """How many are not shown."""
        return self.total - len(self.shown)


def children_by_step(job: dict[str, Any]) -> dict[int, ChildJobs]:
    """Return the child jobs of each step of a job that has some, as its page shows them."""
    found: dict[int, list[dict[str, Any]]] = {}
    for child in job["children"]:
        found.setdefault(child["step_index"], []).append(_told(child))
    return {step: ChildJobs(_first(own), len(own), _states(own)) for step, own in found.items()}


def _told(child: dict[str, Any]) -> dict[str, Any]:
    agent = child["agent"]["name"] if child["agent"] else None
    name = " ".join(str(part) for part in (child["key"], agent, child["action"]) if part)
    return {**child, "state": job_state(child), "name": name or f"child {child['position'] + 1}"}


def _first(children: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(children) <= _FEW:
        return list(children)
    wanted = sorted(children, key=lambda one: _WORST_FIRST.index(one["state"][0]))[:_FEW]
    ids = {one["id"] for one in wanted}
    return [one for one in children if one["id"] in ids]


def _states(children: Sequence[dict[str, Any]]) -> list[tuple[tuple[str, str], int]]:
    counts = Counter(one["state"] for one in children)
    return sorted(counts.items(), key=lambda one: _WORST_FIRST.index(one[0][0]))


@below_routes.get("/ui/jobs/{job_id}/below")
async def show_below(request: Request, job_id: str, services: Use, who: Who) -> Response:
    """Show a job within the page of the one above it: what it came to, its plan with states, its own child jobs."""
    job = values_of(await get_job(request, job_id, services))
    is_live = not JobStatus(job["status"]).is_terminal
    steps = _steps(job["steps"])
    return page(
        request,
        "below.html",
        job=job,
        is_live=is_live,
        why=values_of(await get_why(job_id, services, who)) if is_live else None,
        error=first_error(job),
        answer=structured(job),
        rounds=_rounds(job, steps),
        left_out=len(job["steps"]) - len(steps),
        below=children_by_step(job),
    )


def _steps(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(steps) <= _MOST_STEPS:
        return steps
    open_ones = [step for step in steps if step["status"] not in _CALM]
    wanted = {step["index"] for step in [*open_ones, *steps][:_MOST_STEPS]}
    return [step for step in steps if step["index"] in wanted]


def _rounds(job: dict[str, Any], steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    numbers = sorted({step["round"] for step in steps})
    return [{"number": one, "steps": [step for step in steps if step["round"] == one]} for one in numbers]


@below_routes.get("/ui/jobs/{job_id}/children")
async def show_children(
    request: Request,
    job_id: str,
    services: Use,
    step: Annotated[int | None, Query()] = None,
    state: Annotated[str | None, Query()] = None,
    after: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """Show the child jobs of a job, or of one step, in one state or all, a page at a time."""
    job = values_of(await get_job(request, job_id, services))
    every = [_told(child) for child in job["children"] if step is None or child["step_index"] == step]
    fitting = [one for one in every if state is None or one["state"][1] == state]
    return page(
        request,
        "children.html",
        job=job,
        step=step,
        state=state,
        after=after,
        count=len(every),
        states=_states(every),
        shown=fitting[after : after + _AT_ONCE],
        more=after + _AT_ONCE if after + _AT_ONCE < len(fitting) else None,
        is_live=not JobStatus(job["status"]).is_terminal,
    )
