"""The model calls of the two stages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from planq.shared.agentic.models.adaptations import Adaptation
from planq.shared.agentic.models.exchange import Ask, ChatMessage, Findings, ModelReply, TurnForm
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.budget import Price
from planq.shared.kernel.usage import ModelCall

CutOff = Callable[[ModelCall], None]
"""Takes the record of a call that was cut off by a cancellation, before the cancellation goes on; returns at once.

A callback and no exception: `asyncio.timeout` and task groups only know a plain `CancelledError`.
"""

Prices = Callable[[str, int], Awaitable[Price | None]]
"""Tells what a call to a model costs whose question has so many tokens; None where its price is not known."""

ProviderKeys = Callable[[str, str], Awaitable[str | None]]
"""Returns a tenant's own key for `PROVIDER` or `PROVIDER@SERVER`, None where it has none.

Raises `AuthFailed` where it cannot be had.
"""

MayName = Callable[[str, str], Awaitable[bool]]
"""Says whether a tenant may name a model, by its full name, on the server's keys."""


class Adaptations(Protocol):
    """What models' servers refuse, as other processes have learned it too."""

    async def of(self, base_url: str, model: str) -> frozenset[Adaptation]:
        """Return how requests for a model at a base URL are changed; raises `Unavailable` without a database."""
        ...

    async def learn(self, base_url: str, model: str, adaptation: Adaptation, refusal: str) -> None:
        """Store that a server has accepted a changed request, after the words of its `refusal`.

        Raises `Unavailable` without a database.
        """
        ...


class Planner(Protocol):
    """The PLAN stage's model call."""

    async def plan(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        """Ask the model once for a direct answer or a plan over `tools`; the reply is not interpreted here.

        Raises `ModelFailed` when the model cannot be reached, refuses, or says nothing at all. When the caller is
        cancelled, the connection to the model is closed, and what was spent until then goes to `cut_off`: a call
        whose error has the code `cancelled`, and `details.estimated` where the provider had not reported all tokens.
        """
        ...


class TurnPlanner(Protocol):
    """The model calls of jobs that plan round by round."""

    async def guide(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        """Ask the model once for numbered steps as JSON in a text; `tools` are named to it, and none is offered.

        Raises `ModelFailed`, and is cancelled, as `Planner.plan`.
        """
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
        """Ask the model once what to do next; `transcript` is what has happened after `ask.input`, oldest first.

        With `TurnForm.ANSWER` no further call is made: `tools` are those of the turns before, which a provider may
        need to find them in its cache, and `text` of the reply is not empty. In the other forms a model
        may say nothing, as some do when they have seen the results; a reply that was cut off does not count as that.
        Raises `ModelFailed`, and is cancelled, as `Planner.plan`.
        """
        ...


class Responder(Protocol):
    """The RESPOND stage's model call."""

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: CutOff | None = None) -> ModelReply:
        """Ask the model once to answer from `findings`, with no tool offered; `text` of the reply is not empty.

        Raises `ModelFailed`, and is cancelled, as `Planner.plan`.
        """
        ...
