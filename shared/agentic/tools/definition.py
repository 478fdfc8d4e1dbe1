"""What a tool is to the rest of planq: a name, two schemas, an effect class and a worker pool.

Nothing here can run a tool; workers publish these definitions, the API lists them and validates plans against them
without importing a tool. docs/decisions.md, D10, D11, D24 to D26.
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
"""How the `source` of a tool begins that an MCP server offers; the server's name follows."""

DEFAULT_TIMEOUT_SECONDS = 60.0
"""Of a step whose tool names none (docs/decisions.md, D11)."""


TOOL_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_.\-/]{0,127}$")
RESERVED_NAME = re.compile(r"^(cp__|__planning__$)")
"""docs/decisions.md, D24: these names belong to planq itself; a tool that claims one is refused at start."""

TEXT_OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "description": "What the tool printed."}},
    "required": ["text"],
}
"""The output schema of a tool that declares none: its text is wrapped as `{"text": …}` (docs/decisions.md, D26)."""


LATENCIES_SECONDS = (0.01, 0.1, 1, 10, 60, 300)
"""Upper bounds of the latencies that are told apart: a tool answers from memory, over a network, or after work."""


MAX_PRICE_USD = 1000.0
"""What one call of a tool may cost: more is a slip, or no price of a call."""


def default_retries(effect: Effect) -> int:
    """Return the extra attempts a tool gets when it names none (docs/decisions.md, D10)."""
    return 0 if effect is Effect.UNSAFE else 2


class ToolDefinition(RetryTerms):
    """A tool as it is published, listed and validated against.

    `input_schema` and `output_schema` are JSON Schema 2020-12 with an object at the top. `output_schema` is None only
    for plans checked against foreign definitions; registered tools always have one (`TEXT_OUTPUT_SCHEMA` at least).
    `recovery` says what becomes of a call of an `unsafe` tool that was cut off; other tools are simply called again.
    `kind` is that of the steps that call it: `agent` and `parallel` delegate to child jobs.
    A `repeatable` tool may be called again and again with the same arguments (to wait, to look whether something has
    changed): a model that does so does not run in circles.
    `user_scoped` names parameters that the engine fills in, and a caller or a model cannot: they stand in no schema.
    A call takes `timeout_seconds` at most; where there are `longest_seconds`, so long in all, and `timeout_seconds`
    from one report to the next (`ToolContext.progress`).
    Each call costs `price_usd`, unless it says itself what it cost; None where nobody said what it costs.
    `source` names where the tool comes from (`python:module:function`, `mcp:server`), for messages to people, and
    `version` is whatever its author calls this state of it.
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
        """The digest of both schemas: a plan that was checked against them fits every tool that has the same one."""
        schemas = json.dumps([self.input_schema, self.output_schema], sort_keys=True)
        return sha256(schemas.encode()).hexdigest()[:16]
