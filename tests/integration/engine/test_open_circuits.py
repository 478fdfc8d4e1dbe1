"""A crowd of jobs at a model that is away: they sleep until their turns, and leave traces of sent calls alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from planq.worker.models.gateway import ModelGateway, TryLimits
from tests.integration.llm.calls import Waits, settings_for
from tests.integration.llm.dialects import OPENAI_CHAT
from tests.integration.llm.wire import Reply, WireServer, wire_server
from tests.support.agents import rows
from tests.support.clock import move_clock
from tests.support.harness import Harness

AWAY = Reply({"error": {"message": "down"}}, 503)
JOBS = 130
STEPS_OF_A_MINUTE, STEP_SECONDS = 30, 2.0


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[WireServer]:
    with wire_server() as running:
        yield running


async def step(harness: Harness, clock: Clock) -> None:
    """Let two seconds pass for the engine, the circuits and the database."""
    clock.now += STEP_SECONDS
    await move_clock(harness.database, timedelta(seconds=clock.now))
    await harness.sweeper.sweep()
    await harness.drain()


async def all_complete(harness: Harness, clock: Clock) -> None:
    """Let time pass until no job is left: too little for turn by turn, without a reply that wakes the others."""
    for _ in range(STEPS_OF_A_MINUTE // 2):  # a quiet machine needs four of these
        await step(harness, clock)
        if not await rows(harness, "SELECT id FROM jobs WHERE status <> 'completed' LIMIT 1"):
            return
    raise AssertionError(await rows(harness, "SELECT id, status, error FROM jobs WHERE status <> 'completed'"))


async def traces(harness: Harness, caplog: pytest.LogCaptureFixture) -> dict[str, int]:
    """Return what calls and claims have left so far."""
    counted = await rows(
        harness,
        """SELECT (SELECT count(*) FROM model_calls) AS calls, (SELECT sum(attempts)::int FROM model_calls) AS sent,
                  count(*) FILTER (WHERE kind = 'stage_retrying') AS retrying,
                  count(*) FILTER (WHERE kind = 'stage_started') AS claims FROM events""",
    )
    logged = [record.getMessage() for record in caplog.records]
    return {**counted[0], "failed": logged.count("model_failed"), "logged": logged.count("stage_retrying")}


@pytest.mark.parametrize("draw", [0.0, 0.999])
def test_a_minute_of_130_jobs_at_an_open_circuit_makes_one_claim_per_turn_and_one_reply_wakes_all(
    play: Callable[..., Any], server: WireServer, caplog: pytest.LogCaptureFixture, draw: float
) -> None:
    clock = Clock()
    settings = settings_for(OPENAI_CHAT, server, max_attempts=1)
    model = ModelGateway(settings, patience=TryLimits(settings, Waits(), lambda: draw), clock=clock)
    caplog.set_level(logging.INFO, logger="planq")
    server.script(AWAY)

    async def scenario(harness: Harness) -> None:
        for _ in range(JOBS):
            await harness.submit(model=settings.default_model)
        await harness.drain()
        first = await traces(harness, caplog)
        assert (first["claims"], first["calls"]) == (JOBS, first["sent"])
        for _ in range(STEPS_OF_A_MINUTE):
            await step(harness, clock)
        then = await traces(harness, caplog)
        more = then["sent"] - first["sent"]
        # The database's own clock goes on too, by more on a busy machine. Without turns there are 1,560 claims.
        most = 2 * STEPS_OF_A_MINUTE
        assert STEPS_OF_A_MINUTE / 3 <= more <= most, "it is probed all the time"
        assert then["claims"] - first["claims"] <= most
        assert [then[one] - first[one] for one in ("calls", "retrying", "failed", "logged")] == [more] * 4

        server.script(Reply(OPENAI_CHAT.reply("back", None)))
        await all_complete(harness, clock)
        assert await harness.worker_registry.broken_invariants() == []
        await model.aclose()

    play(scenario, model, model_retry_seconds=900.0, draw=draw)


def test_a_new_process_that_knows_no_circuit_wakes_all_with_its_first_reply(
    play: Callable[..., Any], server: WireServer
) -> None:
    clock = Clock()
    settings = settings_for(OPENAI_CHAT, server, max_attempts=1)
    models = [ModelGateway(settings, patience=TryLimits(settings, Waits(), lambda: 0.5), clock=clock) for _ in "ab"]
    server.script(AWAY)

    async def scenario(harness: Harness) -> None:
        for _ in range(20):
            await harness.submit(model=settings.default_model)
        await harness.drain()
        server.script(Reply(OPENAI_CHAT.reply("back", None)))
        harness.model.__dict__.update(models[1].__dict__)
        await all_complete(harness, clock)
        await models[1].aclose()

    play(scenario, models[0], model_retry_seconds=900.0)


def test_a_stage_whose_patience_ends_at_an_open_circuit_fails_with_what_the_model_said(
    play: Callable[..., Any], server: WireServer
) -> None:
    clock = Clock()
    settings = settings_for(OPENAI_CHAT, server, max_attempts=1)
    model = ModelGateway(settings, patience=TryLimits(settings, Waits(), lambda: 0.5), clock=clock)
    server.script(AWAY)

    async def scenario(harness: Harness) -> None:
        for _ in range(20):
            await harness.submit(model=settings.default_model)
        await harness.drain()
        for _ in range(5):
            await step(harness, clock)
        ended = await rows(harness, "SELECT error FROM jobs WHERE status = 'failed'")
        assert len(ended) == 20
        assert all(job["error"]["code"] == "transient" and "down" in job["error"]["message"] for job in ended)
        assert await rows(harness, "SELECT id FROM model_calls WHERE attempts = 0") == []
        await model.aclose()

    play(scenario, model, model_retry_seconds=5.0)
