"""The real engine over the real store, in one event loop: only the models are scripted and the broker is a list.

Wake-ups are carried out as a worker would, one after the other or several at once, until none is left.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, cast
from uuid import UUID, uuid4

from planq.shared.agentic.models.contract import CutOff, Prices
from planq.shared.agentic.models.ending import Incomplete
from planq.shared.agentic.models.exchange import (
    Ask,
    ChatMessage,
    Findings,
    ModelFailed,
    ModelReply,
    ToolCallRequest,
    TurnForm,
)
from planq.shared.agentic.models.vocabulary import count_tokens
from planq.shared.agentic.references.resolution import as_called
from planq.shared.agentic.tools.contract import Tool
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.failpoints import Failpoints
from planq.shared.kernel.claims import OfferedTool, StageClaim, StepClaim
from planq.shared.kernel.job_store import JobStore
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import OWN_POOLS, Pool, Priority, Strategy, WakeQueue
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.submission import Submission
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ErrorRecord, ExecutionFailed
from planq.shared.subjects.conversations.store import TurnReader
from planq.shared.subjects.insights.learning import PostgresInsightOffers
from planq.shared.subjects.orchestrations.store import PostgresOrchestrations
from planq.shared.subjects.payloads.contract import Payloads
from planq.shared.subjects.payloads.store import PayloadStore
from planq.shared.subjects.tenants.directory import TenantDirectory
from planq.shared.subjects.tenants.master_keys import read_master_keys
from planq.shared.subjects.tenants.secrets import SecretStore
from planq.shared.subjects.tools.catalogue import Catalogue, PublishedTools
from planq.worker.agents import AgentBackends, AgentServices, agent_tools, conclude_orchestration
from planq.worker.container import sweep_duties
from planq.worker.engine import Loop, LoopSettings, Sweeper, SweepSettings, WakeOutcome
from planq.worker.engine.running import InFlightWork
from planq.worker.handlers import AttemptSettings, handlers
from planq.worker.handlers.insights import Insights, InsightSettings
from planq.worker.handlers.stage_context import Backgrounds
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.planners import InstalledPlanners
from planq.worker.tools.declare import ToolOptions, options_of
from planq.worker.tools.function import FunctionTool
from planq.worker.tools.registry import Registry
from planq.worker.tools.services import ToolServices
from planq.worker.tools.threads import ToolThreads
from tests.support.requests import OpenRequestStore

LEASE = timedelta(seconds=15)
SWEEP = SweepSettings(LEASE)


@dataclass
class ScriptedModel:
    """Planner and responder that say what the test wants, and keep what they were asked.

    `turns` is what it says in the rounds of `loop` and `react`: the one after so many of its own messages in the
    transcript, so that a turn which is asked for again is answered in the same way; the last one again and again.
    `guided` is its reply to the planning call of `guided`.
    """

    planned: str | Sequence[ToolCallRequest] | ExecutionFailed = "hello"
    answered: str | ExecutionFailed = "the answer"
    asked: list[tuple[Ask, Any]] = field(default_factory=list)
    turns: Sequence[str | Sequence[ToolCallRequest] | ExecutionFailed] = ()
    guided: str | ExecutionFailed = "{}"
    told: list[tuple[Sequence[ChatMessage], TurnForm]] = field(default_factory=list)
    own: InstalledPlanners | None = None
    cut: Incomplete | None = None  # each reply is cut off for this

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
            return ModelReply(self.planned, (), call, incomplete=self.cut)
        return ModelReply("", self.planned, call, incomplete=self.cut)

    async def guide(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        self.asked.append((ask, tools))
        return self._say(self.guided, ModelCall(Purpose.PLAN, ask.model, 5, 11, 7))

    async def turn(
        self,
        ask: Ask,
        tools: Sequence[ToolDefinition],
        transcript: Sequence[ChatMessage],
        form: TurnForm,
        *,
        cut_off: CutOff | None = None,
    ) -> ModelReply:
        self.asked.append((ask, transcript))
        self.told.append((transcript, form))
        if form is TurnForm.ANSWER:
            return self._say(self.answered, ModelCall(Purpose.RESPOND, ask.model, 5, 13, 3))
        number = sum(message.role == "assistant" for message in transcript)
        said = self._say(self.turns[min(number, len(self.turns) - 1)], ModelCall(Purpose.PLAN, ask.model, 5, 11, 7))
        return replace(said, state={"kept": number}) if said.tool_calls else said

    def _say(self, said: str | Sequence[ToolCallRequest] | ExecutionFailed, call: ModelCall) -> ModelReply:
        if isinstance(said, ExecutionFailed):
            raise ModelFailed(said, _failed(call, said))
        text, calls = (said, ()) if isinstance(said, str) else ("", said)
        return ModelReply(text, calls, call, incomplete=self.cut)

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: CutOff | None = None) -> ModelReply:
        self.asked.append((ask, findings))
        call = ModelCall(Purpose.RESPOND, ask.model, 5, 13, 3)
        if isinstance(self.answered, ExecutionFailed):
            raise ModelFailed(self.answered, _failed(call, self.answered))
        return ModelReply(self.answered, (), call, incomplete=self.cut)


def _kept(planned: Sequence[ToolCallRequest] | ExecutionFailed) -> Any:
    """Return what the exchange of a model call keeps of its tool calls."""
    if isinstance(planned, ExecutionFailed):
        return None
    return [{"name": call.name, "arguments": call.arguments} for call in planned]


def _failed(call: ModelCall, error: ExecutionFailed) -> ModelCall:
    return ModelCall(call.purpose, call.model, call.latency_ms, attempts=3, error=ErrorRecord.of(error), id=uuid4())


def make_tool(function: Callable[..., Any]) -> Tool:
    """A tool of a function declared with `@tool`."""
    options = options_of(function) or ToolOptions()
    return FunctionTool(function, options, services=ToolServices(), threads=ToolThreads(running=4))


class _Silent:
    def __init__(self) -> None:
        self.ended_jobs: list[UUID] = []

    def job_ended(self, job_id: UUID) -> None:
        self.ended_jobs.append(job_id)

    def started(self, *_: Any) -> None: ...

    def ended(self, *_: Any) -> None: ...


class _Replaceable:
    """A store whose methods are looked up when they are called, so that a test may replace one."""

    def __init__(self, store: PostgresJobStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return lambda *args, **kwargs: getattr(self._store, name)(*args, **kwargs)


def queue_of(wake: Wake) -> WakeQueue:
    """Return where a wake-up is published."""
    return WakeQueue.of(wake.pool, wake.priority)


MASTERS = read_master_keys(base64.b64encode(bytes(32)).decode())
"""The operator's keys under which secrets of tenants lie in harnesses."""


class Harness:
    """One worker's engine. `published` is what it handed to the broker and nobody has taken yet."""

    def __init__(
        self,
        database: Database,
        model: ScriptedModel | ModelGateway,
        tools: Sequence[Tool],
        *,
        pool: Pool = Pool.IO,
        payloads: Payloads | None = None,
        max_output_bytes: int = 1_000_000,
        slots: int = 300,
        workers: int = 1,
        agents: bool = False,
        prices: Prices | None = None,
        model_retry_seconds: float = 0.0,
        draw: float = 0.0,
        policy: Mapping[str, str] | None = None,
        insights: InsightSettings | None = None,
    ) -> None:
        """`model` is a script, or the gateway over a provider of the test's or the offline rules.

        `agents` offers the tools by which agents call agents beside `tools`; `draw` is every draw for jitter.

        Without `model_retry_seconds` a job fails as soon as its model does.
        """
        self.database, self.model, self.worker_id = database, model, new_id()
        self.registry = Registry()
        self.registry.extend(tools)
        self.worker_registry = WorkerRegistry(database, LEASE)
        self.store = PostgresJobStore(database, self.worker_id, as_called)
        self.turns = TurnReader(database)
        self.tenants = TenantDirectory(database, Limits())
        self.catalogue = Catalogue(PublishedTools(database).list, self.tenants)
        self.payloads: Payloads = payloads or PayloadStore(database)
        self.requests = OpenRequestStore(database)
        self.published: list[Wake] = []
        self.silent = _Silent()
        backends = AgentBackends(
            self.store, PostgresOrchestrations(database), model, self.payloads, max_output_bytes, prices
        )
        self.agent_services = AgentServices(backends=backends)
        self.registry.reserve(agent_tools(self.agent_services) if agents else [])
        attempts = AttemptSettings(
            max_output_bytes, model_retry_seconds=model_retry_seconds, tool_policy=policy or {}
        )
        self.secrets = SecretStore(database, MASTERS)
        self.insights = Insights(PostgresInsightOffers(database), insights or InsightSettings(), count_tokens)
        self.dispatcher = self._dispatcher(LoopSettings(pool, slots), attempts, prices, draw, workers)
        self.interrupted: list[UUID] = []
        given = (SWEEP, self.worker_registry, self, self, self.silent.job_ended, lambda: 0.0)
        self.duties = sweep_duties(database, Failpoints())
        self.sweeper = Sweeper(*given, interrupt=self.interrupted.append, duties=self.duties)

    def _dispatcher(
        self,
        settings: LoopSettings,
        attempts: AttemptSettings,
        prices: Prices | None,
        draw: float,
        workers: int,
    ) -> Loop:
        in_flight = InFlightWork()
        store = cast(JobStore, _Replaceable(self.store))
        made = handlers(
            attempts,
            store=store,
            catalogue=self.catalogue,
            in_flight=in_flight,
            planner=self.model,
            turns=self.model,
            responder=self.model,
            toolbox=self.registry,
            payloads=self.payloads,
            conclude=partial(conclude_orchestration, self.agent_services),
            prices=prices,
            draw=lambda: draw,
            own_planners=self.model.own if isinstance(self.model, ScriptedModel) else None,
            backgrounds=Backgrounds(self.turns.history, self.tenants, count_tokens),
            secrets=self.secrets.get,
            insights=self.insights,
        )
        return Loop(
            settings,
            store=store,
            handlers=made,
            publisher=self,
            tracker=self.silent,
            in_flight=in_flight,
            workers=lambda: workers,
            is_slow=self.registry.is_slow,
        )

    async def open(self) -> None:
        """Register the worker and publish its tools."""
        definitions = self.registry.definitions()
        offered = [OfferedTool(one.name, one.digest) for one in self.registry.runnable()]
        await self.worker_registry.register(self.worker_id, "test", OWN_POOLS, offered, 10, "test")
        await self.worker_registry.publish_tools([d.model_dump(mode="json") for d in definitions])

    async def publish(self, wakes: Sequence[Wake]) -> bool:
        """The port `Publisher`; each wake-up says in whose share it is carried out."""
        assert all(wake.tenant for wake in wakes), wakes
        self.published += wakes
        return True

    async def empty(self, queues: Collection[WakeQueue]) -> Collection[WakeQueue]:
        """The port `Queues`."""
        return set(queues) - {queue_of(wake) for wake in self.published}

    async def submit(self, text: str = "do it", **fields: Any) -> UUID:
        """Store a job and its wake-up; a `plan` that does not say otherwise answers from what there is."""
        job_id = new_id()
        if fields.get("plan") is not None:
            fields["plan"] = {"on_failure": "answer", **fields["plan"]}
        limits = fields.pop("limits", Limits())
        strategy = fields.pop("strategy", Strategy.PLAN)
        tenant = fields.pop("tenant", "default")
        await self.requests.submit(
            Submission(job_id, tenant, text, strategy, fields.pop("model", "offline"), limits, **fields)
        )
        priority = fields.get("priority", Priority.INTERACTIVE)
        self.published.append(Wake.plan(job_id, priority=priority, tenant=tenant))
        return job_id

    async def drain(self) -> None:
        """Carry out wake-ups, all published ones at once, until none is left."""
        while self.published:
            wakes, self.published = self.published, []
            await asyncio.gather(*(self.dispatcher.run(wake) for wake in wakes))

    async def drain_pool(self, pool: Pool) -> None:
        """Carry out the wake-ups of one pool until only those of the other are left."""

        def is_ours(wake: Wake) -> bool:
            return wake.ref.is_stage or wake.pool == pool

        while ours := [wake for wake in self.published if is_ours(wake)]:
            self.published = [wake for wake in self.published if not is_ours(wake)]
            await asyncio.gather(*(self.dispatcher.run(wake) for wake in ours))

    async def run(self, text: str = "do it", **fields: Any) -> tuple[Any, list[Any]]:
        """Submit, drain, and return the job's row and its steps."""
        job_id = await self.submit(text, **fields)
        await self.drain()
        return await self.requests.job("default", job_id)

    async def carry_out(self, claim: StageClaim | StepClaim) -> WakeOutcome:
        """Carry out what is claimed, and nothing that follows from it."""
        in_flight = self.dispatcher.in_flight
        with in_flight.claiming([claim.ref]) as asked:
            in_flight.hold([claim], asked)
        return await self.dispatcher._carry_out(self.dispatcher._chain(lambda: False), claim, tracked=False)

    async def run_one(self, wake: Wake) -> WakeOutcome:
        """Carry out a single wake-up."""
        return await self.dispatcher.run(wake)
