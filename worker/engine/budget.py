"""The budget of a tree of jobs, around the model calls of its stages and the steps of its plans.

What is about to be used is reserved before, in a commit of its own, so that calls at the same time cannot pass a
limit together; the reservation holds while the stage is carried out and ends with it, however it ends, when what was
really used is recorded. Jobs without a budget are not looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shared.domain.budget import Wanted, check_reserved, cut_to, wanted_for
from shared.domain.model import Ask, Findings, ModelCall
from shared.domain.tool import ToolDefinition
from shared.ports import JobStore, StageClaim
from worker.engine.carried import Carried
from worker.engine.persist import persist

_log = logging.getLogger("planq.engine")

_NOTHING_FOUND = Findings(is_direct=True)
_NO_LIMITS: Mapping[str, int] = {}


class PausedByBudget(Exception):
    """The tree has just been paused, because it came to its soft limit: the stage waits until it is resumed."""


class Budget:
    """What one engine asks of budgets."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    async def reserved(
        self,
        claim: StageClaim,
        ask: Ask,
        findings: Findings = _NOTHING_FOUND,
        made: Sequence[ModelCall] = (),
        *,
        tools: Sequence[ToolDefinition] = (),
        own: Mapping[str, int] = _NO_LIMITS,
    ) -> Ask:
        """Reserve what the call needs, and return the question within what is left: its reply may be cut shorter.

        `made` are calls of the same stage that are not recorded yet, `own` the agent's own limits. Raises
        `BudgetExceeded`; `PausedByBudget` too unless calls have been made.
        """
        if not claim.budgeted and not own:
            return ask
        wanted = replace(wanted_for(ask, findings, tools), made=made, own=own, may_ask=not made)
        return cut_to(ask, wanted, await self._granted(claim, wanted))

    async def steps(self, claim: StageClaim, count: int, made: Sequence[ModelCall]) -> None:
        """Reserve the steps of a plan that is about to be accepted; raises `BudgetExceeded`."""
        if claim.budgeted:
            await self._granted(claim, Wanted(steps=count, made=made, may_ask=False))

    async def put_back(self, claim: StageClaim) -> Carried:
        """Give a stage back whose tree was paused: it is claimed again when somebody resumes the tree."""
        await persist(lambda: self._store.release_stage(claim))
        return Carried(claim.attempt)

    async def _granted(self, claim: StageClaim, wanted: Wanted) -> int | None:
        reserved = await persist(lambda: self._store.reserve(claim.job_id, claim.attempt, wanted))
        if reserved.is_paused:
            _log.info("budget_paused", extra={"job": str(claim.job_id)})
            raise PausedByBudget
        check_reserved(wanted, reserved)
        return reserved.reply_tokens
