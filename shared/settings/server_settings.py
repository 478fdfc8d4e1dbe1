"""The settings that say where the servers are, and how planq reaches them."""

from __future__ import annotations

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from planq.shared.platform.database_url import SCHEMA, in_schema
from planq.shared.platform.errors import Misconfigured
from planq.shared.settings.kinds import SchemaName


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
