"""What jobs have taught those after them: listed, pinned, retired, removed; and the report on whether that helps."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Who
from planq.api.deps import Use
from planq.api.insights.routes import (
    InsightChange,
    change_insight,
    forget_insights,
    get_insight,
    get_insight_report,
    list_insights,
    retire_insight,
)
from planq.api.page.rendering import page
from planq.api.page.route import add_acts, body_of, fields_of, page_router, seen, values_of
from planq.api.page.words import cost
from planq.shared.subjects.insights.report import Usefulness
from planq.shared.subjects.insights.rules import InsightKind

insight_page_routes = page_router()
add_acts(insight_page_routes, "/insights/{insight_id}", retire=retire_insight)

_PAGE = 30
_KINDS = {str(kind): str(kind).capitalize() for kind in InsightKind}
_VERDICTS = {
    Usefulness.HELPS: ("ok", "Helps"),
    Usefulness.HARMS: ("bad", "Harms"),
    Usefulness.NO_DIFFERENCE: ("idle", "No difference"),
    Usefulness.TOO_FEW: ("ask", "Too few"),
}
_SHOWN = {str(verdict): shown for verdict, shown in _VERDICTS.items()}
_MEASURES = (
    ("success", "Success"),
    ("tool_failures", "Failed calls"),
    ("rounds", "Rounds"),
    ("seconds", "Seconds"),
    ("cost_usd", "Cost"),
    ("tokens", "Tokens"),
)
_Days = Annotated[float, Query(gt=0, le=3_650)]
_Words = Annotated[str, Query(max_length=200)]


@insight_page_routes.get("/ui/insights")
async def insights_page(
    request: Request,
    services: Use,
    who: Who,
    kind: _Words = "",
    tool: _Words = "",
    retired: bool = False,
    cursor: Annotated[str | None, Query()] = None,
) -> Response:
    wanted = InsightKind(kind) if kind in _KINDS else None
    chosen = {"kind": kind if wanted else "", "tool": tool.strip(), "retired": "true" if retired else ""}
    listed = values_of(
        await list_insights(
            services, who, retired=retired, kind=wanted, tool=chosen["tool"] or None, limit=_PAGE, cursor=cursor
        )
    )
    return page(
        request,
        "insights.html",
        insights=[{**one, "state": _state(one)} for one in listed["items"]],
        next_cursor=listed["next_cursor"],
        chosen=chosen,
        kinds=_KINDS,
    )


@insight_page_routes.post("/ui/insights/forget")
async def post_forgetting(services: Use, who: Who) -> Response:
    await forget_insights(services, who)
    return seen("/insights")


@insight_page_routes.get("/ui/insights/report")
async def report_page(request: Request, services: Use, who: Who, days: _Days = 30) -> Response:
    report = values_of(await get_insight_report(services, who, days))
    measures = [_measure(name, label, report["measures"][name]) for name, label in _MEASURES]
    each = [
        {**one, **_measure("success", "", one["success"]), "state": _state_of_measured(one)}
        for one in report["insights"]
    ]
    return page(
        request,
        "insights_report.html",
        report=report,
        state=_SHOWN[report["verdict"]],
        measures=measures,
        each=each,
        spans=(1, 7, 30, 90),
    )


@insight_page_routes.get("/ui/insights/{insight_id}")
async def insight_page(request: Request, insight_id: str, services: Use, who: Who) -> Response:
    insight = values_of(await get_insight(insight_id, services, who))
    return page(request, "insight.html", insight=insight, state=_state(insight))


@insight_page_routes.post("/ui/insights/{insight_id}/change")
async def post_change_of_insight(request: Request, insight_id: str, services: Use, who: Who) -> Response:
    change = await body_of(InsightChange, {name: value == "yes" for name, value in fields_of(request).items()})
    await change_insight(insight_id, change, services, who)
    return seen(f"/insights/{insight_id}")


def _state(insight: dict[str, Any]) -> tuple[str, str]:
    if insight["retired_at"] is not None:
        return "idle", "Retired"
    if insight["is_pinned"]:
        return "ok", "Pinned"
    return ("ask", "Doubtful") if insight["against"] >= insight["seen"] else ("ok", "In use")


def _state_of_measured(insight: dict[str, Any]) -> tuple[str, str] | None:
    return ("idle", "Retired") if insight["is_retired"] else ("ok", "Pinned") if insight["is_pinned"] else None


def _measure(name: str, label: str, contrast: dict[str, Any]) -> dict[str, Any]:
    sides = {side: _interval(name, contrast[key]) for side, key in (("ours", "with"), ("others", "without"))}
    difference = _interval(name, contrast["difference"], is_difference=True)
    return {"told": label, **sides, "difference": difference, "verdict": _SHOWN[contrast["verdict"]]}


def _interval(name: str, one: dict[str, float] | None, *, is_difference: bool = False) -> tuple[str, str] | None:
    """Return a number and where it lies, each in words; None where there is no job to measure."""
    if one is None:
        return None
    value, low, high = (_number(name, one[key], signed=is_difference) for key in ("value", "low", "high"))
    unit = " points" if is_difference and name == "success" else ""
    return value + unit, f"{low} to {high}"


def _number(name: str, value: float, *, signed: bool) -> str:
    sign = ("+" if value > 0 else "−" if value < 0 else "") if signed else ""
    size = abs(value) if signed else value
    if name == "success":
        return f"{sign}{100 * size:.1f}{'' if signed else ' %'}"
    return f"{sign}{cost(size)}" if name == "cost_usd" else f"{sign}{size:.3g}"
