"""Running ahead: the next steps of a chain run before the commit that claims the first of them has landed.

Only `pure` steps do. Repeating one has no effect in the world, so what ran ahead may be thrown away at any moment;
nothing of it counts before its own commit. What has ended by the time that the next conclusion is due is stored with
it, in one commit (`JobStore.succeed_run`); what ends at once of a plan that cost nothing is stored with the plan
(`JobStore.accept_plan`). What did not simply succeed waits for its claim and goes the ordinary way.

A chain runs ahead only along a plan that this process has accepted, in the first attempt at planning: what comes
after a lost worker runs step by step, so that the step that costs a worker is the one that is charged for it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from shared.domain.compile import PlannedStep
from shared.domain.ids import StepRef
from shared.domain.states import Effect, Lane
from shared.ports import RanStep, StageClaim, StepClaim
from worker.engine.outcome import Outcome
from worker.engine.values import ReadyOutput, output_to_store

AHEAD = 32
"""Steps that may have run and not be stored: what a death throws away, and what one commit may have to take."""

_TURNS = 8
"""Turns of the event loop in which a step that waits for nothing ends (measured: 4 to 5)."""

_SECONDS = 0.001
"""What a conclusion may be put off for steps that wait for nothing: about what the commit that they save takes."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Which steps of a plan may run ahead: `first`, where the plan begins with one step alone, and after each step.

    One comes `after` another when it is the only one that waits for it, waits for nothing else, and both are `pure`
    and of the `io` lane. A `cpu` step keeps a process busy for longer than a commit takes.
    """

    first: PlannedStep | None
    after: Mapping[int, PlannedStep]

    @classmethod
    def of(cls, steps: Sequence[PlannedStep]) -> Lines:
        """Find them; O(edges)."""
        alone = {step.index: step.dependents for step in steps if _is_light(step) and len(step.dependents) == 1}
        after = {
            step.depends_on[0]: step
            for step in steps
            if len(step.depends_on) == 1 and _is_light(step) and step.depends_on[0] in alone
        }
        ready = [step for step in steps if not step.depends_on]
        return cls(ready[0] if len(ready) == 1 and _is_light(ready[0]) else None, after)


NO_LINES = Lines(None, {})


def _is_light(step: PlannedStep) -> bool:
    return step.effect is Effect.PURE and step.lane is Lane.IO


def lines_of(stage: StageClaim, steps: Sequence[PlannedStep]) -> Lines:
    """Return what may run ahead along a plan that `stage` accepts.

    Nothing in a later attempt at planning, which may follow a lost worker; nor in a fork, where steps have ended; nor
    in the jobs of a family, whose claims bring more than a plan tells.
    """
    is_of_family = stage.agent_name is not None or stage.parent is not None or stage.round > 0 or stage.budgeted
    return NO_LINES if stage.attempt > 1 or stage.reuse or is_of_family else Lines.of(steps)


def first_claim(stage: StageClaim, step: PlannedStep) -> StepClaim:
    """Return the claim that accepting a plan will bring for a step that waits for nothing."""
    ref = StepRef(stage.job_id, stage.round, step.index)
    return _expected(ref, step, {}, (stage.tenant_id, stage.user_id, stage.trace_id, stage.context_id))


def following_claim(lines: Lines, claim: StepClaim, output: ReadyOutput) -> StepClaim | None:
    """Return the claim that the success of `claim` with `output` will bring, None where nothing may run ahead."""
    step = lines.after.get(claim.ref.index)
    if step is None or output.excerpts is not None:
        return None
    try:
        # As the database would give it: what a tool returned may hold tuples, or keys that are numbers.
        outputs = {claim.ref.index: json.loads(output.body)} if step.inputs else {}
    except RecursionError:
        return None
    ref = replace(claim.ref, index=step.index)
    return _expected(ref, step, outputs, (claim.tenant_id, claim.user_id, claim.trace_id, claim.context_id))


def _expected(
    ref: StepRef, step: PlannedStep, outputs: Mapping[int, Any], whose: tuple[str, str, str, str]
) -> StepClaim:
    tenant_id, user_id, trace_id, context_id = whose
    return StepClaim(
        ref=ref,
        tenant_id=tenant_id,
        tool_name=step.tool_name,
        effect=step.effect,
        lane=step.lane,
        arguments=step.arguments,
        outputs=outputs,
        attempt=1,
        tries=1,
        retries=step.retries,
        worker_losses=0,
        timeout_seconds=step.timeout_seconds,
        user_id=user_id,
        trace_id=trace_id,
        context_id=context_id,
        recovery=step.recovery,
        wanted=step.wanted,
    )


@dataclass(frozen=True, slots=True)
class Ran:
    """An attempt that ran ahead: what it came to, or the `defect` that it ended with, and when (`time.monotonic`)."""

    claim: StepClaim
    outcome: Outcome | None
    defect: Exception | None
    began: float
    ended: float

    @property
    def small(self) -> ReadyOutput | None:
        """Return its output where it can be stored together with the step before it, else None."""
        return None if self.outcome is None else self.outcome.small

    @property
    def shown(self) -> tuple[StepClaim, float]:
        """Return it as monitors are told of it: what it was, and how many seconds it took."""
        return self.claim, self.ended - self.began

    def to_store(self, now: float) -> RanStep:
        """Return it as it is stored at `now` (`time.monotonic`); raises `ValueError` where it has no small output."""
        if self.small is None:
            raise ValueError("only a step that succeeded with a small output is stored with the one before it")
        output, artifact = output_to_store(self.small), self.small.artifact
        return RanStep(self.claim.ref.index, output, artifact, now - self.began, now - self.ended)


class RunAhead:
    """What runs ahead of one chain; belongs to one event loop.

    `attempt` carries out a claim, `may_go_on` says whether another step may be begun. It begins at once, with the
    step that `claim` is expected to claim, and keeps at most `AHEAD` outcomes.
    """

    def __init__(
        self,
        claim: StepClaim,
        lines: Lines,
        attempt: Callable[[StepClaim], Awaitable[Outcome]],
        may_go_on: Callable[[], bool],
    ) -> None:
        self._lines = lines
        self._attempt = attempt
        self._may_go_on = may_go_on
        self._ran: deque[Ran] = deque()
        self._next: StepClaim | None = claim
        self._news: asyncio.Future[None] | None = None
        self._task = asyncio.create_task(self._run())

    def awaits(self, claim: StepClaim) -> bool:
        """Return whether a claim is the one that the next outcome is for."""
        expected = self._ran[0].claim if self._ran else self._next
        return expected is not None and (expected.ref, expected.attempt) == (claim.ref, claim.attempt)

    async def outcome(self) -> Ran | None:
        """Wait for the next outcome and take it; None when its step was not begun.

        When the caller is cancelled, the call is cancelled, and abandoned as any call of a tool.
        """
        try:
            while not self._ran and not self._task.done():
                self._news = asyncio.get_running_loop().create_future()
                await self._news
        except asyncio.CancelledError:
            await self.drop()
            raise
        if not self._ran:
            return None
        ran = self._ran.popleft()
        self._go_on()
        return ran

    async def settle(self) -> None:
        """Let steps end that only compute, for a moment at most: where cores are few, no commit leaves them time."""
        turns, until, ended = 0, monotonic() + _SECONDS, len(self._ran)
        while turns < _TURNS and not self._task.done() and monotonic() < until:
            await asyncio.sleep(0)
            turns = turns + 1 if len(self._ran) == ended else 0
            ended = len(self._ran)

    def taken_along(self) -> list[Ran]:
        """Take the outcomes that can be stored together with that of the step before them."""
        found: list[Ran] = []
        while self._ran and self._ran[0].small is not None:
            found.append(self._ran.popleft())
        self._go_on()
        return found

    async def drop(self) -> None:
        """Throw away what ran ahead and is not taken; returns when nothing runs any more."""
        self._ran.clear()
        self._next = None
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def _go_on(self) -> None:
        if self._task.done() and self._next is not None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._next is not None and len(self._ran) < AHEAD and self._may_go_on():
                ran = await self._carry_out(self._next)
                self._ran.append(ran)
                self._next = self._follower(ran)
                self._tell()
        finally:
            self._tell()

    async def _carry_out(self, claim: StepClaim) -> Ran:
        began = monotonic()
        try:
            outcome = await self._attempt(claim)
        except Exception as defect:
            return Ran(claim, None, defect, began, monotonic())
        return Ran(claim, outcome, None, began, monotonic())

    def _follower(self, ran: Ran) -> StepClaim | None:
        return None if ran.small is None else following_claim(self._lines, ran.claim, ran.small)

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
