"""Which steps are one unit, and what the claim of the next one will be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from planq.shared.kernel.claims import ReusedStep, StageClaim, StepClaim
from planq.shared.kernel.ids import PLAN, StepRef
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.retry import RetryTerms
from planq.shared.kernel.states import Effect, Pool, StepKind
from planq.shared.kernel.steps import PlannedStep
from planq.worker.handlers.step_values import ReadyOutput
from planq.worker.handlers.unit import next_claim, units_of

JOB = UUID(int=1)
STAGE = StageClaim(
    ref=StepRef(JOB, 3, PLAN),
    tenant_id="tenant",
    attempt=1,
    model="offline",
    input="",
    tools=None,
    limits=Limits(),
    plan_source="model",
    plan_body=None,
    plan_errors=None,
)


def step(index: int, *depends_on: int, dependents: tuple[int, ...] = ()) -> PlannedStep:
    return PlannedStep(
        index=index,
        kind=StepKind.TOOL,
        tool_name=f"tool_{index}",
        pool=Pool.IO,
        effect=Effect.PURE,
        arguments={"n": index},
        inputs=depends_on,
        depends_on=depends_on,
        dependents=dependents,
        timeout_seconds=5.0,
        retry=RetryTerms(retries=2),
    )


def chain(length: int) -> list[PlannedStep]:
    return [step(n, *([n - 1] if n else []), dependents=(n + 1,) if n + 1 < length else ()) for n in range(length)]


def links(steps: list[PlannedStep], stage: StageClaim = STAGE) -> dict[int, int]:
    units = units_of(stage, steps)
    assert all((ref.job_id, ref.round) == (JOB, 3) for ref in units)
    return {ref.index: following.index for ref, following in units.items()}


def test_a_chain_of_pure_steps_is_a_unit() -> None:
    assert links(chain(4)) == {0: 1, 1: 2, 2: 3}


@pytest.mark.parametrize(
    "change",
    [*({"effect": e} for e in Effect if e is not Effect.PURE), {"pool": Pool.CPU}, {"kind": StepKind.AGENT}],
)
@pytest.mark.parametrize("place", range(3))
def test_a_step_of_another_kind_is_in_no_unit(place: int, change: dict[str, Any]) -> None:
    steps = chain(3)
    steps[place] = replace(steps[place], **change)
    assert links(steps) == {n: n + 1 for n in range(2) if place not in (n, n + 1)}


def test_a_step_that_may_take_longer_than_the_first_begins_another_unit() -> None:
    steps = chain(4)
    steps[1], steps[2] = replace(steps[1], timeout_seconds=2.0), replace(steps[2], timeout_seconds=3.0)
    assert links(steps) == {0: 1}, "the fourth may take longer than the third"


def test_what_branches_or_joins_is_no_unit() -> None:
    assert links([step(0, dependents=(1, 2)), step(1, 0), step(2, 0)]) == {}
    assert links([step(0, dependents=(2,)), step(1, dependents=(2,)), step(2, 0, 1)]) == {}
    assert links([step(0, dependents=(1,)), step(1, 0), step(2, dependents=(3,)), step(3, 2)]) == {0: 1, 2: 3}


def test_a_fork_and_a_later_attempt_at_planning_form_none() -> None:
    assert links(chain(2), replace(STAGE, attempt=2)) == {}
    assert links(chain(2), replace(STAGE, reuse={0: ReusedStep(UUID(int=2), 0)})) == {}


HEAD = StepClaim(
    ref=StepRef(JOB, 3, 0),
    tenant_id="tenant",
    tool_name="tool_0",
    effect=Effect.PURE,
    pool=Pool.IO,
    arguments={},
    outputs={9: "other"},
    attempt=2,
    tries=2,
    retry=RetryTerms(),
    worker_losses=1,
    timeout_seconds=6.0,
    user_id="user",
    trace_id="trace",
    context_id="talk",
    depth=2,
    agent_name="ada",
)


def test_the_next_claim_is_a_first_attempt_and_reads_outputs_as_the_database_gives_them() -> None:
    following = next_claim(units_of(STAGE, chain(2)), HEAD, ReadyOutput(b'{"1":[null,1.5]}', None))
    assert following == replace(
        HEAD,
        ref=StepRef(JOB, 3, 1),
        tool_name="tool_1",
        arguments={"n": 1},
        outputs={0: {"1": [None, 1.5]}},
        attempt=1,
        tries=1,
        retry=RetryTerms(retries=2),
        worker_losses=0,
        timeout_seconds=5.0,
    )


@pytest.mark.parametrize(
    ("index", "output"),
    [
        (1, ReadyOutput(b"{}", None)),
        (0, ReadyOutput(b"{}", None, b"[]", b"{}")),
        (0, ReadyOutput(b"[" * 100_000 + b"]" * 100_000, None)),
    ],
    ids=["the last step", "a large output", "one that nests too deep"],
)
def test_a_unit_ends_there(index: int, output: ReadyOutput) -> None:
    claim = replace(HEAD, ref=StepRef(JOB, 3, index))
    assert next_claim(units_of(STAGE, chain(2)), claim, output) is None
