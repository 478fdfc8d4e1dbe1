"""The composition root of the API process: which adapter stands behind which name.

    create_api(settings)      an ASGI application; its lifespan opens and closes what owns connections

The application starts without its servers and answers 503 until they are there: a supervisor sees that at `/readyz`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from fastapi import APIRouter, FastAPI
from starlette.routing import Route

from planq.api.access.guard import Guard, GuardMiddleware
from planq.api.access.limits import RateLimits, UnfinishedJobs, open_windows
from planq.api.access.places import LEASE_SECONDS, Places
from planq.api.access.revocation import OngoingRequests
from planq.api.access.scopes import Access
from planq.api.access.sessions import Sessions
from planq.api.actions.page import action_page_routes
from planq.api.actions.routes import action_routes
from planq.api.agents.routes import agent_routes
from planq.api.batches.page import batch_page_routes
from planq.api.batches.routes import batch_routes
from planq.api.batches.upload import BatchUploads
from planq.api.batches.validation import BatchValidation
from planq.api.channels.receiving import ChannelReceiver
from planq.api.channels.routes import channel_routes
from planq.api.channels.telegram import telegram_routes
from planq.api.channels.webhook import webhook_channel_routes
from planq.api.compat.executions import execution_routes
from planq.api.compat.message_flow import message_flow_routes
from planq.api.compat.messages import message_routes
from planq.api.conversations.page import conversation_page_routes
from planq.api.conversations.routes import conversation_routes
from planq.api.costs.page import cost_page_routes
from planq.api.costs.routes import cost_routes
from planq.api.deps import Services
from planq.api.documents import job_document
from planq.api.events.routes import EventStreams, event_routes
from planq.api.health.routes import ASSETS, operation_routes, page_assets, page_routes
from planq.api.http import bounds
from planq.api.http import exchange as http
from planq.api.http.prefix import Prefix
from planq.api.insights.page import insight_page_routes
from planq.api.insights.routes import insight_routes
from planq.api.intake.assignments import Assignments
from planq.api.intake.messages import MessageReplies, Messages, TurnSubmissions
from planq.api.intake.parts import PartIntake
from planq.api.intake.submission import JobBuilder, Submissions
from planq.api.intake.waits import EndAnnouncer, JobWaits
from planq.api.jobs.page.forking import fork_routes
from planq.api.jobs.page.job import job_page_routes
from planq.api.jobs.page.listing import list_routes
from planq.api.jobs.routes.jobs import job_routes
from planq.api.jobs.routes.outputs import artifact_routes, output_routes
from planq.api.manual.page import manual_routes
from planq.api.mcp.door import McpDoor
from planq.api.metrics.exposition import Metrics
from planq.api.metrics.readiness import BrokerProbe, ReadinessChecks, StatusChecks
from planq.api.openapi import describe_api, operation_name
from planq.api.operations.page import worker_page_routes
from planq.api.operations.routes import overview_routes
from planq.api.page.route import refusal_page, visit_routes
from planq.api.questions.answering import QuestionAnswers
from planq.api.questions.page import inbox_routes
from planq.api.questions.routes import question_routes
from planq.api.quick import QuickRoutes
from planq.api.schedules.page import operation_page_routes
from planq.api.schedules.routes import schedule_routes
from planq.api.streams.followers import Streams
from planq.api.streams.waiting import Waiters
from planq.api.tenants.page import tenant_page_routes
from planq.api.tenants.routes import tenant_routes
from planq.api.tools.page import catalogue_page_routes
from planq.api.tools.routes import catalogue_routes
from planq.api.webhooks.page import webhook_page_routes
from planq.api.webhooks.routes import webhook_routes
from planq.shared.broker.celery_config import create_celery
from planq.shared.broker.publisher import CeleryPublisher
from planq.shared.failpoints import Failpoints, methods
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.store.signals import CANCELLED, ENDED, Notifier, listen
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.data_folder import serves
from planq.shared.platform.database import Database
from planq.shared.platform.logs import hide
from planq.shared.platform.timers import NearTimers
from planq.shared.platform.version import VERSION
from planq.shared.settings.kinds import comma_separated
from planq.shared.settings.settings import Settings
from planq.shared.subjects.actions.store import JobActions
from planq.shared.subjects.agents.store import DocumentStore
from planq.shared.subjects.batches.control import BatchControl
from planq.shared.subjects.batches.store import BatchStore
from planq.shared.subjects.channels.store import ChannelStore
from planq.shared.subjects.conversations.store import ConversationStore
from planq.shared.subjects.costs.store import CostStore
from planq.shared.subjects.events.store import EventLog
from planq.shared.subjects.insights.store import InsightStore
from planq.shared.subjects.jobs.operations import JobOverview
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.listings import text_of  # noqa: F401  (so that no request waits for SQLAlchemy's import)
from planq.shared.subjects.metrics.store import TallyStore
from planq.shared.subjects.payloads.objects import open_objects
from planq.shared.subjects.payloads.store import PayloadStore
from planq.shared.subjects.questions.store import QuestionStore
from planq.shared.subjects.schedules.store import Schedules
from planq.shared.subjects.streams.followers import StreamStore
from planq.shared.subjects.tenants.api_keys import ApiKeyStore, EndedSessions, KnownKeys
from planq.shared.subjects.tenants.directory import TenantDirectory, TenantStore
from planq.shared.subjects.tenants.places import PlaceStore
from planq.shared.subjects.tools.catalogue import Catalogue, PublishedTools
from planq.shared.subjects.webhooks.endpoints import WebhookStore
from planq.shared.subjects.webhooks.signing import SigningSecrets

PAGE_ROUTERS: Sequence[APIRouter] = (
    *(visit_routes, list_routes, job_page_routes, fork_routes),
    *(conversation_page_routes, webhook_page_routes, worker_page_routes, action_page_routes),
    *(inbox_routes, batch_page_routes, catalogue_page_routes, operation_page_routes),
    *(insight_page_routes, cost_page_routes, tenant_page_routes, manual_routes),
)


_log = logging.getLogger("planq.api")

API_CRASH_POINTS: Mapping[str, Collection[str]] = {
    "requests": methods(RequestStore)
    - {
        *("artifact", "artifacts", "earlier", "ended", "jobs", "output"),
        *("planned", "summaries", "tools", "tracebacks", "unfinished", "view", "views", "was_settled"),
    },
    "publisher": frozenset({"publish_soon"}),
    "agents": frozenset({"put", "retire"}),
    "skills": frozenset({"put", "retire"}),
    "schedules": frozenset({"delete"}),
    "questions": frozenset({"answer"}),
    "conversations": frozenset({"erase", "receive", "settle"}),
    "batch_control": frozenset({"cancel", "pause", "resume", "retry"}),
    "batches": methods(BatchStore) - {"errors", "get", "intake", "is_due", "page", "received"},
}
"""What an API process does to the world, by port, reading apart: see `planq.shared.failpoints`."""

_STATEMENT_SECONDS = 4.0
"""More than any statement of the API takes, beside the wait for a connection: what takes longer waits for a lock, or
for a server or a network that is silent. So every request is answered within ten seconds."""

_DESCRIPTION = "A durable backend for agentic jobs: plan, execute on Celery, answer."


def create_api(settings: Settings) -> FastAPI:
    """Return the application; opens no connection yet.

    Raises `Misconfigured` when a server's URL is missing or cannot be read, and where settings contradict each other:
    when others than this machine could reach the API without a key, say.
    """
    settings.check()
    database = Database(
        settings.require_database(),
        has_pooler=settings.has_pooler,
        functions=settings.functions_schema,
        max_connections=settings.database_connections,
        timeout_seconds=bounds.DATABASE_TIMEOUT_SECONDS,
        statement_seconds=bounds.DATABASE_TIMEOUT_SECONDS + _STATEMENT_SECONDS,
    )
    services = _compose(settings, database)
    mcp = McpDoor(services, settings.max_body_bytes)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with _running(settings, services, database), mcp.open():
            yield

    app = FastAPI(
        title="planq",
        version=VERSION,
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        generate_unique_id_function=operation_name,
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # planq counts requests itself
    )
    app.state.services = services
    # Each request looks through the routers in this order; behind nine others, a message paid a tenth of its cost.
    for router in (
        *(job_routes, message_routes),
        *(output_routes, question_routes, agent_routes),
        *(schedule_routes, execution_routes, tenant_routes),
        *(message_flow_routes, conversation_routes, batch_routes, event_routes),
        *(webhook_routes, webhook_channel_routes, telegram_routes, overview_routes, action_routes),
        *(
            channel_routes,
            insight_routes,
            cost_routes,
            catalogue_routes,
            artifact_routes,
            operation_routes,
            page_routes,
        ),
    ):
        app.include_router(router)
    app.router.routes.append(Route("/mcp", mcp, methods=["POST"]))
    for router in PAGE_ROUTERS:
        app.include_router(router)
    app.mount(ASSETS, page_assets())
    http.install(app)
    describe_api(app, settings.limits, with_keys=settings.needs_keys)
    app.add_middleware(http.Faults)
    guard = Guard(services.access, services.sessions, settings)
    has_prefix = settings.root_path or settings.proxies
    prefix = Prefix(settings.root_path, settings.proxies) if has_prefix else None
    # FastAPI's middlewares come behind the hot routes.
    quick = QuickRoutes(app.build_middleware_stack(), services, [*job_routes.routes, *message_routes.routes])
    app.middleware_stack = GuardMiddleware(http.Faults(quick), guard, services.metrics, prefix, refusal_page)
    return app


def _compose(settings: Settings, database: Database) -> Services:
    failpoints = Failpoints.load(os.environ, API_CRASH_POINTS)
    celery = create_celery(settings.require_broker(), prefix=settings.broker_prefix)
    requests = failpoints.around("requests", RequestStore(database))
    worker_registry = WorkerRegistry(database, settings.lease)
    waiters = Waiters(requests.ended, bounds.WAIT_POLL_SECONDS)
    known_keys, event_log, texts = KnownKeys(database), EventLog(database), StreamStore(database)
    streams = Streams(event_log, texts, partial(_ended_job, requests), bounds.MAX_STREAMS)
    tenants = TenantDirectory(database, settings.limits)
    broker = BrokerProbe(celery)  # first, so that a bad URL of the broker's is told by the broker's name
    limits = RateLimits(open_windows(settings, database))
    catalogue = Catalogue(PublishedTools(database).list, tenants)
    payloads = PayloadStore(database, open_objects(settings.payloads))
    publisher = failpoints.around("publisher", CeleryPublisher(celery, from_loop=True))
    timers, ended, cancelled = NearTimers(), Notifier(database, ENDED), Notifier(database, CANCELLED)
    places = Places(PlaceStore(database, new_id(), LEASE_SECONDS))
    ended_sessions, sessions = EndedSessions(database), Sessions(_secrets(settings), bounds.PAGE_SESSION_SECONDS)
    ongoing = OngoingRequests(known_keys.look, ended_sessions.among, sessions.last_end)
    agents = failpoints.around("agents", DocumentStore(database, "agent"))
    skills = failpoints.around("skills", DocumentStore(database, "skill"))
    questions = failpoints.around("questions", QuestionStore(database))
    conversations = failpoints.around("conversations", ConversationStore(database))
    batches = failpoints.around("batches", BatchStore(database, new_id()))
    batch_arrived = asyncio.Event()
    channels = ChannelStore(database)
    waits = JobWaits(settings, tenants, requests, waiters, ongoing, places)
    endings = EndAnnouncer(cancelled, ended, waiters)
    assignments = Assignments(agents, skills, worker_registry)
    parts = PartIntake(payloads, requests, settings.max_parts_bytes, comma_separated(settings.http_fetch_allow_hosts))
    builder = JobBuilder(settings, tenants, catalogue, conversations, assignments, parts)
    unfinished = UnfinishedJobs(requests.unfinished)
    submissions = Submissions(builder, tenants, requests, publisher, waiters, limits, unfinished)
    messages = Messages(conversations, assignments, publisher, timers, waiters, endings, parts)
    answers = QuestionAnswers(settings, questions, requests, catalogue, payloads)
    receiver = ChannelReceiver(settings, tenants, messages, questions, answers, publisher)
    subjects = (
        TurnSubmissions(submissions, messages),
        messages,
        MessageReplies(settings, conversations, requests, questions, publisher, waits),
        answers,
        receiver,
        BatchUploads(tenants, batches, batch_arrived),
        BatchValidation(batches, builder, catalogue, batch_arrived, settings.model_prices),
        EventStreams(tenants, event_log, texts, streams, places, ongoing),
    )
    return Services(
        settings=settings,
        tenants=tenants,
        tenant_store=TenantStore(database),
        api_keys=ApiKeyStore(database),
        known_keys=known_keys,
        access=Access(settings.keys, known_keys, ended_sessions, is_required=settings.needs_keys),
        ended_sessions=ended_sessions,
        sessions=sessions,
        ongoing=ongoing,
        requests=requests,
        overview=JobOverview(database),
        job_actions=JobActions(database),
        catalogue=catalogue,
        payloads=payloads,
        publisher=publisher,
        timers=timers,
        ended=ended,
        cancelled=cancelled,
        waiters=waiters,
        event_log=event_log,
        streams=streams,
        places=places,
        agents=agents,
        skills=skills,
        schedules=failpoints.around("schedules", Schedules(database)),
        questions=questions,
        conversations=conversations,
        batches=batches,
        batch_control=failpoints.around("batch_control", BatchControl(database)),
        workers=worker_registry,
        webhooks=WebhookStore(database),
        insights=InsightStore(database),
        costs=CostStore(database),
        channels=channels,
        signing=SigningSecrets(database, settings.master_keys, lambda secret: hide([secret])),
        limits=limits,
        readiness=ReadinessChecks(database, worker_registry),
        status=StatusChecks(
            *(database, worker_registry, broker), rates=limits.describe, data=_embedded_data(settings)
        ),
        waits=waits,
        endings=endings,
        assignments=assignments,
        submissions=submissions,
        subjects={type(one): one for one in subjects},
        metrics=Metrics(worker_registry, TallyStore(database), event_log, waiters, streams),
    )


def _secrets(settings: Settings) -> list[str]:
    """Return what every process of this API knows, and nobody else."""
    masters = settings.secret_keys.get_secret_value()
    return [masters, settings.database_url, *sorted(settings.keys)]


async def _ended_job(requests: RequestStore, tenant_id: str, job_id: UUID) -> bytes | None:
    view = await requests.view(tenant_id, job_id)
    return http.json_bytes(job_document(view)) if view.has_ended else None


def _embedded_data(settings: Settings) -> Path | None:
    data = Path(os.environ.get("PLANQ_DATA") or os.devnull).absolute()
    return data if data.is_dir() and serves(data, settings.database_url, settings.broker_url) else None


@contextlib.asynccontextmanager
async def _running(settings: Settings, services: Services, database: Database) -> AsyncIterator[None]:
    await database.open(wait=False)
    companions = [
        _start(listen(settings.require_server(), ENDED, services.waiters.heard, settings.functions_schema)),
        _start(services.waiters.poll()),
        _start(services.subject(BatchValidation).keep()),
        _start(services.streams.look()),
        _start(services.streams.beat()),
        _start(services.ongoing.look()),
        _start(services.places.keep()),
        _start(services.metrics.keep_report()),
    ]
    try:
        yield
    finally:
        services.release_clients()
        for companion in companions:
            companion.cancel()
        await asyncio.gather(*companions, return_exceptions=True)
        await services.timers.close()
        await services.known_keys.flush()
        await services.places.close()
        await services.metrics.drop_report()
        await services.ended.flush()
        await services.cancelled.flush()
        await services.limits.close()
        await asyncio.to_thread(services.publisher.close, 2.0)  # the sweeper publishes what the broker did not take
        await database.close()


def _start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("companion_failed", exc_info=error)
