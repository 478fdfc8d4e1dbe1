"""What an attempt does: make a plan, run a step, answer. The engine decides when, and on which claim.

Everything here speaks to ports only: tools, models and payloads stand behind them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from planq.shared.agentic.models.contract import Planner, Prices, Responder, TurnPlanner
from planq.shared.agentic.tools.contract import Toolbox, ToolCatalogue
from planq.shared.agentic.tools.policy import ToolPolicy
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.ids import PLAN, RESPOND
from planq.shared.kernel.job_store import JobStore
from planq.shared.kernel.limits import INLINE_OUTPUT_BYTES
from planq.shared.platform.errors import ErrorRecord, ExecutionFailed
from planq.shared.platform.logs import attempt_fields
from planq.shared.subjects.orchestrations.contract import Conclude
from planq.shared.subjects.payloads.contract import Payloads
from planq.worker.engine.chain import Chain, WakeOutcome
from planq.worker.engine.loop import Handler
from planq.worker.engine.running import InFlightWork
from planq.worker.handlers.alarms import Alarms
from planq.worker.handlers.budget import Budget, ModelCallRecorder
from planq.worker.handlers.insights import Insights
from planq.worker.handlers.plan import PlanStage
from planq.worker.handlers.respond import Answering, RespondStage
from planq.worker.handlers.rounds import RoundStage
from planq.worker.handlers.stage_context import Backgrounds
from planq.worker.handlers.step import StepRunner
from planq.worker.handlers.step_values import OutputLimits, Values
from planq.worker.handlers.tool_call import SecretsOf, no_secrets
from planq.worker.models.planners import InstalledPlanners

__all__ = ["AttemptSettings", "handlers"]

Outcome: TypeAlias = "Coroutine[Any, Any, WakeOutcome]"


@dataclass(frozen=True, slots=True)
class AttemptSettings:
    """`model_retry_seconds`: how long a stage is tried again whose model fails in a way that may pass.


    `tool_policy` is the server's: which tools are called at once, after a person has agreed, or never.

    With `has_processes` each step has a process for itself, which may be replaced.

    `can_seal` says whether the process has a master key, under which answers that are secret are sealed.

    An output above `max_output_bytes` of JSON fails its step; above `inline_output_bytes` it becomes a payload.
    """

    max_output_bytes: int = 64 * 1024 * 1024
    inline_output_bytes: int = INLINE_OUTPUT_BYTES
    model_retry_seconds: float = 900.0
    tool_policy: ToolPolicy = field(default_factory=dict)
    has_processes: bool = False
    can_seal: bool = False


def handlers(
    settings: AttemptSettings,
    *,
    store: JobStore,
    catalogue: ToolCatalogue,
    in_flight: InFlightWork,
    planner: Planner,
    turns: TurnPlanner,
    responder: Responder,
    toolbox: Toolbox,
    payloads: Payloads,
    backgrounds: Backgrounds,
    draw: Callable[[], float],
    conclude: Conclude | None = None,
    prices: Prices | None = None,
    counts: Counter[tuple[str, ...]] | None = None,
    own_planners: InstalledPlanners | None = None,
    secrets: SecretsOf = no_secrets,
    alarms: Alarms | None = None,
    insights: Insights | None = None,
) -> Mapping[int, Handler]:
    """Return the handlers of one process, by the index of a stage; under 0 that of all steps.

    `draw` returns uniform numbers from [0, 1) for jitter.

        `turns` plans the rounds of `loop` and `react`, where a loop block names none of the `own_planners`.
        `conclude` is how orchestration jobs answer; without it they fail. `prices` are for budgets in money. Calls
        of tools are counted in `counts`. `secrets` are what tenants keep for their tools. Without `alarms` a sweeper
        has to find what becomes due.
        Without `insights` no planner is told of earlier jobs.
    """
    recorder = ModelCallRecorder(store, timedelta(seconds=settings.model_retry_seconds), draw, alarms, in_flight)
    budget = Budget(store, recorder, prices)
    answering = Answering(store, catalogue, responder, recorder, budget)
    values = Values(payloads, OutputLimits(settings.max_output_bytes, settings.inline_output_bytes))
    steps = StepRunner(
        store,
        toolbox,
        values=values,
        draw=draw,
        in_flight=in_flight,
        tenants=backgrounds.tenants,
        policy=settings.tool_policy,
        counts=counts,
        has_processes=settings.has_processes,
        secrets=secrets,
        can_seal=settings.can_seal,
        alarms=alarms,
    )
    rounds = RoundStage(
        store,
        values,
        turns,
        recorder,
        budget,
        answering,
        steps.run_ahead,
        counts=counts,
        own_planners=own_planners,
    )
    plan = PlanStage(store, catalogue, planner, recorder, budget, answering, rounds, backgrounds, insights)
    respond = RespondStage(recorder, budget, answering, backgrounds, conclude)
    return {0: steps, PLAN: Stage(plan, recorder, in_flight), RESPOND: Stage(respond, recorder, in_flight)}


class Stage:
    """The handler of one stage: what PLAN and RESPOND have in common."""

    def __init__(self, stage: PlanStage | RespondStage, recorder: ModelCallRecorder, in_flight: InFlightWork) -> None:
        self._stage = stage
        self._recorder = recorder
        self._in_flight = in_flight

    def carry_out(self, claim: StageClaim, chain: Chain) -> Outcome:
        """Carry out the stage, or only its end where the database has refused that before."""
        chain.calls = []
        named = {"job": str(claim.job_id), "stage": claim.status.value, "tenant": claim.tenant_id}
        attempt_fields.set({**named, "attempt": claim.attempt})
        self._in_flight.ends_in(min(claim.limits.job_timeout_seconds, claim.limits.plan_timeout_seconds))
        return self._stage.carry_out(claim, chain) if claim.kept is None else self._recorder.end_kept(claim)

    def break_off(self, claim: StageClaim, failure: ExecutionFailed, chain: Chain) -> Outcome:
        """End the job, for planq itself has failed."""
        return self._recorder.end(claim, None, ErrorRecord.of(failure), chain.calls)
