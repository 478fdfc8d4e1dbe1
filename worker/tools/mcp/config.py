"""`mcp.json`, the file that MCP clients share, and the little that planq adds to it.

    {"mcpServers": {
        "files":  {"command": "files-mcp", "args": ["--root", "data"], "env": {"TOKEN": "${FILES_TOKEN}"}},
        "search": {"type": "http", "url": "https://search.example/mcp", "headers": {"Authorization": "Bearer ${KEY}"},
                   "planq": {"required": true, "timeout_seconds": 20}}}}

`${NAME}` and `${NAME:-default}` are replaced from the environment in the values of `env` and `headers`, nowhere else.
Keys of other clients are passed over; `"disabled": true` is honoured.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planq.shared.agentic.tools.definition import DEFAULT_TIMEOUT_SECONDS, MAX_PRICE_USD, MCP_SOURCE
from planq.shared.kernel.limits import MAX_LONGEST_SECONDS, MAX_TIMEOUT_SECONDS
from planq.shared.kernel.states import Recovery
from planq.shared.platform.errors import Misconfigured
from planq.shared.platform.redact import secrets_of
from planq.worker.tools.declare import faults_of

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SECRET_NAME = re.compile("(?i)key|token|secret|pass|auth|cred|cookie|session")
_LONG = 16
_PREFIX_CHARS = 64
_HTTP_TYPES = frozenset({"http", "streamable-http", "streamable_http", "streamableHttp"})


class PlanqOptions(BaseModel):
    """planq's options of a server.

    `required`: the worker does not start without it. `timeout_seconds`: of each call. `longest_seconds`: of calls
    that report progress, each of which restarts `timeout_seconds`. `away_seconds`: how long an unsent call waits for
    the server, at most half its time. `max_answer_bytes`: a larger answer fails its call. `asks_in_calls`: its tools
    ask people during a call (`ctx.elicit`), which needs the protocol of 2025-11-25. `secret_forms`: its forms may ask
    for secrets, which are sealed, and erased when the step ends. `recovery`: of cut-off calls of unsafe tools; others
    are repeated. `user_scoped`: parameters that planq fills in, and headers that name the user. `repeatable`: its
    tools that a model may call many times. `prices_usd`: of each call by the tool's own name; `*` for all others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    required: bool = False
    timeout_seconds: float = Field(default=DEFAULT_TIMEOUT_SECONDS, gt=0, le=MAX_TIMEOUT_SECONDS)
    longest_seconds: float | None = Field(default=None, gt=0, le=MAX_LONGEST_SECONDS)
    connect_timeout_seconds: float = Field(default=20.0, gt=0, le=300)
    max_answer_bytes: int = Field(default=16 * 1024 * 1024, ge=64 * 1024, le=256 * 1024 * 1024)
    away_seconds: float = Field(default=10.0, ge=0, le=MAX_TIMEOUT_SECONDS)
    asks_in_calls: bool = False
    secret_forms: bool = False
    recovery: Literal[Recovery.FAIL, Recovery.ASK] = Recovery.FAIL
    repeatable: list[str] = Field(default_factory=list)
    user_scoped: list[str] = Field(default_factory=list)
    prices_usd: dict[str, Annotated[float, Field(ge=0, le=MAX_PRICE_USD, allow_inf_nan=False)]] = Field(
        default_factory=dict
    )


class McpServer(BaseModel):
    """One server: `command` for stdio or `url` for streamable HTTP, exactly one of them."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(min_length=1)
    type: str | None = None
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    cwd: Path | None = None
    url: str | None = Field(default=None, pattern=r"^https?://")
    headers: dict[str, str] = Field(default_factory=dict)
    disabled: bool = False
    planq: PlanqOptions = PlanqOptions()

    @property
    def source(self) -> str:
        return MCP_SOURCE + self.name

    @property
    def secrets(self) -> set[str]:
        """Values that may be secret: of headers and variables, credentials and query of the address."""
        named = {value for name, value in (*self.env.items(), *self.headers.items()) if _SECRET_NAME.search(name)}
        # Others that look like keys: long, and neither text nor a path. "Bearer KEY" is a secret, and so is the KEY.
        words = [word for value in (*self.env.values(), *self.headers.values()) for word in value.split()]
        long = {word for word in words if len(word) >= _LONG and "/" not in word}
        return {*named, *long, *secrets_of(self.url or "")}

    @property
    def transport(self) -> Literal["stdio", "http"]:
        return "stdio" if self.command is not None else "http"


def read_mcp_file(path: Path, environment: Mapping[str, str] | None = None) -> list[McpServer]:
    """Return the enabled servers of the file; raise `Misconfigured` with the key of a defect."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Misconfigured(f"{path}: cannot be read as MCP configuration: {error}") from error
    entries = content.get("mcpServers") if isinstance(content, dict) else None
    if not isinstance(entries, dict):
        raise Misconfigured(f'{path}: expected {{"mcpServers": {{"name": {{…}}}}}}')
    variables = os.environ if environment is None else environment
    servers = [_server(path, name, entry, variables) for name, entry in entries.items()]
    used = [server for server in servers if not server.disabled]
    named: dict[str, str] = {}
    for server in used:
        other = named.setdefault(name_prefix(server.name), server.name)
        if other != server.name:
            raise Misconfigured(
                f"{path}: the names of the servers {other!r} and {server.name!r} differ only in characters that "
                "names of tools cannot hold; rename one of them"
            )
    return used


def name_prefix(server: str) -> str:
    """Return how the registry names of a server's tools begin."""
    folded = re.sub(r"[^A-Za-z0-9_]", "_", server)
    return f"{folded if folded[:1].isalpha() else f'mcp_{folded}'}"[:_PREFIX_CHARS] + "_"


def _server(path: Path, name: str, entry: Any, variables: Mapping[str, str]) -> McpServer:
    place = f"{path}: mcpServers.{name}"
    if not isinstance(entry, dict):
        raise Misconfigured(f"{place}: expected an object with `command` or `url`")
    try:
        server = McpServer.model_validate({**entry, "name": name})
    except ValidationError as error:
        raise Misconfigured(f"{place}: {faults_of(error)}") from error
    if server.disabled:
        return server
    if (server.command is None) == (server.url is None):
        raise Misconfigured(f"{place}: expected either `command` (stdio) or `url` (streamable HTTP), and not both")
    expected = {"stdio"} if server.command is not None else _HTTP_TYPES
    if server.type is not None and server.type not in expected:
        raise Misconfigured(
            f"{place}.type: found {server.type!r}; expected {' or '.join(sorted(expected))} "
            "(the former SSE transport is not supported)"
        )
    return server.model_copy(
        update={
            "env": _expanded(server.env, f"{place}.env", variables),
            "headers": _expanded(server.headers, f"{place}.headers", variables),
        }
    )


def _expanded(values: Mapping[str, str], place: str, variables: Mapping[str, str]) -> dict[str, str]:
    def replace(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        value = variables.get(name, default)
        if value is None:
            raise Misconfigured(
                f"{place}: the environment variable {name} is not set; set it, or give ${{{name}:-…}}"
            )
        return value

    return {key: _VARIABLE.sub(replace, value) for key, value in values.items()}
