"""The tables, and nothing else: SQLModel is their one source, Alembic's migrations give the same schema (tested).

No row object crosses the store's edge: `rows.py` turns rows into records. JSON that came from outside is kept as
`json`, not `jsonb`: it stays byte for byte what it was (key order, `\\u0000`), and planq never searches in it.
Partial indexes cover only what is unfinished, so that a million finished jobs cost nothing.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSON, TSVECTOR
from sqlmodel import Field, SQLModel

from shared.domain.states import Effect, JobStatus, Lane, Recovery, StepKind, StepStatus

SQLModel.metadata.naming_convention = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

_KEYED = "idempotency_key IS NOT NULL"
_SEARCH = "setweight(to_tsvector('english', heading), 'A') || setweight(to_tsvector('english', body), 'B')"

UNFINISHED_JOB = "status IN ('queued', 'planning', 'executing', 'input_required', 'responding')"
UNFINISHED_STEP = "status IN ('pending', 'ready', 'running', 'waiting')"


def one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    """Return the check constraint that allows exactly the values of an enum."""
    allowed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({allowed})", name=column)


def _partial(column: str, where: str) -> Index:
    return Index(None, column, postgresql_where=text(where))


def _json(*, nullable: bool = True) -> Any:
    return Field(default=None, sa_column=Column(JSON, nullable=nullable))


def _time(*, nullable: bool = True, now: bool = False) -> Any:
    default = text("now()") if now else None
    return Field(default=None, sa_column=Column(DateTime(timezone=True), nullable=nullable, server_default=default))


def _int(default: int = 0) -> Any:
    return Field(default=default, sa_column=Column(Integer, nullable=False, server_default=text(str(default))))


def _flag() -> Any:
    return Field(default=False, sa_column=Column(Boolean, nullable=False, server_default=text("false")))


def _ints() -> Any:
    return Field(sa_column=Column(ARRAY(Integer), nullable=False, server_default=text("'{}'")))


def _texts(*, nullable: bool = True) -> Any:
    return Field(sa_column=Column(ARRAY(Text), nullable=nullable))


def _text(default: str | None = None, *, nullable: bool = False, primary_key: bool = False) -> Any:
    server_default = None if default is None else text(f"'{default}'")
    return Field(sa_column=Column(Text, nullable=nullable, server_default=server_default, primary_key=primary_key))


class Tenant(SQLModel, table=True):
    """Whoever owns rows; one row, `default`, until tenants are configured."""

    __tablename__ = "tenants"
    id: str = _text(primary_key=True)
    created_at: datetime = _time(nullable=False, now=True)


class Job(SQLModel, table=True):
    """One request, from submission to answer.

    `stage_worker` and `stage_attempt` are the claim on the PLAN or RESPOND stage. `wake_at` is when the sweeper has
    to publish the job's wake-up again unless it has moved on; `deadline` bounds the execution of its plan, and a
    claimed stage.
    `halt_index` is the earliest failed step: nothing after it starts any more. `expires_at` bounds the time in the
    queue, later the whole life; while `paused_at` is set nothing is begun and no time runs out.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        one_of("status", JobStatus),
        CheckConstraint("open_steps >= 0 AND failed_steps >= 0", name="counters"),
        Index("uq_jobs_idempotency_key", "tenant_id", "idempotency_key", unique=True, postgresql_where=text(_KEYED)),
        Index("ix_jobs_listing", "tenant_id", "id"),
        Index("ix_jobs_status_listing", "tenant_id", "status", "id"),
        _partial("wake_at", UNFINISHED_JOB),
        _partial("deadline", "status IN ('executing', 'input_required') AND deadline IS NOT NULL"),
        _partial("stage_worker", "stage_worker IS NOT NULL"),
        _partial("expires_at", UNFINISHED_JOB),
        _partial("parent_job_id", f"parent_job_id IS NOT NULL AND {UNFINISHED_JOB}"),
        _partial("forked_from", f"forked_from IS NOT NULL AND {UNFINISHED_JOB}"),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: str = Field(sa_column=Column(Text, ForeignKey("tenants.id"), nullable=False))
    parent_job_id: UUID | None = None
    parent_step_index: int | None = None
    root_job_id: UUID | None = None
    depth: int = _int()
    conversation_id: UUID | None = None
    agent_version: str | None = _text(nullable=True)
    strategy: str = _text()
    status: str = _text("queued")
    round: int = _int()
    model: str = _text()
    stage_worker: UUID | None = None
    stage_attempt: int = _int()
    stage_losses: int = _int()
    open_steps: int = _int()
    failed_steps: int = _int()
    halt_index: int | None = None
    limits: Any = _json(nullable=False)
    budget: Any = _json()
    priority: int = _int()
    run_at: datetime = _time(nullable=False, now=True)
    wake_at: datetime | None = _time()
    wakes: int = _int()
    deadline: datetime | None = _time()
    cancel_requested_at: datetime | None = _time()
    paused_at: datetime | None = _time()
    expires_at: datetime | None = _time()
    forked_from: UUID | None = None
    open_questions: int = _int()
    resumes: int = _int()
    idempotency_key: str | None = _text(nullable=True)
    request_hash: str | None = _text(nullable=True)
    user_id: str = _text("")
    trace_id: str = _text("")
    input: str = _text()
    tools: list[str] | None = _texts()
    answer: str | None = _text(nullable=True)
    error: Any = _json()
    meta: Any = Field(default=None, sa_column=Column("metadata", JSON, nullable=True))
    model_calls: int = _int()
    input_tokens: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    output_tokens: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    cost_usd: Decimal | None = Field(default=None, sa_column=Column(Numeric, nullable=True))
    created_at: datetime = _time(nullable=False, now=True)
    started_at: datetime | None = _time()
    finished_at: datetime | None = _time()


class PlanRow(SQLModel, table=True):
    """The plan of one round as it was accepted, or refused with its defects; never changed afterwards.

    In a fork, `reuse` says whose outcomes its steps take over: `{index: index}` of the job it was forked from.
    """

    __tablename__ = "plans"
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True))
    round: int = Field(sa_column=Column(Integer, primary_key=True))
    tenant_id: str = _text()
    source: str = _text()
    body: Any = _json()
    errors: Any = _json()
    reuse: Any = _json()
    created_at: datetime = _time(nullable=False, now=True)


class Step(SQLModel, table=True):
    """One node of a plan. `inputs` are the steps it references, `pending` its dependencies without success.

    `releases` counts the attempts that do not use up retries: given back, or made before the job was resumed.
    `unsure` says that an earlier attempt may have taken effect, which the tool has to find out first; `question` is
    what a step asks a person since `asked_at`. A large output is kept as `payload_hash`, `output_bytes` and the
    `excerpts` at the paths `wanted`, which later steps use; a fork has it from `reused_job`; `origin_job` made it.
    """

    __tablename__ = "steps"
    __table_args__ = (
        one_of("status", StepStatus),
        one_of("kind", StepKind),
        one_of("lane", Lane),
        one_of("effect", Effect),
        one_of("recovery", Recovery),
        CheckConstraint("pending >= 0 AND attempt >= 0", name="counters"),
        _partial("wake_at", "status IN ('ready', 'waiting')"),
        _partial("worker_id", "status = 'running'"),
        _partial("payload_hash", "payload_hash IS NOT NULL"),
        _partial("origin_job", "origin_job IS NOT NULL"),
    )
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True))
    round: int = Field(sa_column=Column(Integer, primary_key=True))
    index: int = Field(sa_column=Column(Integer, primary_key=True))
    tenant_id: str = _text()
    kind: str = _text("tool")
    tool_name: str = _text()
    lane: str = _text()
    effect: str = _text()
    status: str = _text()
    arguments: Any = _json(nullable=False)
    inputs: list[int] = _ints()
    depends_on: list[int] = _ints()
    dependents: list[int] = _ints()
    pending: int = _int()
    attempt: int = _int()
    retries: int = _int()
    worker_losses: int = _int()
    releases: int = _int()
    timeout_seconds: float = Field(nullable=False)
    worker_id: UUID | None = None
    run_at: datetime = _time(nullable=False, now=True)
    wake_at: datetime | None = _time()
    wakes: int = _int()
    deadline: datetime | None = _time()
    output: Any = _json()
    payload_hash: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))
    output_bytes: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    wanted: Any = _json()
    excerpts: Any = _json()
    recovery: str = _text("fail")
    unsure: bool = _flag()
    question: Any = _json()
    asked_at: datetime | None = _time()
    reused_job: UUID | None = None
    reused_index: int | None = None
    origin_job: UUID | None = None
    origin_index: int | None = None
    error: Any = _json()
    started_at: datetime | None = _time()
    finished_at: datetime | None = _time()


class Event(SQLModel, table=True):
    """One thing that happened to a job, appended in the commit of the change that it tells."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_job_id", "job_id", "sequence"),)
    sequence: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    tenant_id: str = _text()
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False))
    kind: str = _text()
    data: Any = _json()
    created_at: datetime = _time(nullable=False, now=True)


class Payload(SQLModel, table=True):
    """A large value, addressed by its SHA-256; its bytes are `body`, or lie at `location` in the object store.

    `preview` is what is shown where the whole would be too much. `created_at` is when it was last put or referred to.
    """

    __tablename__ = "payloads"
    __table_args__ = (
        _partial("location", "location IS NOT NULL"),
        Index("ix_payloads_created_at", "created_at"),
    )
    hash: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    tenant_id: str = _text(primary_key=True)
    body: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))
    location: str | None = _text(nullable=True)
    size: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    preview: Any = _json()
    created_at: datetime = _time(nullable=False, now=True)


class PayloadObject(SQLModel, table=True):
    """An object that was, or was to be, written to the object store and has not been removed from it.

    Once it `is_doomed` no payload refers to it any more.
    """

    __tablename__ = "payload_objects"
    __table_args__ = (Index("ix_payload_objects_created_at", "created_at"),)
    location: str = _text(primary_key=True)
    tenant_id: str = _text()
    is_doomed: bool = _flag()
    created_at: datetime = _time(nullable=False, now=True)


class Artifact(SQLModel, table=True):
    """A tool's structured product: `body` is the whole wrapper (`artifact_id`, `artifact`, `_metadata`).

    A large one has a `payload_hash` instead.
    """

    __tablename__ = "artifacts"
    __table_args__ = (
        Index("ix_artifacts_job_id", "job_id"),
        _partial("payload_hash", "payload_hash IS NOT NULL"),
    )
    tenant_id: str = _text(primary_key=True)
    id: str = _text(primary_key=True)
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False))
    step_index: int = Field(nullable=False)
    tool_name: str = _text()
    skill_id: str | None = _text(nullable=True)
    type: str | None = _text(nullable=True)
    body: Any = _json()
    payload_hash: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))
    created_at: datetime = _time(nullable=False, now=True)


class ModelCallRow(SQLModel, table=True):
    """One logical call to a model; `exchange` is null where prompts and replies are not kept."""

    __tablename__ = "model_calls"
    __table_args__ = (Index("ix_model_calls_job_id", "job_id"),)
    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    tenant_id: str = _text()
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False))
    round: int = _int()
    step_index: int | None = None
    purpose: str = _text()
    model: str = _text()
    attempts: int = _int(1)
    latency_ms: int = _int()
    input_tokens: int = _int()
    output_tokens: int = _int()
    cost_usd: Decimal | None = Field(default=None, sa_column=Column(Numeric, nullable=True))
    error: Any = _json()
    exchange: Any = _json()
    created_at: datetime = _time(nullable=False, now=True)


class Worker(SQLModel, table=True):
    """One worker process; its lease lives as long as `heartbeat_at` is fresh."""

    __tablename__ = "workers"
    id: UUID = Field(primary_key=True)
    name: str = _text()
    lanes: list[str] = _texts(nullable=False)
    tools: list[str] = _texts(nullable=False)
    capacity: int = _int()
    version: str = _text("")
    started_at: datetime = _time(nullable=False, now=True)
    heartbeat_at: datetime = _time(nullable=False, now=True)
    lag_ms: int = _int()
    in_flight: int = _int()
    late_outcomes: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default=text("0")))


class ToolRow(SQLModel, table=True):
    """A tool's definition as a worker published it."""

    __tablename__ = "tools"
    tenant_id: str = _text(primary_key=True)
    name: str = _text(primary_key=True)
    definition: Any = _json(nullable=False)
    published_at: datetime = _time(nullable=False, now=True)


class Document(SQLModel, table=True):
    """A document loaded into the knowledge base."""

    __tablename__ = "documents"
    __table_args__ = (Index("uq_documents_source", "tenant_id", "source", unique=True),)
    id: UUID = Field(primary_key=True)
    tenant_id: str = _text()
    source: str = _text()
    title: str = _text()
    digest: str = _text()
    loaded_at: datetime = _time(nullable=False, now=True)


class PassageRow(SQLModel, table=True):
    """A searchable piece of a document."""

    __tablename__ = "passages"
    __table_args__ = (
        Index("ix_passages_search", "search", postgresql_using="gin"),
        Index("ix_passages_tenant_id", "tenant_id"),
    )
    document_id: UUID = Field(sa_column=Column(ForeignKey("documents.id", ondelete="CASCADE"), primary_key=True))
    position: int = Field(sa_column=Column(Integer, primary_key=True))
    tenant_id: str = _text()
    heading: str = _text("")
    body: str = _text()
    search: Any = Field(default=None, sa_column=Column(TSVECTOR, Computed(_SEARCH, persisted=True)))
