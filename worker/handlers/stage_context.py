"""Loads the context of a stage: earlier turns of its conversation, and the configuration of its tenant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias
from uuid import UUID

from planq.shared.agentic.models.exchange import Background
from planq.shared.agentic.turns.messages import HistoryForm, ShownHistory, Turns
from planq.shared.kernel.claims import StageClaim
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import NotFound
from planq.shared.subjects.conversations.rules import (
    CountTokens,
    history_messages,
    present_speaker,
    summary_of,
    tells_people,
)
from planq.shared.subjects.tenants.config import TenantConfig, Tenants
from planq.worker.engine.persist import persist

ReadsHistory: TypeAlias = Callable[[str, UUID, UUID, int | None], Awaitable[Turns]]
"""Returns the turns before a job's, as `TurnReader.history` does."""


async def config_of(tenants: Tenants, tenant_id: str) -> TenantConfig:
    """Return what an operator says of a tenant; waits for the database as long as it is away."""
    try:
        return (await persist(tenants.of, tenant_id)).config
    except NotFound:  # it was removed while its job ran
        return TenantConfig()


class Backgrounds:
    """Looks the backgrounds of claims up; one per engine. `tenants` are those of `config_of`."""

    def __init__(self, history: ReadsHistory, tenants: Tenants, count: CountTokens) -> None:
        """`count` may be slow: it runs in a thread."""
        self._history = history
        self.tenants = tenants
        self._count = count

    async def of(self, claim: StageClaim) -> Background:
        """Return the background of a claim; waits for the database as long as it is away."""
        config = await config_of(self.tenants, claim.tenant_id)
        background = Background(
            planner_model=config.planner_model,
            fallback_models=config.fallback_models,
            on_incomplete=config.on_incomplete,
        )
        if claim.conversation_id is not None or claim.history is not None:
            background = await self._with_history(background, claim, config.history_tokens)
        if claim.conversation_id is not None:
            is_turn = claim.parent is None
            prompt = config.prompt if is_turn else ""
            background = replace(background, tenant_prompt=prompt, tools=(config.tools or ()) if is_turn else ())
        return background

    async def _with_history(self, background: Background, claim: StageClaim, max_tokens: int) -> Background:
        shown, own = ShownHistory.of(claim.history), claim.conversation_id
        conversation_id = own if shown is None else shown.conversation_id
        if conversation_id is None or (shown is None and claim.parent is not None) or (shown and not max_tokens):
            return background
        before = None if shown is None else shown.before
        rows = await persist(self._history, claim.tenant_id, conversation_id, claim.job_id, before)
        found = await off_loop(history_messages, rows, max_tokens, self._count) if max_tokens else ()
        if shown is not None and shown.form is HistoryForm.SUMMARY:
            found = summary_of(found)
        is_told = tells_people(rows)
        return replace(background, history=found, speaker=present_speaker(rows), tells_people=is_told and bool(found))
