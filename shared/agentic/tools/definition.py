"""The definition of a tool, which workers publish and the API lists and validates plans against.

It cannot run a tool. docs/decisions.md, D10, D11, D24 to D26.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from hashlib import sha256
from typing import Any

from pydantic import ConfigDict, Field

from planq.shared.kernel.limits import MAX_LONGEST_SECONDS, MAX_TIMEOUT_SECONDS
from planq.shared.kernel.retry import RetryTerms
from planq.shared.kernel.states import Effect, Pool, Recovery, StepKind

MCP_SOURCE = "mcp:"
"""Prefix of the `source` of an MCP server's tool; the server's name follows."""

DEFAULT_TIMEOUT_SECONDS = 60.0
"""Default timeout of a step (docs/decisions.md, D11)."""


TOOL_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_.\-/]{0,127}$")
RESERVED_NAME = re.compile(r"^(cp__|__planning__$)")
"""planq's own names; a tool with one is refused at start (docs/decisions.md, D24)."""

TEXT_OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "description": "What the tool printed."}},
    "required": ["text"],
}
"""Default output schema: the text is wrapped as `{"text": …}` (docs/decisions.md, D26)."""


LATENCIES_SECONDS = (0.01, 0.1, 1, 10, 60, 300)
"""Upper bounds of latency buckets: from memory, over a network, after work."""


MAX_PRICE_USD = 1000.0
"""Maximum price of one call of a tool."""


def default_retries(effect: Effect) -> int:
    """Return the default number of extra attempts (docs/decisions.md, D10)."""
    return 0 if effect is Effect.UNSAFE else 2


class ToolDefinition(RetryTerms):
    """A tool as it is published, listed and validated against.

    The schemas are JSON Schema 2020-12 with an object at the top; `output_schema` is None only for foreign
    definitions.
    - `recovery`: what happens to an interrupted call of an `unsafe` tool; other tools are called again.
    - `kind`: that of its steps; `agent` and `parallel` delegate to child jobs.
    - `repeatable`: models may repeat the same call, to wait or to look for changes.
    - `user_scoped`: parameters that the engine fills in; they are in no schema.
    - `timeout_seconds`: maximum of a call; with `longest_seconds` in total, from one report to the next.
    - `price_usd`: of each call, unless it reports its cost; None if unknown.
    - `source`: origin for people (`python:module:function`, `mcp:server`); `version`: the author's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    output_schema: dict[str, Any] | None = None
    effect: Effect = Effect.UNSAFE
    pool: Pool = Pool.IO
    timeout_seconds: float = Field(default=DEFAULT_TIMEOUT_SECONDS, gt=0, le=MAX_TIMEOUT_SECONDS)
    longest_seconds: float | None = Field(default=None, gt=0, le=MAX_LONGEST_SECONDS)
    recovery: Recovery = Recovery.FAIL
    kind: StepKind = StepKind.TOOL
    skill_id: str | None = None
    repeatable: bool = False
    user_scoped: list[str] = Field(default_factory=list)
    source: str = ""
    version: str = Field(default="", max_length=128)
    price_usd: float | None = Field(default=None, ge=0, le=MAX_PRICE_USD, allow_inf_nan=False)

    @cached_property
    def retry(self) -> RetryTerms:
        return RetryTerms(**{name: getattr(self, name) for name in RetryTerms.model_fields})

    @cached_property
    def digest(self) -> str:
        """The digest of both schemas: a plan checked against them fits every tool with the same digest."""
        schemas = json.dumps([self.input_schema, self.output_schema], sort_keys=True)
        return sha256(schemas.encode()).hexdigest()[:16]
