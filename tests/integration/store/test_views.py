"""What callers see of jobs: all that is stored, exactly, whether somebody looks alone or many at one moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from planq.api.documents import job_document, steps_document
from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ClaimRequest
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.retry import RetryTerms
from planq.shared.kernel.states import Effect, JobStatus, Pool, StepKind, StepStatus, Strategy
from planq.shared.kernel.steps import PlannedStep
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ErrorRecord, NotFound
from planq.shared.platform.values.decoding import decode_stored
from planq.shared.platform.values.encoding import JsonText
from planq.shared.subjects.jobs.find import found_jobs
from planq.shared.subjects.jobs.job_view import JobView
from planq.shared.subjects.jobs.selection import JobFilter
from tests.support.claiming import claim_stage, claim_step
from tests.support.plans import TOOLS
from tests.support.requests import OpenRequestStore

SHOWN_AS_STORED = (
    *("index", "tool_name", "status", "attempt", "output", "output_bytes", "error", "depends_on", "effect"),
    *("recovery", "started_at", "finished_at", "called_arguments"),
)


def run(url: str, work: Callable[[OpenRequestStore, PostgresJobStore], Awaitable[Any]]) -> Any:
    async def inside() -> Any:
        database = Database(url, max_connections=4)
        await database.open()
        try:
            return await work(OpenRequestStore(database), PostgresJobStore(database, new_id(), as_called))
        finally:
            await database.close()

    return asyncio.run(inside())


async def submitted(requests: OpenRequestStore, text: str = "x", tenant: str = "default") -> UUID:
    one = Submission(new_id(), tenant, text, Strategy.PLAN, "offline", Limits(), metadata={"of": text})
    await requests.submit(one)
    return one.id


async def planned(requests: OpenRequestStore, store: PostgresJobStore, steps: int) -> UUID:
    """Return an executing job of so many independent steps."""
    job_id = await submitted(requests)
    claim = await claim_stage(store, job_id, [JobStatus.QUEUED])
    assert claim is not None
    plan = {"calls": [{"tool_name": "sim_pure", "arguments": {"value": str(index)}} for index in range(steps)]}
    moved = await store.accept_plan(claim, "caller", plan, compile_plan(Plan.model_validate(plan), TOOLS).steps, [])
    assert moved.applied
    return job_id


async def succeed(store: PostgresJobStore, job_id: UUID, index: int, output: Any) -> None:
    claim = await claim_step(store, StepRef(job_id, 0, index))
    assert claim is not None
    assert (await store.succeed_step(claim, output, None)).applied


async def end(store: PostgresJobStore, job_id: UUID, answer: str) -> None:
    claim = await claim_stage(store, job_id, [JobStatus.QUEUED])
    assert claim is not None
    assert await store.end_job(claim, JobStatus.COMPLETED, answer, None, [])


@pytest.mark.parametrize("steps", [1, 100, 101, 250])
def test_a_job_is_seen_as_it_is_stored_however_many_steps_it_has(database_url: str, steps: int) -> None:
    async def work(requests: OpenRequestStore, store: PostgresJobStore) -> Any:
        job_id = await planned(requests, store, steps)
        await succeed(store, job_id, min(steps - 1, 63), {"value": "done"})
        return await requests.view("default", job_id), await requests.job("default", job_id)

    view, (row, stored) = run(database_url, work)

    assert view.is_whole
    assert [{name: step[name] for name in SHOWN_AS_STORED} for step in view.steps] == [
        {name: step[name] for name in SHOWN_AS_STORED} for step in stored
    ]
    last = min(steps - 1, 63)  # of those that are out, which have places in their job's window
    assert view.steps[last]["status"] == StepStatus.SUCCEEDED
    assert view.steps[last]["started_at"] is not None
    assert json.loads(view.row["plan_body"].body) == row["plan_body"]
    assert json.loads(view.row["metadata"].body) == row["metadata"]
    for name in ("id", "status", "input", "created_at", "started_at", "expires_at", "cost_usd", "model_calls"):
        assert view.row[name] == row[name]


def test_every_round_of_a_job_is_seen_with_its_plan_and_its_steps(database_url: str) -> None:
    # Pins: a job with a chained tool showed no plan, and of its steps the last alone.
    called = PlannedStep(
        2, StepKind.TOOL, "keep", Pool.IO, Effect.READ, {"a": "$0.output.x"}, (), (), (), 60.0, RetryTerms()
    )

    async def work(requests: OpenRequestStore, store: PostgresJobStore) -> Any:
        job_id = await planned(requests, store, 2)
        await succeed(store, job_id, 0, {"value": "done"})
        failing = await claim_step(store, StepRef(job_id, 0, 1))
        assert failing is not None
        after = await store.fail_step(failing, ErrorRecord("tool_error", "no"), None, take=ClaimRequest(Pool.IO))
        stage = after.taken[0]
        assert isinstance(stage, StageClaim)
        assert (await store.chain_tool(stage, {}, "text", called, [])).applied
        view = await requests.view("default", job_id)
        steps = [steps_document(view, number)["items"] for number in (None, 0, 1, 2)]
        return job_document(view), steps, await requests.output("default", job_id, 0)

    seen, steps, output = run(database_url, work)

    first, second = seen["rounds"]
    assert (first["source"], first["steps"], first["plan"]) == ("caller", [0, 1], seen["plan"])
    assert (second["source"], second["steps"], second["plan"], seen["round"]) == ("chained", [2], None, 1)
    assert [(step["round"], step["index"], step["status"]) for step in seen["steps"]] == [
        (0, 0, "succeeded"),
        (0, 1, "failed"),
        (1, 2, "ready"),
    ]
    assert seen["steps"][2]["arguments"] == {"a": "$0.output.x"}
    assert steps == [seen["steps"], seen["steps"][:2], seen["steps"][2:], []]
    assert json.loads(output.body) == {"value": "done"}


@pytest.mark.parametrize("strategy", [*Strategy, None])
def test_jobs_are_listed_by_strategy(database_url: str, strategy: Strategy | None) -> None:
    async def work(requests: OpenRequestStore, store: PostgresJobStore) -> Any:
        for one in Strategy:
            await requests.submit(Submission(new_id(), "default", "x", one, "offline", Limits()))
        wanted = JobFilter(strategy=strategy)
        found = await found_jobs(requests.opened, "default", wanted, below=None, limit=9, roots=False)
        return await requests.summaries("default", found.ids)

    rows = run(database_url, work)

    assert {row["strategy"] for row in rows} == {str(one) for one in ([strategy] if strategy else Strategy)}


@pytest.mark.parametrize(
    "output",
    [
        {"value": 10**30, "other": -(2**63) - 1},
        {"value": "\ud800"},
        {"value": 'nul \0, quote ", 12345678901234567890'},
        {"value": 18446744073709551615, "small": 1e-300, "minus": -0.5},
    ],
)
def test_outputs_are_seen_to_the_last_digit(database_url: str, output: Any) -> None:
    async def work(requests: OpenRequestStore, store: PostgresJobStore) -> Any:
        job_id = await planned(requests, store, 1)
        await succeed(store, job_id, 0, output)
        return await requests.view("default", job_id)

    assert run(database_url, work).steps[0]["output"] == output


def test_whoever_waits_sees_plan_and_steps_only_of_a_job_that_has_ended(database_url: str) -> None:
    async def work(requests: OpenRequestStore, store: PostgresJobStore) -> Any:
        running = await planned(requests, store, 1)
        ended = await submitted(requests)
        await end(store, ended, "done")
        return [await requests.view("default", job, only_ended=True) for job in (running, ended)]

    running, ended = run(database_url, work)

    assert (running.is_whole, running.steps, running.row["plan_body"]) == (False, [], None)
    assert running.row["status"] == JobStatus.EXECUTING
    assert (ended.is_whole, ended.row["answer"]) == (True, "done")


def test_many_looks_of_one_moment_each_get_what_they_asked_for(database_url: str) -> None:
    async def work(requests: OpenRequestStore, store: PostgresJobStore) -> Any:
        jobs = [await submitted(requests, f"job {number}") for number in range(5)]
        whole = await planned(requests, store, 2)
        nobody = new_id()
        looks = [(job, False) for job in jobs] + [(whole, True), (whole, False), (nobody, False)] * 2
        return looks, await asyncio.gather(
            *(requests.view("default", job, only_ended=only) for job, only in looks * 10), return_exceptions=True
        )

    looks, views = run(database_url, work)

    for (job, only_ended), view in zip(looks * 10, views, strict=True):
        if isinstance(view, JobView):
            assert view.row["id"] == job
            assert view.is_whole != only_ended
        else:
            assert isinstance(view, NotFound)
            assert str(job) in view.message
    assert sum(isinstance(view, NotFound) for view in views) == 20


def test_the_job_of_another_tenant_is_not_seen(database_url: str) -> None:
    async def work(requests: OpenRequestStore, _: PostgresJobStore) -> Any:
        job = await submitted(requests)
        return await asyncio.gather(
            *(requests.view(tenant, job) for tenant in ("default", "other", "default", "other")),
            return_exceptions=True,
        )

    assert [type(view) for view in run(database_url, work)] == [JobView, NotFound, JobView, NotFound]


@pytest.mark.parametrize("value", [{"a": 2**70}, ["\udfff"], 0.1, {"deep": 10**18}, None, "x" * 30, [[[]]]])
def test_stored_json_is_parsed_without_a_loss(value: Any) -> None:
    assert decode_stored(json.dumps(value)) == value
    assert decode_stored(JsonText(json.dumps(value).encode()).body.decode()) == value
