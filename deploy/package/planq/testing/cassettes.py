"""A model whose replies were recorded: tests of agents that need no network and no key."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planq.shared.agentic.models.contract import CutOff
from planq.shared.agentic.models.exchange import Ask, ChatMessage, Findings, ModelFailed, ModelReply, TurnForm
from planq.shared.agentic.models.names import CASSETTE_PREFIX
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.platform.errors import Misconfigured
from planq.shared.settings.environment import load_settings
from planq.worker.model_gateway import model_settings
from planq.worker.models.gateway import ModelGateway


class Cassette:
    """Replies as a recorded model; records under `planq record`. `asked` has each question and what was shown."""

    def __init__(self, path: str | Path | None = None) -> None:
        """Use the file `path`, or that of `planq record` or `planq replay`; raise `Misconfigured`."""
        settings = load_settings()
        model = settings.model
        self.is_recording = settings.record is not None
        file = settings.record if path is None else Path(path)
        if file is None and model.startswith(CASSETTE_PREFIX):
            file = Path(model.removeprefix(CASSETTE_PREFIX))
        if file is None:
            raise Misconfigured(
                "expected the file of a cassette, found none: pass its path, set planq_cassette in pytest's "
                "configuration, or run the tests by `planq replay FILE -- pytest`"
            )
        self._gateway = ModelGateway(
            replace(
                model_settings(settings),
                default_model=model if self.is_recording else f"{CASSETTE_PREFIX}{file}",
                record_path=file if self.is_recording else None,
            )
        )
        self.asked: list[tuple[Ask, Any]] = []
        self._failure: str | None = None

    def check(self) -> None:
        """Raise `AssertionError` if a request had no recording; the message says how the closest one differs."""
        if self._failure is not None:
            raise AssertionError(self._failure)

    async def plan(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        return await self._reply(ask, tools, self._gateway.plan(ask, tools, cut_off=cut_off))

    async def guide(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        return await self._reply(ask, tools, self._gateway.guide(ask, tools, cut_off=cut_off))

    async def turn(
        self,
        ask: Ask,
        tools: Sequence[ToolDefinition],
        transcript: Sequence[ChatMessage],
        form: TurnForm,
        *,
        cut_off: CutOff | None = None,
    ) -> ModelReply:
        return await self._reply(ask, transcript, self._gateway.turn(ask, tools, transcript, form, cut_off=cut_off))

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: CutOff | None = None) -> ModelReply:
        return await self._reply(ask, findings, self._gateway.respond(ask, findings, cut_off=cut_off))

    async def _reply(self, ask: Ask, shown: Any, reply: Awaitable[ModelReply]) -> ModelReply:
        self.asked.append((ask, shown))
        try:
            return await reply
        except ModelFailed as failed:
            if not self.is_recording:  # a replay fails only where the cassette does not fit
                self._failure = self._failure or failed.error.message
            raise


def replayed_model(path: str) -> dict[str, str]:
    """Return the settings by which a server of the tests uses the cassette that `Cassette(path)` would use.

    `path` is "" for none. While a cassette is recorded the developer's own settings of models belong to them.
    """
    if recorded := os.environ.get("PLANQ_RECORD"):
        models = {name: value for name, value in os.environ.items() if name.startswith("PLANQ_MODEL")}
        return {**models, "PLANQ_RECORD": path or recorded}
    if path:
        return {"PLANQ_MODEL": f"{CASSETTE_PREFIX}{path}"}
    model = os.environ.get("PLANQ_MODEL", "")
    return {"PLANQ_MODEL": model} if model.startswith(CASSETTE_PREFIX) else {}
