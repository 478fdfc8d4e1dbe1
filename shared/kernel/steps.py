"""A step as it is stored, what became of it, and a round of steps that is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planq.shared.kernel.retry import RetryTerms
from planq.shared.kernel.states import Effect, Pool, Recovery, StepKind, StepStatus
from planq.shared.platform.errors import ErrorRecord
from planq.shared.platform.values.parts import Part
from planq.shared.platform.values.pointers import Path


@dataclass(frozen=True, slots=True)
class KnownOutcome:
    """How a step has ended that ends with the acceptance of its plan: it has no attempt.

    A `noop` has succeeded; a blocked duplicate, an unknown tool and broken arguments have failed; the repetition of
    an earlier call of the same plan, and what needs the output of a step that failed so, is skipped. `error` says
    why. `output_of` is an earlier step of the job whose output it shows as its own, too.
    """

    status: StepStatus
    error: ErrorRecord | None = None
    output_of: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step, ready to be stored.

    `tool_name` is the registered name. `inputs` are the steps whose outputs the arguments reference; `depends_on` all
    steps that must succeed first (it contains `inputs`), both sorted; `dependents` are the same edges turned round.
    The longest way of steps behind this one has `path` of them. Of the ready steps of a round, and of the dependents,
    those with the longest way go first, then those that stand first in the plan.
    `timeout_seconds` bounds one attempt, or, with `longest_seconds` for all of it, the time between two reports;
    `retry` bounds its retries; `recovery` says what becomes of an `unsafe` call that was cut off. `wanted` are the
    paths of this step's output that other steps reference, sorted.
    `index` and all indices count over the rounds of the job. The arguments of a `verbatim` step hold no references.
    A step with an outcome that is `known` waits for nothing and is never run. `digest` is that of the tool against
    which the plan was checked (`ToolDefinition.digest`), None where no worker needs a tool for the step.
    """

    index: int
    kind: StepKind
    tool_name: str
    pool: Pool
    effect: Effect
    arguments: Mapping[str, Any]
    inputs: tuple[int, ...]
    depends_on: tuple[int, ...]
    dependents: tuple[int, ...]
    timeout_seconds: float
    retry: RetryTerms
    recovery: Recovery = Recovery.FAIL
    wanted: tuple[Path, ...] = ()
    verbatim: bool = False
    known: KnownOutcome | None = None
    digest: str | None = None
    longest_seconds: float | None = None
    path: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of one executed step, as RESPOND sees it.

    `output` is the structured output (None on failure); `error` is None exactly when the step succeeded. Of a large
    output it is a preview: `shortened_from` then says how many bytes of JSON the whole has, and `payload` is its
    hash. `index` is the step's; `code` and `details` are those of the error. `content` is what the tool says to
    models beside its output. `artifacts` are those of bytes that the step has made, `parts`
    those of them that a model that can see is shown.
    """

    tool_name: str
    arguments: Mapping[str, Any]
    output: Any = None
    error: str | None = None
    duration_ms: int = 0
    shortened_from: int | None = None
    index: int = 0
    code: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    content: str | None = None
    payload: bytes | None = None
    artifacts: Sequence[Part] = ()
    parts: Sequence[Part] = ()

    @property
    def succeeded(self) -> bool:
        return self.error is None


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A round: the plan as it was stored, and one result for each of its steps, in plan order.

    `source` is who made the plan (`caller`, `model`, `chained`). `plan` is its body, of which call i is the step
    `first_index` + i. `reply` is what the model said, with what its provider needs back (`reply_to_json`); None where
    no model made the plan. A step that was skipped has a result whose `code` is `skipped`, or, as the repetition of
    step N of the same plan, `duplicate_of` with `details` `{"step": N}`. A call that was blocked as a repetition has
    the code `duplicate_call_blocked`, and as `output` the last successful output of the same call. A plan that was
    refused has its defects as `errors`, and no results. `merged` are messages of its conversation that came while it
    ran. `memo` is what was computed from the record: a worker keeps the records of a loop from round to round.
    """

    number: int
    source: str
    plan: Any
    reply: Any
    first_index: int
    results: Sequence[StepResult]
    errors: Sequence[Mapping[str, Any]] = ()
    merged: Sequence[str] = ()
    memo: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
