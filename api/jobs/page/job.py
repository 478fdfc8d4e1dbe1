"""The page of one job: its error, steps, answer, artifacts and child jobs, and its actions."""

from __future__ import annotations

import contextlib
import csv
import json
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from planq.api.access.scopes import Caller, Who
from planq.api.deps import Services, StepPath, Use, step_index_of
from planq.api.events.routes import get_job_events
from planq.api.http.ids import conversation_id_of, job_id_of
from planq.api.jobs.page.timeline import attempts_of, moments_by_step, moments_of, picture_of, timeline_of
from planq.api.jobs.routes.jobs import cancel_job, get_job, pause_job, resume_job, run_again, settle_step
from planq.api.jobs.routes.outputs import get_artifact, get_output, list_artifacts
from planq.api.operations.routes import get_model_calls, get_why
from planq.api.page.fields import content_of, json_in, with_fields
from planq.api.page.rendering import page, page_url
from planq.api.page.route import add_acts, body_of, fields_of, page_router, reads, seen, values_of
from planq.api.page.trees import SHOWN_NODES, Table, table_of
from planq.api.page.words import job_state
from planq.api.questions.routes import answer_question, get_question
from planq.api.schemas import AnswerRequest, ResumeRequest, SettleRequest
from planq.shared.kernel.states import TERMINAL_STEP, UNSTARTED_STEP, JobStatus, StepStatus
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import NotFound, PlanqError
from planq.shared.platform.values.media import SHOWN_MEDIA_TYPES, essence


def structured(job: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer of a job where it is JSON, with the table that it is; None where it is text for people.

    A large output is shown by its preview.
    """
    value, text = job["output"], job["answer"] or job["preview"] or ""
    if value is None and text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
    return None if value is None else {"value": value, "table": table_of(value)}


def first_error(job: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first thing that went wrong, with its step where it has one: what a person looks for first."""
    for step in job["steps"]:
        if step["error"] is not None and step["status"] == StepStatus.FAILED:
            return {**step["error"], "step": step}
    for one in job["rounds"]:
        for defect in one["plan_errors"] or ():
            return {"code": "plan_invalid", "message": str(defect.get("error", defect)), "step": None}
    return None if job["error"] is None else {**job["error"], "step": None}


job_page_routes = page_router()
add_acts(job_page_routes, "/jobs/{job_id}", cancel=cancel_job, pause=pause_job)

MOST_SHOWN = 6
"""So many artifacts of a job stand on its page as what they are; all others as links."""

_MOST_BYTES = 65_536
_MARKDOWN = frozenset({"text/markdown", "text/x-markdown"})
_TABLES = {"text/csv": ",", "text/tab-separated-values": "\t"}
_JSON = "application/json"


class Preview(NamedTuple):
    """What a page shows of an artifact: a `picture`, a `table`, `markdown`, `json` or a `text`; or nothing of it."""

    kind: str
    value: Any = None


@job_page_routes.get("/ui/artifacts/{artifact_id:path}")
async def give_artifact(
    request: Request,
    artifact_id: str,
    services: Use,
    who: Who,
    version: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
) -> Response:
    """Return an artifact as the API does: pictures are shown, all else is kept as a file."""
    known = request.headers.get("if-none-match")
    answer = await get_artifact(artifact_id, services, who, version, known, request.headers.get("range"))
    if answer.status_code == 200:
        answer.headers.setdefault("Content-Disposition", "attachment; filename*=UTF-8''artifact.json")
    return answer


async def shown_artifacts(services: Services, who: Caller, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the artifacts of a job, each with the address of its whole and what is `shown` of it."""
    found = []
    for place, one in enumerate(listed):
        shown = Preview("file") if place >= MOST_SHOWN else await _artifact_preview(services, who, one)
        href = page_url(f"/artifacts/{quote(one['artifact_id'])}") + f"?version={one['version']}"
        found.append({**one, "number": place, "href": href, "shown": shown})
    return found


async def _artifact_preview(services: Services, who: Caller, record: dict[str, Any]) -> Preview:
    kind = None if record["media_type"] is None else essence(record["media_type"])
    if kind in SHOWN_MEDIA_TYPES:
        return Preview("picture")
    if record["bytes"] > _MOST_BYTES or not (kind is None or kind == _JSON or kind.startswith("text/")):
        return Preview("file")
    try:
        body = await _body(await get_artifact(record["artifact_id"], services, who, record["version"], None, None))
    except PlanqError:  # removed since, or its storage does not answer: the job's page is shown all the same
        return Preview("file")
    return shown_body(kind, body)


async def _body(answer: Response) -> bytes:
    if not isinstance(answer, StreamingResponse):
        return bytes(answer.body)
    return b"".join([bytes(piece) async for piece in answer.body_iterator if not isinstance(piece, str)])


def shown_body(kind: str | None, body: bytes) -> Preview:
    """Return what is shown of an artifact of the media type `kind`, None for JSON that a tool produced."""
    text = body.decode("utf-8", "replace")
    if kind is None or kind == _JSON:
        try:
            return _shown_value(json.loads(text))
        except (ValueError, RecursionError):
            return Preview("text", text)
    if kind in _MARKDOWN:
        return Preview("markdown", text)
    if kind in _TABLES and (table := _table(text, _TABLES[kind])) is not None:
        return Preview("table", table)
    return Preview("text", text)


def _shown_value(value: Any) -> Preview:
    made = value.get("artifact") if isinstance(value, dict) else None
    if isinstance(made, dict) and made.get("format") == "markdown" and isinstance(made.get("markdown"), str):
        return Preview("markdown", made["markdown"])  # as `write_report` makes it
    if (table := table_of(value)) is not None:
        return Preview("table", table)
    return Preview("text", value) if isinstance(value, str) else Preview("json", value)


def _table(text: str, delimiter: str) -> Table | None:
    try:
        rows = list(csv.reader(StringIO(text), delimiter=delimiter))
    except csv.Error:
        return None
    head, *others = rows or [[]]
    return table_of([dict(zip(head, row, strict=False)) for row in others if row]) if len(set(head)) > 1 else None


_FEW = 10
"""So many child jobs of a step stand with it; of more the first that are not done, and the first."""

_AT_ONCE = 50

_MOST_CHILD_STEPS = 30
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


@job_page_routes.get("/ui/jobs/{job_id}/below")
async def show_below(request: Request, job_id: str, services: Use, who: Who) -> Response:
    job = values_of(await get_job(request, job_id, services))
    is_live = not JobStatus(job["status"]).is_terminal
    steps = _first_steps(job["steps"], _MOST_CHILD_STEPS, _CALM)
    return page(
        request,
        "below.html",
        job=job,
        is_live=is_live,
        why=values_of(await get_why(job_id, services, who)) if is_live else None,
        error=first_error(job),
        answer=structured(job),
        rounds=_child_rounds(steps),
        left_out=len(job["steps"]) - len(steps),
        below=children_by_step(job),
    )


def _first_steps(steps: list[dict[str, Any]], most: int, calm: Collection[StepStatus]) -> list[dict[str, Any]]:
    """Return at most so many steps in their order; those that are not `calm` are preferred."""
    open_ones = [step for step in steps if step["status"] not in calm]
    wanted = {step["index"] for step in [*open_ones, *steps][:most]}
    return [step for step in steps if step["index"] in wanted] if len(steps) > most else steps


def _child_rounds(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    numbers = sorted({step["round"] for step in steps})
    return [{"number": one, "steps": [step for step in steps if step["round"] == one]} for one in numbers]


@job_page_routes.get("/ui/jobs/{job_id}/children")
async def show_children(
    request: Request,
    job_id: str,
    services: Use,
    step: Annotated[int | None, Query()] = None,
    state: Annotated[str | None, Query()] = None,
    after: Annotated[int, Query(ge=0)] = 0,
) -> Response:
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


_MOST_STEPS = 200
"""So many steps stand on a page; of more those that are not done, and the first."""

_MOST_WHOLE = 12
"""Of more than a few steps so many that are under way or have failed stand with what they took and gave."""

_FEW_STEPS = 30
"""Of more steps each is a line that leads to its own page, so that the job's page stays small."""

_MOST_CALLS = 20

_EVENTS = 100


@job_page_routes.get("/ui/jobs/{job_id}")
@reads("finished")
async def job_page(request: Request, job_id: str, services: Use, who: Who) -> Response:
    job = values_of(await get_job(request, job_id, services))
    why = values_of(await get_why(job_id, services, who))
    steps = _first_steps(job["steps"], _MOST_STEPS, (StepStatus.SUCCEEDED, StepStatus.PENDING))
    is_long = len(steps) > _FEW_STEPS
    whole = _whole(steps)
    moments = await moments_of(request, services, who, job_id)
    own = moments_by_step(job["steps"], moments)
    called = values_of(await get_model_calls(job_id, services, who))["items"] if job["model_calls"] else []
    listed = values_of(await list_artifacts(job_id, services, who))
    return page(
        request,
        "job.html",
        job=job,
        why=why,
        error=first_error(job),
        answer=structured(job),
        artifacts=await shown_artifacts(services, who, listed["items"]),
        most=SHOWN_NODES // 10 if is_long else SHOWN_NODES,
        steps=[step for step in steps if not is_long or step["status"] != StepStatus.SUCCEEDED],
        picture=picture_of(job["steps"], is_folded=_is_folded(request, job)),
        whole=whole,
        finished=[step for step in steps if step["status"] == StepStatus.SUCCEEDED] if is_long else [],
        is_long=is_long,
        timeline=timeline_of(job, moments, own, datetime.now(UTC).timestamp()),
        attempts=await attempts_of(services, who, job, {index: own[index] for index in whole}),
        below=children_by_step(job),
        left_out=len(job["steps"]) - len(steps),
        planned=_planned(job),
        called=called[:_MOST_CALLS],
        uncalled=max(0, len(called) - _MOST_CALLS),
        questions=await questions_of(services, who, job),
        acts=_acts(job),
        is_live=not JobStatus(job["status"]).is_terminal,
    )


@job_page_routes.get("/ui/jobs/{job_id}/events")
@reads("after")
async def stream_job(request: Request, job_id: str, services: Use, who: Who) -> Response:
    last = request.headers.get("last-event-id")
    after = request.query_params.get("after")
    return await get_job_events(request, job_id, services, who, after, last, children=True)


@job_page_routes.get("/ui/jobs/{job_id}/log")
async def show_events(
    request: Request, job_id: str, services: Use, who: Who, after: Annotated[str | None, Query()] = None
) -> Response:
    asked = Request({**request.scope, "headers": [(b"accept", b"application/json")]})
    log = values_of(await get_job_events(asked, job_id, services, who, after, limit=_EVENTS))
    return page(request, "events.html", job_id=job_id, log=log)


@job_page_routes.get("/ui/jobs/{job_id}/steps/{index}")
async def step_page(request: Request, job_id: str, index: StepPath, services: Use, who: Who) -> Response:
    job = values_of(await get_job(request, job_id, services))
    number = step_index_of(job_id_of(job_id), index)
    step = next((one for one in job["steps"] if one["index"] == number), None)
    if step is None:
        raise NotFound(f"job {job_id} has no step {number}")
    moments = moments_by_step([step], await moments_of(request, services, who, job_id))
    return page(
        request,
        "one_step.html",
        job=job,
        step=step,
        planned=_planned(job),
        attempts=(await attempts_of(services, who, job, moments))[number],
        below=children_by_step(job),
        most=SHOWN_NODES,
        is_live=step["finished_at"] is None and not JobStatus(job["status"]).is_terminal,
    )


@job_page_routes.get("/ui/jobs/{job_id}/steps/{index}/output")
async def keep_output(job_id: str, index: str, services: Use, who: Who) -> Response:
    """Return the output of a step whole, as JSON to be kept: a browser shows none of it."""
    answer = await get_output(job_id, index, services, who)
    answer.headers["Content-Disposition"] = f'attachment; filename="step-{int(index)}.json"'
    return answer


def _whole(steps: list[dict[str, Any]]) -> set[int]:
    if len(steps) <= _FEW_STEPS:
        return {step["index"] for step in steps}
    calm = TERMINAL_STEP.union(UNSTARTED_STEP) - {StepStatus.FAILED}
    return {step["index"] for step in [one for one in steps if one["status"] not in calm][:_MOST_WHOLE]}


def _is_folded(request: Request, job: dict[str, Any]) -> bool:
    chosen = request.query_params.get("finished")
    is_all = all(step["status"] == StepStatus.SUCCEEDED for step in job["steps"])
    return chosen == "fold" or (chosen != "show" and len(job["steps"]) > _FEW_STEPS and not is_all)


def _planned(job: dict[str, Any]) -> dict[int, Any]:
    """Return the arguments of each step as its plan has them, by the step's index, where they can be told."""
    found: dict[int, Any] = {}
    for one in job["rounds"]:
        calls = one["plan"].get("calls") if isinstance(one["plan"], dict) else None
        if isinstance(calls, list) and len(calls) == len(one["steps"]):
            found |= {
                index: call.get("arguments")
                for index, call in zip(one["steps"], calls, strict=True)
                if isinstance(call, dict)
            }
    return found


async def questions_of(services: Services, who: Caller, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the open questions of a job, each with the fields of its form."""
    found = []
    for one in job["open_questions"]:
        with contextlib.suppress(NotFound):
            found.append(with_fields(values_of(await get_question(one["id"], services, who))))
    return found


def _acts(job: dict[str, Any]) -> dict[str, bool]:
    is_over = JobStatus(job["status"]).is_terminal
    has_failures = any(step["status"] == StepStatus.FAILED for step in job["steps"])
    is_paused = job["paused_at"] is not None and not is_over
    return {
        "cancel": not is_over,
        "pause": not is_over and not is_paused,
        "resume": is_paused or job["status"] == JobStatus.FAILED or (is_over and has_failures),
        "fork": job["plan"] is not None,
        "again": job["parent"] is None,
    }


PAGE_CHANNEL = "web"
"""Over what answers come that are given on a page."""


@job_page_routes.post("/ui/jobs/{job_id}/resume")
async def post_resume(request: Request, job_id: str, services: Use, who: Who) -> Response:
    """Let a job go on; with `repeat_unsafe` also where calls may take effect twice."""
    body = ResumeRequest(repeat_unsafe="repeat_unsafe" in fields_of(request))
    await resume_job(job_id, services, who, body)
    return seen(f"/jobs/{job_id}")


@job_page_routes.post("/ui/jobs/{job_id}/again")
async def post_again(job_id: str, services: Use, who: Who) -> Response:
    made = await run_again(job_id, services, who)
    return seen(f"/jobs/{made.job_id}")


@job_page_routes.post("/ui/jobs/{job_id}/steps/{index}/settle")
async def post_settle(request: Request, job_id: str, index: str, services: Use, who: Who) -> Response:
    fields = fields_of(request)
    sent: dict[str, Any] = {"outcome": fields.get("outcome", "")}
    if text := fields.get("output", "").strip():
        sent["output"] = await off_loop(json_in, text, "output")
    await settle_step(job_id, index, await body_of(SettleRequest, sent), services, who)
    return seen(f"/jobs/{job_id}")


@job_page_routes.post("/ui/elicitations/{question_id}")
async def post_answer(request: Request, question_id: str, services: Use, who: Who) -> Response:
    """Answer a question, and go back to where it was asked."""
    fields = fields_of(request)
    place = _place_of_form(fields.get("from", ""))
    question = values_of(await get_question(question_id, services, who))
    sent: dict[str, Any] = {"action": fields.get("action", ""), "channel": PAGE_CHANNEL}
    if fields.get("reason"):
        sent["reason"] = fields["reason"]
    if fields.get("by"):
        sent["by"] = fields["by"]
    if sent["action"] == "accept" and question["schema"] is not None:
        sent["content"] = await off_loop(content_of, question["schema"], fields)
    await answer_question(question_id, await body_of(AnswerRequest, sent), services, who)
    return seen(place or f"/jobs/{question['job_id']}")


def _place_of_form(given: str) -> str | None:
    if given == "inbox":
        return "/elicitations"
    kind, _, name = given.partition("/")
    return f"/chat/{conversation_id_of(name)}" if kind == "chat" else None
