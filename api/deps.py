"""Dependencies of routes: the services of the application, strictly decoded bodies, and common parameters."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Path, Query
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message

from planq.api.access.guard import FIELDS
from planq.api.access.limits import RateLimits, UnfinishedJobs, open_windows
from planq.api.access.places import LEASE_SECONDS, Places
from planq.api.access.revocation import OngoingRequests
from planq.api.access.scopes import Access, Caller
from planq.api.access.sessions import Sessions
from planq.api.documents import job_document
from planq.api.http import bounds
from planq.api.http.exchange import check_fields, decode_body, error_responses, json_bytes
from planq.api.intake.assignments import Assignments
from planq.api.intake.messages import MessageReplies, Messages, TurnSubmissions
from planq.api.intake.parts import PartIntake
from planq.api.intake.submission import JobBuilder, Submissions
from planq.api.intake.waits import EndAnnouncer, JobWaits
from planq.api.metrics.exposition import Metrics
from planq.api.metrics.readiness import BrokerProbe, ReadinessChecks, StatusChecks
from planq.api.streams.followers import Streams
from planq.api.streams.waiting import Waiters
from planq.shared.broker.celery_config import create_celery
from planq.shared.broker.publisher import CeleryPublisher
from planq.shared.failpoints import Failpoints
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.store.signals import CANCELLED, ENDED, Notifier
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.computing import INLINE_CHARS, off_loop
from planq.shared.platform.data_folder import serves
from planq.shared.platform.database import Database
from planq.shared.platform.errors import InvalidRequest, NotFound, capped
from planq.shared.platform.logs import hide
from planq.shared.platform.timers import NearTimers
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

T = TypeVar("T")


class Services:
    """The parts of one application. Only routes read it, and they pass on what is used.

    `subjects` holds by class what carries out the work of the subjects above this module.
    """

    def __init__(self, settings: Settings, database: Database, failpoints: Failpoints) -> None:
        """Open no connection yet. Raises `Misconfigured` for a URL that cannot be read."""
        armed = failpoints.around
        celery = create_celery(settings.require_broker(), prefix=settings.broker_prefix)
        broker = BrokerProbe(celery)  # first, so that the error of a bad broker URL names the broker
        self.settings = settings
        self.subjects: dict[type, Any] = {}

        self.tenants = TenantDirectory(database, settings.limits)
        self.tenant_store = TenantStore(database)
        self.api_keys = ApiKeyStore(database)
        self.known_keys = KnownKeys(database)
        self.requests = armed("requests", RequestStore(database))
        self.overview = JobOverview(database)
        self.job_actions = JobActions(database)
        self.catalogue = Catalogue(PublishedTools(database).list, self.tenants)
        self.payloads = PayloadStore(database, open_objects(settings.payloads))
        self.event_log = EventLog(database)
        self.texts = StreamStore(database)
        self.agents = armed("agents", DocumentStore(database, "agent"))
        self.skills = armed("skills", DocumentStore(database, "skill"))
        self.schedules = armed("schedules", Schedules(database))
        self.questions = armed("questions", QuestionStore(database))
        self.conversations = armed("conversations", ConversationStore(database))
        self.batches = armed("batches", BatchStore(database, new_id()))
        self.batch_control = armed("batch_control", BatchControl(database))
        self.workers = WorkerRegistry(database, settings.lease)
        self.webhooks = WebhookStore(database)
        self.insights = InsightStore(database)
        self.costs = CostStore(database)
        self.channels = ChannelStore(database)
        self.signing = SigningSecrets(database, settings.master_keys, lambda secret: hide([secret]))
        self.publisher = armed("publisher", CeleryPublisher(celery, from_loop=True))
        self.timers = NearTimers()
        self.ended, self.cancelled = Notifier(database, ENDED), Notifier(database, CANCELLED)

        self.ended_sessions = EndedSessions(database)
        self.sessions = Sessions(_secrets(settings), bounds.PAGE_SESSION_SECONDS)
        self.access = Access(settings.keys, self.known_keys, self.ended_sessions, is_required=settings.needs_keys)
        self.ongoing = OngoingRequests(self.known_keys.look, self.ended_sessions.among, self.sessions.last_end)
        self.limits = RateLimits(open_windows(settings, database))
        self.places = Places(PlaceStore(database, new_id(), LEASE_SECONDS))
        self.waiters = Waiters(self.requests.ended, bounds.WAIT_POLL_SECONDS)
        self.streams = Streams(self.event_log, self.texts, partial(_ended_job, self.requests), bounds.MAX_STREAMS)
        self.readiness = ReadinessChecks(database, self.workers)
        data = _embedded_data(settings)
        self.status = StatusChecks(database, self.workers, broker, rates=self.limits.describe, data=data)
        self.metrics = Metrics(self.workers, TallyStore(database), self.event_log, self.waiters, self.streams)

        self.endings = EndAnnouncer(self.cancelled, self.ended, self.waiters)
        self.waits = JobWaits(settings, self.tenants, self.requests, self.waiters, self.ongoing, self.places)
        self.assignments = Assignments(self.agents, self.skills, self.workers)
        hosts = comma_separated(settings.http_fetch_allow_hosts)
        parts = PartIntake(self.payloads, self.requests, settings.max_parts_bytes, hosts)
        builder = JobBuilder(settings, self.tenants, self.catalogue, self.conversations, self.assignments, parts)
        unfinished = UnfinishedJobs(self.requests.unfinished)
        self.submissions = Submissions(
            builder, self.tenants, self.requests, self.publisher, self.waiters, self.limits, unfinished
        )
        self.messages = Messages(
            *(self.conversations, self.assignments, self.publisher, self.timers, self.waiters, self.endings, parts)
        )
        self.turns = TurnSubmissions(self.submissions, self.messages)
        self.replies = MessageReplies(
            settings, self.conversations, self.requests, self.questions, self.publisher, self.waits
        )

    def subject(self, kind: type[T]) -> T:
        """Return the object of this class."""
        found: T = self.subjects[kind]
        return found

    def release_clients(self) -> None:
        """Answer all waiting clients and end all streams, now and from now on: the process stops."""
        self.waiters.close()
        self.streams.close()


def _secrets(settings: Settings) -> list[str]:
    """Return what only the processes of this API know."""
    masters = settings.secret_keys.get_secret_value()
    return [masters, settings.database_url, *sorted(settings.keys)]


async def _ended_job(requests: RequestStore, tenant_id: str, job_id: UUID) -> bytes | None:
    view = await requests.view(tenant_id, job_id)
    return json_bytes(job_document(view)) if view.has_ended else None


def _embedded_data(settings: Settings) -> FilePath | None:
    data = FilePath(os.environ.get("PLANQ_DATA") or os.devnull).absolute()
    return data if data.is_dir() and serves(data, settings.database_url, settings.broker_url) else None


async def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Use = Annotated[Services, Depends(services_of)]


async def check_job_is_open_to(who: Caller, requests: RequestStore, job_id: UUID, *, is_task: bool = False) -> None:
    """Raise `NotFound` unless the caller may see a job: a key with only `messages` sees only the message flow.

    A job is a task only if no other job created it. There is no query for a caller who may see all jobs.
    """
    if who.sees_all_jobs:
        return
    row = (await requests.view(who.tenant_id, job_id, only_ended=True)).row
    if not row["in_message_flow"] or (is_task and row["parent_job_id"] is not None):
        raise NotFound(f"there is no job {job_id}")


KeyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        json_schema_extra={"pattern": "^[!-~]{1,255}$"},  # `check_key` says better what is wrong with one
        description="1 to 255 visible ASCII characters; repeats are then harmless.",
    ),
]
TraceHeader = Annotated[
    str | None, Header(alias="traceparent", description="W3C Trace Context; its trace id goes to tools.")
]
WaitQuery = Annotated[
    float,
    Query(ge=0, allow_inf_nan=False, description="Seconds to wait for its end; at most `PLANQ_MAX_WAIT_SECONDS`."),
]
ConversationPath = Annotated[str, Path(json_schema_extra={"format": "uuid"}, description="The conversation's id.")]
JobPath = Annotated[str, Path(json_schema_extra={"format": "uuid"}, description="The job's id.")]
StepPath = Annotated[
    str, Path(json_schema_extra={"format": "int32", "pattern": "^[0-9]+$"}, description="The step's index.")
]

_MAX_DIGITS = 9  # the database's integers have one more


def step_index_of(job_id: UUID, text: str) -> int:
    """Return the index of a step in a path; raises `NotFound` for any other text."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise NotFound(f"job {job_id} has no step {capped(text, 20)!r}; steps are numbered from 0")
    return int(text)


def strict_router(tag: str, *statuses: int) -> APIRouter:
    """Return a router whose routes read bodies and queries strictly, and document these error statuses."""
    found = error_responses(*(statuses or (401, 403, 421, 422, 500, 503)))
    return APIRouter(route_class=StrictRoute, tags=[tag], responses=found)


class StrictRequest(Request):
    """A request whose body is decoded strictly, once."""

    async def body(self) -> bytes:
        """Return the body. Nearly every one comes in one piece, for which a stream would be slow."""
        if not hasattr(self, "_body"):
            message: Message = {"type": "http.request", "more_body": True}
            pieces = []
            while message.get("more_body", False):
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                pieces.append(message.get("body", b""))
            self._body = b"".join(pieces)
            self._stream_consumed = True
        return self._body

    async def json(self) -> Any:
        """Return the value of the body; raises `HttpRefusal` as `decode_body` does."""
        if not hasattr(self, "_json"):
            body = await self.body()
            is_long = len(body) > INLINE_CHARS
            self._json = await off_loop(decode_body, body) if is_long else decode_body(body)
        return self._json

    @property
    def is_short(self) -> bool:
        """True if the body is short enough to be read and checked on the event loop."""
        fields = self.scope[FIELDS]
        length = fields.get(b"content-length", b"0" if b"transfer-encoding" not in fields else b"")
        return length.isdigit() and int(length[:20]) <= INLINE_CHARS


class StrictRoute(APIRoute):
    """A route that refuses unknown parameters of the query."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = query_names(self.dependant)
        annotation: Any = None if self.body_field is None else self.body_field.field_info.annotation
        model = None if annotation is None else TypeAdapter[Any](annotation)

        async def strict(request: Request) -> Response:
            read = StrictRequest(request.scope, request.receive)
            if request.scope["query_string"]:
                check_query(read, known)
            if model is not None and not read.is_short:
                with contextlib.suppress(ClientDisconnect):  # FastAPI finds it again
                    await off_loop(check_fields, model, await read.json())
            return await handle(read)

        return strict


def query_names(dependant: Dependant) -> list[str]:
    """Return the query parameters of a route and of its dependencies."""
    below = [name for one in dependant.dependencies for name in query_names(one)]
    return [*(field.alias for field in dependant.query_params), *below]


def check_query(request: Request, known: Sequence[str]) -> None:
    """Raise `InvalidRequest` with every unknown or repeated parameter of the query."""
    given = Counter(name for name, _ in request.query_params.multi_items())
    hint = f"known parameters are {', '.join(known)}" if known else "this takes none"
    defects = [
        {
            "in": "query",
            "field": capped(name, 100),
            "message": "stands there more than once; send it once" if name in known else f"unknown parameter; {hint}",
        }
        for name, count in given.items()
        if name not in known or count > 1
    ]
    if defects:
        detail = "; ".join(f"{defect['field']}: {defect['message']}" for defect in defects[:10])
        raise InvalidRequest(detail, errors=defects)
