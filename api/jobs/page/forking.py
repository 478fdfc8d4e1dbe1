"""A fork with an edited plan: checked while it is typed, looked at with the difference, then made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Caller, Who
from planq.api.deps import Services, Use
from planq.api.http.exchange import HttpRefusal, error_response
from planq.api.jobs.routes.jobs import fork_job, get_job
from planq.api.page.fields import json_in
from planq.api.page.rendering import page
from planq.api.page.route import body_of, fields_of, json_request, page_router, seen, values_of
from planq.api.page.trees import differences, laid_out
from planq.api.schemas import ForkRequest, ValidationRequest
from planq.api.tools.routes import validate_plan
from planq.shared.agentic.plan.errors import PlanError
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import PlanqError
from planq.shared.platform.values.pointers import Path, from_pointer

fork_routes = page_router()


class Look(NamedTuple):
    """What a look at an edited plan found: its defects, or why it is refused, or else what a fork would do."""

    defects: list[dict[str, Any]]
    left_out: int = 0
    problem: dict[str, Any] | None = None
    preview: dict[str, Any] | None = None
    plan: Any = None


@fork_routes.get("/ui/jobs/{job_id}/fork")
async def show_fork(request: Request, job_id: str, services: Use) -> Response:
    job = values_of(await get_job(request, job_id, services))
    return await _page(request, "fork.html", job, await off_loop(laid_out, job["plan"]), Look([]))


@fork_routes.post("/ui/jobs/{job_id}/fork/check")
async def post_check(request: Request, job_id: str, services: Use, who: Who) -> Response:
    job = values_of(await get_job(request, job_id, services))
    text = fields_of(request).get("plan", "")
    return await _page(request, "forked.html", job, text, await _look(request, job_id, services, who, text))


@fork_routes.post("/ui/jobs/{job_id}/fork")
async def post_fork(request: Request, job_id: str, services: Use, who: Who) -> Response:
    """Look at what a fork would do, or make it and lead to it; what is wrong with the plan stands beside the plan."""
    fields = fields_of(request)
    job = values_of(await get_job(request, job_id, services))
    text = fields.get("plan", "")
    found = await _look(request, job_id, services, who, text)
    if fields.get("act") != "fork":
        return await _page(request, "fork.html", job, text, found)
    if found.defects:
        return await _page(request, "fork.html", job, text, found, status=400)
    sent = {"plan": found.plan, "repeat_unsafe": "repeat_unsafe" in fields}
    try:
        made = await _forked(request, job_id, services, who, sent)
    except PlanqError as error:
        refused = values_of(error_response(error))
        return await _page(request, "fork.html", job, text, Look([], problem=refused), status=refused["status"])
    return seen(f"/jobs/{made['id']}")


async def _look(request: Request, job_id: str, services: Services, who: Caller, text: str) -> Look:
    try:
        plan = await off_loop(json_in, text, "the plan")
    except HttpRefusal as error:
        return Look([{"line": error.members.get("line"), "place": "", "told": error.detail}])
    checked = values_of(await validate_plan(await body_of(ValidationRequest, {"plan": plan}), services, who))
    if checked["errors"]:
        return Look(await off_loop(_defects, text, checked["errors"]), checked.get("errors_left_out", 0))
    sent = {"plan": plan, "dry_run": True, "repeat_unsafe": "repeat_unsafe" in fields_of(request)}
    try:
        return Look([], preview=await _forked(request, job_id, services, who, sent), plan=plan)
    except PlanqError as error:
        return Look([], problem=values_of(error_response(error)), plan=plan)


def _defects(text: str, errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = lines_at(text, [one["place"] for one in errors])
    found = [
        {"line": lines[one["place"]], "place": one["place"], "told": PlanError.from_json(one).render()}
        for one in errors
    ]
    return sorted(found, key=lambda one: one["line"])


async def _forked(request: Request, job_id: str, services: Services, who: Caller, sent: dict[str, Any]) -> Any:
    asked = json_request(request, sent)
    return values_of(await fork_job(asked, job_id, services, who, await body_of(ForkRequest, sent)))


async def _page(
    request: Request, template: str, job: dict[str, Any], text: str, look: Look, *, status: int = 200
) -> Response:
    changes = await off_loop(_changes, job["plan"], text)
    return page(request, template, status=status, job=job, text=text, look=look, changes=changes)


def _changes(plan: Any, text: str) -> str:
    return differences(laid_out(plan), text, ("as it was", "edited"))


_TOKEN = re.compile(r'[{}\[\],:]|"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+')


def lines_at(text: str, pointers: Iterable[str]) -> dict[str, int]:
    """Return for each pointer the line, from 1, on which its value begins, or else what would hold it.

    `text` must be JSON, which a reader has found before.
    """
    wanted = {pointer: from_pointer(pointer) for pointer in pointers}
    starts = _starts(text, {path[:length] for path in wanted.values() for length in range(len(path) + 1)})
    return {
        pointer: next(starts[path[:length]] for length in range(len(path), -1, -1) if path[:length] in starts)
        for pointer, path in wanted.items()
    }


def _starts(text: str, places: set[Path]) -> dict[Path, int]:
    found: dict[Path, int] = {}
    deepest = max(map(len, places), default=0)
    opened: list[str] = []
    path: list[str] = []
    is_key, line, seen = False, 1, 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        line += text.count("\n", seen, token.start())
        seen = token.start()
        if mark in ("}", "]"):
            opened.pop()
            path.pop()
        elif mark == ",":
            is_key = opened[-1] == "{"
            if not is_key:
                path[-1] = str(int(path[-1]) + 1)
        elif mark == ":":
            is_key = False
        elif is_key:
            path[-1] = json.loads(mark)
        else:
            if len(path) <= deepest and (place := tuple(path)) in places:
                found.setdefault(place, line)
            if mark in ("{", "["):
                opened.append(mark)
                path.append("0")
                is_key = mark == "{"
                continue
        if mark in ("}", "]"):
            is_key = False
    return found
