"""Operations: why a job waits, counts, workers, model calls, and the search for an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from fastapi.responses import Response
from pydantic import Field

from planq.api.access.scopes import Caller, Who
from planq.api.deps import JobPath, Use, strict_router
from planq.api.http.exchange import JsonResponse, error_responses
from planq.api.http.ids import job_id_of
from planq.api.intake.message_flow import job_id_of_plan
from planq.api.schemas import Answer, Id, Time
from planq.shared.kernel.states import JobStatus, Priority, pools_of
from planq.shared.platform.database import Row
from planq.shared.platform.errors import NotFound, storable
from planq.shared.subjects.jobs.operations import (
    COUNTED_UP_TO,
    MOST_WAITING,
    FoundKind,
    JobOverview,
    NamedId,
    named_id,
)
from planq.shared.subjects.jobs.waiting import WaitKind, wait_of
from planq.shared.subjects.tenants.keys import KeyScope

overview_routes = strict_router("jobs")


class WhyDocument(Answer):
    """For what a job waits."""

    job_id: Id
    status: JobStatus
    waits_for: WaitKind = Field(description="`work`: it waits for nothing, it runs; `nothing`: it has ended.")
    sentence: str = Field(description="The same for people, as the page and `planq status` say it.")


class ModelCallDocument(Answer):
    """One call of a job to a model: to plan, to answer, or for a turn of its rounds."""

    round: int
    purpose: str
    model: str
    attempts: int = Field(description="How often it was tried.")
    latency_ms: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = Field(description="The part of the input that the provider read from its prompt cache.")
    cache_write_tokens: int = Field(description="The part of the input that the provider stored in its prompt cache.")
    cost_usd: float | None = Field(description="Null where nobody knows the model's price.")
    error: Any = Field(description="Null where the call succeeded.")
    exchange: Any = Field(description="`request` and `reply`; null where they are not kept, or are over 64 KiB.")
    exchange_bytes: int | None = Field(description="Null where they are not kept.")
    created_at: Time


class ModelCallPage(Answer):
    """The first calls of a job to models, in their order, at most 100; those of child jobs are with these."""

    items: list[ModelCallDocument]


class CountDocument(Answer):
    """How many jobs that no other job has made stand in each status."""

    counts: dict[str, int]
    most: int = Field(description="A status is counted up to here: so many stands for at least so many.")


class RunningDocument(Answer):
    """A step of this tenant, or a stage of a job, that a worker carries out."""

    job_id: Id
    step_index: int | None = Field(description="Null for a stage.")
    what: str = Field(description="The step's tool, or the status of the job whose stage it is.")
    since: Time | None = Field(description="When the attempt at the step began.")


class WorkerDocument(Answer):
    """A worker process whose lease is alive."""

    id: Id
    name: str = Field(description="With its host and process for a key with `admin`; others get the end of its id.")
    pools: list[str]
    version: str
    capacity: int = Field(description="How many attempts it carries out at once.")
    in_flight: int = Field(description="How many attempts run: of all tenants for `admin`, else of yours.")
    lag_ms: int = Field(description="How late its event loop was then.")
    missing: list[str] = Field(description="What it needs and lacks; only operators get the details.")
    left_out: list[str] = Field(description="Tools of MCP servers that it does not offer, and why; for operators.")
    provides: list[str] = Field(
        description="What its own configuration gives it and other workers may lack: `payloads` "
        "(`PLANQ_PAYLOADS`), `model PLACE` (a key or an address of that place); for operators."
    )
    started_at: Time
    heartbeat_at: Time
    running: list[RunningDocument] = Field(description="What it carries out of this tenant; at most 200.")


class WaitingDocument(Answer):
    """What of this tenant waits for a worker of a pool."""

    pool: str
    priority: Priority
    waiting: int
    oldest_at: Time | None = Field(description="Since when the oldest waits; null where nothing does.")


class WorkersDocument(Answer):
    """The workers that are alive, and what waits for one."""

    workers: list[WorkerDocument]
    backlog: list[WaitingDocument] = Field(description="One for each pool that there is, and each priority.")
    most: int = Field(description="So many steps and as many stages are counted of what waits.")


@overview_routes.get("/jobs/{job_id}/why", response_model=WhyDocument, responses=error_responses(404))
async def get_why(job_id: JobPath, services: Use, who: Who) -> Response:
    """Say why a job waits: for whose answer, which worker, what time, which other job. It is read in one look."""
    found = job_id_of(job_id)
    whys = await whys_of(services.overview, who, [found])
    if found not in whys:
        raise NotFound(f"there is no job {found}")
    return JsonResponse(whys[found])


async def whys_of(overview: JobOverview, who: Caller, job_ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
    """Return what `get_why` says of each of these jobs that there is: of all of them in one statement."""
    whys = {}
    is_operator = KeyScope.ADMIN in who.scopes
    for id, job in (await overview.readings(who.tenant_id, job_ids, names_workers=is_operator)).items():
        wait = wait_of(job)
        whys[id] = {"job_id": str(id), "status": job["status"], "waits_for": wait.kind, "sentence": wait.sentence}
    return whys


@overview_routes.get("/jobs/{job_id}/model-calls", response_model=ModelCallPage, responses=error_responses(404))
async def get_model_calls(job_id: JobPath, services: Use, who: Who) -> Response:
    """List a job's calls to models, with tokens and cost, and with prompts and replies where they are kept."""
    rows = await services.overview.model_calls(who.tenant_id, job_id_of(job_id))
    return JsonResponse({"items": [ModelCallDocument.of(row) for row in rows]})


@overview_routes.get("/job-counts", response_model=CountDocument)
async def get_job_counts(services: Use, who: Who) -> Response:
    """Count the jobs in each status, without child jobs."""
    return JsonResponse({"counts": await services.overview.counts(who.tenant_id), "most": COUNTED_UP_TO})


@overview_routes.get("/workers", response_model=WorkersDocument)
async def get_workers(services: Use, who: Who) -> Response:
    """List the workers that are alive, what each carries out of this tenant, and what waits, by pool and priority.

    What is paused, held back by a job's window, or to be tried later waits for something else, and is not counted.
    """
    alive = await services.workers.live()
    running: dict[UUID, list[dict[str, Any]]] = {}
    for row in await services.overview.running(who.tenant_id, services.settings.lease_seconds):
        running.setdefault(row["worker_id"], []).append(RunningDocument.of(row))
    waiting = await services.overview.waiting(who.tenant_id)
    is_operator = KeyScope.ADMIN in who.scopes
    workers = [_worker(row, running.get(row["id"], []), is_operator=is_operator) for row in alive]
    return JsonResponse({"workers": workers, "backlog": _backlog(alive, waiting), "most": MOST_WAITING})


def neutral_name(worker_id: str) -> str:
    """Return the name of a worker for tenants, which says nothing about its host and process."""
    return f"worker {worker_id[-6:]}"


def _worker(row: Row, running: list[dict[str, Any]], *, is_operator: bool) -> dict[str, Any]:
    """Return a worker's document; tenants get nothing about hosts, processes and the work of others."""
    lists = {name: row[name] or [] for name in ("missing", "left_out", "provides")}
    shown = WorkerDocument.of(row, **lists, running=running)
    if not is_operator:
        shown["name"] = neutral_name(str(row["id"]))
        shown["in_flight"] = len(running)
        shown["missing"] = ["something that its operator has to provide"] if row["missing"] else []
        shown["left_out"] = shown["provides"] = []
    return shown


def _backlog(alive: Sequence[Row], waiting: Sequence[Row]) -> list[dict[str, Any]]:
    found = {(row["pool"], row["priority"]): row for row in waiting}
    pools = pools_of([*alive, {"pools": [pool for pool, _ in found]}])
    empty = {"n": 0, "oldest_at": None}
    rows = [(pool, priority, found.get((pool, str(priority)), empty)) for pool in pools for priority in Priority]
    return [
        {"pool": pool, "priority": str(priority), "waiting": row["n"], "oldest_at": row["oldest_at"]}
        for pool, priority, row in rows
    ]


class FoundThing(Answer):
    """What has an id, and where it belongs."""

    kind: FoundKind
    id: str = Field(description="Its own id; of a line its `custom_id`, of a step or a plan that of the job.")
    job_id: Id | None = Field(description="The job that it is, belongs to, or has last made.")
    step_index: int | None = Field(description="Of a step.")
    batch_id: Id | None = Field(description="The batch that it is, or of its line.")
    line: int | None = Field(description="The number of a line in its batch.")


class FoundThings(Answer):
    """What has an id; nothing for one that nobody of this tenant has."""

    items: list[FoundThing]


@overview_routes.get("/search", response_model=FoundThings)
async def get_search(
    services: Use,
    who: Who,
    id: Annotated[str, Query(min_length=1, max_length=600, description="An id of whatever kind.")],
) -> Response:
    """Say what has an id: a job, a plan, a conversation, a batch, a schedule, a question or a job action.

    The id of a Celery task as Flower shows it (`<job>.r0.s2.1`) and a step's idempotency key (`<job>/2`) find the
    step. Any other text is looked for as the `custom_id` of a line, in the newest 1,000 batches.
    """
    named = named_id(id)
    found = [] if named is None else await _of_id(services.overview, who.tenant_id, named)
    if not found:
        rows = await services.overview.lines(who.tenant_id, storable(id))
        found = [
            _found(FoundKind.LINE, row["custom_id"], row["job_id"], batch_id=row["batch_id"], line=row["line"])
            for row in rows
        ]
    return JsonResponse({"items": found})


async def _of_id(overview: JobOverview, tenant_id: str, named: NamedId) -> list[dict[str, Any]]:
    rows = await overview.with_id(tenant_id, named.id)
    if not rows:
        return await _of_plan(overview, tenant_id, named.id)
    found = []
    for row in rows:
        kind = FoundKind(row["kind"])
        if kind is FoundKind.JOB and named.step_index is not None:
            found.append(_found(FoundKind.STEP, row["id"], row["id"], step_index=named.step_index))
        else:
            job_id = row["id"] if kind is FoundKind.JOB else row["job_id"]
            batch_id = row["id"] if kind is FoundKind.BATCH else None
            found.append(_found(kind, row["id"], job_id, batch_id=batch_id))
    return found


async def _of_plan(overview: JobOverview, tenant_id: str, id: UUID) -> list[dict[str, Any]]:
    try:
        job_id = job_id_of_plan(str(id))
    except NotFound:
        return []
    rows = await overview.with_id(tenant_id, job_id)
    return [_found(FoundKind.PLAN, id, job_id) for row in rows if row["kind"] == FoundKind.JOB]


def _found(
    kind: FoundKind,
    id: object,
    job_id: UUID | None,
    *,
    step_index: int | None = None,
    batch_id: UUID | None = None,
    line: int | None = None,
) -> dict[str, Any]:
    return {
        "kind": kind,
        "id": str(id),
        "job_id": None if job_id is None else str(job_id),
        "step_index": step_index,
        "batch_id": None if batch_id is None else str(batch_id),
        "line": line,
    }
