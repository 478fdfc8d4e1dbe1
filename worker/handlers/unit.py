"""Units: consecutive `pure` steps, run one after the other under the claim of the first, and stored in one commit.

Each waits for the one before it alone and is the only one that does, so while the first is held nobody else can begin
another. Its attempt stands for all of them: heartbeats, cancels and time-outs find the unit by it. The others are
claimed by the commit that stores what they came to, as their first attempts. Repeating a `pure` step does nothing in
the world, so what did not get that far is thrown away.

Quick `pure` steps may also run ahead of their plan, under the claim of its stage, and are stored with it. These are
steps that wait for nothing but each other.

Only the process that accepts a plan forms units, in the first attempt at planning. So after a lost worker a chain
runs step by step, the step that costs workers is the one given up, and no call of a step is thrown away twice.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planq.shared.kernel.claims import StageClaim, StepClaim, as_planned
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import UnitStep
from planq.shared.kernel.states import Effect, StepKind
from planq.shared.kernel.steps import PlannedStep
from planq.worker.engine.chain import Chain, Units
from planq.worker.handlers.step_values import ReadyOutput

MAX_FUSED_STEPS = 50
"""Steps in a unit; its commit holds the job's row for about 0.1 ms for each."""

FUSED_SECONDS = 0.1
"""No step of a unit is begun later than this: what takes as long gains nothing by saving a commit of 1 ms."""


def units_of(stage: StageClaim, steps: Sequence[PlannedStep]) -> Units:
    """Return the units of a plan that `stage` accepts; none in a fork, whose plan has steps that have ended."""
    if stage.attempt > 1 or stage.reuse:
        return {}
    known = {step.index: step for step in steps}
    return {
        StepRef(stage.job_id, stage.round, before.index): step
        for step in steps
        if len(step.depends_on) == 1 and _goes_on(before := known[step.depends_on[0]], step)
    }


def _goes_on(before: PlannedStep, step: PlannedStep) -> bool:
    """Return whether two steps are of one unit, the deadline of whose first step must do for all."""
    return (
        before.dependents == (step.index,)
        and (before.effect, before.kind) == (step.effect, step.kind) == (Effect.PURE, StepKind.TOOL)
        and before.pool == step.pool
        and step.timeout_seconds <= before.timeout_seconds
    )


RunsAhead = Callable[[StageClaim, Sequence[PlannedStep], Chain], Awaitable[Sequence[UnitStep]]]
"""Runs `pure` steps of a plan before it is stored (`StepRunner.run_ahead`)."""


def may_run_ahead(stage: StageClaim) -> bool:
    """Return whether steps of a plan that `stage` makes may run before it is stored.

    Not after a loss, as in `units_of`. Nor where the claim of a step has more than its stage and its plan say: in an
    agent's job, a child, a turn, or a loop with policies.
    """
    is_plain = stage.agent_name is None and stage.root_job_id is None and stage.conversation_id is None
    return is_plain and stage.loop is None and stage.attempt == 1 and not stage.reuse


def claim_ahead(stage: StageClaim, step: PlannedStep, outputs: Mapping[int, Any]) -> StepClaim:
    """Return the claim of a step's first attempt as the database would give it, were the plan stored."""
    return StepClaim(
        ref=StepRef(stage.job_id, stage.round, step.index),
        tenant_id=stage.tenant_id,
        attempt=1,
        user_id=stage.user_id,
        trace_id=stage.trace_id,
        context_id=stage.context_id,
        priority=stage.priority,
        outputs={index: outputs[index] for index in step.inputs},
        tries=1,
        worker_losses=0,
        dependents=len(step.dependents),
        **as_planned(step),
    )


def next_claim(units: Units, claim: StepClaim, output: ReadyOutput) -> StepClaim | None:
    """Return the claim that the success of `claim` will bring; None where the unit ends, also at a large output."""
    step = units.get(claim.ref)
    if step is None or output.excerpts is not None:
        return None
    try:
        # As the database would give it: what a tool returned may hold tuples, or keys that are numbers.
        outputs = {claim.ref.index: json.loads(output.body)} if step.inputs else {}
    except RecursionError:
        return None
    return replace(
        claim,
        ref=replace(claim.ref, index=step.index),
        outputs=outputs,
        attempt=1,
        tries=1,
        worker_losses=0,
        dependents=len(step.dependents),
        **as_planned(step),
    )
