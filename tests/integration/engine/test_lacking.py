"""Work for which a worker lacks configuration: handed back while a live worker can do it, failed otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Pool
from planq.shared.platform.database import Database
from planq.shared.platform.lacking import PAYLOADS, model_place
from planq.shared.subjects.payloads.objects import open_objects
from planq.shared.subjects.payloads.store import PayloadStore
from planq.worker.models.gateway import ModelGateway, TryLimits
from planq.worker.models.settings import ModelSettings
from planq.worker.tools import tool
from tests.integration.llm.calls import Waits, settings_for
from tests.integration.llm.dialects import OPENAI_CHAT
from tests.integration.llm.wire import Reply, WireServer, wire_server
from tests.support.clock import move_clock
from tests.support.harness import Harness, ScriptedModel, make_tool

SIZE = 100_000
WAKE_GRACE = timedelta(seconds=16)


@pytest.fixture
def server() -> Iterator[WireServer]:
    with wire_server() as running:
        yield running


def opened(database_url: str, scenario: Callable[[Database], Any]) -> Any:
    async def run() -> Any:
        async with Database(database_url, max_connections=5) as database:
            return await scenario(database)

    return asyncio.run(run())


async def publish(harness: Harness, *provides: str, pool: Pool = Pool.IO) -> None:
    """Register a live worker that has what the harness lacks."""
    await harness.worker_registry.register(new_id(), "holder", [pool], [], 10, "test", provides=provides)


async def later(harness: Harness) -> None:
    """Let the wake-ups of what was handed back fall due, and publish them for this worker."""
    await move_clock(harness.database, WAKE_GRACE)
    await harness.open()
    await harness.sweeper.sweep()
    await harness.drain()


@tool(effect="pure")
async def dump() -> dict[str, str]:
    """Return much text."""
    return {"text": "x" * SIZE}


@tool(effect="unsafe")
async def send(value: str) -> dict[str, int]:
    """Do something once with a large value."""
    return {"sent": len(value)}


TOOLS = [make_tool(dump), make_tool(send)]
PLAN = {"calls": [{"tool_name": "dump"}, {"tool_name": "send", "arguments": {"value": "$0.output.text"}}]}


@pytest.mark.parametrize("pool", [None, Pool.CPU, Pool.IO], ids=["no-worker", "other-pool", "same-pool"])
def test_a_step_whose_input_is_in_an_object_store_is_handed_to_a_worker_that_reads_it(
    database_url: str, tmp_path: Path, pool: Pool | None
) -> None:
    """Even an unsafe one: its call has not begun. Where no live worker could read the input, it fails as before."""

    async def scenario(database: Database) -> tuple[Any, Any]:
        objects = open_objects(f"file://{tmp_path}")
        rich = Harness(database, ScriptedModel(), TOOLS, payloads=PayloadStore(database, objects))
        is_elsewhere = partial(rich.worker_registry.is_provided, PAYLOADS, Pool.IO)
        poor = Harness(database, ScriptedModel(), TOOLS, payloads=PayloadStore(database, None, is_elsewhere))
        await rich.open()
        await poor.open()
        if pool is not None:
            await publish(poor, PAYLOADS, pool=pool)
        job_id = await rich.submit("", plan=PLAN)
        while not any(not wake.ref.is_stage and wake.ref.index == 1 for wake in rich.published):
            wake = rich.published.pop(0)
            if bool(wake.more):
                rich.published += wake.each
                continue
            rich.dispatcher.wind_down()  # one step a turn: the other worker takes the second
            await rich.run_one(wake)
        poor.published, rich.published = rich.published, []

        await poor.drain()
        _, [_, before] = await poor.requests.job("default", job_id)
        if pool is not Pool.IO:
            return before, None
        await later(rich)
        _, [_, after] = await rich.requests.job("default", job_id)
        return before, after

    before, after = opened(database_url, scenario)

    if pool is Pool.IO:
        assert (before["status"], before["error"]) == ("ready", None)
        assert (after["status"], after["output"]) == ("succeeded", {"sent": SIZE})
    else:
        assert before["error"]["code"] == "storage_unavailable"
        assert "this process has no PLANQ_PAYLOADS" in before["error"]["message"]


JOBS = {
    "plan": {},
    "respond": {"plan": {"calls": [{"tool_name": "dump"}]}},
    "react": {"strategy": "react"},
}


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("is_held", [True, False], ids=["held", "not-held"])
def test_a_stage_whose_model_needs_a_key_is_handed_to_a_worker_that_has_it(
    database_url: str, server: WireServer, kind: str, is_held: bool
) -> None:
    """Without the key it ended jobs for good that another worker could have carried out."""
    server.script(Reply(OPENAI_CHAT.reply("done", None)))

    async def scenario(database: Database) -> tuple[Any, Any]:
        settings = settings_for(OPENAI_CHAT, server)
        rich = Harness(database, ModelGateway(settings, patience=TryLimits(settings, Waits(), lambda: 0.5)), TOOLS)
        registry = rich.worker_registry

        async def is_elsewhere(place: str) -> bool:
            return await registry.is_provided(model_place(place), Pool.IO)

        gateway = ModelGateway(ModelSettings(default_model=OPENAI_CHAT.model), is_elsewhere=is_elsewhere)
        poor = Harness(database, gateway, TOOLS)
        await rich.open()
        await poor.open()
        if is_held:
            await publish(poor, model_place("openai"))
        job_id = await poor.submit("hello", model=OPENAI_CHAT.model, **JOBS[kind])
        await poor.drain()
        before, _ = await poor.requests.job("default", job_id)
        if is_held:
            await later(rich)
        after, _ = await rich.requests.job("default", job_id)
        await rich.model.aclose()  # type: ignore[union-attr]
        return before, after

    before, after = opened(database_url, scenario)

    if is_held:
        stage = "responding" if kind == "respond" else "planning"
        assert (before["status"], before["error"], before["model_calls"]) == (stage, None, 0)
        assert (after["status"], after["answer"]) == ("completed", "done")
    else:
        assert (after["status"], after["error"]["code"]) == ("failed", "auth")
        assert "Set OPENAI_API_KEY" in after["error"]["message"]
        assert "No other live worker can call it either." in after["error"]["message"]


def test_an_agent_step_whose_model_needs_a_key_is_handed_back(database_url: str) -> None:
    async def scenario(database: Database) -> Any:
        async def is_elsewhere(place: str) -> bool:
            return await poor.worker_registry.is_provided(model_place(place), Pool.IO)

        gateway = ModelGateway(ModelSettings(default_model=OPENAI_CHAT.model), is_elsewhere=is_elsewhere)
        poor = Harness(database, gateway, [], agents=True)
        await poor.open()
        await publish(poor, model_place("openai"))
        call = {"tool_name": "cp__agent_orchestrate", "arguments": {"prompt": "do it"}}
        _, [step] = await poor.run("", plan={"calls": [call]}, model=OPENAI_CHAT.model)
        return step

    step = opened(database_url, scenario)
    assert (step["status"], step["error"]) == ("ready", None)
