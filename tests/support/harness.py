"""The real engine over the real store, in one event loop: only the models are scripted and the broker is a list.

Wake-ups are carried out as a worker would, one after the other or several at once, until none is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from shared.domain.errors import ErrorRecord, ExecutionFailed
from shared.domain.limits import Limits
from shared.domain.model import Ask, Findings, ModelCall, ModelFailed, ModelReply, Purpose, ToolCallRequest
from shared.domain.states import Lane, Strategy
from shared.domain.tool import ToolDefinition
from shared.ports import (
    AnyWake,
    CutOff,
    Payloads,
    PlanWake,
    Prices,
    StageClaim,
    StepClaim,
    StepsWake,
    StepWake,
    Tool,
    Wake,
)
from shared.store.database import Database
from shared.store.ids import new_id
from shared.store.jobs import PostgresJobStore
from shared.store.orchestrations import PostgresOrchestrations
from shared.store.payloads import PayloadStore
from shared.store.submissions import Submission
from shared.store.worker_registry import WorkerRegistry
from tests.support.requests import OpenRequestStore
from worker.agents import AgentBackends, AgentServices, Concluding, agent_tools
from worker.engine import Carried, Engine, EngineSettings, Sweeper, SweepSettings
from worker.engine.claims import attempt_of
from worker.engine.persist import persist
from worker.tools.declare import ToolOptions, options_of
from worker.tools.function import FunctionTool
from worker.tools.registry import Registry
from worker.tools.services import ToolServices
from worker.tools.threads import ToolThreads

LEASE = timedelta(seconds=15)


@dataclass
class ScriptedModel:
    """Planner and responder that say what the test wants, and keep what they were asked."""

    planned: str | Sequence[ToolCallRequest] | ExecutionFailed = "hello"
    answered: str | ExecutionFailed = "the answer"
    asked: list[tuple[Ask, Any]] = field(default_factory=list)

    @classmethod
    def planning(cls, *calls: tuple[str, Mapping[str, Any]], answered: str | ExecutionFailed = "the answer") -> Any:
        """A model that emits these calls through the planning tool."""
        arguments = {
            "type": "tool_calls",
            "reasoning": "because",
            "calls": [{"tool_name": name, "arguments": arguments} for name, arguments in calls],
        }
        return cls([ToolCallRequest("__planning__", arguments)], answered)

    async def plan(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        self.asked.append((ask, tools))
        said = self.planned if isinstance(self.planned, str) else _kept(self.planned)
        call = ModelCall(Purpose.PLAN, ask.model, 5, 11, 7, exchange={"reply": said})
        if isinstance(self.planned, ExecutionFailed):
            raise ModelFailed(self.planned, _failed(call, self.planned))
        if isinstance(self.planned, str):
            return ModelReply(self.planned, (), call)
        return ModelReply("", self.planned, call)

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: CutOff | None = None) -> ModelReply:
        self.asked.append((ask, findings))
        call = ModelCall(Purpose.RESPOND, ask.model, 5, 13, 3)
        if isinstance(self.answered, ExecutionFailed):
            raise ModelFailed(self.answered, _failed(call, self.answered))
        return ModelReply(self.answered, (), call)


def _kept(planned: Sequence[ToolCallRequest] | ExecutionFailed) -> Any:
    """Return what the exchange of a model call keeps of its tool calls."""
    if isinstance(planned, ExecutionFailed):
        return None
    return [{"name": call.name, "arguments": call.arguments} for call in planned]


def _failed(call: ModelCall, error: ExecutionFailed) -> ModelCall:
    return ModelCall(call.purpose, call.model, call.latency_ms, attempts=3, error=ErrorRecord.of(error), id=uuid4())


class _NoKnowledge:
    async def search(self, tenant_id: str, query: str, limit: int) -> Sequence[Any]:
        return []


def make_tool(function: Callable[..., Any]) -> Tool:
    """A tool of a function declared with `@tool`."""
    options = options_of(function) or ToolOptions()
    return FunctionTool(
        function, options, services=ToolServices(knowledge=_NoKnowledge()), threads=ToolThreads(running=4)
    )


class _Silent:
    def __init__(self) -> None:
        self.ended_jobs: list[UUID] = []

    def job_ended(self, job_id: UUID) -> None:
        self.ended_jobs.append(job_id)

    def started(self, wake: Wake, attempt: int) -> None: ...

    def ended(self, wake: Wake, attempt: int, error: ErrorRecord | None, runtime_seconds: float) -> None: ...


class Harness:
    """One worker's engine. `published` is what it handed to the broker and nobody has taken yet."""

    def __init__(
        self,
        database: Database,
        model: ScriptedModel,
        tools: Sequence[Tool],
        *,
        lane: Lane = Lane.IO,
        payloads: Payloads | None = None,
        max_output_bytes: int = 1_000_000,
        slots: int = 300,
        workers: int = 1,
        agents: bool = False,
        prices: Prices | None = None,
        model_retry_seconds: float = 0.0,
        draw: float = 0.0,
    ) -> None:
        """`agents` offers the tools by which agents call agents beside `tools`; `draw` is every draw for jitter.

        Without `model_retry_seconds` a job fails as soon as its model does.
        """
        self.database, self.model, self.worker_id = database, model, new_id()
        self.registry = Registry()
        self.registry.extend(tools)
        self.worker_registry = WorkerRegistry(database, LEASE)
        self.store = PostgresJobStore(database, self.worker_id)
        self.payloads: Payloads = payloads or PayloadStore(database)
        self.requests = OpenRequestStore(database)
        self.published: list[AnyWake] = []
        self.silent = _Silent()
        backends = AgentBackends(self.store, PostgresOrchestrations(database), model, persist, prices)
        self.desk = AgentServices(reach=backends)
        self.registry.reserve(agent_tools(self.desk) if agents else [])
        settings = EngineSettings(lane, slots, max_output_bytes, model_retry_seconds=model_retry_seconds)
        self.engine = Engine(
            settings,
            store=self.store,
            publisher=self,
            planner=model,
            responder=model,
            toolbox=self.registry,
            payloads=self.payloads,
            tracker=self.silent,
            conclusions=Concluding(self.desk),
            prices=prices,
            draw=lambda: draw,
            workers=lambda: workers,
        )
        self.interrupted: list[UUID] = []
        given = (SweepSettings(), self.worker_registry, self, self, self.silent.job_ended, lambda: 0.0)
        self.sweeper = Sweeper(*given, interrupt=self.interrupted.append)

    async def open(self) -> None:
        """Register the worker and publish its tools."""
        definitions = self.registry.definitions()
        await self.worker_registry.register(
            self.worker_id, "test", list(Lane), [d.name for d in definitions], 10, "test"
        )
        await self.worker_registry.publish_tools("default", definitions)

    async def publish(self, wakes: Sequence[AnyWake]) -> bool:
        """The port `Publisher`."""
        self.published += wakes
        return True

    async def empty(self, lanes: Collection[Lane]) -> Collection[Lane]:
        """The port `Queues`."""
        taken = {wake.lane if isinstance(wake, StepWake | StepsWake) else Lane.IO for wake in self.published}
        return set(lanes) - taken

    async def submit(self, text: str = "do it", **fields: Any) -> UUID:
        """Store a job and its wake-up."""
        job_id = new_id()
        limits = fields.pop("limits", Limits())
        await self.requests.submit(
            Submission(job_id, "default", text, Strategy.PLAN, fields.pop("model", "offline"), limits, **fields)
        )
        self.published.append(PlanWake(job_id))
        return job_id

    async def drain(self) -> None:
        """Carry out wake-ups, all published ones at once, until none is left."""
        while self.published:
            wakes, self.published = self.published, []
            await asyncio.gather(*(self.engine.run(wake) for wake in wakes))

    async def drain_lane(self, lane: Lane) -> None:
        """Carry out the wake-ups of one lane until only those of the other are left."""

        def is_ours(wake: AnyWake) -> bool:
            return not isinstance(wake, StepWake | StepsWake) or wake.lane is lane

        while ours := [wake for wake in self.published if is_ours(wake)]:
            self.published = [wake for wake in self.published if not is_ours(wake)]
            await asyncio.gather(*(self.engine.run(wake) for wake in ours))

    async def run(self, text: str = "do it", **fields: Any) -> tuple[Any, list[Any]]:
        """Submit, drain, and return the job's row and its steps."""
        job_id = await self.submit(text, **fields)
        await self.drain()
        return await self.requests.job("default", job_id)

    async def carry_out(self, claim: StageClaim | StepClaim) -> Carried:
        """Carry out what is claimed, and nothing that follows from it."""
        claims = self.engine.claims
        with claims.claiming([attempt_of(claim).place]) as asked:
            claims.hold([claim], asked)
        return await self.engine._carry_out(self.engine._chain(lambda: False), claim, tracked=False)

    async def run_one(self, wake: AnyWake) -> Carried:
        """Carry out a single wake-up."""
        return await self.engine.run(wake)
