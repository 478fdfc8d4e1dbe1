"""The model calls of the two stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shared.domain.model import Ask, Findings, ModelReply
from shared.domain.tool import ToolDefinition


class Planner(Protocol):
    """The PLAN stage's model call."""

    async def plan(self, ask: Ask, tools: Sequence[ToolDefinition]) -> ModelReply:
        """Ask the model once for a direct answer or a plan over `tools`; the reply is not interpreted here.

        Raises `ModelFailed` when the model cannot be reached, refuses, or says nothing at all.
        """
        ...


class Responder(Protocol):
    """The RESPOND stage's model call."""

    async def respond(self, ask: Ask, findings: Findings) -> ModelReply:
        """Ask the model once to answer from `findings`, with no tool offered; `text` of the reply is not empty.

        Raises `ModelFailed` as `Planner.plan` does.
        """
        ...
