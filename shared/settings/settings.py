"""Every setting: its unit, its default, and why. Read by composition roots only; rooms get values as arguments.

Environment variables are the field names in capitals after `PLANQ_`; `DATABASE_URL`, `BROKER_URL` and `REDIS_URL` are
understood without the prefix, as hosting platforms set them. What cannot be is refused where the environment is read,
with the names of all that is wrong: every process does that before it is anything else.
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
    """Where the database and the broker are."""

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
        description="The schema of the database that holds planq's tables and functions, and nothing else.",
    )
    listen_url: str = Field(
        default="",
        description="Where DATABASE_URL leads through a pooler in transaction mode (PgBouncer): the server itself, "
        "for LISTEN and `planq migrate`.",
    )
    broker_url: str = Field(
        default="",
        validation_alias=AliasChoices("PLANQ_BROKER_URL", "BROKER_URL", "REDIS_URL"),
        description="`redis://`, `rediss://`, `redis+socket://` or `amqp://`; `planq up` starts Valkey without it.",
    )
    database_connections: int = Field(
        default=10,
        ge=1,
        le=500,
        description="Most connections of one process; claims and commits are short, 10 serve 500 steps.",
    )

    def require_database(self) -> str:
        """Return the URL for statements; raises `Misconfigured` when it is missing or no PostgreSQL URL.

        Its connections work in the schema PLANQ_SCHEMA. A pooler takes no options of a connection: the role has to.
        """
        url = _require("DATABASE_URL", self.database_url, _POSTGRES)
        return url if self.has_pooler else in_schema(url, self.database_schema)

    def require_server(self) -> str:
        """Return the URL for what needs a connection of its own: LISTEN, and migrations. Raises `Misconfigured`."""
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
        """True where DATABASE_URL leads through a pooler, which lends a connection for one transaction."""
        return bool(self.listen_url)

    @property
    def pooled_schema(self) -> str | None:
        """The schema in which a pooler's connections have to work by themselves; None without a pooler."""
        return self.database_schema if self.has_pooler else None

    def require_broker(self) -> str:
        """Return the broker URL; raises `Misconfigured` when it is missing or of a kind we do not know."""
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
    """One server of a provider's protocol; a compatible server may need no key."""

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
    """Models, their servers and keys, the limits of a call, and whether jobs that end teach."""

    insights: InsightMode = Field(
        default=InsightMode.OFF,
        description="Whether jobs that end teach insights, and planners are offered them: `off`, `shadow` (learned "
        "and chosen, shown to no planner), `on`. A tenant's configuration may say otherwise.",
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
        description='Several servers of one provider: `{"PROVIDER@NAME": {"base_url": "…", "key": "…"}}`. Jobs name '
        "their models as `PROVIDER@NAME:MODEL`.",
    )
    model_timeout_seconds: float = Field(
        default=120.0, gt=0, description="Of one try of a model call, to the end of its reply."
    )
    model_attempts: int = Field(default=4, ge=1, description="Tries of one model call, the first included.")
    model_retry_seconds: float = Field(
        default=900.0,
        ge=0,
        description="How long a stage whose model fails is tried again, without a worker in between; `0`: never. In "
        "a conversation it is at most its `plan_timeout_seconds`.",
    )
    model_max_output_tokens: int = Field(default=4096, ge=1, description="The longest reply asked of a model.")
    model_settings: Annotated[Mapping[str, CallSettings], AfterValidator(checked_settings)] = Field(
        default_factory=dict,
        repr=False,
        description='How models are called, by name or by its beginning and `*`: `{"mistral:*": {"top_p": 0.9}}`. '
        "docs/models.md lists the fields.",
    )
    model_prices: Mapping[str, OwnPrice] = Field(
        default_factory=dict,
        description='US dollars for a million tokens, by the name of a model or its beginning and `*`: `{"vllm:*": '
        '{"input": 0.2, "cached_input": 0.05, "output": 0.6}}`. They win over the price lists.',
    )
    provider_batch_seconds: float = Field(
        default=60.0,
        gt=0,
        le=3_600,
        description="How long lines of a batch with `discount=provider` are collected for one provider's batch, and "
        "how often the provider is asked for it.",
    )
    keep_exchanges: bool = Field(
        default=True, description="Keep prompts and replies in `model_calls`; off, they are redacted."
    )
    record: FilePath = Field(default=None, description="Record every exchange into this cassette.")

    @property
    def model_keys(self) -> Mapping[str, str]:
        """The keys that are set, by `PROVIDER` or `PROVIDER@NAME`."""
        own = {str(provider): getattr(self, key_name(provider)) for provider in Provider}
        own |= {place: server.key for place, server in self.model_servers.items()}
        keys = {place: key.get_secret_value() for place, key in own.items() if key is not None}
        return {place: key for place, key in keys.items() if key}

    @property
    def model_urls(self) -> Mapping[str, str]:
        """The addresses that are set, by `PROVIDER` or `PROVIDER@NAME`."""
        own = {str(provider): getattr(self, f"{provider}_base_url", None) for provider in Provider}
        own |= {place: server.base_url for place, server in self.model_servers.items()}
        return {place: url for place, url in own.items() if url}


_LEAST_KEY_CHARS = 16
"""Of a key that strangers may try to guess over the network."""

_DELIVERIES_DAYS = 30.0
"""Days after its end for which a delivery of a webhook is kept."""

_VERSIONS_DAYS = 365.0
"""Days for which a version of an agent or a skill is kept after the next one; a tenant's configuration may differ."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_MARGIN_SHARE = 0.2
"""Share of a lease, at its end, in which a worker stops: two beats in a row may fail before that."""


_MOST_SECONDS = 10 * 365 * 86_400
"""Ten years: no clock and no type that a time is put into overflows below it."""

_MOST = 2**31 - 1
"""The largest integer that every room can carry, the database's included."""


class Settings(ModelServing):
    """The configuration of one process; the classes above it have what concerns its servers, models and insights."""

    # API
    host: str = Field(default="127.0.0.1", description="Address of the API; other than loopback needs keys.")
    port: int = Field(default=8000, ge=0, le=65_535, description="Port of the API.")
    api_keys: Annotated[str, AfterValidator(ascii_keys)] = Field(
        default="",
        repr=False,
        description="Keys of the tenant `default` with all scopes, separated by commas, of 16 characters at least "
        "where others reach the API; other keys are made by `planq keys create`.",
    )
    require_keys: bool = Field(
        default=False,
        description="Every request needs a key, from this machine too, as it does with `PLANQ_API_KEYS`; one of both "
        "is needed where `PLANQ_HOST` is not loopback.",
    )
    secret_keys: Annotated[SecretStr, AfterValidator(readable_master_keys)] = Field(
        default=SecretStr(""),
        description="Keys under which secrets of tenants lie, newest first: each 32 bytes in base64, separated by "
        "commas.",
    )
    max_body_bytes: int = Field(default=1 << 20, ge=1024, description="Largest body; up to 200 000 values and keys.")
    max_parts_bytes: int = Field(
        default=20 << 20,
        ge=1024,
        description="Largest images, files and audio of one input, all together. What is sent as base64 also has to "
        "fit into a body.",
    )
    max_wait_seconds: float = Field(
        default=60.0, gt=0, description="Longest `?wait=`; below the time-out of common proxies."
    )

    # Workers
    io_concurrency: int = Field(default=300, ge=1, description="Steps in flight in one `io` worker.")
    cpu_concurrency: int = Field(default=2, ge=1, description="Processes of one `cpu` worker.")
    tenant_weights: Weights = Field(
        default={}, description='JSON, `{"TENANT": 3}`: its slots where others get 1, while both wait; at most 1000.'
    )
    heartbeat_seconds: float = Field(default=5.0, gt=0, description="Between two renewals of a lease.")
    lease_seconds: float = Field(
        default=15.0,
        gt=0,
        description="How long a lease outlives its last renewal: three heartbeats, so that one may get lost.",
    )
    detect_dead_peers: bool = Field(
        default=True,
        description="A worker publishes which process of which machine it is, and ends the leases of those beside it "
        "that were killed; off where processes are moved alive between machines: then leases alone decide.",
    )
    sweep_seconds: float = Field(
        default=0.5,
        gt=0,
        description="Between two sweeps, at which workers take turns: the precision of timers and retries that are "
        "further away than five seconds or whose process has gone; a job's own time ends within 0.1 s "
        "once a worker has begun it, else at the next sweep.",
    )
    tool_wait_seconds: float = Field(
        default=600.0,
        ge=0,
        description="How long a step waits for a live worker that has its tool before it fails.",
    )
    drain_seconds: float = Field(default=10.0, ge=0, description="What a stopping worker gives its steps.")
    # a reconnect pauses up to 30 s; then an idle worker restarts
    consumer_watchdog_seconds: float = Field(
        default=60.0,
        gt=0,
        description="An idle worker that hears no wake-ups for so long, although some were published, ends to be "
        "started again.",
    )
    freeze_seconds: float = Field(
        default=10.0,
        ge=0,
        description="A process of `planq worker` or `planq api` whose event loop gets no turn for so long is logged "
        "with its stack, killed and started again, on Linux. 0: never.",
    )
    max_worker_losses: int = Field(
        default=3, ge=1, description="A step or stage that was alone in so many workers that were lost is given up."
    )
    task_events: bool = Field(
        default=False,
        description="Task events for Flower from the start, at the cost of throughput; it switches them on "
        "itself a few seconds late.",
    )
    flower_url: WebAddress = Field(
        default=None,
        description="Where people reach Flower: the pages lead operators to its tasks. `planq up --flower` sets it.",
    )
    remote_control: Annotated[str, AfterValidator(known_commands)] = Field(
        default="",
        description="Celery's commands that workers carry out for anybody at the broker, separated by commas: "
        "`shutdown`, `pool_grow` and others. Those by which Flower and `celery inspect` look are always carried out.",
    )
    broker_prefix: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_.:-]{0,64}$",
        description="What the names of all keys and channels in Redis or Valkey begin with, for a server that others "
        "use, too; the same in every process. On RabbitMQ a virtual host does that.",
    )
    max_output_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1024,
        le=256 * 1024 * 1024,
        description="A larger output fails its step, and a larger file of a model is not stored.",
    )
    payloads: str = Field(
        default="", description="Where those lie: in PostgreSQL, or `file:///folder`, or `s3://bucket/prefix`."
    )

    # Tools
    tools: str = Field(default="", description="`module:function,…`: more tools.")
    tools_file: FilePath = Field(default=None, description="YAML file of tool declarations.")
    mcp_file: FilePath = Field(default=None, description="`mcp.json` of MCP servers.")
    ca_file: FilePath = Field(
        default=None, description="PEM file of authorities that workers trust too, for all HTTP that they send."
    )
    egress_proxy: str = Field(default="", description="Its proxy: a URL, or `environment` (`HTTPS_PROXY` and so on).")
    http_fetch_allow_hosts: Annotated[str, AfterValidator(hosts_alone)] = Field(
        default="", description="Hosts that `http_fetch` may reach although their address is private."
    )

    web_search: Literal["", "searxng", "brave", "tavily"] = Field(
        default="", description="The service that `web_search` asks: `searxng`, `brave` or `tavily`."
    )
    web_search_url: str = Field(
        default="",
        description="Its address; needed for SearxNG (with `json` among its search formats), and for "
        "others not at their own.",
    )
    web_search_api_key: SecretStr | None = Field(default=None, description="Its key; needed for Brave and Tavily.")

    root_path: RootPath = Field(
        default="",
        description="Below which path of a web server the API stands (`/planq`): `Location`, links, `/docs`.",
    )
    trusted_proxies: Networks = Field(
        default="",
        description="Addresses and networks of proxies that may name another such path in `X-Forwarded-Prefix`, and "
        "whose `X-Forwarded-Proto` or `Forwarded` says whether a client came over TLS.",
    )

    # Webhooks
    webhook_allow_hosts: Annotated[str, AfterValidator(hosts_alone)] = Field(
        default="",
        description="Hosts that webhooks may be sent to although their address is private, `host` or `host:port`.",
    )
    telegram_url: WebAddress = Field(
        default=None, description="Your own server of Telegram's Bot API, which may be private; else Telegram's."
    )

    # Limits (docs/decisions.md, D11)
    max_tool_steps: int = Field(default=10, ge=1, description="Most steps of a model's plan.")
    plan_timeout_seconds: float = Field(
        default=300.0, gt=0, description="From the acceptance of a plan to its last step."
    )
    step_timeout_seconds: float = Field(
        default=300.0, gt=0, description="Cap of every step's own time-out; a tool that names none has 60."
    )
    queue_timeout_seconds: float = Field(
        default=86_400.0,
        gt=0,
        description="From submission until a worker begins the job (`queue_timeout`): a night without loses nothing.",
    )
    job_timeout_seconds: float = Field(
        default=604_800.0,
        gt=0,
        description="The whole life of a job (`job_timeout`), so that none lives for ever by mistake; "
        "timers, waits for a person and pauses not counted.",
    )
    human_wait_seconds: float = Field(
        default=604_800.0, gt=0, description="How long a step waits for a person (`human_wait_timeout`): a week."
    )
    tool_policy: Annotated[dict[str, Any], NoDecode, PlainValidator(read_tool_policy)] = Field(
        default={},
        description='JSON, `{"TOOL": "auto", …}`, names with `*`: `auto`, `ask` an operator, `ask:asker`, '
        '`{"ask": [ids]}`, or `deny`.',
    )

    # Retention: days after the end of a job; empty or `none` keeps for ever
    retain_completed_days: Days = Field(
        default=30.0,
        description="Days after its end for which a completed job is kept, fractions too; empty or `none`: for ever.",
    )
    retain_failed_days: Days = Field(
        default=90.0, description="The same for failed jobs: a fault is looked into later than an answer is read."
    )
    retain_cancelled_days: Days = Field(default=30.0, description="The same for cancelled jobs.")
    retain_conversations_days: Days = Field(
        default=365.0,
        description="Days for which a message of a conversation is kept, longer if its job is; a conversation goes "
        "with its last message. Empty: for ever.",
    )

    log_level: Annotated[str, AfterValidator(known_log_level)] = Field(
        default="INFO", description="`DEBUG`, `INFO`, `WARNING`, `ERROR`."
    )
    log_format: Literal["json", "text"] = Field(
        default="json", description="Of a line: an object in JSON, or text for people."
    )

    @field_validator("*")
    @classmethod
    def _is_in_reach(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse numbers that no room can carry; a bound of a setting's own is narrower."""
        if isinstance(value, float) and (info.field_name or "").endswith("_seconds") and value > _MOST_SECONDS:
            raise ValueError(f"expected at most {_MOST_SECONDS:,} seconds (ten years)")
        if isinstance(value, int) and value > _MOST:
            raise ValueError(f"expected at most {_MOST:,}")
        return value

    def contradictions(self) -> Iterator[str]:
        """Yield what cannot be although each value by itself can; each sentence begins with the name of a setting."""
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
        """How long a worker's right to its steps outlives its last heartbeat."""
        return timedelta(seconds=self.lease_seconds)

    @property
    def lease_margin(self) -> timedelta:
        """How long before its lease ends by the database's clock a worker that cannot renew it begins to stop.

        Half of it is for cancelled tools to end; then the process ends where one has not. It must be gone, however
        busy the machine, before the lease is over, by a clock that may run apart from the worker's.
        """
        return timedelta(seconds=self.lease_seconds * _MARGIN_SHARE)

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the API."""
        return self.host in LOOPBACK

    @property
    def needs_keys(self) -> bool:
        """True when a request without a key is refused."""
        return self.require_keys or bool(self.keys)

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset(comma_separated(self.api_keys))

    @property
    def proxies(self) -> Sequence[str]:
        return comma_separated(self.trusted_proxies)

    @property
    def master_keys(self) -> Sequence[MasterKey]:
        """The keys under which secrets of tenants lie, newest first."""
        return read_master_keys(self.secret_keys.get_secret_value())

    @property
    def limits(self) -> Limits:
        """The bounds of a job that asks for none of its own, of a tenant without limits of its own."""
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
        """How long jobs are kept after their end, by status, and other things, by name; what is missing for ever."""
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
        """The hosts that webhooks may be sent to although their address is private, in lower case."""
        return frozenset(host.lower() for host in comma_separated(self.webhook_allow_hosts))

    @property
    def secrets(self) -> frozenset[str]:
        """Every secret that the settings hold: nothing that leaves the process may show one."""
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
