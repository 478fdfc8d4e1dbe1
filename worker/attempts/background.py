"""The background of a stage: the turns before, and what its tenant has configured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planq.shared.computing import off_loop
from planq.shared.domain.conversations.history import CountTokens, history_messages, present_speaker, summary_of
from planq.shared.domain.conversations.messages import HistoryForm
from planq.shared.domain.conversations.speakers import Speaker
from planq.shared.domain.errors import NotFound
from planq.shared.domain.models.background import Background
from planq.shared.domain.models.exchange import ChatMessage
from planq.shared.domain.tenants.config import TenantConfig
from planq.shared.ports import JobStore, StageClaim
from planq.shared.ports.tenants import Tenants
from planq.worker.engine.persist import persist


async def config_of(tenants: Tenants, tenant_id: str) -> TenantConfig:
    """Return what an operator says of a tenant; waits for the database as long as it is away."""
    try:
        return (await persist(lambda: tenants.of(tenant_id))).config
    except NotFound:  # it was removed while its job ran
        return TenantConfig()


class Backgrounds:
    """Looks the backgrounds of claims up; one per engine. `tenants` are those of `config_of`."""

    def __init__(self, store: JobStore, tenants: Tenants, count: CountTokens) -> None:
        """`count` may be slow: it runs in a thread."""
        self._store = store
        self.tenants = tenants
        self._count = count

    async def of(self, claim: StageClaim) -> Background:
        """Return the background of a claim; waits for the database as long as it is away."""
        config = await config_of(self.tenants, claim.tenant_id)
        background = Background(planner_model=config.planner_model, fallback_models=config.fallback_models)
        if claim.conversation_id is not None or claim.history is not None:
            history, speaker = await self._history(claim, config.history_tokens)
            background = replace(background, history=history, speaker=speaker)
        if claim.conversation_id is not None:
            is_turn = claim.parent is None
            prompt = config.prompt if is_turn else ""
            background = replace(background, tenant_prompt=prompt, tools=(config.tools or ()) if is_turn else ())
        return background

    async def _history(self, claim: StageClaim, max_tokens: int) -> tuple[Sequence[ChatMessage], Speaker | None]:
        shown, own = claim.history, claim.conversation_id
        conversation_id = own if shown is None else shown.conversation_id
        if conversation_id is None or (shown is None and claim.parent is not None) or not max_tokens:
            return (), None
        before = None if shown is None else shown.before
        rows = await persist(lambda: self._store.history(claim.tenant_id, conversation_id, claim.job_id, before))
        if not rows:
            return (), None
        found = await off_loop(history_messages, rows, max_tokens, self._count)
        is_summary = shown is not None and shown.form is HistoryForm.SUMMARY
        return summary_of(found) if is_summary else found, present_speaker(rows)
