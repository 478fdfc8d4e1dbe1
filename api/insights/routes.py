"""Insights: what a tenant's jobs have taught, what of it was chosen for a job, and whether it helps."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import Field
from starlette.responses import Response

from planq.api.access.scopes import Who
from planq.api.deps import JobPath, Use, strict_router
from planq.api.http.exchange import JsonResponse, error_responses
from planq.api.http.ids import CursorQuery, Limit, id_of_cursor, job_id_of, page_of, uuid_of
from planq.api.schemas import Answer, Id, PageDocument, RequestBody, Time
from planq.shared.platform.computing import off_loop
from planq.shared.platform.database import Row
from planq.shared.platform.errors import storable
from planq.shared.subjects.insights.offering import InsightGroup, InsightMode, confidence
from planq.shared.subjects.insights.report import Usefulness, compare, compare_rates
from planq.shared.subjects.insights.rules import InsightKind
from planq.shared.subjects.insights.store import InsightMeasures

insight_routes = strict_router("insights")

_Verdict = Annotated[Usefulness, Field(description="What the numbers say; `too_few`: fewer than ten jobs on a side.")]


class InsightDocument(Answer):
    """A lesson, and how often it was seen."""

    id: Id
    kind: InsightKind
    tool_name: str = Field(description="Empty for a course.")
    lesson: str = Field(description="What a planner is shown.")
    body: dict[str, Any] = Field(description="What rules have found; kinds of values, and never values.")
    reflection: str | None = Field(description="What a model has added, where the tenant asks one.")
    seen: int = Field(description="How many jobs have taught it.")
    against: int = Field(description="How many jobs had a call that worked although the lesson says that it fails.")
    confidence: float = Field(description="The lower end of how often it holds, from 0 to 1.")
    calls: int
    failed_calls: int
    seconds: float = Field(description="The time of these calls, of a course that of its jobs.")
    is_pinned: bool = Field(description="It never expires, and comes first among those that fit.")
    retired_at: Time | None = Field(description="Since then no planner is offered it.")
    first_seen_at: Time
    last_seen_at: Time
    expires_at: Time


class InsightSourceDocument(Answer):
    """A job that has taught an insight; the step is null for a course. The job may have been removed since."""

    job_id: Id
    round: int | None
    step_index: int | None
    seen_at: Time


class InsightWithSources(InsightDocument):
    """An insight with the newest twenty jobs that have taught it."""

    reflection_job_id: Id | None = Field(description="The job that was asked for its `reflection`.")
    reflected_job_id: Id | None = Field(description="The job that this was asked about.")
    sources: list[InsightSourceDocument]


class InsightPage(PageDocument[InsightDocument]):
    """Insights, newest first; `next_cursor` is null on the last page."""


class InsightChange(RequestBody):
    """What becomes different; what is left out, or null, stays."""

    is_pinned: bool | None = None
    is_retired: bool | None = Field(None, description="A retired one is offered to no planner.")


class ChosenInsight(Answer):
    """An insight that was chosen for a job."""

    id: Id
    lesson: str


class JobInsights(Answer):
    """What was chosen for a job of what earlier ones have taught; what was removed since is left out."""

    side: InsightGroup | None = Field(description="Null: nothing was chosen. Its planner saw only `offered`.")
    tokens: int
    insights: list[ChosenInsight]


class IntervalDocument(Answer):
    """A number, and where it lies in 95 of 100 cases."""

    value: float
    low: float
    high: float


class ContrastDocument(Answer):
    """One measure of both sides; null where there is no job to measure."""

    with_: IntervalDocument | None = Field(alias="with")
    without: IntervalDocument | None
    difference: IntervalDocument | None = Field(description="With insights, less that without.")
    verdict: _Verdict


class MeasuresDocument(Answer):
    """Success is a rate, of which more is better; all others are means of a job, of which less is."""

    success: ContrastDocument
    tool_failures: ContrastDocument
    rounds: ContrastDocument
    seconds: ContrastDocument
    cost_usd: ContrastDocument
    tokens: ContrastDocument


class SideCounts(Answer):
    """Jobs that have ended, by what became of the insights that were chosen for them."""

    offered: int
    held_out: int
    shadow: int


class MeasuredInsight(Answer):
    """What jobs came to for which one insight was chosen, beside others."""

    id: Id
    kind: InsightKind
    lesson: str
    is_pinned: bool
    is_retired: bool
    offered: int
    held_out: int
    success: ContrastDocument


class InsightReport(Answer):
    """Whether insights help: jobs whose planners saw them beside jobs that were held out."""

    days: float
    mode: Literal["off", "shadow", "on"] = Field(description="What the tenant does with insights now.")
    jobs: SideCounts
    verdict: _Verdict
    measures: MeasuresDocument
    insights: list[MeasuredInsight] = Field(description="The hundred that were offered most.")


InsightPath = Annotated[str, Path(json_schema_extra={"format": "uuid"}, description="The insight's id.")]


@insight_routes.get("/insights", response_model=InsightPage)
async def list_insights(
    services: Use,
    who: Who,
    retired: Annotated[bool, Query(description="Those that are retired, too.")] = False,
    kind: Annotated[InsightKind | None, Query(description="Those of a kind only.")] = None,
    tool: Annotated[str | None, Query(max_length=200, description="Those on a tool only, by its name.")] = None,
    limit: Limit = 20,
    cursor: CursorQuery = None,
) -> Response:
    """List what the tenant's jobs have taught, newest first."""
    rows = await services.insights.page(
        who.tenant_id,
        with_retired=retired,
        kind=kind,
        tool=None if tool is None else storable(tool),
        below=id_of_cursor(cursor),
        limit=limit + 1,
    )
    return page_of(rows, limit, _insight)


@insight_routes.get("/insights/report", response_model=InsightReport)
async def get_insight_report(
    services: Use,
    who: Who,
    days: Annotated[
        float, Query(gt=0, le=3_650, description="Of jobs that were made in the last so many days.")
    ] = 30,
) -> Response:
    """Say whether insights help: success, failed calls, rounds, time, cost and tokens with and without them."""
    config = (await services.tenants.of(who.tenant_id)).config
    mode = services.settings.insights if config.insights is None else InsightMode(config.insights)
    measured = await services.insights.measured(who.tenant_id, days)
    return JsonResponse({"days": days, "mode": mode, **await off_loop(_report, measured)})


@insight_routes.get("/insights/{insight_id}", response_model=InsightWithSources, responses=error_responses(404))
async def get_insight(insight_id: InsightPath, services: Use, who: Who) -> Response:
    """Return an insight with the newest jobs that have taught it."""
    return JsonResponse(_with_sources(await services.insights.get(who.tenant_id, uuid_of("insight", insight_id))))


@insight_routes.patch(
    "/insights/{insight_id}", response_model=InsightWithSources, responses=error_responses(400, 404, 413, 415)
)
async def change_insight(insight_id: InsightPath, body: InsightChange, services: Use, who: Who) -> Response:
    """Pin an insight, or retire it, or take that back; return it."""
    found = uuid_of("insight", insight_id)
    await services.insights.change(who.tenant_id, found, is_pinned=body.is_pinned, is_retired=body.is_retired)
    return JsonResponse(_with_sources(await services.insights.get(who.tenant_id, found)))


@insight_routes.delete(
    "/insights/{insight_id}", status_code=204, response_class=Response, responses=error_responses(404)
)
async def retire_insight(insight_id: InsightPath, services: Use, who: Who) -> Response:
    """Retire an insight. It stays known until it expires, so that its lesson is not offered when it comes again."""
    await services.insights.change(who.tenant_id, uuid_of("insight", insight_id), is_pinned=False, is_retired=True)
    return Response(status_code=204)


@insight_routes.delete("/insights", status_code=204, response_class=Response)
async def forget_insights(services: Use, who: Who) -> Response:
    """Remove all that the tenant's jobs have taught, and what was chosen for them."""
    await services.insights.forget(who.tenant_id)
    return Response(status_code=204)


@insight_routes.get("/jobs/{job_id}/insights", response_model=JobInsights, responses=error_responses(404))
async def get_job_insights(job_id: JobPath, services: Use, who: Who) -> Response:
    """Return what was chosen for a job, and whether its planner was shown it."""
    row = await services.insights.of_job(who.tenant_id, job_id_of(job_id))
    return JsonResponse({"side": row["side"], "tokens": row["tokens"] or 0, "insights": row["insights"] or []})


def _report(measured: InsightMeasures) -> dict[str, Any]:
    verdict, contrasts = compare(measured.blocks[InsightGroup.OFFERED], measured.blocks[InsightGroup.HELD_OUT])
    return {
        "jobs": {side: sum(block.jobs for block in blocks) for side, blocks in measured.blocks.items()},
        "verdict": verdict,
        "measures": {name: one.to_json() for name, one in contrasts.items()},
        "insights": [_measured(row) for row in measured.insights],
    }


def _measured(row: Row) -> dict[str, Any]:
    counts = (row["offered_succeeded"], row["offered"], row["held_out_succeeded"], row["held_out"])
    success = compare_rates(*counts).to_json()
    return MeasuredInsight.of(row, is_retired=row["retired_at"] is not None, success=success)


def _insight(row: Row) -> dict[str, Any]:
    sure = confidence(row["seen"], row["against"])
    return {**row, "confidence": sure, "seconds": round(row["seconds"], 3)}


def _with_sources(row: Row) -> dict[str, Any]:
    return {**_insight(row), "sources": row["sources"] or []}
