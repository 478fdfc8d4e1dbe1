"""Tools, and what they may ask of the world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from shared.domain.tool import ToolDefinition


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Who calls a tool, and under which key.

    `idempotency_key` is `<job>/<step>`: the same for every attempt of the step, so that a receiver can tell a repeat.
    The ids end up in the `_metadata` of artifacts (specification S0, "Standard Response Shape").
    """

    job_id: str
    step_index: int
    attempt: int
    tool_name: str
    tenant_id: str
    user_id: str
    context_id: str
    request_id: str
    trace_id: str

    @property
    def idempotency_key(self) -> str:
        """Return the key that stays the same over all attempts of the step."""
        return f"{self.job_id}/{self.step_index}"


@dataclass(frozen=True, slots=True)
class Suspended:
    """A tool's way to wait without holding a worker: the step succeeds with `output` once `delay` has passed."""

    delay: timedelta
    output: Any


@dataclass(frozen=True, slots=True)
class NotHappened:
    """What a tool's `find_out` returns when the call that was cut off certainly has not taken effect, nor will."""


class Tool(Protocol):
    """One callable tool."""

    @property
    def definition(self) -> ToolDefinition:
        """The published definition; constant for the life of the process."""
        ...

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run once and return the structured output: a JSON object, or `Suspended`.

        The caller has validated `arguments`, validates the output, and enforces the timeout by cancelling this call.
        Raises only `ExecutionFailed` subclasses (and `asyncio.CancelledError`): foreign exceptions are mapped here.
        """
        ...


@runtime_checkable
class FindsOut(Tool, Protocol):
    """A tool with the recovery `find_out`: it can tell what became of a call of its own that was cut off."""

    async def find_out(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Return the output of the earlier call with these arguments and this key, or `NotHappened`.

        Asked before the step's next call, under the same timeout, and asked again like a read when it fails. It is
        believed: after `NotHappened` the tool is called again. Raises as `call` does.
        """
        ...


class Toolbox(Protocol):
    """The tools that this process can run."""

    def definitions(self) -> Sequence[ToolDefinition]:
        """Return every tool's definition, sorted by name."""
        ...

    def find(self, name: str) -> Tool | None:
        """Return the tool of exactly this registered name, or None when this process does not offer it."""
        ...


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document that matched a knowledge search; `score` grows with relevance."""

    title: str
    source: str
    text: str
    score: float


class Knowledge(Protocol):
    """Full-text search over loaded documents."""

    async def search(self, tenant_id: str, query: str, limit: int) -> Sequence[Passage]:
        """Return at most `limit` passages, best first; empty when nothing matches. `query` is plain text."""
        ...
