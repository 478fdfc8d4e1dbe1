"""How tasks hang together in Flower: the root of their tree, who made them ready, and with which others."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.follow_ups import after_end, after_step
from planq.shared.kernel.ids import PLAN, RESPOND, StepRef
from planq.shared.kernel.job_store import Consequence, ParentTransition, ReadyStep, TransitionResult, UnitStep
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.retry import RetryTerms
from planq.shared.kernel.states import Effect, JobStatus, Pool, Priority
from planq.shared.kernel.wakes import TaskLinks, Wake
from planq.worker.engine.chain import WakeOutcome, in_messages

JOB, ROOT, CHILD = UUID(int=1), UUID(int=2), UUID(int=3)

STEP = StepClaim(
    ref=StepRef(JOB, 0, 0),
    tenant_id="tenant",
    tool_name="tool_0",
    effect=Effect.PURE,
    pool=Pool.IO,
    arguments={},
    outputs={},
    attempt=2,
    tries=2,
    retry=RetryTerms(),
    worker_losses=0,
    timeout_seconds=6.0,
    user_id="",
    trace_id="",
    context_id="",
)

STAGE = StageClaim(
    ref=StepRef(JOB, 0, PLAN),
    tenant_id="tenant",
    attempt=3,
    model="offline",
    input="",
    tools=None,
    limits=Limits(),
    plan_source=None,
    plan_body=None,
    plan_errors=None,
    agent_name="host",
)


def ready(*pools: Pool, first: int = 0) -> list[ReadyStep]:
    return [ReadyStep(index, pool, f"tool_{index}") for index, pool in enumerate(pools, first)]


@given(
    pools=st.lists(st.sampled_from([Pool.IO, Pool.CPU]), min_size=1, max_size=60),
    taken=st.integers(0, 10),
    kept=st.integers(0, 10),
    workers=st.integers(1, 8),
)
def test_each_of_a_fan_out_has_its_place_in_one_group(pools: list[Pool], taken: int, kept: int, workers: int) -> None:
    """Also where several share a message, and where some go on without one."""
    claims = [replace(STEP, ref=StepRef(JOB, 0, index)) for index in range(taken)]
    result = TransitionResult(True, ready(*pools, first=taken), JobStatus.EXECUTING, taken=claims)
    carried = WakeOutcome.by(STAGE, result)
    ours = [wake for wake in carried.wakes if not wake.ref.is_stage and wake.pool == Pool.IO][:kept]
    messages = in_messages([wake for wake in carried.wakes if wake not in ours], workers)
    each = [wake for message in messages for wake in message.each]
    shown = [wake.links for wake in [*ours, *each]]
    shown += [carried.origin and replace(carried.origin, place=place).links for place in range(taken)]
    group = f"{JOB}.plan.3.group" if taken + len(pools) > 1 else None
    places = range(taken + len(pools)) if group else [None]
    expected = {TaskLinks(f"{JOB}.plan.1", f"{JOB}.plan.3", group, place) for place in places}
    assert set(shown) == expected
    assert len(shown) == len(expected)


def test_what_follows_alone_has_a_parent_and_no_group() -> None:
    [step] = after_step(STEP.ref, TransitionResult(True, ready(Pool.IO, first=1), JobStatus.EXECUTING), STEP)
    assert step.links == TaskLinks(f"{JOB}.plan.1", f"{JOB}.r0.s0.2")
    [stage] = after_step(STEP.ref, TransitionResult(True, (), JobStatus.RESPONDING, stage_attempt=1), STEP)
    assert stage == Wake.respond(JOB, 2)
    assert stage.links == TaskLinks(f"{JOB}.plan.1", f"{JOB}.r0.s0.2")


def test_child_jobs_belong_to_the_tree_of_the_outermost_one() -> None:
    delegating = replace(STEP, root_job_id=ROOT, priority=Priority.BULK)
    children = [Wake.plan(CHILD, name="ada"), Wake.plan(UUID(int=4), name="bob")]
    first, second = after_step(STEP.ref, TransitionResult(True, children=children), delegating)
    parent = f"{JOB}.r0.s0.2"
    assert first.links == TaskLinks(f"{ROOT}.plan.1", parent, f"{parent}.group", 0)
    assert second.links == TaskLinks(f"{ROOT}.plan.1", parent, f"{parent}.group", 1)
    assert first == Wake.plan(CHILD, priority=Priority.BULK)
    assert first.name == "ada"


def test_the_last_of_a_unit_makes_ready_what_follows_it() -> None:
    last = replace(STEP, ref=StepRef(JOB, 0, 1), attempt=1)
    result = TransitionResult(True, ready(Pool.CPU, first=2), JobStatus.EXECUTING, steps=2)
    carried = WakeOutcome.by(STEP, result, unit=[UnitStep(last, output=b"1", artifact=None, seconds=0.1)])
    assert [wake.links for wake in carried.wakes] == [TaskLinks(f"{JOB}.plan.1", f"{JOB}.r0.s1.1")]
    assert carried.attempt == 2


def test_what_the_end_of_respond_made_ready_says_so() -> None:
    end = replace(STAGE, ref=StepRef(JOB, 0, RESPOND), attempt=4, root_job_id=ROOT)
    [wake] = after_step(STEP.ref, TransitionResult(True, ready(Pool.IO), JobStatus.EXECUTING), end)
    assert wake.links == TaskLinks(f"{ROOT}.plan.1", f"{JOB}.respond.4")


@pytest.mark.parametrize("status", [JobStatus.PLANNING, JobStatus.RESPONDING])
def test_a_stage_is_shown_with_the_agent_of_its_job(status: JobStatus) -> None:
    [wake] = after_step(STEP.ref, TransitionResult(True, (), status), STAGE)
    assert wake.ref.is_stage
    assert wake.name == "host"


def test_who_does_not_know_the_parent_names_none() -> None:
    [wake] = after_step(STEP.ref, TransitionResult(True, ready(Pool.IO), JobStatus.EXECUTING))
    assert wake.links is None


@pytest.mark.parametrize("end", [None, replace(STEP, priority=Priority.BULK)], ids=["requested", "attempted"])
def test_what_follows_from_an_end_is_woken_in_the_share_of_the_parent(end: StepClaim | None) -> None:
    """Also where a request has ended the child, which carries out no attempt."""
    result = TransitionResult(True, ready(Pool.IO), JobStatus.EXECUTING, children=(Wake.plan(CHILD, name="ada"),))
    wakes = after_end(Consequence(True, ParentTransition(STEP.ref, result, Priority.BULK, "acme")), end)
    step = Wake(StepRef(JOB, 0, 0), Pool.IO, "tool_0", priority=Priority.BULK)
    assert list(wakes) == [Wake.plan(CHILD, priority=Priority.BULK), step]
    assert [wake.tenant for wake in wakes] == ["acme", "acme"]
