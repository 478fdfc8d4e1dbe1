"""A model that is away: its stages wait in the database, without a worker, and go on when it is back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.api.documents import job_document
from planq.api.http.exchange import json_bytes
from planq.shared.agentic.models.contract import CutOff
from planq.shared.agentic.models.exchange import Ask, Findings, ModelReply
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.errors import AuthFailed, ExecutionFailed, ModelRefused, RateLimited, Transient
from planq.shared.subjects.jobs.store import RequestStore
from planq.worker.tools.declare import tool
from tests.support.agents import look, rows, submit_agent
from tests.support.conversations import Thread
from tests.support.harness import Harness, ScriptedModel, make_tool

PATIENCE = 900.0
WRITER = {"name": "writer", "description": "You write."}
CLERK = {
    "name": "clerk",
    "description": "You extract.",
    "structured_output": True,
    "properties": {"title": {"type": "string"}},
    "required": ["title"],
}


@dataclass
class Outage(ScriptedModel):
    """A model that fails with these, one call after the other, before it says what it is to say."""

    failures: list[ExecutionFailed] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    calls: int = 0

    async def plan(self, ask: Ask, tools: Any, *, cut_off: CutOff | None = None) -> ModelReply:
        said, self.planned = self.planned, self._failure() or self.planned
        try:
            return await super().plan(ask, tools)
        finally:
            self.planned = said

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: CutOff | None = None) -> ModelReply:
        said, self.answered = self.answered, self._failure() or (self.answers or [self.answered])[0]
        self.answers = self.answers[1:]
        try:
            return await super().respond(ask, findings)
        finally:
            self.answered = said

    def _failure(self) -> ExecutionFailed | None:
        self.calls += 1
        return self.failures.pop(0) if self.failures else None


@tool(effect="read")
async def find(text: str) -> dict[str, str]:
    """Find a text."""
    return {"text": f"found {text}"}


AWAY = [RateLimited(f"status 503: busy {number}", timedelta(seconds=60)) for number in range(2)]
"""Wishes so long that none of them is over while a test looks."""


@pytest.fixture
def outage(play: Callable[..., Any]) -> Callable[..., Any]:
    """`outage(scenario, model)`: with the patience of a setting that nobody has changed, and the longest waits."""

    def run(scenario: Any, model: Outage, **room: Any) -> Any:
        return play(scenario, model, [make_tool(find)], **{"model_retry_seconds": PATIENCE, "draw": 0.999, **room})

    return run


async def document(harness: Harness, job_id: UUID) -> dict[str, Any]:
    """Return a job as its callers see it."""
    view = await RequestStore(harness.database).view("default", job_id)
    document: dict[str, Any] = json.loads(json_bytes(job_document(view)))
    return document


async def time_passes(harness: Harness, job_id: UUID) -> None:
    """Let the time of the next try come; the sweeper finds it."""
    found = await rows(
        harness,
        "UPDATE jobs SET run_at = now(), wake_at = now() WHERE id = %s AND wake_at = run_at RETURNING 1",
        job_id,
    )
    assert found, "somebody looks again exactly when it is due"
    await harness.sweeper.sweep()
    await harness.drain()


@pytest.mark.parametrize("stage", ["planning", "responding"])
def test_a_stage_waits_for_its_model_without_a_worker_and_goes_on(outage: Callable[..., Any], stage: str) -> None:
    planned = "hello" if stage == "planning" else Outage.planning(("find", {"text": "a"})).planned
    model = Outage(planned, answered="hello", failures=list(AWAY) if stage == "planning" else [])

    async def scenario(harness: Harness) -> None:
        job_id = await harness.submit()
        if stage == "responding":
            harness.dispatcher.wind_down()  # what follows is published
            await harness.run_one(harness.published.pop(0))
            model.failures = list(AWAY)
        for attempt, away in enumerate(AWAY, 1):
            await harness.drain()
            assert (harness.dispatcher.in_flight.count, harness.published) == (0, [])
            job = await document(harness, job_id)
            retry = job["retry"]
            assert (job["status"], job["error"]) == (stage, None)
            assert (retry["stage"], retry["attempts"], retry["error"]["message"]) == (stage, attempt, away.message)
            in_seconds = datetime.fromisoformat(retry["next_attempt_at"]) - await now(harness)
            assert timedelta(0) < in_seconds <= timedelta(seconds=60)
            assert await harness.worker_registry.broken_invariants() == []
            await harness.sweeper.sweep()
            assert harness.published == [], "its time has not come"
            await time_passes(harness, job_id)
        job = await document(harness, job_id)
        assert (job["status"], job["answer"], job["retry"]) == ("completed", "hello", None)
        assert job["model_calls"] == (1 if stage == "planning" else 2), "tries of one call count as one"
        told = await rows(harness, "SELECT data FROM events WHERE kind = 'stage_retrying' ORDER BY sequence")
        assert [one["data"]["error"]["message"] for one in told] == [away.message for away in AWAY]
        kept = await rows(harness, "SELECT is_retried FROM model_calls ORDER BY id")
        assert sum(one["is_retried"] for one in kept) == 2
        assert await harness.worker_registry.broken_invariants() == []

    outage(scenario, model)


async def now(harness: Harness) -> datetime:
    (row,) = await rows(harness, "SELECT now() AS now")
    moment: datetime = row["now"]
    return moment


def test_a_stage_is_given_up_when_its_patience_is_over_and_tells_of_all_its_tries(
    outage: Callable[..., Any],
) -> None:
    model = Outage(failures=[Transient(f"status 503: number {n}") for n in range(100)])

    async def scenario(harness: Harness) -> None:
        job_id = await harness.submit()
        await harness.drain()
        tries = 1
        while not (await document(harness, job_id))["error"]:
            tries += 1
            await time_passes(harness, job_id)
        error = (await document(harness, job_id))["error"]
        details = error["details"]
        assert 85 < tries < 105, "ten seconds each, in the end"
        assert (error["code"], details["attempts"], details["requests"]) == ("transient", tries, 3 * tries)
        assert details["last_answer"] == f"status 503: number {tries - 1}"
        assert details["seconds"] == pytest.approx(PATIENCE, abs=1)
        assert (await document(harness, job_id))["model_calls"] == 1

    outage(scenario, model)


@pytest.mark.parametrize("failure", [AuthFailed("401"), ModelRefused("400: no such model")])
def test_what_would_only_come_again_fails_the_job_at_once(
    outage: Callable[..., Any], failure: ExecutionFailed
) -> None:
    async def scenario(harness: Harness) -> None:
        job, _ = await harness.run()
        assert (job["status"], job["error"]["code"]) == ("failed", failure.code)
        assert job["error"]["details"] == {}

    outage(scenario, Outage(failures=[failure]))


def test_a_long_retry_after_is_waited_for_in_the_database(outage: Callable[..., Any]) -> None:
    model = Outage(
        "hello", failures=[RateLimited("429", timedelta(seconds=120)), RateLimited("429", timedelta(hours=1))]
    )

    async def scenario(harness: Harness) -> None:
        job_id = await harness.submit()
        await harness.drain()
        retry = (await document(harness, job_id))["retry"]
        wait = datetime.fromisoformat(retry["next_attempt_at"]) - await now(harness)
        assert timedelta(seconds=100) < wait <= timedelta(seconds=120)
        await time_passes(harness, job_id)
        error = (await document(harness, job_id))["error"]
        assert (error["code"], error["details"]["attempts"]) == ("rate_limited", 2)
        assert "asks for a wait of 3600 s" in error["message"]

    outage(scenario, model)


def test_a_job_does_not_wait_beyond_its_own_time(outage: Callable[..., Any]) -> None:
    async def scenario(harness: Harness) -> None:
        limits = Limits(job_timeout_seconds=60.0, queue_timeout_seconds=60.0)
        job, _ = await harness.run(limits=limits)
        assert job["error"]["code"] == "rate_limited"
        assert "the job ends in" in job["error"]["message"]

    outage(scenario, Outage(failures=[RateLimited("429", timedelta(seconds=61))]))


def test_a_job_that_waits_can_be_cancelled_and_expires(outage: Callable[..., Any]) -> None:
    async def scenario(harness: Harness) -> None:
        cancelled, overdue = await harness.submit(), await harness.submit()
        await harness.drain()
        ended, _ = await harness.requests.cancel("default", cancelled)
        assert list(ended) == [cancelled]
        await rows(harness, "UPDATE jobs SET expires_at = now() WHERE id = %s RETURNING 1", overdue)
        await harness.sweeper.sweep()
        for job_id, status in ((cancelled, "cancelled"), (overdue, "failed")):
            job = await document(harness, job_id)
            assert (job["status"], job["retry"]) == (status, None)
        assert job["error"]["code"] == "job_timeout"
        assert await harness.worker_registry.broken_invariants() == []
        assert harness.published == []

    outage(scenario, Outage(failures=list(AWAY)))


def test_a_pause_does_not_use_up_the_patience_nor_end_the_wait(outage: Callable[..., Any]) -> None:
    model = Outage("hello", failures=list(AWAY))

    async def scenario(harness: Harness) -> None:
        job_id = await harness.submit()
        await harness.drain()
        await harness.requests.pause("default", job_id)
        await rows(harness, "UPDATE jobs SET run_at = now(), wake_at = now() WHERE id = %s RETURNING 1", job_id)
        await harness.sweeper.sweep()
        await harness.drain()
        assert model.calls == 1, "nothing of a paused job is begun"
        await rows(
            harness, "UPDATE jobs SET paused_at = now() - interval '2 hours' WHERE id = %s RETURNING 1", job_id
        )
        await harness.requests.resume("default", job_id)
        for _ in range(2):
            await rows(harness, "UPDATE jobs SET run_at = now(), wake_at = now() WHERE id = %s RETURNING 1", job_id)
            await harness.sweeper.sweep()
            await harness.drain()
        assert (await document(harness, job_id))["answer"] == "hello"

    outage(scenario, model)


def test_a_failed_job_that_is_resumed_has_all_its_patience_again(outage: Callable[..., Any]) -> None:
    model = Outage("hello", failures=[Transient("away") for _ in range(3)])

    async def scenario(harness: Harness) -> None:
        job_id = await harness.submit()
        await harness.drain()
        await rows(
            harness,
            """UPDATE jobs SET stage_retry = jsonb_set(stage_retry::jsonb, '{tried,seconds}', '900')::json
               WHERE id = %s RETURNING 1""",
            job_id,
        )
        await time_passes(harness, job_id)
        job, _ = await harness.requests.planned("default", job_id)
        assert (job["status"], job["error"]["details"]["attempts"]) == ("failed", 2)
        await harness.requests.resume("default", job_id, after=job["resumes"])
        await harness.run_one(Wake.plan(job_id))
        assert (await document(harness, job_id))["retry"]["attempts"] == 1
        await time_passes(harness, job_id)
        assert (await document(harness, job_id))["answer"] == "hello"

    outage(scenario, model)


def test_tries_use_up_no_budget_and_no_agents_own_limit_of_calls(outage: Callable[..., Any]) -> None:
    model = Outage(answers=["an answer"] * 3, failures=list(AWAY))
    writer = {**WRITER, "limits": {"request_limit": 1}}

    async def scenario(harness: Harness) -> None:
        budget = {"max_model_calls": 1, "soft": 1.0}
        job_id = await submit_agent(harness, writer, budget=budget)
        await harness.drain()
        for _ in AWAY:
            await time_passes(harness, job_id)
        job, _, _, _ = await look(harness, job_id)
        assert (job["status"], job["model_calls"]) == ("completed", 1), job["error"]
        assert await harness.worker_registry.broken_invariants() == []

    outage(scenario, model)


def test_a_repair_that_cannot_be_asked_for_now_is_waited_for(outage: Callable[..., Any]) -> None:
    model = Outage(answers=["no json"])
    good = '{"title": "Sums"}'

    async def scenario(harness: Harness) -> None:
        job_id = await submit_agent(harness, CLERK)
        respond = model.respond

        async def breaks_after_the_first(ask: Ask, findings: Findings, **more: Any) -> ModelReply:
            reply = await respond(ask, findings, **more)
            model.failures, model.answered = [Transient("away")], good
            model.respond = respond  # type: ignore[method-assign]
            return reply

        model.respond = breaks_after_the_first  # type: ignore[method-assign]
        await harness.drain()
        assert (await document(harness, job_id))["retry"]["attempts"] == 1
        await time_passes(harness, job_id)
        job, _, _, _ = await look(harness, job_id)
        assert (job["status"], job["output"], job["model_calls"]) == ("completed", {"title": "Sums"}, 2)

    outage(scenario, model)


def test_twenty_jobs_that_wait_hold_no_slot_of_a_worker_that_has_one(outage: Callable[..., Any]) -> None:
    model = Outage("hello", failures=AWAY[:1] * 20)

    async def scenario(harness: Harness) -> None:
        jobs = [await harness.submit() for _ in range(20)]
        await harness.drain()
        assert model.calls == 20
        found = await rows(
            harness, "UPDATE jobs SET run_at = now(), wake_at = now() WHERE wake_at = run_at RETURNING 1"
        )
        assert len(found) == 20
        await harness.sweeper.sweep()
        await harness.drain()
        ended = [(await document(harness, job_id))["status"] for job_id in jobs]
        assert ended == ["completed"] * 20

    outage(scenario, model, slots=1)


def test_a_turn_whose_model_stays_away_apologises_in_the_time_of_its_plan_and_the_next_begins(
    outage: Callable[..., Any],
) -> None:
    model = Outage("hello", failures=[Transient(f"status 503: number {n}") for n in range(100)])

    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)
        first = await thread.says("are you there?", limits=Limits(plan_timeout_seconds=20.0))
        second = await thread.says("and now?")
        await harness.publish(first.wakes)
        await harness.drain()
        tries = 1
        while not (await document(harness, first.job_id))["error"]:
            tries += 1
            await time_passes(harness, first.job_id)
        error = (await document(harness, first.job_id))["error"]
        assert (error["code"], error["details"]["attempts"]) == ("transient", tries)
        assert error["details"]["seconds"] <= 21
        assert (await document(harness, second.job_id))["status"] == "planning", "it has begun"
        model.failures = []
        await time_passes(harness, second.job_id)
        assert (await document(harness, second.job_id))["answer"] == "hello"
        said = await thread.run(
            "SELECT metadata FROM conversation_messages WHERE direction = 'outbound' ORDER BY sequence"
        )
        assert said[0]["metadata"]["error_code"] == "transient"

    outage(scenario, model)
