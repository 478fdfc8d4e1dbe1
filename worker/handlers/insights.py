"""Chooses the insights that a planner sees, once for each job, and stores the choice; a held-out job sees none."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from planq.shared.kernel.claims import StageClaim
from planq.shared.platform.computing import off_loop
from planq.shared.subjects.conversations.rules import CountTokens
from planq.shared.subjects.insights.offering import (
    InsightGroup,
    InsightMode,
    InsightOffers,
    fitting,
    offered_text,
    side_of,
)
from planq.shared.subjects.tenants.config import TenantConfig
from planq.worker.engine.persist import persist

_log = logging.getLogger("planq.engine")


@dataclass(frozen=True, slots=True)
class InsightSettings:
    """`mode` is that of tenants whose configuration names none; `holdout` is the share of jobs that plan without.

    The id of the request decides which jobs these are. Their results show whether insights help.
    """

    mode: InsightMode = InsightMode.OFF
    holdout: float = 0.1


class Insights:
    """Chooses for planners; one per engine."""

    def __init__(self, offers: InsightOffers, settings: InsightSettings, count: CountTokens) -> None:
        """`count` may be slow: it runs in a thread."""
        self._offers = offers
        self._settings = settings
        self._count = count

    async def of(self, claim: StageClaim, config: TenantConfig, tools: Collection[str]) -> str:
        """Return what the planner of a claim is shown, a line each, "" for nothing.

        The same for every attempt and every round of a job. Waits for the database as long as it is away.
        """
        mode = self._settings.mode if config.insights is None else InsightMode(config.insights)
        if mode is InsightMode.OFF or not tools or not _has_planner(claim):
            return ""
        asked = (claim.tenant_id, claim.job_id, claim.input, tools)
        known = await persist(self._offers.find, *asked)
        if known.side is not None:
            return offered_text(known.found) if known.side is InsightGroup.OFFERED else ""
        chosen = await off_loop(fitting, known.found, self._count) if known.found else ()
        if not chosen:
            return ""
        text = offered_text(chosen)
        side = side_of(mode, known.origin, self._settings.holdout)
        tokens = await off_loop(self._count, text)
        ids = [one.id for one in chosen]
        note = (claim.tenant_id, claim.job_id, known.origin, claim.conversation_id, side, ids, tokens)
        is_first = await persist(self._offers.note, *note)
        _log.info("insights_chosen", extra={"job": str(claim.job_id), "side": str(side), "count": len(chosen)})
        if not is_first:  # an attempt that was taken for lost has chosen meanwhile: that counts
            known = await persist(self._offers.find, *asked)
            side, text = known.side or side, offered_text(known.found)
        return text if side is InsightGroup.OFFERED else ""


def _has_planner(claim: StageClaim) -> bool:
    """True where a model is about to plan: in `plan` and each round of `loop`, and for the guide of `guided`."""
    if claim.loop is not None and claim.loop.get("planner") is not None:
        return False
    return claim.strategy.begins_with_plan and (claim.round == 0 or not claim.strategy.is_by_turns)
