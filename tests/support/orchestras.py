"""Agents that do what a test says, and orchestrations of them on the real engine."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from planq.shared.agentic.models.contract import CutOff
from planq.shared.agentic.models.exchange import Ask, Findings, ModelFailed, ModelReply, ToolCallRequest
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.store.signals import CANCELLED, listen
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.errors import Cancelled, ErrorRecord, ExecutionFailed, ToolFailed
from tests.support.agents import keep_agent, rows
from tests.support.harness import Harness, ScriptedModel

Behaviour = Mapping[str, Any]
"""`{"ok": output}`, `{"error": text}`, `{"fault": text}` (a defect of planq) or `{"hang": True}`; with `"meet": n`
the agent answers only once so many have been at work, with `"after": ("ok" | "failed", n)` once so many others have
come out so. `"calls": [(tool, arguments)]` are what it plans first."""


@dataclass
class Orchestra(ScriptedModel):
    """The model behind the agents: it knows by its instructions which one it is.

    `started` lists them in the order in which they were asked, `received` what each was asked last; `most` is how
    many were at work at once. `reply` is what the planner says.
    """

    agents: Mapping[str, Behaviour] = field(default_factory=dict)
    reply: str = ""
    started: list[str] = field(default_factory=list)
    received: dict[str, Ask] = field(default_factory=dict)
    at_work: int = 0
    most: int = 0
    cut_off: list[str] = field(default_factory=list)
    planned_by: list[str] = field(default_factory=list)
    offered: dict[str, list[str]] = field(default_factory=dict)
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)
    ended: Counter[str] = field(default_factory=Counter)

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: CutOff | None = None) -> ModelReply:
        name = _name(ask)
        if name is None:
            self.asked.append((ask, findings))
            return ModelReply(self.reply, (), ModelCall(Purpose.RESPOND, ask.model, 5, 17, 9))
        self.started.append(name)
        self.received[name] = ask
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            return await self._answer(name, ask)
        except asyncio.CancelledError:
            self.cut_off.append(name)
            if cut_off is not None:
                cut_off(ModelCall(Purpose.RESPOND, ask.model, 5, 40, error=ErrorRecord.of(Cancelled("cut off"))))
            raise
        finally:
            self.at_work -= 1

    async def plan(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        name = _name(ask) or "*"
        self.planned_by.append(name)
        self.offered[name] = [tool.name for tool in tools]
        calls = [{"tool_name": tool, "arguments": arguments} for tool, arguments in self.agents[name]["calls"]]
        plan = {"type": "tool_calls", "reasoning": "so it is", "calls": calls}
        return ModelReply("", [ToolCallRequest("__planning__", plan)], ModelCall(Purpose.PLAN, ask.model, 5, 11, 7))

    async def _answer(self, name: str, ask: Ask) -> ModelReply:
        does = self.agents.get(name) or self.agents["*"]
        if "meet" in does:
            async with self.moved:
                self.moved.notify_all()
                await asyncio.wait_for(self.moved.wait_for(lambda: self.most >= does["meet"]), 60)
        if "after" in does:
            async with self.moved:
                await asyncio.wait_for(
                    self.moved.wait_for(lambda: self.ended[does["after"][0]] >= does["after"][1]), 60
                )
        async with self.moved:
            self.ended["ok" if "ok" in does else "failed"] += 1
            self.moved.notify_all()
        if does.get("hang"):
            await asyncio.Event().wait()
        call = ModelCall(Purpose.RESPOND, ask.model, 5, 13, 3)
        if "fault" in does:
            raise RuntimeError(does["fault"])
        if "error" in does:
            error: ExecutionFailed = ToolFailed(does["error"])
            raise ModelFailed(error, ModelCall(Purpose.RESPOND, ask.model, 5, 13, error=ErrorRecord.of(error)))
        said = does.get("ok", {})
        return ModelReply(said if isinstance(said, str) else json.dumps(said), (), call)


def _name(ask: Ask) -> str | None:
    prompt = ask.instructions[-1] if ask.instructions else ""
    return prompt.split()[2].rstrip(".") if prompt.startswith("I am ") else None


def document(name: str, *, is_text: bool = False, **fields: Any) -> dict[str, Any]:
    """An agent that answers with any object, or with text."""
    shape: dict[str, Any] = {} if is_text else {"structured_output": True, "properties": {"v": {}}}
    return {"name": name, "description": f"I am {name}.", **shape, **fields}


def call_of(name: str, **arguments: Any) -> dict[str, Any]:
    """A caller's plan of one call."""
    return {"calls": [{"tool_name": name, "arguments": arguments}]}


def orchestrate(plan: Any, **request: Any) -> dict[str, Any]:
    """A caller's plan that orchestrates."""
    return call_of("cp__agent_orchestrate", plan=plan, **request)


def agent_step(id: str, agent: str, **call: Any) -> dict[str, Any]:
    """A step of an orchestration that calls one agent."""
    call = {"agent_id": agent, "prompt": "go", **call}
    return {"id": id, "type": "agent", "status": "pending", "agent": call}


def group_step(id: str, agents: Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    """A step of an orchestration that calls several agents."""
    calls = [{"prompt": "go", **call} for call in agents]
    return {"id": id, "type": "parallel", "status": "pending", "parallel": {"steps": calls, **fields}}


async def pump(harness: Harness) -> None:
    """Carry out wake-ups as they are published, and sweep, until none is left and nothing runs."""
    tasks: set[asyncio.Task[Any]] = set()
    while harness.published or tasks:
        wakes, harness.published = harness.published, []
        tasks |= {asyncio.create_task(harness.dispatcher.run(wake)) for wake in wakes}
        done, tasks = await asyncio.wait(tasks, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            await harness.sweeper.sweep()
            for job_id in harness.interrupted:
                harness.dispatcher.interrupt(job_id)
        for task in done:
            task.result()


async def perform(
    harness: Harness, database_url: str, agents: Sequence[Mapping[str, Any]], plan: Any, **fields: Any
) -> Any:
    """Store agents, run a job with a caller's plan to its end, cancelled work being told to the engine.

    Returns the job's row and its steps.
    """
    for one in agents:
        await keep_agent(harness, one)

    def heard(ended: UUID | None) -> None:
        if ended is not None:
            harness.dispatcher.interrupt(ended)

    listening = asyncio.create_task(listen(database_url, CANCELLED, heard))
    depth = fields.pop("depth", 0)
    job_id = await harness.submit("go" if plan is None else "", plan=plan, **fields)
    if depth:
        await rows(harness, "UPDATE jobs SET depth = %s WHERE id = %s RETURNING id", depth, job_id)
    try:
        await asyncio.wait_for(pump(harness), 60)
    finally:
        listening.cancel()
    assert await harness.worker_registry.broken_invariants() == []
    return await harness.requests.job("default", job_id)


async def below(harness: Harness, job: Any) -> list[Any]:
    """Return all jobs of the tree, without its root, in the order in which they were made."""
    statement = "SELECT * FROM jobs WHERE root_job_id = %s AND parent_job_id IS NOT NULL ORDER BY id"
    return await rows(harness, statement, job["id"])


async def told(harness: Harness, job: Any) -> list[Any]:
    """Return what the orchestration's job told of its transitions."""
    statement = """
        SELECT e.data FROM events e JOIN jobs j ON j.id = e.job_id
        WHERE j.root_job_id = %s AND j.agent_name IS NULL AND e.kind = 'orchestration' ORDER BY e.sequence
    """
    return [row["data"] for row in await rows(harness, statement, job["id"])]
