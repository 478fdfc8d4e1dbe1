"""The tables, and nothing else: SQLModel is their one source, Alembic's migrations give the same schema (tested).

Jobs, their steps and questions, and the workers that run them; each subject has its own `tables.py`.
Plans, steps, events and model calls have no foreign key to their job: it would read and lock the job for each row.
Whoever inserts one holds the job or the step; a trigger of retention deletes them with the job.
No row object crosses the store's edge: `codec.py` turns rows into records. JSON that came from outside is kept as
`json`, not `jsonb`: it stays byte for byte what it was (key order, `\u0000`), and planq never searches in it.
Partial indexes cover only what is unfinished, so that a million finished jobs cost nothing. What a job or a step must
hold in each state is asserted by triggers (`sql/functions/invariants.sql`), and that file says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    Sequence,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSON
from sqlmodel import Field, SQLModel

from planq.shared.kernel.states import (
    IDLE_STEP,
    POOL,
    RUNNING_STEP,
    STORED_JOB,
    AfterSteps,
    Effect,
    JoinPolicy,
    OnFailure,
    Outcome,
    Priority,
    Recovery,
    Respond,
    StepKind,
    StepStatus,
)
from planq.shared.platform.columns import (
    bigint_column,
    enum_column,
    flag_column,
    int_column,
    ints_column,
    json_column,
    partial_index,
    parts_column,
    parts_index,
    pattern_column,
    text_column,
    texts_column,
    time_column,
)

_KEYED = "idempotency_key IS NOT NULL"


def _among(statuses: Iterable[StrEnum]) -> str:
    return "status IN ({})".format(", ".join(f"'{status}'" for status in statuses))


UNFINISHED_JOB = _among(status for status in STORED_JOB if not status.is_terminal)
_RUNNING = "status = 'executing'"
_MOVING = "paused_at IS NULL"
"""No time runs out while a job is paused; a sweep would look at all paused ones again and again."""
_OF_CONVERSATION = "conversation_id IS NOT NULL AND parent_job_id IS NULL"
"""A turn of a conversation; jobs below it carry its id, too."""
_OF_MESSAGE_FLOW = "in_message_flow AND parent_job_id IS NULL"
_PINS = ("tenant_id", "agent_name", text("coalesce(agent_version, 0)"), text("coalesce(skill_versions, '{}')"))
_HELD = "status = 'ready' AND wake_at IS NULL"
_AWAITS_TOOL = "status = 'ready' AND tool_away_since IS NOT NULL"
ENDED_JOB = _among(status for status in STORED_JOB if status.is_terminal)
_UNSERVED = "(is_untold OR NOT is_joined AND coalesce(parent_job_id, conversation_id, batch_id) IS NOT NULL)"


class Job(SQLModel, table=True):
    """One request, from submission to answer.

    `stage_worker` and `stage_attempt` are the claim on the PLAN or RESPOND stage. `wake_at` is when the sweeper has
    to publish the job's wake-up again unless it has moved on; `deadline` bounds the execution of its plan, and a
    claimed stage. `stage_retry` is what a stage came to whose model failed, and which is tried again at `run_at`: it
    is of that stage alone. `halt_index` is the earliest failed step: nothing after it starts any more. `expires_at`
    bounds the time in the queue, later the whole life; while `paused_at` is set nothing is begun and no time runs
    out. A child job was made by the step `parent_step_index` of `parent_round` of its parent, as number
    `child_position`; while `run_at` lies in the year 9999 it is held back, and `is_joined` once that step has been
    notified of its end; a turn of a conversation is joined once the conversation was. The job of a line of a batch,
    but none below it, has `batch_id` and `batch_line`; it is joined once that line was settled. Of an end that
    `is_untold` the deliveries could not be written in its commit. Turns of
    conversations, tasks of `POST /tasks` and the jobs below both are `in_message_flow`. A job of an agent
    pins the version of its document, and those of the document's skills in their order. One with many open steps has
    `places`, its window: `out_steps` of them are ready or run, `held_steps` are ready and wait for a place. `parts`
    are the images, files and audio of its input (`shared/platform/values/parts.py`). `format` is that of its stored
    documents (`planq_format`).
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index("uq_jobs_idempotency_key", "tenant_id", "idempotency_key", unique=True, postgresql_where=text(_KEYED)),
        Index("ix_jobs_listing", "tenant_id", "id"),
        Index("ix_jobs_status_listing", "tenant_id", "status", "strategy", "id"),
        Index("ix_jobs_message_flow", "tenant_id", "id", postgresql_where=text(_OF_MESSAGE_FLOW)),
        partial_index("wake_at", UNFINISHED_JOB, include=["status", "priority"]),
        partial_index("deadline", f"{_RUNNING} AND deadline IS NOT NULL AND {_MOVING}"),
        partial_index("stage_worker", "stage_worker IS NOT NULL"),
        partial_index("expires_at", f"{UNFINISHED_JOB} AND {_MOVING}"),
        partial_index("parent_job_id", "parent_job_id IS NOT NULL"),
        partial_index("forked_from", f"forked_from IS NOT NULL AND {UNFINISHED_JOB}"),
        Index("ix_jobs_unserved", "finished_at", postgresql_where=text(f"{_UNSERVED} AND {ENDED_JOB}")),
        Index(
            "ix_jobs_turns",
            "conversation_id",
            postgresql_where=text(f"{_OF_CONVERSATION} AND {UNFINISHED_JOB}"),
        ),
        Index("ix_jobs_pins", *_PINS, postgresql_where=text("agent_name IS NOT NULL")),
        Index(
            "ix_jobs_awaiting_models",
            "tenant_id",
            postgresql_where=text(f"stage_retry IS NOT NULL AND {UNFINISHED_JOB}"),
        ),
        Index("ix_jobs_asking", "id", postgresql_where=text("open_questions > 0")),
        Index("ix_jobs_holding", "id", postgresql_where=text("held_steps > 0")),
        parts_index("jobs"),
    )
    id: UUID = Field(primary_key=True)
    tenant_id: str = Field(sa_column=Column(Text, ForeignKey("tenants.id"), nullable=False))
    parent_job_id: UUID | None = None
    parent_step_index: int | None = None
    parent_round: int | None = None
    child_position: int | None = None
    child_key: str | None = text_column(nullable=True)
    is_joined: bool = flag_column()
    is_untold: bool = flag_column()
    root_job_id: UUID | None = None
    depth: int = int_column()
    format: int = int_column(1)
    conversation_id: UUID | None = None
    history: Any = json_column()
    in_message_flow: bool = flag_column()
    batch_id: UUID | None = None
    batch_line: int | None = None
    agent_name: str | None = text_column(nullable=True)
    agent_version: int | None = None
    skill_versions: list[int] | None = ints_column(nullable=True)
    action: str | None = text_column(nullable=True)
    with_input: Any = json_column()
    strategy: str = text_column()
    loop_block: Any = json_column()
    status: str = enum_column("job_status", STORED_JOB, default="queued")
    round: int = int_column()
    after_steps: str = enum_column("after_steps", AfterSteps, default="responding")
    on_failure: str = enum_column("on_failure", OnFailure, default="answer")
    respond: str = enum_column("job_respond", Respond, default="model")
    on_incomplete: str | None = text_column(nullable=True)
    model_settings: Any = json_column()
    incomplete: Any = json_column()
    rounds_deadline: datetime | None = time_column()
    stop_reason: str | None = text_column(nullable=True)
    model: str = text_column()
    stage_worker: UUID | None = None
    stage_attempt: int = int_column()
    stage_losses: int = int_column()
    stage_retry: Any = json_column()
    open_steps: int = int_column()
    places: int | None = None
    out_steps: int | None = None
    held_steps: int = int_column()
    failed_steps: int = int_column()
    halt_index: int | None = None
    limits: Any = json_column(nullable=False)
    budget: Any = json_column()
    priority: str = enum_column("job_priority", Priority, default="interactive")
    run_at: datetime = time_column(nullable=False, now=True)
    wake_at: datetime | None = time_column()
    wakes: int = int_column()
    deadline: datetime | None = time_column()
    cancel_requested_at: datetime | None = time_column()
    paused_at: datetime | None = time_column()
    expires_at: datetime | None = time_column()
    forked_from: UUID | None = None
    open_questions: int = int_column()
    resumes: int = int_column()
    idempotency_key: str | None = text_column(nullable=True)
    request_hash: str | None = text_column(nullable=True)
    callback_url: str | None = text_column(nullable=True)
    user_id: str = text_column("")
    trace_id: str = text_column("")
    input: str = text_column()
    parts: Any = parts_column()
    tools: list[str] | None = texts_column()
    answer: str | None = text_column(nullable=True)
    preview: str | None = text_column(nullable=True)
    output: Any = json_column()
    chained: Any = json_column()
    error: Any = json_column()
    meta: Any = Field(default=None, sa_column=Column("metadata", JSON, nullable=True))
    model_calls: int = int_column()
    input_tokens: int = bigint_column()
    output_tokens: int = bigint_column()
    cache_read_tokens: int = bigint_column()
    cache_write_tokens: int = bigint_column()
    cost_usd: Decimal | None = Field(default=None, sa_column=Column(Numeric, nullable=True))
    created_at: datetime = time_column(nullable=False, now=True)
    started_at: datetime | None = time_column()
    finished_at: datetime | None = time_column()


for _outcome in Outcome:
    Sequence(f"jobs_ended_{_outcome}", metadata=SQLModel.metadata)  # counted by planq_count_end


class PlanRow(SQLModel, table=True):
    """The plan of one round as it was accepted, or refused with its defects; never changed afterwards.

    In a fork, `reuse` says whose outcomes its steps take over: `{index: index}` of the job it was forked from.
    `reply` is what the model said, where the next round's planner is shown it.
    """

    __tablename__ = "plans"
    job_id: UUID = Field(primary_key=True)
    round: int = Field(sa_column=Column(Integer, primary_key=True))
    tenant_id: str = text_column()
    source: str = text_column()
    body: Any = json_column()
    errors: Any = json_column()
    reuse: Any = json_column()
    reply: Any = json_column()
    created_at: datetime = time_column(nullable=False, now=True)


class Step(SQLModel, table=True):
    """One node of a plan. `inputs` are the steps it references, `pending` its dependencies without success.

    The `index` counts on over the rounds of a job, so that it alone names a step there.
    One that is ready and has no `wake_at` is held: nobody claims it until there is a place in its job's window. Of
    these, those with the longest `path` of steps behind them get one first.
    `releases` counts the attempts that do not use up retries: given back, or made before the job was resumed, or that
    delegated to child jobs that have failed.
    The outcome of one that `is_known` was there when its plan was accepted.
    `in_doubt` says that an earlier attempt may have taken effect, which the tool has to find out first;
    `question_id` is the step's open question to a person, asked at `asked_at`. Whether one may be called that
    `is_asked_ahead` a person was asked before it began. A large output is kept as `payload_hash`, `output_bytes`
    and the `excerpts` at the paths `wanted`, which later steps use; a fork has it from `reused_job`; `origin_job`
    made it. `content` is a text for models that its tool gave beside the output.
    A step that delegates has `children`, the first `next_child` of which were begun; of `open_children` it was not
    yet notified of their end; it waits for them as `waits_for` says until it has `joined`. The `note` is its tool's.
    `tool_digest` is that of the schemas against which its plan was checked, null where it needs no tool. No live
    worker has the tool of one that is ready since `tool_away_since` (`sql/functions/offers.sql`). One attempt may
    take `longest_seconds` as long as it reports; `progress` is the last report `{done, message, at}`.
    Its calls have cost `cost_usd`, null where its tool has no price; `charges` says what each attempt has, by number.
    """

    __tablename__ = "steps"
    __table_args__ = (
        partial_index("wake_at", _among(IDLE_STEP), include=["status"]),
        partial_index("worker_id", _among(RUNNING_STEP)),
        Index("ix_steps_held", "job_id", text("path DESC"), "index", postgresql_where=text(_HELD)),
        partial_index("payload_hash", "payload_hash IS NOT NULL"),
        partial_index("origin_job", "origin_job IS NOT NULL"),
        Index("ix_steps_awaiting_tools", "tool_away_since", postgresql_where=text(_AWAITS_TOOL)),
    )
    job_id: UUID = Field(primary_key=True)
    round: int = Field(nullable=False)
    index: int = Field(sa_column=Column(Integer, primary_key=True))
    tenant_id: str = text_column()
    kind: str = enum_column("step_kind", StepKind, default="tool")
    tool_name: str = text_column()
    pool: str = pattern_column("step_pool", POOL)
    effect: str = enum_column("step_effect", Effect)
    status: str = enum_column("step_status", StepStatus)
    arguments: Any = json_column(nullable=False)
    verbatim: bool = flag_column()
    inputs: list[int] = ints_column()
    depends_on: list[int] = ints_column()
    dependents: list[int] = ints_column()
    pending: int = int_column()
    path: int = int_column()
    attempt: int = int_column()
    retry: Any = json_column(nullable=False)
    worker_losses: int = int_column()
    releases: int = int_column()
    timeout_seconds: float = Field(nullable=False)
    worker_id: UUID | None = None
    run_at: datetime = time_column(nullable=False, now=True)
    wake_at: datetime | None = time_column()
    wakes: int = int_column()
    deadline: datetime | None = time_column()
    output: Any = json_column()
    payload_hash: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))
    output_bytes: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    wanted: Any = json_column()
    excerpts: Any = json_column()
    content: str | None = text_column(nullable=True)
    recovery: str = enum_column("step_recovery", Recovery, default="fail")
    in_doubt: bool = flag_column()
    is_known: bool = flag_column()
    question_id: UUID | None = None
    asked_at: datetime | None = time_column()
    is_asked_ahead: bool = flag_column()
    waits_for: str | None = enum_column("join_policy", JoinPolicy, nullable=True)
    max_parallel: int | None = None
    note: Any = json_column()
    joined: bool = flag_column()
    children: list[UUID] | None = Field(default=None, sa_column=Column(ARRAY(Uuid), nullable=True))
    open_children: int | None = None
    next_child: int | None = None
    reused_job: UUID | None = None
    reused_index: int | None = None
    origin_job: UUID | None = None
    origin_index: int | None = None
    tool_digest: str | None = text_column(nullable=True)
    tool_away_since: datetime | None = time_column()
    longest_seconds: float | None = None
    progress: Any = json_column()
    cost_usd: Decimal | None = Field(default=None, sa_column=Column(Numeric, nullable=True))
    charges: Any = json_column()
    error: Any = json_column()
    started_at: datetime | None = time_column()
    finished_at: datetime | None = time_column()


class BudgetRow(SQLModel, table=True):
    """The budget of a tree of jobs, by its root: reservations take turns by this row; jobs hold the limits."""

    __tablename__ = "budgets"
    root_job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True))
    tenant_id: str = text_column()
    warned_at: datetime | None = time_column()
    created_at: datetime = time_column(nullable=False, now=True)


class BudgetHoldRow(SQLModel, table=True):
    """What a stage (index -1) or a step has reserved of its tree's budget for the call `call_id`.

    It counts while that attempt is carried out, where its job was cut off until `owed_until`; never once the call is
    recorded.
    """

    __tablename__ = "budget_holds"
    __table_args__ = (Index("ix_budget_holds_root_job_id", "root_job_id"),)
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True))
    index: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False, server_default=text("-1")))
    root_job_id: UUID
    round: int = int_column()
    attempt: int
    call_id: UUID | None = None
    tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cost_usd: Decimal = Field(sa_column=Column(Numeric, nullable=False, server_default=text("0")))
    model_calls: int
    steps: int
    owed_until: datetime | None = time_column()


class Worker(SQLModel, table=True):
    """One worker process; its lease lives as long as `heartbeat_at` is fresh.

    It is ended by putting it back to the epoch. Bulk work takes at most `bulk_capacity`; one with `only_priority`
    serves jobs of that one alone. It calls the SQL functions in the schema `functions`. `counts` are totals since
    its start, `[[name, …, number], …]`; `missing` says in sentences what it needs and lacks; `left_out` which
    tools of MCP servers it does not offer; `planners` are those
    that it has installed; `provides` what its own configuration gives it and others may lack
    (`planq.shared.platform.lacking`); `process` says which one it is (`planq.shared.kernel.processes`), if known.
    Its heart beats at least once in `lease_seconds` as long as it lives. One that `has_processes` runs each step in a
    process of its own, which it can kill. One that is `in_quarantine` carries out suspects and nothing else.
    """

    __tablename__ = "workers"
    id: UUID = Field(primary_key=True)
    name: str = text_column()
    pools: list[str] = texts_column(nullable=False)
    planners: list[str] | None = texts_column()
    provides: list[str] | None = texts_column()
    capacity: int = int_column()
    bulk_capacity: int = int_column()
    has_processes: bool = flag_column()
    version: str = text_column("")
    functions: str = text_column("")
    started_at: datetime = time_column(nullable=False, now=True)
    heartbeat_at: datetime = time_column(nullable=False, now=True)
    lag_ms: int = int_column()
    in_flight: int = int_column()
    late_outcomes: int = bigint_column()
    counts: Any = json_column()
    missing: list[str] | None = texts_column()
    left_out: list[str] | None = texts_column()
    process: str | None = text_column(nullable=True)
    lease_seconds: float = Field(sa_column=Column(Double, nullable=False))
    only_priority: str | None = text_column(nullable=True)
    in_quarantine: bool = flag_column()


class WorkerTool(SQLModel, table=True):
    """A tool that a worker can run: the `digest` of its schemas, and the `version` that its author gave it."""

    __tablename__ = "worker_tools"
    __table_args__ = (Index("ix_worker_tools_name", "name"),)
    worker_id: UUID = Field(sa_column=Column(ForeignKey("workers.id", ondelete="CASCADE"), primary_key=True))
    name: str = text_column(primary_key=True)
    digest: str = text_column()
    version: str = text_column("")


class SuspectRow(SQLModel, table=True):
    """An attempt that was in flight in a lost worker, with `company` in all; `index` is -1 for that of a stage.

    It counts while `attempt` is the newest one there; `losses` of them in a row were lost. Its `group_id` is claimed
    together in quarantine, from `due_at` on; null where it is not. The claim of the one suspect of a job that
    `delays` moves the job's times by what the loss has cost.
    """

    __tablename__ = "suspects"
    job_id: UUID = Field(sa_column=Column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True))
    round: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    index: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    tenant_id: str = text_column()
    attempt: int = int_column()
    pool: str = text_column()
    group_id: UUID | None = Field(default=None)
    company: int = int_column()
    losses: int = int_column(1)
    delays: bool = flag_column()
    noted_at: datetime = time_column(nullable=False, now=True)
    due_at: datetime | None = time_column()
