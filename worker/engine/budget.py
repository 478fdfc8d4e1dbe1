"""The budget of a tree of jobs, around the model calls of its stages and the steps of its plans.

What is about to be used is reserved before, in a commit of its own, so that calls at the same time cannot pass a
limit together; the reservation holds until what was really used is recorded, and no longer than the stage is carried
out, however it ends. Jobs without a budget are not looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

from shared.domain.budget import Holder, Wanted, check_reserved, cut_to, wanted_for
from shared.domain.model import Ask, Findings, ModelCall
from shared.domain.tool import ToolDefinition
from shared.ports import JobStore, Prices, StageClaim
from worker.engine.carried import Carried
from worker.engine.persist import persist
from worker.engine.spending import Spending

_log = logging.getLogger("planq.engine")

_NOTHING_FOUND = Findings(is_direct=True)
_NO_LIMITS: Mapping[str, int] = {}


class PausedByBudget(Exception):
    """The stage goes no further here: its tree has just been paused at its soft limit, or its claim is lost."""


class Budget:
    """What one engine asks of budgets."""

    def __init__(self, store: JobStore, spending: Spending, prices: Prices | None = None) -> None:
        """Without `prices` a call is taken to cost what the tree's tokens have cost so far."""
        self._store = store
        self._spending = spending
        self._prices = prices

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
        `BudgetExceeded` and `PausedByBudget`; no tree is paused once calls have been made.
        """
        if not claim.budgeted and not own:
            return ask
        wanted = wanted_for(ask, findings, tools)
        price = await self._prices(ask.model, wanted.asked_tokens) if self._prices and claim.budgeted else None
        wanted = replace(wanted, made=made, own=own, may_ask=not made, price=price, call_id=uuid4())
        return cut_to(ask, wanted, await self._granted(claim, wanted))

    async def steps(self, claim: StageClaim, count: int, made: Sequence[ModelCall]) -> None:
        """Reserve the steps of a plan that is about to be accepted; raises as `reserved`."""
        if claim.budgeted:
            last = made[-1].id if made else None
            await self._granted(claim, Wanted(steps=count, made=made, may_ask=False, call_id=last))

    async def put_back(self, claim: StageClaim, made: list[ModelCall]) -> Carried:
        """Give a stage back that goes no further here, and keep its calls: those that are recorded leave `made`.

        Where its tree was paused it is claimed again when somebody resumes the tree.
        """
        if made:
            async with self._spending.kept(claim.job_id, made):
                await persist(lambda: self._store.record_calls(claim.job_id, made))
            made.clear()
        landed = await persist(lambda: self._store.release_stage(claim))
        return Carried(claim.attempt, is_late=not landed)

    async def _granted(self, claim: StageClaim, wanted: Wanted) -> int | None:
        holder = Holder(claim.job_id, claim.attempt, claim.round)
        reserved = await persist(lambda: self._store.reserve(holder, wanted))
        if reserved.is_paused or reserved.is_late:
            _log.info("budget_paused" if reserved.is_paused else "stage_lost", extra={"job": str(claim.job_id)})
            raise PausedByBudget
        check_reserved(wanted, reserved)
        return reserved.reply_tokens
