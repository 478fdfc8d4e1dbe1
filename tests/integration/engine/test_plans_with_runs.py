"""What ends at once of a plan that cost nothing is stored with the plan; a plan that was paid for is stored first."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from shared.domain.errors import DatabaseUnavailable
from shared.ports import StepWake, Wake
from tests.integration.engine.test_run_ahead import PATIENCE, Commits, Play, Steps, chain, kinds, outcome
from tests.integration.engine.test_takes import Answer, statuses
from tests.support.harness import Harness, ScriptedModel


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conclusion waits for whatever ends without waiting, however slow the machine is."""
    monkeypatch.setattr("worker.engine.run_ahead._SECONDS", float(PATIENCE))


@pytest.mark.usefixtures("unhurried")
def test_what_ends_at_once_of_a_plan_that_cost_nothing_is_stored_with_it(play: Play) -> None:
    steps = Steps()

    async def scenario(harness: Harness) -> Any:
        commits = Commits(harness)
        shown: list[tuple[str, Wake]] = []
        harness.silent.started = lambda wake, attempt: shown.append(("started", wake))  # type: ignore[method-assign]
        harness.silent.ended = lambda wake, *_: shown.append(("ended", wake))  # type: ignore[method-assign]
        job_id = await harness.submit("", plan=chain(*["leaf"] * 5))
        answer = Answer(harness, "accept_plan")
        running = asyncio.create_task(harness.run_one(harness.published.pop()))
        await asyncio.wait_for(answer.landed.wait(), PATIENCE)
        assert await statuses(harness, job_id) == ["succeeded"] * 5
        answer.go.set()
        await asyncio.wait_for(running, PATIENCE)
        assert await kinds(harness, job_id) == [(kind, n) for n in range(5) for kind in ("started", "succeeded")]
        seen = [(kind, wake.ref.index) for kind, wake in shown if isinstance(wake, StepWake)]
        return commits.ended, await outcome(harness, job_id), seen, harness.engine.claims.in_flight

    ended, found, shown, in_flight = play(scenario, ScriptedModel(), steps.tools())
    assert found == ("completed", [{"n": n + 1} for n in range(5)], [1] * 5)
    assert shown == [(kind, n) for n in range(5) for kind in ("started", "ended")]
    assert (ended, in_flight) == ([], 0)
    assert steps.calls == Counter(range(5)), "and nothing ran twice"


def test_a_plan_is_stored_without_what_is_still_under_way(play: Play) -> None:
    """The step that waits is begun before its claim, and ends with it."""
    go = asyncio.Event()

    async def stands() -> Any:
        await go.wait()

    steps = Steps({2: stands})

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("", plan=chain(*["leaf"] * 4))
        running = asyncio.create_task(harness.run_one(harness.published.pop()))
        await asyncio.wait_for(steps.reached[2].wait(), PATIENCE)
        while await statuses(harness, job_id) != ["succeeded", "succeeded", "running", "pending"]:
            await asyncio.wait([running], timeout=0.01)
        go.set()
        await asyncio.wait_for(running, PATIENCE)
        return await outcome(harness, job_id)

    assert play(scenario, ScriptedModel(), steps.tools()) == ("completed", [{"n": n + 1} for n in range(4)], [1] * 4)
    assert steps.calls == Counter(range(4))


@pytest.mark.usefixtures("unhurried")
def test_what_ran_before_its_plan_was_stored_is_thrown_away_where_nothing_may_go_on(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        async def winds_down() -> Any:
            harness.engine.wind_down()

        steps.odd[1] = winds_down
        job_id = await harness.submit("", plan=chain(*["leaf"] * 4))
        await harness.run_one(harness.published.pop())
        return await statuses(harness, job_id), harness.published, harness.engine.claims.in_flight

    steps = Steps()
    found, published, in_flight = play(scenario, ScriptedModel(), steps.tools())
    assert found == ["ready", "pending", "pending", "pending"]
    assert ([wake.ref.index for wake in published if isinstance(wake, StepWake)], in_flight) == ([0], 0)
    assert steps.calls == Counter({0: 1, 1: 1})


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("edge", ["before", "after"])
def test_a_plan_with_what_ran_is_stored_once_although_the_database_went_away(play: Play, edge: str) -> None:
    steps = Steps()

    async def scenario(harness: Harness) -> Any:
        real, tries = harness.store.accept_plan, []

        async def failing(*arguments: Any, **named: Any) -> Any:
            tries.append(len(named["run"]))
            if len(tries) == 1 and edge == "before":
                raise DatabaseUnavailable("gone")
            moved = await real(*arguments, **named)
            if len(tries) == 1:
                raise DatabaseUnavailable("the answer is lost")
            return moved

        harness.store.accept_plan = failing  # type: ignore[method-assign]
        job_id = await harness.submit("", plan=chain(*["leaf"] * 3))
        await harness.run_one(harness.published.pop())
        return tries, await outcome(harness, job_id), harness.engine.claims.late_outcomes

    tries, (status, outputs, attempts), late = play(scenario, ScriptedModel(), steps.tools())
    assert (tries, outputs, attempts) == ([3, 3], [{"n": n + 1} for n in range(3)], [1] * 3)
    assert (status, late) == (("completed", 0) if edge == "before" else ("responding", 1))
    assert steps.calls == Counter(range(3))
