"""Every setting: its unit, its default, and why. Read by composition roots only; rooms get values as arguments.

Environment variables are the field names in capitals after `PLANQ_`; `DATABASE_URL`, `BROKER_URL` and `REDIS_URL` are
understood without the prefix, as hosting platforms set them.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, PlainValidator, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shared.domain.errors import Misconfigured
from shared.domain.limits import Limits, TenantLimits, read_tenant_limits
from shared.domain.states import JobStatus

VERSION = "0.1.0"

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


_MAX_DAYS = 36_500


def _none_is_for_ever(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in ("", "none") else value


def _retained(days: float | None) -> float | None:
    if days is not None and not 0 < days <= _MAX_DAYS:
        raise ValueError(
            f"expected more than 0 and at most {_MAX_DAYS:,} days, found {days:g}; to remove jobs soon after their "
            "end, set a very small number (0.001 is 86 seconds); to keep them for ever, `none`"
        )
    return days


Days = Annotated[float | None, BeforeValidator(_none_is_for_ever), AfterValidator(_retained)]
"""A time in days, fractions too; None means for ever."""


class Settings(BaseSettings):
    """The configuration of one process."""

    model_config = SettingsConfigDict(env_prefix="PLANQ_", extra="ignore", frozen=True, populate_by_name=True)

    # Servers
    database_url: str = Field(
        default="",
        validation_alias=AliasChoices("PLANQ_DATABASE_URL", "DATABASE_URL"),
        description="libpq URL of PostgreSQL, postgresql://…",
    )
    broker_url: str = Field(
        default="",
        validation_alias=AliasChoices("PLANQ_BROKER_URL", "BROKER_URL", "REDIS_URL"),
        description="redis://, rediss://, redis+socket:// or amqp:// URL",
    )
    database_connections: int = Field(default=10, ge=1, le=500)  # claims and commits are short: 10 serve 500 steps

    # API
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65_535)
    api_keys: str = ""  # comma separated; required when host is not loopback
    max_body_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)  # a caller's plan of 10 000 steps fits
    max_input_bytes: int = Field(default=100_000, ge=1)
    max_wait_seconds: float = Field(default=60.0, gt=0)  # below the idle time-out of common proxies
    wait_poll_seconds: float = Field(default=3.0, gt=0)  # what a lost notification may delay a waiting client
    database_timeout_seconds: float = Field(default=5.0, gt=0)  # then a request is answered with 503

    # Workers
    io_concurrency: int = Field(default=300, ge=1)  # steps in flight in one process
    cpu_concurrency: int = Field(default=2, ge=1)  # processes
    heartbeat_seconds: float = Field(default=5.0, gt=0)
    lease_seconds: float = Field(default=15.0, gt=0)  # three heartbeats: one may get lost without harm
    see_gone: bool = True  # off where processes are moved alive between machines: then leases alone decide
    sweep_seconds: float = Field(default=0.5, gt=0)  # the precision of timers and retries
    drain_seconds: float = Field(default=10.0, ge=0)  # what a stopping worker gives its steps
    deaf_seconds: float = Field(default=60.0, gt=0)  # a reconnect pauses up to 30 s; then an idle worker restarts
    max_worker_losses: int = Field(default=3, ge=1)  # a step that kills its worker so often is given up
    task_events: bool = False  # for Flower; costs throughput, and Flower switches them on itself a few seconds late
    max_output_bytes: int = Field(default=64 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)  # a larger one fails
    inline_output_bytes: int = Field(default=65_536, ge=1024)  # what a claim and a look at a job may carry around
    payloads: str = ""  # where larger outputs lie: PostgreSQL, or file:///folder, or s3://bucket/prefix

    # Tools
    tools: str = ""  # PLANQ_TOOLS=module:attribute,…
    tools_file: Path | None = None  # YAML declarations
    mcp_file: Path | None = None  # a standard mcp.json
    http_fetch_max_bytes: int = Field(default=5 * 1024 * 1024, ge=1024)
    http_fetch_allow_hosts: str = ""  # hosts exempt from the guard against private addresses, comma separated

    web_search: Literal["", "searxng", "brave", "tavily"] = ""  # the service that the tool web_search asks
    web_search_url: str = ""  # SearxNG's address; for the others only where it is not their own
    web_search_api_key: SecretStr | None = None
    max_reminders: int = Field(default=100, ge=1)  # of one user, still to come: an agent cannot fill the future

    # Models
    model: str = "offline"
    model_base_url: str | None = Field(  # an OpenAI-compatible server
        default=None, validation_alias=AliasChoices("PLANQ_MODEL_BASE_URL", "OPENAI_BASE_URL")
    )
    anthropic_base_url: str | None = Field(default=None, validation_alias="ANTHROPIC_BASE_URL")
    google_base_url: str | None = Field(default=None, validation_alias="GOOGLE_BASE_URL")
    openai_api_key: SecretStr | None = Field(default=None, validation_alias="OPENAI_API_KEY")
    anthropic_api_key: SecretStr | None = Field(default=None, validation_alias="ANTHROPIC_API_KEY")
    google_api_key: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("GOOGLE_API_KEY", "GEMINI_API_KEY")
    )
    openai_api: Literal["auto", "chat", "responses"] = "auto"  # Responses at OpenAI itself, Chat elsewhere
    model_stream: bool = True  # off only for servers that break when asked: the first token is not timed then
    model_first_token_seconds: float = Field(
        default=60.0, gt=0
    )  # a provider silent for a minute has lost the request
    model_timeout_seconds: float = Field(default=120.0, gt=0)  # one attempt, to the end of its reply
    model_attempts: int = Field(default=4, ge=1)
    model_retry_after_seconds: float = Field(default=30.0, ge=0)  # a longer wish ends the call: it would hold a stage
    model_max_output_tokens: int = Field(default=4096, ge=1)
    model_temperature: float | None = Field(default=None, ge=0, le=2)  # some models refuse it: theirs by default
    model_findings_chars: int = Field(default=200_000, ge=1)  # about 50 000 tokens: fits every current model's window
    keep_exchanges: bool = True  # prompts and replies in model_calls; off: redacted
    record: Path | None = None  # PLANQ_RECORD=FILE records a cassette

    # Limits (readings row 11)
    max_tool_steps: int = Field(default=10, ge=1)
    max_plan_steps: int = Field(default=10_000, ge=1)
    plan_timeout_seconds: float = Field(default=300.0, gt=0)
    step_timeout_seconds: float = Field(default=300.0, gt=0)  # the cap; a tool's own default is 60
    queue_timeout_seconds: float = Field(default=86_400.0, gt=0)  # a night without workers loses nothing
    job_timeout_seconds: float = Field(default=604_800.0, gt=0)  # a week: nothing lives for ever by mistake
    human_wait_seconds: float = Field(default=86_400.0, gt=0)  # a person gets a day to answer
    orchestrate_max_depth: int = Field(default=3, ge=1)  # agents that call agents that call agents
    orchestrate_max_steps: int = Field(default=12, ge=1)
    orchestrate_max_parallel: int = Field(default=4, ge=1)
    agent_timeout_seconds: float = Field(default=60.0, gt=0, le=300)  # of a called agent; it may be given up to 300
    tenant_limits: Annotated[TenantLimits, NoDecode, PlainValidator(read_tenant_limits)] = Field(
        default={}, description='JSON, {"tenant": {"limit": number}}: what holds for single tenants instead'
    )
    agent_orchestrator_enabled: bool = True  # off: cp__agent_orchestrate and cp__call_agents refuse to work

    # Retention: days after the end of a job; empty or `none` keeps for ever
    retain_completed_days: Days = 30.0  # people come back to an answer within the month
    retain_failed_days: Days = 90.0  # a fault is looked into, and resumed, later than an answer is read
    retain_cancelled_days: Days = 30.0
    retention_sweep_seconds: float = Field(default=300.0, gt=0)  # days matter here, not seconds

    log_level: str = "INFO"
    log_json: bool = True

    @property
    def lease(self) -> timedelta:
        """How long a worker's right to its steps outlives its last heartbeat."""
        return timedelta(seconds=self.lease_seconds)

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the API."""
        return self.host in LOOPBACK

    @cached_property
    def keys(self) -> frozenset[str]:
        """The accepted API keys."""
        return frozenset(split(self.api_keys))

    @property
    def limits(self) -> Limits:
        """The bounds of a job that asks for none of its own, of a tenant without limits of its own."""
        return Limits(
            max_tool_steps=self.max_tool_steps,
            max_plan_steps=self.max_plan_steps,
            plan_timeout_seconds=self.plan_timeout_seconds,
            step_timeout_seconds=self.step_timeout_seconds,
            queue_timeout_seconds=self.queue_timeout_seconds,
            job_timeout_seconds=self.job_timeout_seconds,
            human_wait_seconds=self.human_wait_seconds,
            orchestrate_max_depth=self.orchestrate_max_depth,
            orchestrate_max_steps=self.orchestrate_max_steps,
            orchestrate_max_parallel=self.orchestrate_max_parallel,
            agent_timeout_seconds=self.agent_timeout_seconds,
        )

    def limits_of(self, tenant_id: str) -> Limits:
        """Return the bounds of a tenant's job that asks for none of its own: the caps of what one may ask for."""
        return self.limits.of_tenant(self.tenant_limits.get(tenant_id))

    @property
    def retention(self) -> dict[JobStatus, timedelta]:
        """How long after their end jobs are kept; a status that is missing is kept for ever."""
        days = {
            JobStatus.COMPLETED: self.retain_completed_days,
            JobStatus.FAILED: self.retain_failed_days,
            JobStatus.CANCELLED: self.retain_cancelled_days,
        }
        return {status: timedelta(days=kept) for status, kept in days.items() if kept is not None}

    def require_database(self) -> str:
        """Return the database URL; raises `Misconfigured` when it is missing or no PostgreSQL URL."""
        return _require("DATABASE_URL", self.database_url, ("postgresql://", "postgres://"))

    def require_broker(self) -> str:
        """Return the broker URL; raises `Misconfigured` when it is missing or of a kind we do not know."""
        return _require(
            "BROKER_URL", self.broker_url, ("redis://", "rediss://", "redis+socket://", "amqp://", "amqps://")
        )


def split(text: str) -> list[str]:
    """Return the non-empty parts of a comma-separated setting."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _require(name: str, url: str, prefixes: tuple[str, ...]) -> str:
    expected = " or ".join(f"{prefix}…" for prefix in prefixes)
    if not url:
        raise Misconfigured(f"{name} is not set; expected {expected}; `planq up` starts embedded servers and sets it")
    if not url.startswith(prefixes):
        scheme = url.split("://")[0][:20]
        raise Misconfigured(f"{name}: expected {expected}, found a URL of the kind {scheme!r}")
    return url


def load_settings() -> Settings:
    """Read the environment; raises `Misconfigured` that names each bad variable."""
    try:
        return Settings()
    except ValidationError as error:
        places = "; ".join(f"{_variable(str(e['loc'][0]))}: {e['msg']}" for e in error.errors())
        raise Misconfigured(f"bad settings: {places}") from error


def _variable(place: str) -> str:
    """Return the environment variable behind a field's name; an alias is one already."""
    return place if place.isupper() else f"PLANQ_{place.upper()}"
