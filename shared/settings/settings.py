"""Every setting with its unit and default. Only composition roots read them; other code gets values as arguments.

Variables are the field names in capitals after `PLANQ_`; `DATABASE_URL`, `BROKER_URL` and `REDIS_URL` work without
the prefix, as hosting platforms set them. Every process validates all settings first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    ValidationInfo,
    create_model,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from planq.shared.agentic.models.call_settings import CallSettings, checked_settings
from planq.shared.agentic.models.names import Provider, key_name, parse_place
from planq.shared.agentic.models.prices import OwnPrice
from planq.shared.agentic.tools.policy import read_tool_policy
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import JobStatus
from planq.shared.platform.database_url import SCHEMA, in_schema
from planq.shared.platform.errors import Misconfigured, capped
from planq.shared.platform.redact import secrets_of
from planq.shared.settings.kinds import (
    Days,
    FilePath,
    ModelKey,
    Networks,
    RootPath,
    SchemaName,
    WebAddress,
    Weights,
    ascii_keys,
    comma_separated,
    hosts_alone,
    known_commands,
    known_log_level,
    model_name,
    readable_master_keys,
)
from planq.shared.subjects.insights.offering import InsightMode
from planq.shared.subjects.tenants.master_keys import MasterKey, read_master_keys


class ServerSettings(BaseSettings):
    """The database and the broker."""

    model_config = SettingsConfigDict(
        env_prefix="PLANQ_", extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False
    )

    database_url: str = Field(
        default="",
        validation_alias=AliasChoices("PLANQ_DATABASE_URL", "DATABASE_URL"),
        description="PostgreSQL, `postgresql://…`; `planq up` starts its own without it.",
    )
    database_schema: SchemaName = Field(
        default=SCHEMA,
        validation_alias="PLANQ_SCHEMA",
        description="The database schema for planq's tables and functions, and nothing else.",
    )
    listen_url: str = Field(
        default="",
        description="The database without the pooler (PgBouncer in transaction mode) of DATABASE_URL, for LISTEN "
        "and migrations.",
    )
    broker_url: str = Field(
        default="",
        validation_alias=AliasChoices("PLANQ_BROKER_URL", "BROKER_URL", "REDIS_URL"),
        description="`redis://`, `rediss://`, `redis+socket://` or `amqp://`; `planq up` starts Valkey without it.",
    )
    database_connections: int = Field(
        default=10, ge=1, le=500, description="Maximum connections of one process; 10 serve 500 steps."
    )

    def require_database(self) -> str:
        """Return the URL for statements in PLANQ_SCHEMA (with a pooler the role sets it); raises `Misconfigured`."""
        url = _require("DATABASE_URL", self.database_url, _POSTGRES)
        return url if self.has_pooler else in_schema(url, self.database_schema)

    def require_server(self) -> str:
        """Return the URL for own connections (LISTEN, migrations); raises `Misconfigured`."""
        if not self.has_pooler:
            return self.require_database()
        return in_schema(_require("PLANQ_LISTEN_URL", self.listen_url, _POSTGRES), self.database_schema)

    @property
    def functions_schema(self) -> str:
        """The schema of the SQL functions of this release."""
        # Imported late: most commands need neither the driver nor the SQL files.
        from planq.shared.kernel.schema_version import functions_schema

        return functions_schema(self.database_schema)

    @property
    def has_pooler(self) -> bool:
        """True if DATABASE_URL is a pooler's, which lends a connection per transaction."""
        return bool(self.listen_url)

    @property
    def pooled_schema(self) -> str | None:
        """The schema that a pooler's connections must use by themselves; None without a pooler."""
        return self.database_schema if self.has_pooler else None

    def require_broker(self) -> str:
        """Return the broker's URL; raises `Misconfigured` if it is missing or unknown."""
        return _require(
            "BROKER_URL", self.broker_url, ("redis://", "rediss://", "redis+socket://", "amqp://", "amqps://")
        )


_POSTGRES = ("postgresql://", "postgres://")


def _require(name: str, url: str, prefixes: tuple[str, ...]) -> str:
    expected = " or ".join(f"{prefix}…" for prefix in prefixes)
    if not url:
        raise Misconfigured(f"{name} is not set; expected {expected}; `planq up` starts embedded servers and sets it")
    if not url.startswith(prefixes):
        scheme = url.split("://")[0][:20]
        raise Misconfigured(f"{name}: expected {expected}, found a URL of the kind {scheme!r}")
    return url


class ModelServer(BaseModel):
    """A server of a provider's protocol; it may need no key."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    base_url: WebAddress = None
    key: ModelKey = None


def _checked_places(servers: Mapping[str, ModelServer]) -> Mapping[str, ModelServer]:
    for place, server in servers.items():
        try:
            _, name = parse_place(place)
        except ValueError:
            name = ""
        if not name or not server.base_url:
            raise ValueError(
                f"expected PROVIDER@NAME with a base_url, as in openai@house, found {capped(place, 80)!r}; "
                "NAME has at most 32 of a-z, 0-9 and -"
            )
    return servers


def _key_of(provider: Provider) -> tuple[Any, Any]:
    names = dict.fromkeys([*provider.traits.key_variables, key_name(provider).upper()])
    field = Field(default=None, validation_alias=AliasChoices(*names), description=f"Key for `{provider}:`.")
    return ModelKey, field


if TYPE_CHECKING:
    _Keys = ServerSettings
else:
    _Keys = create_model("_Keys", __base__=ServerSettings, **{key_name(one): _key_of(one) for one in Provider})


class ModelServing(_Keys):
    """Models, their servers and keys, limits of calls, and insights."""

    insights: InsightMode = Field(
        default=InsightMode.OFF,
        description="Whether ended jobs teach insights: `off`, `shadow` (never shown to planners), `on`. Tenants "
        "may differ.",
    )
    model: Annotated[str, AfterValidator(model_name)] = Field(
        default="offline", description="The model of jobs that name none."
    )
    openai_base_url: WebAddress = Field(
        default=None,
        validation_alias=AliasChoices("PLANQ_MODEL_BASE_URL", "OPENAI_BASE_URL"),
        description="An OpenAI-compatible server.",
    )
    anthropic_base_url: WebAddress = Field(
        default=None, validation_alias="ANTHROPIC_BASE_URL", description="Another address of Anthropic's API."
    )
    google_base_url: WebAddress = Field(
        default=None, validation_alias="GOOGLE_BASE_URL", description="Another address of Google's API."
    )
    ollama_base_url: WebAddress = Field(
        default=None, validation_alias="OLLAMA_BASE_URL", description="Ollama; http://127.0.0.1:11434/v1 without it."
    )
    vllm_base_url: WebAddress = Field(default=None, validation_alias="VLLM_BASE_URL", description="vLLM's server.")
    litellm_base_url: WebAddress = Field(
        default=None, validation_alias="LITELLM_BASE_URL", description="LiteLLM's proxy."
    )
    azure_base_url: WebAddress = Field(
        default=None, validation_alias="AZURE_OPENAI_ENDPOINT", description="The resource of Azure OpenAI."
    )
    model_servers: Annotated[Mapping[str, ModelServer], AfterValidator(_checked_places)] = Field(
        default_factory=dict,
        repr=False,
        description='Several servers of a provider: `{"PROVIDER@NAME": {"base_url": "…", "key": "…"}}`, for '
        "`PROVIDER@NAME:MODEL`.",
    )
    model_timeout_seconds: float = Field(
        default=120.0, gt=0, description="Timeout of one try of a model call, to the end of its reply."
    )
    model_attempts: int = Field(default=4, ge=1, description="Maximum tries of one model call.")
    model_retry_seconds: float = Field(
        default=900.0,
        ge=0,
        description="How long a stage is retried while its model fails; `0`: never. In turns at most "
        "`plan_timeout_seconds`.",
    )
    model_max_output_tokens: int = Field(default=4096, ge=1, description="Default maximum length of a reply.")
    model_settings: Annotated[Mapping[str, CallSettings], AfterValidator(checked_settings)] = Field(
        default_factory=dict,
        repr=False,
        description='Call settings by model or prefix: `{"mistral:*": {"top_p": 0.9}}`; docs/models.md lists the '
        "fields.",
    )
    model_prices: Mapping[str, OwnPrice] = Field(
        default_factory=dict,
        description='US dollars per million tokens by model or prefix: `{"vllm:*": {"input": 0.2, '
        '"cached_input": 0.05, "output": 0.6}}`.',
    )
    provider_batch_seconds: float = Field(
        default=60.0,
        gt=0,
        le=3_600,
        description="How long lines with `discount=provider` are collected, and the poll interval of provider "
        "batches.",
    )
    keep_exchanges: bool = Field(
        default=True, description="Keep prompts and replies in `model_calls`; off, they are redacted."
    )
    record: FilePath = Field(default=None, description="Record every exchange into this cassette.")

    @property
    def model_keys(self) -> Mapping[str, str]:
        """The configured keys, by `PROVIDER` or `PROVIDER@NAME`."""
        own = {str(provider): getattr(self, key_name(provider)) for provider in Provider}
        own |= {place: server.key for place, server in self.model_servers.items()}
        keys = {place: key.get_secret_value() for place, key in own.items() if key is not None}
        return {place: key for place, key in keys.items() if key}

    @property
    def model_urls(self) -> Mapping[str, str]:
        """The configured addresses, by `PROVIDER` or `PROVIDER@NAME`."""
        own = {str(provider): getattr(self, f"{provider}_base_url", None) for provider in Provider}
        own |= {place: server.base_url for place, server in self.model_servers.items()}
        return {place: url for place, url in own.items() if url}


_LEAST_KEY_CHARS = 16
"""Minimum length of a key that others can try to guess over the network."""

_DELIVERIES_DAYS = 30.0
"""Days to keep a webhook delivery after its end."""

_VERSIONS_DAYS = 365.0
"""Days to keep a replaced version of an agent or a skill; tenants may differ."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_MARGIN_SHARE = 0.2
"""Last share of a lease, in which a worker stops: two heartbeats may fail before."""


_MOST_SECONDS = 10 * 365 * 86_400
"""Ten years: no clock or type overflows below it."""

_MOST = 2**31 - 1
"""The maximum of the database's integer."""


class Settings(ModelServing):
    """The configuration of one process."""

    # API
    host: str = Field(default="127.0.0.1", description="Address of the API; other than loopback needs keys.")
    port: int = Field(default=8000, ge=0, le=65_535, description="Port of the API.")
    api_keys: Annotated[str, AfterValidator(ascii_keys)] = Field(
        default="",
        repr=False,
        description="Keys of the tenant `default` with all scopes, comma-separated, at least 16 characters "
        "unless on loopback.",
    )
    require_keys: bool = Field(
        default=False, description="Every request needs a key, also from this machine; implied by `PLANQ_API_KEYS`."
    )
    secret_keys: Annotated[SecretStr, AfterValidator(readable_master_keys)] = Field(
        default=SecretStr(""),
        description="Master keys of tenants' secrets, newest first: each 32 bytes in base64, comma-separated.",
    )
    max_body_bytes: int = Field(
        default=1 << 20, ge=1024, description="Maximum size of a body; up to 200 000 values and keys."
    )
    max_parts_bytes: int = Field(
        default=20 << 20,
        ge=1024,
        description="Maximum total size of images, files and audio of one input; base64 must also fit into a body.",
    )
    max_wait_seconds: float = Field(
        default=60.0, gt=0, description="Maximum `?wait=`; below the timeout of common proxies."
    )

    # Workers
    io_concurrency: int = Field(default=300, ge=1, description="Maximum steps in flight in one `io` worker.")
    cpu_concurrency: int = Field(default=2, ge=1, description="Processes of one `cpu` worker.")
    tenant_weights: Weights = Field(
        default={},
        description='JSON, `{"TENANT": 3}`: share of slots relative to 1 for other waiting tenants; at most 1000.',
    )
    heartbeat_seconds: float = Field(default=5.0, gt=0, description="Interval of lease renewals.")
    lease_seconds: float = Field(
        default=15.0,
        gt=0,
        description="How long a lease is valid without renewal: three heartbeats, so one may get lost.",
    )
    detect_dead_peers: bool = Field(
        default=True,
        description="Workers end the leases of killed processes on their machine; turn off if processes migrate "
        "between machines.",
    )
    sweep_seconds: float = Field(
        default=0.5,
        gt=0,
        description="Interval of sweeps, and the precision of timers and retries more than five seconds away.",
    )
    tool_wait_seconds: float = Field(
        default=600.0, ge=0, description="How long a step waits for a live worker with its tool before it fails."
    )
    drain_seconds: float = Field(default=10.0, ge=0, description="How long a stopping worker waits for its steps.")
    # a reconnect pauses up to 30 s; then an idle worker restarts
    consumer_watchdog_seconds: float = Field(
        default=60.0,
        gt=0,
        description="An idle worker without wake-ups for this long, although some were published, restarts.",
    )
    freeze_seconds: float = Field(
        default=10.0,
        ge=0,
        description="On Linux, a process whose event loop is stuck for this long is logged, killed and "
        "restarted. 0: never.",
    )
    max_worker_losses: int = Field(
        default=3, ge=1, description="A step or stage fails after this many lost workers that ran nothing else."
    )
    task_events: bool = Field(
        default=False,
        description="Send task events for Flower from the start, at the cost of throughput; otherwise Flower "
        "enables them.",
    )
    flower_url: WebAddress = Field(
        default=None, description="Flower's address, for links on the pages. `planq up --flower` sets it."
    )
    remote_control: Annotated[str, AfterValidator(known_commands)] = Field(
        default="",
        description="Celery commands that workers accept from the broker, comma-separated (`shutdown`, …); "
        "queries always work.",
    )
    broker_prefix: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.:-]{0,64}$",
        description="Prefix of all keys and channels on a shared Redis or Valkey; on RabbitMQ use a virtual host.",
    )
    max_output_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1024,
        le=256 * 1024 * 1024,
        description="Maximum output of a step, and maximum file of a model.",
    )
    payloads: str = Field(
        default="",
        description="Store of large outputs: PostgreSQL by default, or `file:///folder`, or `s3://bucket/prefix`.",
    )

    # Tools
    tools: str = Field(default="", description="`module:function,…`: more tools.")
    tools_file: FilePath = Field(default=None, description="YAML file of tool declarations.")
    mcp_file: FilePath = Field(default=None, description="`mcp.json` of MCP servers.")
    ca_file: FilePath = Field(
        default=None, description="PEM file of additional certificate authorities for all HTTP of workers."
    )
    egress_proxy: str = Field(
        default="", description="Proxy of workers' HTTP: a URL, or `environment` (`HTTPS_PROXY` and so on)."
    )
    http_fetch_allow_hosts: Annotated[str, AfterValidator(hosts_alone)] = Field(
        default="", description="Hosts with private addresses that `http_fetch` may reach."
    )

    web_search: Literal["", "searxng", "brave", "tavily"] = Field(
        default="", description="The service of `web_search`: `searxng`, `brave` or `tavily`."
    )
    web_search_url: str = Field(
        default="", description="Address of the search service; required for SearxNG (with the search format `json`)."
    )
    web_search_api_key: SecretStr | None = Field(
        default=None, description="Key of the search service; required for Brave and Tavily."
    )

    root_path: RootPath = Field(
        default="", description="Path of the API below a web server (`/planq`), for `Location`, links and `/docs`."
    )
    trusted_proxies: Networks = Field(
        default="",
        description="Proxies whose `X-Forwarded-Prefix`, `X-Forwarded-Proto` and `Forwarded` are trusted: "
        "addresses, networks.",
    )

    # Webhooks
    webhook_allow_hosts: Annotated[str, AfterValidator(hosts_alone)] = Field(
        default="", description="Hosts with private addresses that webhooks may reach, `host` or `host:port`."
    )
    telegram_url: WebAddress = Field(
        default=None, description="Own server of Telegram's Bot API, which may be private; else Telegram's."
    )

    # Limits (docs/decisions.md, D11)
    max_tool_steps: int = Field(default=10, ge=1, description="Maximum steps of a model's plan.")
    plan_timeout_seconds: float = Field(
        default=300.0, gt=0, description="Timeout from the acceptance of a plan to its last step."
    )
    step_timeout_seconds: float = Field(
        default=300.0, gt=0, description="Maximum timeout of a step; the default of a tool is 60."
    )
    queue_timeout_seconds: float = Field(
        default=86_400.0, gt=0, description="Timeout from submission until a worker begins the job (`queue_timeout`)."
    )
    job_timeout_seconds: float = Field(
        default=604_800.0,
        gt=0,
        description="Timeout of a whole job (`job_timeout`), without timers, waits for a person and pauses.",
    )
    human_wait_seconds: float = Field(
        default=604_800.0, gt=0, description="How long a step waits for a person (`human_wait_timeout`): a week."
    )
    tool_policy: Annotated[dict[str, Any], NoDecode, PlainValidator(read_tool_policy)] = Field(
        default={},
        description='JSON, `{"TOOL": "auto", …}`, names with `*`: `auto`, `ask` (an operator), `ask:asker`, '
        '`{"ask": [ids]}`, `deny`.',
    )

    # Retention: days after the end of a job; empty or `none` keeps for ever
    retain_completed_days: Days = Field(
        default=30.0,
        description="Days to keep a completed job after its end, maybe fractions; empty or `none`: for ever.",
    )
    retain_failed_days: Days = Field(
        default=90.0, description="The same for failed jobs, which are investigated later than answers are read."
    )
    retain_cancelled_days: Days = Field(default=30.0, description="The same for cancelled jobs.")
    retain_conversations_days: Days = Field(
        default=365.0,
        description="Days to keep a message, longer if its job is kept; conversations end with their last "
        "message. Empty: for ever.",
    )

    log_level: Annotated[str, AfterValidator(known_log_level)] = Field(
        default="INFO", description="`DEBUG`, `INFO`, `WARNING`, `ERROR`."
    )
    log_format: Literal["json", "text"] = Field(
        default="json", description="Format of a line: a JSON object, or text for people."
    )

    @field_validator("*")
    @classmethod
    def _is_in_reach(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse numbers that would overflow."""
        if isinstance(value, float) and (info.field_name or "").endswith("_seconds") and value > _MOST_SECONDS:
            raise ValueError(f"expected at most {_MOST_SECONDS:,} seconds (ten years)")
        if isinstance(value, int) and value > _MOST:
            raise ValueError(f"expected at most {_MOST:,}")
        return value

    def contradictions(self) -> Iterator[str]:
        """Yield the invalid combinations of settings; each sentence begins with a setting's name."""
        if self.heartbeat_seconds >= self.lease_seconds:
            yield (
                f"PLANQ_HEARTBEAT_SECONDS: expected less than PLANQ_LEASE_SECONDS ({self.lease_seconds:g}), found "
                f"{self.heartbeat_seconds:g}; a lease has to outlive several heartbeats"
            )
        if not self.is_loopback and not self.needs_keys:
            yield (
                f"PLANQ_HOST is {self.host!r}, which other machines may reach: set PLANQ_API_KEYS to one or more "
                "keys (comma separated), or PLANQ_REQUIRE_KEYS to true and make keys by `planq keys create`, or "
                "PLANQ_HOST to 127.0.0.1"
            )
        short = [key for key in self.keys if len(key) < _LEAST_KEY_CHARS]
        if short and not self.is_loopback:
            yield (
                f"PLANQ_API_KEYS: expected keys of at least {_LEAST_KEY_CHARS} characters where other machines may "
                f"reach the API, found one of {min(map(len, short))}; `openssl rand -hex 32` makes one"
            )

    def check(self) -> None:
        if found := list(self.contradictions()):
            raise Misconfigured(f"bad settings: {'; '.join(found)}")

    @property
    def lease(self) -> timedelta:
        """How long a worker owns its steps after its last heartbeat."""
        return timedelta(seconds=self.lease_seconds)

    @property
    def lease_margin(self) -> timedelta:
        """How long before its lease ends a worker that cannot renew it begins to stop.

        Cancelled tools get half of it, then the process ends: it must be gone before the lease is over by the
        database's clock, which may differ from the worker's.
        """
        return timedelta(seconds=self.lease_seconds * _MARGIN_SHARE)

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the API."""
        return self.host in LOOPBACK

    @property
    def needs_keys(self) -> bool:
        """True if requests without a key are refused."""
        return self.require_keys or bool(self.keys)

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset(comma_separated(self.api_keys))

    @property
    def proxies(self) -> Sequence[str]:
        return comma_separated(self.trusted_proxies)

    @property
    def master_keys(self) -> Sequence[MasterKey]:
        """The master keys of tenants' secrets, newest first."""
        return read_master_keys(self.secret_keys.get_secret_value())

    @property
    def limits(self) -> Limits:
        """The default limits of a job."""
        return Limits(
            max_tool_steps=self.max_tool_steps,
            plan_timeout_seconds=self.plan_timeout_seconds,
            step_timeout_seconds=self.step_timeout_seconds,
            queue_timeout_seconds=self.queue_timeout_seconds,
            job_timeout_seconds=self.job_timeout_seconds,
            human_wait_seconds=self.human_wait_seconds,
        )

    @property
    def retention(self) -> dict[str, timedelta]:
        """How long jobs are kept after their end, by status, and other things by name; missing: for ever."""
        days = {
            JobStatus.COMPLETED: self.retain_completed_days,
            JobStatus.FAILED: self.retain_failed_days,
            JobStatus.CANCELLED: self.retain_cancelled_days,
            "deliveries": _DELIVERIES_DAYS,
            "conversations": self.retain_conversations_days,
            "versions": _VERSIONS_DAYS,
        }
        return {kind: timedelta(days=kept) for kind, kept in days.items() if kept is not None}

    @property
    def webhook_hosts(self) -> frozenset[str]:
        """The private hosts that webhooks may reach, in lower case."""
        return frozenset(host.lower() for host in comma_separated(self.webhook_allow_hosts))

    @property
    def secrets(self) -> frozenset[str]:
        """All secrets of the settings, for redaction."""
        keys = (self.web_search_api_key,)
        servers = (self.database_url, self.listen_url, self.broker_url, self.payloads)
        models = self.model_urls.values()
        addresses = (*servers, *models, self.web_search_url, self.egress_proxy)
        masters = comma_separated(self.secret_keys.get_secret_value())
        return self.keys.union(
            masters,
            (key.get_secret_value() for key in keys if key),
            self.model_keys.values(),
            *(secrets_of(one) for one in addresses if one),
        )
