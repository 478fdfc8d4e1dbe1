"""Calls of agents with retries: what failed by something that passes is asked of new jobs, one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.models.exchange import Ask, ModelFailed, ModelReply
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.ids import Attempt, StepRef
from planq.shared.kernel.states import TERMINAL_JOB, JobStatus
from planq.shared.kernel.store.signals import CANCELLED, listen
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.errors import ErrorRecord, ExecutionFailed, RateLimited, ToolFailed, Transient, WorkerLost
from planq.worker.agents.calls import CallAgent
from tests.support.agents import keep_agent, rows
from tests.support.harness import Harness
from tests.support.orchestras import Orchestra, document, pump

Play = Callable[..., Any]

CHILDREN = (
    "SELECT agent_name, status, error->>'code' AS code, model_calls, created_at, finished_at "
    "FROM jobs WHERE parent_job_id = %s ORDER BY id"
)
ENOUGH = 50


@dataclass
class Moody(Orchestra):
    """Agents that fail, one reason after the other, or hang, so many times, before they answer."""

    hung: Counter[str] = field(default_factory=Counter)

    async def _answer(self, name: str, ask: Ask) -> ModelReply:
        reasons: list[ExecutionFailed] = self.agents[name].get("fails", [])
        if reasons:
            error = reasons.pop(0)
            raise ModelFailed(error, ModelCall(Purpose.RESPOND, ask.model, 5, 13, error=ErrorRecord.of(error)))
        if self.hung[name] < self.agents[name].get("hangs", 0):
            self.hung[name] += 1
            await asyncio.Event().wait()
        return await super()._answer(name, ask)


def calling(retries: int, tool: str = "cp__call_agent", **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"tool_name": tool, "arguments": arguments, "retries": retries}]}


async def settled(harness: Harness, database_url: str, plan: Mapping[str, Any]) -> tuple[Any, Any, list[Any]]:
    """Run a job to its end, sweeping; returns it, its step, and its child jobs in the order of their making."""
    for name in ("shy", "idle"):
        await keep_agent(harness, document(name))

    def heard(ended: UUID | None) -> None:
        if ended is not None:
            harness.dispatcher.interrupt(ended)

    listening = asyncio.create_task(listen(database_url, CANCELLED, heard))
    job_id = await harness.submit("", plan=plan)
    try:
        for _ in range(ENOUGH):
            await asyncio.wait_for(pump(harness), 60)
            await harness.sweeper.sweep()
            job, (step,) = await harness.requests.job("default", job_id)
            if JobStatus(job["status"]) in TERMINAL_JOB and not harness.published:
                break
    finally:
        listening.cancel()
    assert await harness.worker_registry.broken_invariants() == []
    return job, step, await rows(harness, CHILDREN, job_id)


def never_two_at_once(children: list[Any], each: int) -> None:
    """The jobs of one attempt had ended when those of the next were made."""
    for before, after in zip(children[:-each], children[each:], strict=True):
        assert before["finished_at"] <= after["created_at"]


@pytest.mark.parametrize(
    "why", [Transient("a blip"), RateLimited("too many"), WorkerLost("its workers died")], ids=lambda why: why.code
)
def test_an_agent_that_failed_by_what_passes_is_called_anew(
    play: Play, database_url: str, why: ExecutionFailed
) -> None:
    model = Moody(agents={"shy": {"fails": [why, why], "ok": {"v": 1}}})

    job, step, children = play(
        lambda harness: settled(harness, database_url, calling(2, agent_id="shy", prompt="well?")), model, agents=True
    )

    assert (job["status"], step["status"], step["output"]["output"]) == ("completed", "succeeded", {"v": 1})
    assert [(child["status"], child["code"]) for child in children] == [
        ("failed", why.code),
        ("failed", why.code),
        ("completed", None),
    ]
    assert [child["model_calls"] for child in children] == [1, 1, 1], "each of them counts"
    assert step["attempt"] == 6, "each try is one attempt that delegates and one that gathers"
    never_two_at_once(children, 1)


@pytest.mark.parametrize(
    ("why", "retries", "made"),
    [
        (Transient("a blip"), 1, 2),
        (Transient("a blip"), 0, 1),
        (ToolFailed("no"), 2, 1),
    ],
    ids=["used-up", "none-asked-for", "not-by-what-passes"],
)
def test_an_agent_is_called_no_oftener_than_it_may_be(
    play: Play, database_url: str, why: ExecutionFailed, retries: int, made: int
) -> None:
    model = Moody(agents={"shy": {"fails": [why] * 9}})

    job, step, children = play(
        lambda harness: settled(harness, database_url, calling(retries, agent_id="shy", prompt="well?")),
        model,
        agents=True,
    )

    assert (job["status"], step["status"], step["error"]["code"]) == ("completed", "failed", why.code)
    assert [child["status"] for child in children] == ["failed"] * made
    never_two_at_once(children, 1)


def test_a_group_begins_anew_as_a_whole_once_what_was_left_of_it_has_ended(play: Play, database_url: str) -> None:
    model = Moody(
        agents={"shy": {"fails": [Transient("a blip")], "ok": {"v": 1}}, "idle": {"hangs": 1, "ok": {"v": 2}}}
    )
    calls = [{"agent_id": name, "prompt": "well?", "result_key": name} for name in ("idle", "shy")]

    job, step, children = play(
        lambda harness: settled(harness, database_url, calling(1, "cp__parallel", steps=calls)), model, agents=True
    )

    assert (job["status"], step["status"]) == ("completed", "succeeded")
    assert step["output"]["output"] == {"idle": {"v": 2}, "shy": {"v": 1}}
    # All must succeed, so that the first failure decides: the other agent was at work, and would be so for ever.
    assert [(child["agent_name"], child["status"]) for child in children] == [
        ("idle", "cancelled"),
        ("shy", "failed"),
        ("idle", "completed"),
        ("shy", "completed"),
    ]
    assert model.cut_off == ["idle"]
    never_two_at_once(children, 2)


def test_what_is_lost_while_it_gathers_only_gathers_again(
    play: Play, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Moody(agents={"shy": {"ok": {"v": 1}}})
    gathers: list[int] = []
    gather = CallAgent.gather

    async def scenario(harness: Harness) -> Any:
        async def lost_at_first(
            self: CallAgent, arguments: Any, children: Any, note: Any, context: ToolContext
        ) -> Any:
            gathers.append(context.attempt)
            if len(gathers) == 1:
                attempt = Attempt(StepRef(UUID(context.job_id), 0, 0), context.attempt)
                assert await harness.worker_registry.abandon(harness.worker_id, attempt)
                await harness.sweeper.sweep()
            return await gather(self, arguments, children, note, context)

        monkeypatch.setattr(CallAgent, "gather", lost_at_first)
        return await settled(harness, database_url, calling(2, agent_id="shy", prompt="well?"))

    job, step, children = play(scenario, model, agents=True)

    assert (job["status"], step["status"], step["attempt"]) == ("completed", "succeeded", 3)
    assert gathers == [2, 3]
    assert [child["status"] for child in children] == ["completed"]
