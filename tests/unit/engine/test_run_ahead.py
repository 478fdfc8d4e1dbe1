"""Which steps run ahead, how far, and what becomes of what ran."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from shared.domain.compile import PlannedStep
from shared.domain.errors import InvalidOutput
from shared.domain.ids import StepRef
from shared.domain.limits import Limits
from shared.domain.states import Effect, JobStatus, Lane, StepKind
from shared.ports import ReusedStep, StageClaim, StepClaim, Suspended
from worker.engine.outcome import Outcome
from worker.engine.run_ahead import AHEAD, NO_LINES, Lines, RunAhead, first_claim, following_claim, lines_of
from worker.engine.values import ReadyOutput

JOB = UUID(int=1)
STAGE = StageClaim(
    *(JOB, "tenant", JobStatus.PLANNING, 0, 1, "offline", "", None, Limits(), "model", None, None),
    user_id="user",
    trace_id="trace",
    context_id="talk",
)
SMALL = Outcome(output=ReadyOutput(b'{"n":1}', None))
LARGE = Outcome(output=ReadyOutput(b'{"n":1}', None, b"[]", b"{}"))
PATIENCE = 60.0


def step(index: int, *depends_on: int, dependents: tuple[int, ...] = (), **fields: Any) -> PlannedStep:
    fields = {"lane": Lane.IO, "effect": Effect.PURE, **fields}
    return PlannedStep(
        index=index,
        kind=StepKind.TOOL,
        tool_name=f"tool_{index}",
        arguments={"n": index},
        inputs=depends_on,
        depends_on=depends_on,
        dependents=dependents,
        timeout_seconds=5.0,
        retries=2,
        **fields,
    )


def chain(length: int) -> list[PlannedStep]:
    return [step(n, *([n - 1] if n else []), dependents=(n + 1,) if n + 1 < length else ()) for n in range(length)]


def links(lines: Lines) -> dict[int, int]:
    return {index: following.index for index, following in lines.after.items()}


def test_a_chain_of_pure_steps_is_a_line() -> None:
    lines = Lines.of(chain(4))
    assert lines.first is not None
    assert (lines.first.index, links(lines)) == (0, {0: 1, 1: 2, 2: 3})


@pytest.mark.parametrize(
    ("place", "change"),
    [(place, change) for place in range(3) for change in ({"effect": e} for e in Effect if e is not Effect.PURE)]
    + [(place, {"lane": Lane.CPU}) for place in range(3)],
)
def test_a_step_that_is_not_pure_or_not_light_neither_runs_ahead_nor_is_run_ahead_of(
    place: int, change: dict[str, Any]
) -> None:
    steps = chain(3)
    steps[place] = replace(steps[place], **change)
    lines = Lines.of(steps)
    assert (lines.first is None) == (place == 0)
    assert links(lines) == {n: n + 1 for n in range(2) if place not in (n, n + 1)}


def test_what_branches_or_joins_is_no_line() -> None:
    fork = Lines.of([step(0, dependents=(1, 2)), step(1, 0), step(2, 0)])
    join = Lines.of([step(0, dependents=(2,)), step(1, dependents=(2,)), step(2, 0, 1)])
    both = Lines.of([step(0, dependents=(1,)), step(1, 0), step(2, dependents=(3,)), step(3, 2)])
    assert (fork.first is None, links(fork)) == (False, {})
    assert (join.first, links(join)) == (None, {})
    assert (both.first, links(both)) == (None, {0: 1, 2: 3})


def test_only_the_first_attempt_at_planning_of_no_fork_runs_ahead() -> None:
    steps = chain(2)
    assert lines_of(STAGE, steps) == Lines.of(steps)
    assert lines_of(replace(STAGE, attempt=2), steps) is NO_LINES
    assert lines_of(replace(STAGE, reuse={0: ReusedStep(UUID(int=2), 0)}), steps) is NO_LINES


def test_an_expected_claim_reads_outputs_as_the_database_gives_them() -> None:
    lines = Lines.of(chain(2))
    assert lines.first is not None
    first = first_claim(STAGE, lines.first)
    following = following_claim(lines, first, ReadyOutput(b'{"1":[null,1.5]}', None))
    assert following == StepClaim(
        ref=StepRef(JOB, 0, 1),
        tenant_id="tenant",
        tool_name="tool_1",
        effect=Effect.PURE,
        lane=Lane.IO,
        arguments={"n": 1},
        outputs={0: {"1": [None, 1.5]}},
        attempt=1,
        tries=1,
        retries=2,
        worker_losses=0,
        timeout_seconds=5.0,
        user_id="user",
        trace_id="trace",
        context_id="talk",
    )


@pytest.mark.parametrize("body", [b"[" * 100_000 + b"]" * 100_000, b"{}"])
def test_nothing_is_expected_after_what_must_be_read_again_or_is_the_end(body: bytes) -> None:
    lines = Lines.of(chain(2))
    claim = first_claim(STAGE, lines.after[0])
    assert following_claim(lines, claim, ReadyOutput(body, None)) is None, "the last one"
    before = replace(claim, ref=replace(claim.ref, index=0))
    assert following_claim(lines, before, ReadyOutput(b"{}", None, b"[]", b"{}")) is None, "a large output"
    assert (following_claim(lines, before, ReadyOutput(body, None)) is None) == (len(body) > 2)


class Attempts:
    """Carries out steps: all succeed but those that are told otherwise; `at` one of them it stands still."""

    def __init__(self, outcomes: dict[int, Outcome | Exception] | None = None, at: int | None = None) -> None:
        self.outcomes = outcomes or {}
        self.at = at
        self.begun: list[int] = []
        self.stands, self.go = asyncio.Event(), asyncio.Event()
        self.cut_off = False

    async def __call__(self, claim: StepClaim) -> Outcome:
        self.begun.append(claim.ref.index)
        if claim.ref.index == self.at:
            self.stands.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cut_off = True
                raise
        outcome = self.outcomes.get(claim.ref.index, SMALL)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def play(
    scenario: Callable[[RunAhead, Attempts], Awaitable[None]],
    length: int = 5,
    *,
    may_go_on: Callable[[], bool] = lambda: True,
    **how: Any,
) -> None:
    async def inside() -> None:
        lines, attempts = Lines.of(chain(length)), Attempts(**how)
        assert lines.first is not None
        ahead = RunAhead(first_claim(STAGE, lines.first), lines, attempts, may_go_on)
        try:
            await asyncio.wait_for(scenario(ahead, attempts), PATIENCE)
        finally:
            await ahead.drop()

    asyncio.run(inside())


async def until_over(ahead: RunAhead) -> None:
    await asyncio.wait([ahead._task])


def test_what_has_ended_is_taken_in_order() -> None:
    async def scenario(ahead: RunAhead, attempts: Attempts) -> None:
        await attempts.stands.wait()
        first = await ahead.outcome()
        assert first is not None
        assert (first.claim.ref.index, first.outcome) == (0, SMALL)
        assert [ran.claim.ref.index for ran in ahead.taken_along()] == [1, 2]
        assert ahead.taken_along() == [], "the next one still runs"
        assert ahead.awaits(replace(first.claim, ref=replace(first.claim.ref, index=3)))
        assert not ahead.awaits(first.claim)
        attempts.go.set()
        last = await ahead.outcome()
        assert last is not None
        assert (last.claim.ref.index, last.began <= last.ended) == (3, True)

    play(scenario, at=3)


@pytest.mark.parametrize(
    "odd",
    [
        Outcome(failure=InvalidOutput("no")),
        Outcome(suspended=Suspended(delay=timedelta(1), output=None)),
        LARGE,
        ValueError("a defect"),
    ],
)
def test_what_did_not_simply_succeed_ends_the_run_and_is_concluded_by_itself(odd: Outcome | Exception) -> None:
    async def scenario(ahead: RunAhead, attempts: Attempts) -> None:
        await until_over(ahead)
        assert attempts.begun == [0, 1, 2]
        assert [ran.claim.ref.index for ran in ahead.taken_along()] == [0, 1]
        ran = await ahead.outcome()
        assert ran is not None
        assert (ran.defect or ran.outcome) is odd
        with pytest.raises(ValueError, match="small output"):
            ran.to_store(0.0)
        assert await ahead.outcome() is None
        assert attempts.begun == [0, 1, 2]

    play(scenario, outcomes={2: odd})


def test_it_keeps_so_far_ahead_and_goes_on_when_outcomes_are_taken() -> None:
    async def scenario(ahead: RunAhead, attempts: Attempts) -> None:
        await until_over(ahead)
        assert attempts.begun == list(range(AHEAD))
        assert len(ahead.taken_along()) == AHEAD
        await until_over(ahead)
        assert attempts.begun == list(range(AHEAD + 3))

    play(scenario, AHEAD + 3)


def test_nothing_is_begun_any_more_where_the_chain_may_not_go_on() -> None:
    left = [True, True]

    async def scenario(ahead: RunAhead, attempts: Attempts) -> None:
        await until_over(ahead)
        assert attempts.begun == [0, 1]
        assert [ran.claim.ref.index for ran in ahead.taken_along()] == [0, 1]
        assert await ahead.outcome() is None

    play(scenario, may_go_on=lambda: bool(left and left.pop()))


def test_whoever_is_cancelled_while_it_waits_cuts_the_call_off() -> None:
    async def scenario(ahead: RunAhead, attempts: Attempts) -> None:
        waiting = asyncio.create_task(ahead.outcome())
        await attempts.stands.wait()
        await asyncio.wait([waiting], timeout=0)  # it has begun to wait
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert attempts.cut_off
        assert not ahead.awaits(first_claim(STAGE, chain(1)[0]))

    play(scenario, at=0)


def test_what_is_stored_says_how_long_ago_it_was() -> None:
    async def scenario(ahead: RunAhead, attempts: Attempts) -> None:
        await until_over(ahead)
        (ran,) = ahead.taken_along()
        stored = ran.to_store(ran.ended + 2.0)
        assert (stored.index, stored.artifact) == (0, None)
        assert stored.ended == pytest.approx(2.0)
        assert stored.output is not None
        assert (stored.output.body, stored.began >= stored.ended) == (b'{"n":1}', True)

    play(scenario, 1)


@pytest.mark.parametrize(("at", "ended"), [(None, 5), (3, 3)])
def test_steps_that_only_compute_are_let_end_and_none_that_waits(at: int | None, ended: int) -> None:
    async def scenario(ahead: RunAhead, attempts: Attempts) -> None:
        while attempts.begun[-1:] != [4 if at is None else at]:  # a busy machine may need several moments
            await ahead.settle()
        await ahead.settle()
        assert len(ahead.taken_along()) == ended

    play(scenario, at=at)
