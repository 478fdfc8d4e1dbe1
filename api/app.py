"""The composition root of the API process: its routes, middlewares and services.

The application starts without its servers, and answers 503 until they are there; `/readyz` shows that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.routing import Route

from planq.api.access.guard import Guard, GuardMiddleware
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
from planq.api.events.routes import event_routes
from planq.api.health.routes import ASSETS, operation_routes, page_assets, page_routes
from planq.api.http import bounds
from planq.api.http import exchange as http
from planq.api.http.prefix import Prefix
from planq.api.insights.page import insight_page_routes
from planq.api.insights.routes import insight_routes
from planq.api.jobs.page.forking import fork_routes
from planq.api.jobs.page.job import job_page_routes
from planq.api.jobs.page.listing import list_routes
from planq.api.jobs.routes.jobs import job_routes
from planq.api.jobs.routes.outputs import artifact_routes, output_routes
from planq.api.manual.page import manual_routes
from planq.api.mcp.door import McpDoor
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
from planq.api.tenants.page import tenant_page_routes
from planq.api.tenants.routes import tenant_routes
from planq.api.tools.page import catalogue_page_routes
from planq.api.tools.routes import catalogue_routes
from planq.api.webhooks.page import webhook_page_routes
from planq.api.webhooks.routes import webhook_routes
from planq.shared.failpoints import Failpoints, methods
from planq.shared.kernel.store.signals import ENDED, listen
from planq.shared.platform.database import Database
from planq.shared.platform.version import VERSION
from planq.shared.settings.settings import Settings
from planq.shared.subjects.batches.store import BatchStore
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.listings import text_of  # noqa: F401  (so that no request waits for SQLAlchemy's import)

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
"""The writing methods of an API process, by port: see `planq.shared.failpoints`."""

_STATEMENT_SECONDS = 4.0
"""Maximum time of a statement, without the wait for a connection. A longer one waits for a lock or a silent server:
every request is answered within ten seconds."""

_DESCRIPTION = "A durable backend for agentic jobs: plan, execute on Celery, answer."


def create_api(settings: Settings) -> FastAPI:
    """Return the application; opens no connection yet.

    Raises `Misconfigured` for a missing or bad URL of a server, and for settings that contradict each other: for
    example if other machines could reach the API without a key.
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
    # Requests are matched against the routers in this order: those that are used most come first.
    for router in (
        *(job_routes, message_routes),
        *(output_routes, question_routes, agent_routes),
        *(schedule_routes, execution_routes, tenant_routes),
        *(message_flow_routes, conversation_routes, batch_routes, event_routes),
        *(webhook_routes, webhook_channel_routes, telegram_routes, overview_routes, action_routes),
        *(channel_routes, insight_routes, cost_routes, catalogue_routes, artifact_routes),
        *(operation_routes, page_routes),
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
    services = Services(settings, database, Failpoints.load(os.environ, API_CRASH_POINTS))
    requests, arrived = services.requests, asyncio.Event()
    answers = QuestionAnswers(settings, services.questions, requests, services.catalogue, services.payloads)
    builder, batches = services.submissions.builder, services.batches
    subjects = (
        answers,
        ChannelReceiver(
            settings, services.tenants, services.messages, services.questions, answers, services.publisher
        ),
        BatchUploads(services.tenants, batches, arrived),
        BatchValidation(batches, builder, services.catalogue, arrived, settings.model_prices),
    )
    services.subjects.update({type(one): one for one in subjects})
    return services


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
