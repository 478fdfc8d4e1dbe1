"""The model calls of the two stages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from planq.shared.agentic.models.exchange import Ask, ChatMessage, Findings, ModelReply, TurnForm
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.budget import Price
from planq.shared.kernel.usage import ModelCall

CutOff = Callable[[ModelCall], None]
"""Gets a cancelled call's record and returns at once; `asyncio.timeout` knows only a plain `CancelledError`."""

Prices = Callable[[str, int], Awaitable[Price | None]]
"""Return the price of a call to a model for a prompt of this many tokens; None if unknown."""

ProviderKeys = Callable[[str, str], Awaitable[str | None]]
"""Return a tenant's own key for `PROVIDER` or `PROVIDER@SERVER`, None without one; raises `AuthFailed`."""

MayName = Callable[[str, str], Awaitable[bool]]
"""Return whether a tenant may use a model, by its full name, with the server's keys."""


class Planner(Protocol):
    """The PLAN stage's model call."""

    async def plan(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        """Ask the model once for a direct answer or a plan over `tools`; the reply is not interpreted.

        Raises `ModelFailed` without a reply. On cancellation the connection is closed and `cut_off` gets the cost so
        far: a call with the code `cancelled`, and `details.estimated` unless the provider reported all tokens.
        """
        ...


class TurnPlanner(Protocol):
    """The model calls of jobs that plan round by round."""

    async def guide(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        """Ask the model once for numbered steps as JSON text; `tools` are only named. Fails like `Planner.plan`."""
        ...

    async def turn(
        self,
        ask: Ask,
        tools: Sequence[ToolDefinition],
        transcript: Sequence[ChatMessage],
        form: TurnForm,
        *,
        cut_off: CutOff | None = None,
    ) -> ModelReply:
        """Ask the model once what to do after `transcript` (oldest first). Fails like `Planner.plan`.

        With `TurnForm.ANSWER` the text is not empty, and `tools` only keep the provider's cache. Otherwise a reply
        may be empty, unless it was cut off.
        """
        ...


class Responder(Protocol):
    """The RESPOND stage's model call."""

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: CutOff | None = None) -> ModelReply:
        """Ask the model once to answer from `findings`; the text is not empty. Fails like `Planner.plan`."""
        ...
