"""The composition root of a worker process: builds the adapter of every port.

A `WorkerRuntime` belongs to one event loop, on which `open` builds everything that owns connections. In the worker
pool `io` that loop belongs to Celery's pool; in `cpu` every process of Celery's pool has its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any
from uuid import UUID

from celery import Celery

from planq.shared.agentic.models.contract import Planner, Responder, TurnPlanner
from planq.shared.agentic.models.names import parse_model_name
from planq.shared.agentic.models.vocabulary import count_tokens
from planq.shared.agentic.references.resolution import as_called
from planq.shared.agentic.tools.contract import FindsOut, Gathers, Knowledge, Tool, ToolCatalogue
from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.broker.publisher import CeleryPublisher
from planq.shared.failpoints import Failpoints, methods
from planq.shared.kernel.claims import OfferedTool
from planq.shared.kernel.job_store import JobStore
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import Pool, Priority
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.sweep import SweepDuty, SweepResult, SweepStore
from planq.shared.kernel.wakes import Publisher, Tracker
from planq.shared.platform.beats import Beat
from planq.shared.platform.database import Database
from planq.shared.platform.errors import Misconfigured, PlanqError
from planq.shared.platform.lacking import PAYLOADS
from planq.shared.platform.logs import hide
from planq.shared.platform.process_memory import settle_heap
from planq.shared.platform.timers import NearTimers
from planq.shared.platform.version import release
from planq.shared.settings.kinds import comma_separated
from planq.shared.settings.settings import Settings
from planq.shared.subjects.actions.sweep import ActionSweep
from planq.shared.subjects.batches.provider_store import ProviderBatches
from planq.shared.subjects.batches.sweep import LineSweep
from planq.shared.subjects.channels.telegram import BOT_API
from planq.shared.subjects.conversations.store import TurnReader
from planq.shared.subjects.insights.learning import PostgresInsightOffers
from planq.shared.subjects.moments.contract import Memory
from planq.shared.subjects.orchestrations.store import PostgresOrchestrations
from planq.shared.subjects.payloads.contract import Payloads
from planq.shared.subjects.payloads.objects import open_objects
from planq.shared.subjects.payloads.store import PayloadStore
from planq.shared.subjects.questions.store import QuestionSweep
from planq.shared.subjects.schedules.store import ScheduleSweep
from planq.shared.subjects.streams.store import PostgresTexts
from planq.shared.subjects.tenants.config import Tenants
from planq.shared.subjects.tenants.directory import TenantDirectory
from planq.shared.subjects.tenants.secrets import SecretStore
from planq.shared.subjects.tools.catalogue import Catalogue, PublishedTools
from planq.shared.subjects.webhooks.deliveries import PostgresDeliveries
from planq.shared.subjects.webhooks.signing import SigningSecrets
from planq.worker.agents import AgentBackends, AgentServices, agent_tools, conclude_orchestration
from planq.worker.batches import HOLD, ProviderBatchDuty
from planq.worker.channels.contract import MessageChannel
from planq.worker.channels.sending import ChannelSender
from planq.worker.channels.telegram import BotApi, TelegramChannel
from planq.worker.channels.typing import ShowsTyping, TypingNotices
from planq.worker.channels.webhook import WebhookChannel
from planq.worker.egress import Egress
from planq.worker.engine import Loop, LoopSettings, Shares
from planq.worker.engine.persist import persist
from planq.worker.engine.running import InFlightWork
from planq.worker.handlers import AttemptSettings, handlers
from planq.worker.handlers.alarms import Alarms
from planq.worker.handlers.insights import Insights, InsightSettings
from planq.worker.handlers.stage_context import Backgrounds
from planq.worker.local_processes import Host
from planq.worker.model_gateway import model_gateway, model_settings, provided_models, require_key
from planq.worker.models.batch_api import BatchApi
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.live import LiveTexts
from planq.worker.models.planners import InstalledPlanners, load_planners
from planq.worker.subprocesses import Apart
from planq.worker.tools.builtin.web import read_web_access
from planq.worker.tools.registry import Registry, load_registry
from planq.worker.tools.services import ToolServices
from planq.worker.webhooks.posting import Poster
from planq.worker.webhooks.sender import TIMEOUT_SECONDS, DeliverySender, SendsDeliveries, hold_for

if TYPE_CHECKING:
    from planq.worker.tools.mcp import McpToolbox

_log = logging.getLogger("planq.worker")

CRASH_POINTS: Mapping[str, Collection[str]] = {
    "store": methods(JobStore),
    "catalogue": methods(ToolCatalogue),
    "publisher": methods(Publisher),
    "planner": methods(Planner) | methods(TurnPlanner),
    "responder": methods(Responder),
    "texts": methods(PostgresTexts),
    "turns": methods(TurnReader),
    "tool": methods(FindsOut) | methods(Gathers),
    "payloads": methods(Payloads),
    "orchestrations": {"journal"},
    "memory": methods(Memory) - {"find_moments"},
    "provider_batches": methods(ProviderBatches),
    "batch_api": methods(BatchApi),
    "deliveries": methods(PostgresDeliveries) - {"chats_of"},
    "poster": methods(SendsDeliveries),
    "sweep": methods(SweepStore),
    "schedule_sweep": {"due", "fire"},
    "line_sweep": {"cancel", "admit"},
    "question_sweep": {"expired", "expire"},
    "action_sweep": {"act"},
    "sweep_publisher": methods(Publisher),
    "worker_registry": methods(WorkerRegistry)
    - methods(SweepStore)
    - {
        "live",
        "unfinished",
        "broken_invariants",
        "planners",
        "has_our_functions",
        "differing_tools",
        "awaited_tools",
        "is_provided",
        "ended",
    },
}
"""The calls of each port at which tests may let a worker process crash: see `planq.shared.failpoints`."""

_SILENT_SECONDS = 5.0
"""Maximum time of an engine statement; after it the connection counts as dead and the statement is repeated over a
new one. The longest statements, plans of 10 000 steps, take one second."""

_BESIDE_THE_MODEL = timedelta(minutes=10)
"""Time that a stage may take in addition to its model call: loading an SDK, checking a long plan, the database."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The identity of this worker process; the processes of a `cpu` worker share their parent's.

    `process` identifies it to peers on its host (`planq.shared.kernel.processes`); None hides it. Bulk work takes at
    most `bulk_capacity` of its `capacity`. With `has_processes` each step has its own process. With `only` the worker
    serves that priority alone. It `provides` what others may lack (`planq.shared.platform.lacking`).
    """

    id: UUID
    name: str
    pool: Pool
    capacity: int
    bulk_capacity: int
    process: str | None = None
    has_processes: bool = False
    only: Priority | None = None
    provides: Sequence[str] = ()

    @property
    def is_shared(self) -> bool:
        """True if many jobs share the process: on the loop of a worker without processes for its steps."""
        return not self.has_processes


def process_text(host: Host, pool: Pool, mcp_file: Path | None) -> str | None:
    """Return the worker's `process`; None with stdio servers, whose calls may outlive it in another session."""
    if pool == Pool.IO and mcp_file is not None:
        from planq.worker.tools.mcp.config import read_mcp_file  # only if there are such servers

        if any(server.transport == "stdio" for server in read_mcp_file(mcp_file)):
            return None
    return None if host.own is None else host.own.text


@dataclass(slots=True)
class Tools:
    """The registry of a process, the planners of its packages, and the services of agent tools."""

    registry: Registry
    agent_services: AgentServices
    planners: InstalledPlanners
    apart: Apart
    egress: Egress

    @classmethod
    def load(cls, settings: Settings, knowledge: Knowledge, memory: Memory) -> Tools:
        """Collect and check all Python tools and planners; raises `Misconfigured` with the place of a defect."""
        key = settings.web_search_api_key
        access = read_web_access(settings.web_search, settings.web_search_url, key.get_secret_value() if key else "")
        services = ToolServices(
            knowledge=knowledge,
            memory=memory,
            web_search=access,
            telegram_url=settings.telegram_url or BOT_API,
            allow_private_hosts=frozenset(comma_separated(settings.http_fetch_allow_hosts)),
            egress=Egress.read(settings.ca_file, settings.egress_proxy, os.environ),
        )
        registry = load_registry(
            services=services, modules=comma_separated(settings.tools), yaml_path=settings.tools_file
        )
        agents = AgentServices()
        registry.reserve(agent_tools(agents))
        return cls(registry, agents, load_planners(), services.apart, services.egress)


def check_settings(settings: Settings, pool: Pool) -> None:
    """Raise `Misconfigured` with the setting whose file or model key is missing or wrong. Connects to nothing."""
    if settings.mcp_file is not None and pool == Pool.IO:
        from planq.worker.tools.mcp.config import read_mcp_file  # only if there are such servers

        with _said_of("PLANQ_MCP_FILE"):
            read_mcp_file(settings.mcp_file)
    with _said_of("PLANQ_RECORD"):
        ModelGateway(model_settings(settings))
    model = parse_model_name(settings.model)
    if model.cassette and not os.access(model.cassette, os.R_OK):
        raise Misconfigured(f"PLANQ_MODEL: the cassette {model.cassette} is not there, or cannot be read")
    if model.provider is not None and pool == Pool.IO:
        require_key(settings, model)


def worker_database(settings: Settings, identity: WorkerIdentity) -> Database:
    """Return the database of a worker's steps, not yet open; raises `Misconfigured` for a bad URL."""
    connections = settings.database_connections if identity.is_shared else 2
    return Database(
        settings.require_database(),
        has_pooler=settings.has_pooler,
        functions=settings.functions_schema,
        max_connections=connections,
        silent_seconds=_SILENT_SECONDS,
    )


@contextlib.contextmanager
def _said_of(variable: str) -> Iterator[None]:
    try:
        yield
    except Misconfigured as error:
        raise Misconfigured(f"{variable}: {error.message}") from error


class WorkerRuntime:
    """Everything that carries out wake-ups on one event loop; `workers` is how many of this pool live."""

    def __init__(
        self,
        settings: Settings,
        identity: WorkerIdentity,
        database: Database,
        tools: Tools,
        app: Celery,
        tracker: Tracker,
        *,
        in_flight: InFlightWork | None = None,
        failpoints: Failpoints | None = None,
    ) -> None:
        self._failpoints = failpoints or Failpoints()
        self._settings = settings
        self._identity = identity
        self._tools = tools
        self._publisher = CeleryPublisher(app, from_loop=identity.is_shared)
        self._tracker = tracker
        self._in_flight = in_flight or InFlightWork()
        self._database = database
        self._tenants = TenantDirectory(database, settings.limits)
        self._gateway: ModelGateway | None = None
        self._texts: LiveTexts | None = None
        self._mcp: McpToolbox | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        self._sender: DeliverySender | None = None
        self._typing: TypingNotices | None = None
        self._provider_batches: ProviderBatchDuty | None = None
        self._timers = NearTimers()
        self.workers = 1
        self.dispatcher: Loop | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.failure: PlanqError | None = None
        self.beat: Beat | None = None
        self._suspects: asyncio.Task[int] | None = None

    @property
    def drain_seconds(self) -> float:
        return self._settings.drain_seconds

    async def open(self) -> None:
        """Build the dispatcher on the running loop; keep an error as `failure`, too, because Celery swallows it."""
        try:
            await self._open()
        except PlanqError as error:
            self.failure = error
            raise
        if self.beat is not None:
            self.beat.start(asyncio.get_running_loop())

    async def _open(self) -> None:
        settings = self._settings
        pool = self._identity.pool
        self.loop = asyncio.get_running_loop()
        await self._database.open()
        if settings.mcp_file is not None and pool == Pool.IO:
            await self._connect_mcp(settings.mcp_file)
        models = model_settings(settings, self._tools.egress)
        secrets = SecretStore(self._database, settings.master_keys, lambda secret: hide([secret]))
        self._texts = LiveTexts(self._failpoints.around("texts", PostgresTexts(self._database)))
        payloads = self._failpoints.around("payloads", self._payloads())
        given = (models, settings, self._database, secrets, self._tenants, self._texts, payloads)
        gateway = model_gateway(*given, self._is_provided)
        self._gateway = self._failpoints.around("planner", gateway)
        longest_stage = timedelta(seconds=models.longest_call) + _BESIDE_THE_MODEL
        jobs = PostgresJobStore(self._database, self._identity.id, as_called, longest_stage)
        store = self._failpoints.around("store", jobs)
        turns = self._failpoints.around("turns", TurnReader(self._database))
        responder = self._failpoints.around("responder", self._gateway)
        orchestrations = self._failpoints.around("orchestrations", PostgresOrchestrations(self._database))
        backends = AgentBackends(
            store, orchestrations, responder, payloads, self._settings.max_output_bytes, self._gateway.price
        )
        self._tools.agent_services.backends = backends
        self._tools.agent_services.caps = partial(_limits_of, self._tenants)
        tools = Catalogue(PublishedTools(self._database).list, self._tenants)
        publisher = self._failpoints.around("publisher", self._publisher)
        made = handlers(
            AttemptSettings(
                max_output_bytes=settings.max_output_bytes,
                model_retry_seconds=settings.model_retry_seconds,
                tool_policy=settings.tool_policy,
                has_processes=self._identity.has_processes,
                can_seal=bool(settings.master_keys),
            ),
            store=store,
            catalogue=self._failpoints.around("catalogue", tools),
            in_flight=self._in_flight,
            planner=self._gateway,
            turns=self._gateway,
            responder=responder,
            toolbox=self._failpoints.around_tools("tool", self._tools.registry),
            payloads=payloads,
            conclude=partial(conclude_orchestration, self._tools.agent_services),
            prices=self._gateway.price,
            draw=SystemRandom().random,
            counts=self._tools.agent_services.counts,
            own_planners=self._tools.planners,
            backgrounds=Backgrounds(turns.history, self._tenants, count_tokens),
            insights=Insights(
                PostgresInsightOffers(self._database),
                InsightSettings(settings.insights),
                count_tokens,
            ),
            secrets=secrets.get,
            # The loop of a process that carries out one step after the other stops between them.
            alarms=None
            if self._identity.has_processes
            else Alarms(store, publisher, self._timers.set, lambda: self.workers),
        )
        self.dispatcher = Loop(
            LoopSettings(
                pool,
                slots=self._identity.capacity,
                bulk_slots=max(1, self._identity.bulk_capacity),
                shares=Shares(settings.tenant_weights),
                # A fused `cpu` step would be invisible to monitors: only the parent process can send their events.
                fuse_seconds=60.0 if self._identity.is_shared else 0.0,
            ),
            store=store,
            handlers=made,
            publisher=publisher,
            tracker=self._tracker,
            in_flight=self._in_flight,
            workers=lambda: self.workers,
            is_slow=self._tools.registry.is_slow,
        )
        await self._tools.registry.open_resources(pool)
        if self._identity.is_shared and pool == Pool.IO:
            self._warming = asyncio.create_task(_warm_up(self._gateway))
            self._sender = self._started_sender()
            self._provider_batches = self._started_provider_batches(gateway)

    def _payloads(self) -> PayloadStore:
        objects = open_objects(self._settings.payloads)
        return PayloadStore(self._database, objects, partial(self._is_provided, PAYLOADS))

    async def _is_provided(self, what: str) -> bool:
        registry = WorkerRegistry(self._database, self._settings.lease)
        return await persist(registry.is_provided, what, self._identity.pool, self._identity.only)

    def _started_provider_batches(self, gateway: ModelGateway) -> ProviderBatchDuty:
        pause = timedelta(seconds=self._settings.provider_batch_seconds)
        store = ProviderBatches(self._database, self._identity.id, pause, HOLD)
        duty = ProviderBatchDuty(
            self._failpoints.around("provider_batches", store),
            self._failpoints.around("batch_api", BatchApi(gateway)),
            pause,
        )
        duty.start()
        return duty

    def _started_sender(self) -> DeliverySender:
        settings = self._settings
        timeout = timedelta(seconds=TIMEOUT_SECONDS)
        store = PostgresDeliveries(self._database, self._identity.id, settings.lease, hold_for(timeout))
        keys = SigningSecrets(self._database, settings.master_keys, lambda secret: hide([secret]))
        poster = Poster(keys.of, timeout, settings.webhook_hosts, SystemRandom().random, egress=self._tools.egress)
        deliveries = self._failpoints.around("deliveries", store)
        bots = SecretStore(self._database, settings.master_keys, lambda secret: hide([secret]))
        api = BotApi(settings.telegram_url or BOT_API, timeout, self._tools.egress)
        telegram = TelegramChannel(api, bots.get, SystemRandom().random)
        channels: dict[str, MessageChannel[Any]] = {
            ChannelKind.WEBHOOK: WebhookChannel(poster),
            ChannelKind.TELEGRAM: telegram,
        }
        shows: dict[str, ShowsTyping] = {ChannelKind.TELEGRAM: telegram.show_typing}
        self._typing = TypingNotices(self._in_flight.attempts, store.chats_of, shows)
        self._typing.start()
        sending = ChannelSender(poster, channels, deliveries)
        sender = DeliverySender(
            deliveries,
            self._failpoints.around("poster", sending),
            self._tools.agent_services.counts,
        )
        sender.start()
        return sender

    async def _connect_mcp(self, path: Path) -> None:
        from planq.worker.tools.mcp import connect_mcp  # the SDK costs memory, so it is loaded only if it is used

        worker_registry = WorkerRegistry(self._database, self._settings.lease, self._settings.lease_margin)

        async def publish(mcp: McpToolbox) -> None:
            self._tools.registry.left_out = mcp.left_out()
            await announce(worker_registry, self._identity, self._tools)

        def changed(source: str, tools: Sequence[Tool]) -> Sequence[str]:
            if self._mcp is not None:
                self._publishing = asyncio.get_running_loop().create_task(publish(self._mcp))
            return self._tools.registry.replace(source, tools)

        self._mcp = await connect_mcp(path, changed, self._tools.egress)
        await publish(self._mcp)

    def count_workers(self, count: int) -> None:
        self.workers = count

    def described(self) -> dict[str, object]:
        """Return the worker's name, pool, slots and number of tools for its log lines."""
        here, tools = self._identity, len(self._tools.registry.definitions())
        return {"worker": here.name, "pool": str(here.pool), "slots": here.capacity, "tools": tools}

    def missing(self) -> list[str]:
        """Return a sentence for each thing that the worker needs and lacks now; callable from any thread."""
        return [] if self._mcp is None else self._mcp.away()

    @property
    def is_in_quarantine(self) -> bool:
        """True while quarantined work runs here or waits for other work to end; readable from any thread."""
        return self._suspects is not None and not self._suspects.done()

    @property
    def duties(self) -> Sequence[SweepDuty]:
        """The duties of this loop that a sweep starts; readable from any loop."""
        return [
            LoopDuty("deliveries", lambda: self.loop, self._wake_sender),
            LoopDuty("provider_batches", lambda: self.loop, self._wake_provider_batches),
        ]

    def _wake_sender(self) -> None:
        if self._sender is not None:
            self._sender.wake()

    def _wake_provider_batches(self) -> None:
        if self._provider_batches is not None:
            self._provider_batches.wake()

    async def run_suspects(self) -> None:
        """Carry out waiting quarantined work unless an abandoned thread lives; callable from any loop."""
        if self.loop is not None and self.dispatcher is not None:
            run = self.dispatcher.run_suspects(lambda: not self._tools.registry.threads.alive)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._run_suspects(run), self.loop))

    async def _run_suspects(self, run: Coroutine[Any, Any, int]) -> None:
        self._suspects = asyncio.create_task(run)
        (ended,) = await asyncio.gather(self._suspects, return_exceptions=True)
        if isinstance(ended, Exception):
            _log.warning("suspects_not_carried_out", exc_info=ended)

    def wind_down(self) -> None:
        if self.dispatcher is not None:
            self.dispatcher.wind_down()

    async def close_resources(self) -> None:
        await self._tools.registry.resources.close()

    async def close(self) -> None:
        """Close what `open` opened; idempotent."""
        if self.beat is not None:
            self.beat.stop()
        if self._suspects is not None:
            self._suspects.cancel()
            await asyncio.wait({self._suspects})
        await self._timers.close()
        if self._mcp is not None:
            await self._mcp.aclose()
        if self._typing is not None:
            await self._typing.close()
        if self._sender is not None:
            await self._sender.close()
        if self._provider_batches is not None:
            await self._provider_batches.close()
        if self._warming is not None:
            self._warming.cancel()
        self._tools.apart.close()
        await self.close_resources()
        if self._texts is not None:
            await self._texts.aclose()
        if self._gateway is not None:
            await self._gateway.aclose()
        await asyncio.to_thread(self._publisher.close)
        await self._database.close()


async def _limits_of(tenants: Tenants, tenant_id: str) -> Limits:
    return (await persist(tenants.of, tenant_id)).limits


async def _warm_up(gateway: ModelGateway) -> None:
    """Load the default model's SDK while the worker starts, so that its first job does not wait for it."""
    try:
        await gateway.warm_up()
    except (ImportError, PlanqError) as error:
        _log.warning("model_not_warmed_up", extra={"cause": str(error)})
    settle_heap()


def provided_by(settings: Settings, pool: Pool) -> Sequence[str]:
    """Return what the settings of a worker of `pool` provide that others may lack."""
    return [*([PAYLOADS] if settings.payloads else []), *(provided_models(settings) if pool == Pool.IO else [])]


@dataclass(frozen=True, slots=True)
class LoopDuty:
    """A `SweepDuty` that starts something on another loop without waiting for its end."""

    part: str
    loop_of: Callable[[], asyncio.AbstractEventLoop | None]
    begin: Callable[[], object]

    async def carry_out(self, limit: int) -> SweepResult:
        loop = self.loop_of()
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.begin)
        return SweepResult()


def sweep_duties(database: Database, failpoints: Failpoints) -> Sequence[SweepDuty]:
    """Return the sweep duties of the subjects that are built on jobs."""
    return (
        failpoints.around("schedule_sweep", ScheduleSweep(database)),
        failpoints.around("question_sweep", QuestionSweep(database)),
        failpoints.around("line_sweep", LineSweep(database)),
        failpoints.around("action_sweep", ActionSweep(database)),
    )


async def announce(worker_registry: WorkerRegistry, identity: WorkerIdentity, tools: Tools) -> None:
    """Register the worker with its planners, publish its tools, and log tools whose definition differs elsewhere."""
    definitions = tools.registry.definitions()
    await worker_registry.register(
        identity.id,
        identity.name,
        [identity.pool],
        [OfferedTool(one.name, one.digest, one.version) for one in tools.registry.runnable()],
        identity.capacity,
        release(),
        process=identity.process,
        has_processes=identity.has_processes,
        bulk_capacity=identity.bulk_capacity,
        planners=tools.planners.names,
        provides=identity.provides,
        only=identity.only,
        left_out=tools.registry.left_out,
    )
    await worker_registry.publish_tools([definition.model_dump(mode="json") for definition in definitions])
    for other in await worker_registry.differing_tools():
        _log.warning(
            "tool_differs",
            extra={"tool": other["name"], **{key: other[key] for key in ("digest", "version", "workers")}},
        )
