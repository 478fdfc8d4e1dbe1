"""The drawings of a job page: the graph of its plan, its timeline, and attempts by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from starlette.requests import Request

from planq.api.access.scopes import Caller
from planq.api.deps import Services
from planq.api.events.routes import MAX_EVENTS, get_job_events
from planq.api.operations.routes import neutral_name
from planq.api.page.rendering import is_open, page_url
from planq.api.page.route import values_of
from planq.api.page.words import line, step_state
from planq.shared.agentic.plan.layout import finished_before, plan_layout
from planq.shared.kernel.ids import StepRef, attempt_id
from planq.shared.kernel.states import TERMINAL_STEP, JobStatus, StepStatus
from planq.shared.platform.database import Row
from planq.shared.subjects.jobs.timeline import (
    AttemptPhase,
    AttemptSpan,
    JobMoment,
    PhaseKind,
    Scale,
    critical_path,
    scale_of,
    stage_phases,
    step_attempts,
    step_phases,
)
from planq.shared.subjects.jobs.waiting import shown_seconds
from planq.shared.subjects.tenants.keys import KeyScope

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _EDGE = 168, 46, 54, 20, 24
LEAST_FOLDED = 3
"""So many finished steps are worth a node of their own."""

_WORST_FIRST = ("bad", "ask", "run", "idle", "ok")
"""A node that stands for several steps shows the state that a person looks for first."""


def picture_of(steps: Sequence[dict[str, Any]], *, is_folded: bool = False) -> dict[str, Any] | None:
    """Return the nodes and edges of the picture of all rounds; None where there is nothing to be drawn.

    With `is_folded`, what is finished with all before it is one node. `foldable` says how many steps that are.
    """
    at = {step["index"]: place for place, step in enumerate(steps)}
    graph = [[at[one] for one in step["depends_on"] if one in at] for step in steps]
    finished = finished_before(graph, [step["status"] == StepStatus.SUCCEEDED for step in steps])
    groups = _groups(len(steps), finished if is_folded and len(finished) >= LEAST_FOLDED else [])
    group_of = {place: number for number, group in enumerate(groups) for place in group}
    folded = [
        sorted({group_of[one] for place in group for one in graph[place]} - {number})
        for number, group in enumerate(groups)
    ]
    rounds = [steps[group[-1]]["round"] for group in groups]
    if len(groups) < len(steps):
        rounds[0] = min(rounds[1:], default=0)
    layout = plan_layout(folded, [_name(group, steps) for group in groups], rounds)
    if not layout.nodes:
        return None
    nodes = [
        _node([steps[place] for number in node.steps for place in groups[number]], *_corner(node.column, node.row))
        for node in layout.nodes
    ]
    edges = [_edge(nodes[first], nodes[last]) for first, last in layout.edges]
    width, height = _corner(layout.columns, layout.rows)
    columns = {rounds[number]: node.column for node in reversed(layout.nodes) for number in node.steps}
    return {
        "nodes": nodes,
        "edges": edges,
        "width": width - _GAP_X + _EDGE,
        "height": height - _GAP_Y + _EDGE,
        "rounds": [{"number": number, "x": _corner(column, 0)[0]} for number, column in sorted(columns.items())]
        if len(columns) > 1
        else [],
        "foldable": len(finished) if len(finished) >= LEAST_FOLDED else 0,
        "is_folded": len(groups) < len(steps),
    }


def _groups(count: int, finished: Sequence[int]) -> list[tuple[int, ...]]:
    known = set(finished)
    return [*([tuple(finished)] if finished else []), *((place,) for place in range(count) if place not in known)]


def _name(group: Sequence[int], steps: Sequence[dict[str, Any]]) -> str:
    return str(steps[group[0]]["tool_name"]) if len(group) == 1 else ""


def _corner(column: int, row: int) -> tuple[int, int]:
    return _EDGE + column * (_WIDTH + _GAP_X), _EDGE + row * (_HEIGHT + _GAP_Y)


def _node(steps: Sequence[dict[str, Any]], x: int, y: int) -> dict[str, Any]:
    first = steps[0]
    states = [step_state(step) for step in steps]
    kind = min((state[0] for state in states), key=_WORST_FIRST.index)
    if len(steps) == 1:
        name, told = f"${first['index']} {first['tool_name']}", states[0][1]
    else:
        is_alike = all(step["tool_name"] == first["tool_name"] for step in steps)
        name = f"{len(steps)} × {first['tool_name']}" if is_alike else f"{len(steps)} steps"
        told = ", ".join(f"{count} {word.lower()}" for word, count in Counter(word for _, word in states).items())
    wanted = next(step for step, state in zip(steps, states, strict=True) if state[0] == kind)
    return {"x": x, "y": y, "kind": kind, "name": line(name, 22), "full": line(name), "told": line(told, 26)} | {
        "index": wanted["index"],
        "width": _WIDTH,
        "height": _HEIGHT,
    }


def _edge(first: dict[str, Any], last: dict[str, Any]) -> str:
    x, y, to_x, to_y = first["x"] + _WIDTH, first["y"] + _HEIGHT // 2, last["x"], last["y"] + _HEIGHT // 2
    middle = x + _GAP_X // 2
    return f"M{x} {y}C{middle} {y} {to_x - _GAP_X // 2} {to_y} {to_x} {to_y}"


_MOST_PAGES = 4
_MOST_ROWS = 100
_SCALE = 1_000.0
_STAGES = {"planning": "planning", "responding": "answering"}
_NAMES = {PhaseKind.QUEUE: "queued", PhaseKind.RUN: "ran", PhaseKind.WAIT: "waited"}


class Timeline(NamedTuple):
    """What is drawn: rows of bars, folds (x, width), what is folded, and how long the critical path is."""

    rows: list[dict[str, Any]]
    folds: list[tuple[float, float]]
    folded: str | None
    critical: str | None
    left_out: int


async def moments_of(request: Request, services: Services, who: Caller, job_id: str) -> list[JobMoment]:
    """Return the events of a job that say when something began or ended; of very many the first ones."""
    asked = Request({**request.scope, "headers": [(b"accept", b"application/json")]})
    found: list[JobMoment] = []
    after = None
    for _ in range(_MOST_PAGES):
        log = values_of(await get_job_events(asked, job_id, services, who, after, limit=MAX_EVENTS))
        found += [_moment(event) for event in log["events"] if event["kind"] != "step_progress"]
        after = log["next"]
        if after is None:
            break
    return found


def _moment(event: Mapping[str, Any]) -> JobMoment:
    data = event["data"] if isinstance(event["data"], dict) else {}
    error = data.get("error")
    return JobMoment(
        event["kind"],
        _seconds(event["created_at"]),
        data.get("index") if event["kind"].startswith("step_") else None,
        data.get("attempt") or 0,
        str(data.get("stage") or ""),
        error.get("code") if isinstance(error, dict) else None,
        data.get("worker_id"),
    )


def moments_by_step(steps: Sequence[Mapping[str, Any]], moments: Sequence[JobMoment]) -> dict[int, list[JobMoment]]:
    """Return the moments of each step.

    Steps that were stored together have one event's time; the steps themselves know better when each ran.
    """
    found: dict[int, list[JobMoment]] = {step["index"]: [] for step in steps}
    for moment in moments:
        if moment.step in found:
            found[moment.step].append(moment)
    for step in steps:
        own = found[step["index"]]
        if step["started_at"] is not None and [one.kind for one in own].count("step_started") == 1:
            own[:] = [
                one._replace(at=_seconds(step["started_at"])) if one.kind == "step_started" else one for one in own
            ]
        if own and step["finished_at"] is not None and step["status"] in TERMINAL_STEP:
            own[-1] = own[-1]._replace(at=_seconds(step["finished_at"]))
    return found


async def attempts_of(
    services: Services, who: Caller, job: Mapping[str, Any], moments: Mapping[int, Sequence[JobMoment]]
) -> dict[int, list[dict[str, Any]]]:
    """Return the attempts at some steps of a job, as a page shows them, each with the worker that ran it.

    To who sees all tenants, Flower's page of its task is named, too: Flower shows those of all tenants.
    """
    spans = {index: step_attempts(own) for index, own in moments.items()}
    ids = sorted({one.worker for own in spans.values() for one in own if one.worker is not None})
    known = {
        str(row["id"]): row for row in await services.overview.workers_named(ids, services.settings.lease_seconds)
    }
    place = page_url("/workers") if is_open(who, "/workers") else None
    is_operator = KeyScope.ADMIN in who.scopes
    workers = {id: _shown_worker(id, known.get(id), place, is_operator=is_operator) for id in ids}
    flower = services.settings.flower_url if is_operator else None
    refs = {step["index"]: StepRef(UUID(job["id"]), step["round"], step["index"]) for step in job["steps"]}
    return {
        index: [
            _shown_attempt(one) | {"worker": workers.get(one.worker or ""), "flower": _task(flower, refs[index], one)}
            for one in own
        ]
        for index, own in spans.items()
    }


def _task(flower: str | None, ref: StepRef, attempt: AttemptSpan) -> str | None:
    return None if flower is None else f"{flower.rstrip('/')}/task/{attempt_id(ref, attempt.number)}"


def _shown_worker(id: str, row: Row | None, place: str | None, *, is_operator: bool) -> dict[str, Any]:
    """Return a worker as an attempt names it; one that is alive leads to its row on the page of workers.

    Only operators see the name that its host gave it.
    """
    is_alive = row is not None and row["is_alive"]
    return {
        "name": id if row is None else row["name"] if is_operator else neutral_name(id),
        "is_alive": is_alive,
        "href": f"{place}#worker-{id}" if is_alive and place else None,
    }


def _shown_attempt(one: AttemptSpan) -> dict[str, Any]:
    return {
        "number": one.number,
        "begun": datetime.fromtimestamp(one.begin, UTC).isoformat(),
        "took": None if one.end is None else _told(one.end - one.begin),
        "came_to": None if one.came_to is None else one.came_to.removeprefix("step_"),
        "error": one.error,
    }


def timeline_of(
    job: Mapping[str, Any], moments: Sequence[JobMoment], own: Mapping[int, Sequence[JobMoment]], now: float
) -> Timeline | None:
    """Return the timeline of a job; None where nothing of it has begun."""
    steps, is_over = job["steps"], JobStatus(job["status"]).is_terminal
    plans = [one.at for one in moments if one.kind == "plan_accepted"]
    phases = {step["index"]: _phases(step, steps, plans, own, now) for step in steps}
    stages = stage_phases(moments, now, is_over=is_over)
    begun = [step for step in steps if phases[step["index"]]]
    every = [*(phase for step in begun for phase in phases[step["index"]]), *(phase for _, phase in stages)]
    if not every:
        return None
    scale = scale_of(
        [(one.begin, one.end) for one in every if one.kind is PhaseKind.RUN],
        min(one.begin for one in every),
        max(one.end for one in every),
    )
    critical = _critical(steps, phases)
    rows = [
        _row(_STAGES.get(name, name), None, "is-ok" if is_over else "is-run", [phase], scale, is_critical=False)
        for name, phase in stages
    ]
    rows += [
        _row(
            f"${step['index']} {step['tool_name']}",
            step["index"],
            f"is-{step_state(step)[0]}",
            phases[step["index"]],
            scale,
            is_critical=step["index"] in critical,
        )
        for step in begun
    ]
    rows.sort(key=lambda row: row["begin"])
    return Timeline(
        rows[:_MOST_ROWS],
        [(_x(scale, begin), round(_x(scale, end) - _x(scale, begin), 1)) for begin, end in scale.folds],
        _told(scale.folded_seconds) if scale.folds else None,
        _length(critical, phases),
        max(0, len(rows) - _MOST_ROWS),
    )


def _phases(
    step: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    plans: Sequence[float],
    own: Mapping[int, Sequence[JobMoment]],
    now: float,
) -> list[AttemptPhase]:
    is_over = step["status"] in TERMINAL_STEP
    if step["started_at"] is None and not own[step["index"]]:
        return []
    return step_phases(_ready_at(step, steps, plans), own[step["index"]], now, is_over=is_over)


def _ready_at(step: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], plans: Sequence[float]) -> float | None:
    """Return when nothing was left that a step waited for: its plan was there, and all before it had ended."""
    ends = [steps[one]["finished_at"] for one in step["depends_on"] if one < len(steps)]
    if None in ends or step["round"] >= len(plans):
        return None
    found: float = max(plans[step["round"]], *map(_seconds, ends), 0.0)
    return found


def _critical(steps: Sequence[Mapping[str, Any]], phases: Mapping[int, Sequence[AttemptPhase]]) -> set[int]:
    at = {step["index"]: place for place, step in enumerate(steps)}
    graph = [[at[one] for one in step["depends_on"] if one in at] for step in steps]
    ends = [phases[step["index"]][-1].end if phases[step["index"]] else None for step in steps]
    path = critical_path(graph, ends)
    return {steps[place]["index"] for place in path} if len(path) > 1 else set()


def _length(critical: set[int], phases: Mapping[int, Sequence[AttemptPhase]]) -> str | None:
    if not critical:
        return None
    return _told(max(phases[one][-1].end for one in critical) - min(phases[one][0].begin for one in critical))


def _row(
    name: str, index: int | None, kind: str, phases: Sequence[AttemptPhase], scale: Scale, *, is_critical: bool
) -> dict[str, Any]:
    sums = dict.fromkeys(PhaseKind, 0.0)
    bars = []
    for one in phases:
        sums[one.kind] += one.end - one.begin
        x = _x(scale, one.begin)
        least = 2.0 if one.kind is PhaseKind.RUN else 0.0
        bars.append({"kind": str(one.kind), "x": x, "width": max(round(_x(scale, one.end) - x, 1), least)})
    return {
        "name": name,
        "index": index,
        "kind": kind,
        "is_critical": is_critical,
        "begin": phases[0].begin,
        "took": _told(sum(sums.values())),
        "told": ", ".join(f"{_NAMES[one]} {_told(seconds)}" for one, seconds in sums.items() if seconds),
        "bars": [bar for bar in bars if bar["width"]],
    }


def _x(scale: Scale, at: float) -> float:
    return round(_SCALE * scale.place(at), 1)


def _told(seconds: float) -> str:
    if seconds >= 60:
        return shown_seconds(seconds)
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * max(seconds, 0.0):.0f} ms"


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
