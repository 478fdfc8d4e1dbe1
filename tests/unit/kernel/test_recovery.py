"""What becomes of attempts that broke off: nothing `unsafe` is repeated blindly, and everything comes to an end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil, log
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.questions import OUTCOME_SCHEMA
from planq.shared.kernel.retry import (
    AskPerson,
    GiveUp,
    Next,
    Phase,
    RetryTerms,
    RunAgain,
    after_error,
    after_loss,
    apart,
)
from planq.shared.kernel.states import Effect, QuestionKind, Recovery
from planq.shared.platform.errors import (
    AuthFailed,
    Cancelled,
    ErrorRecord,
    ExecutionFailed,
    InternalFault,
    InvalidArguments,
    InvalidOutput,
    OutcomeUnknown,
    PolicyDenied,
    RateLimited,
    TimedOut,
    ToolFailed,
    Transient,
    UnknownTool,
)

JOB = UUID("0193a1b2-0000-7000-8000-000000000001")
REF = StepRef(JOB, 0, 2)
MAY_HAVE_HAPPENED: list[type[ExecutionFailed]] = [
    TimedOut,
    Transient,
    InternalFault,
    InvalidOutput,
    OutcomeUnknown,
    Cancelled,
]
NOTHING_HAPPENED: list[type[ExecutionFailed]] = [
    RateLimited,
    ToolFailed,
    InvalidArguments,
    AuthFailed,
    PolicyDenied,
    UnknownTool,
]


@dataclass(frozen=True)
class Step:
    """The first attempt at step 2 of a job."""

    effect: Effect = Effect.UNSAFE
    recovery: Recovery = Recovery.FAIL
    ref: StepRef = REF
    tool_name: str = "pay"
    attempt: int = 1
    tries: int = 1
    retries: int = 0
    worker_losses: int = 0
    in_doubt: bool = False
    company: int = 1

    @property
    def retry(self) -> RetryTerms:
        return RetryTerms(retries=self.retries)


def broken_off(
    step: Step, error: type[ExecutionFailed], phase: Phase = Phase.CALLING, wish: timedelta | None = None
) -> Next:
    return after_error(step, ErrorRecord.of(error("x")), phase=phase, jitter=0.5, retry_after=wish)


@pytest.mark.parametrize("error", MAY_HAVE_HAPPENED)
def test_an_unsafe_call_that_may_have_happened_is_what_its_tool_says(error: type[ExecutionFailed]) -> None:
    failed, asked, found_out = (broken_off(Step(recovery=recovery, retries=9), error) for recovery in Recovery)

    assert failed == GiveUp(ErrorRecord.of(error("x")))
    assert isinstance(asked, AskPerson)
    assert isinstance(found_out, RunAgain)
    assert found_out.in_doubt
    assert found_out.delay >= timedelta(seconds=2), "what is still on its way has to arrive first"


@pytest.mark.parametrize("recovery", Recovery)
@pytest.mark.parametrize("error", NOTHING_HAPPENED)
def test_an_unsafe_call_without_effect_is_tried_again_or_fails(
    error: type[ExecutionFailed], recovery: Recovery
) -> None:
    record = ErrorRecord.of(error("x"))
    again = broken_off(Step(recovery=recovery, retries=1), error)

    assert again == (RunAgain(record, timedelta(seconds=0.25)) if record.retryable else GiveUp(record))
    assert broken_off(Step(recovery=recovery, tries=2, retries=1), error) == GiveUp(record)


@pytest.mark.parametrize("recovery", Recovery)
def test_a_call_that_was_never_made_is_not_in_doubt(recovery: Recovery) -> None:
    """An input could not be read: as patient as with a read."""
    decided = broken_off(Step(recovery=recovery), Transient, Phase.PREPARING)

    assert isinstance(decided, RunAgain)
    assert not decided.in_doubt
    assert broken_off(Step(recovery=recovery), UnknownTool, Phase.PREPARING) == GiveUp(
        ErrorRecord.of(UnknownTool("x"))
    )


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.FINDING_OUT])
@pytest.mark.parametrize("error", [*MAY_HAVE_HAPPENED, *NOTHING_HAPPENED])
def test_a_doubt_outlives_whatever_keeps_the_tool_from_finding_out(
    error: type[ExecutionFailed], phase: Phase
) -> None:
    """Also an error that says of a call that nothing happened: it was not the call that failed now."""
    step = Step(recovery=Recovery.FIND_OUT, in_doubt=True, tries=2)
    decided = broken_off(step, error, phase)

    assert decided.error.code == "outcome_unknown"
    assert decided.error.details == ({} if error is OutcomeUnknown else {"cause": error.code})
    assert isinstance(decided, RunAgain) is error.retryable
    assert not isinstance(decided, RunAgain) or decided.in_doubt


def test_finding_out_is_retried_like_a_read_and_then_given_up() -> None:
    step = Step(recovery=Recovery.FIND_OUT, in_doubt=True)
    decided = [broken_off(replace(step, tries=tries), Transient, Phase.FINDING_OUT) for tries in (2, 3, 4)]

    assert [type(next_) for next_ in decided] == [RunAgain, RunAgain, GiveUp]
    assert decided[-1].error.code == "outcome_unknown"


def test_a_tool_that_is_always_cut_off_and_has_never_happened_comes_to_an_end() -> None:
    tries = 1
    while isinstance(broken_off(Step(recovery=Recovery.FIND_OUT, tries=tries, retries=2), TimedOut), RunAgain):
        tries += 1

    assert tries == 6


@given(
    recovery=st.sampled_from(Recovery),
    error=st.sampled_from(MAY_HAVE_HAPPENED + NOTHING_HAPPENED),
    phase=st.sampled_from(Phase),
    tries=st.integers(1, 20),
    retries=st.integers(0, 20),
    losses=st.integers(0, 5),
    in_doubt=st.booleans(),
)
def test_no_doubt_is_ever_forgotten(
    recovery: Recovery,
    error: type[ExecutionFailed],
    phase: Phase,
    tries: int,
    retries: int,
    losses: int,
    in_doubt: bool,
) -> None:
    """Whoever runs an unsafe step again is either certain that nothing happened, or finds out first."""
    step = Step(recovery=recovery, tries=tries, retries=retries, worker_losses=losses, in_doubt=in_doubt)
    is_called = phase in (Phase.CALLING, Phase.GATHERED)
    is_certain = error in NOTHING_HAPPENED if is_called else not in_doubt

    for decided in (broken_off(step, error, phase), after_loss(step, 3)):
        if isinstance(decided, RunAgain) and not decided.in_doubt:
            assert is_certain
            assert decided.error.code != "outcome_unknown"
    assert not isinstance(after_loss(step, 3), RunAgain) or recovery is Recovery.FIND_OUT


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.READ, Effect.IDEMPOTENT])
def test_what_may_be_repeated_runs_again_after_a_loss_until_it_is_given_up_with_its_history(effect: Effect) -> None:
    step = Step(effect=effect, attempt=4)
    first, second, third = (after_loss(replace(step, worker_losses=losses), 3) for losses in (0, 1, 2))

    assert isinstance(first, RunAgain)
    assert isinstance(second, RunAgain)
    assert (first.delay, first.in_doubt) == (timedelta(0), False)
    assert isinstance(third, GiveUp)
    assert (third.error.code, third.error.details) == ("worker_lost", {"losses": 3, "attempts": 4})


def test_a_lost_unsafe_call_is_what_its_tool_says() -> None:
    failed, asked, found_out = (after_loss(Step(recovery=recovery), 3) for recovery in Recovery)

    assert isinstance(failed, GiveUp)
    assert isinstance(asked, AskPerson)
    assert found_out == RunAgain(asked.error, timedelta(seconds=2), in_doubt=True)
    assert {next_.error.code for next_ in (failed, asked, found_out)} == {"outcome_unknown"}
    worn_out = after_loss(Step(recovery=Recovery.FIND_OUT, worker_losses=2, attempt=3), 3)
    assert isinstance(worn_out, GiveUp)
    assert (worn_out.error.code, worn_out.error.details) == ("outcome_unknown", {"losses": 3, "attempts": 3})


def test_a_question_says_what_to_look_up_and_what_may_be_answered() -> None:
    decided = broken_off(Step(recovery=Recovery.ASK), TimedOut)

    assert isinstance(decided, AskPerson)
    asked = decided.question
    assert (asked.kind, asked.schema) == (QuestionKind.OUTCOME, OUTCOME_SCHEMA)
    assert OUTCOME_SCHEMA["properties"]["outcome"] == {"enum": ["happened", "did_not_happen", "unknown"]}
    assert (asked.details["tool_name"], asked.details["idempotency_key"]) == ("pay", f"{JOB}/2")
    assert "pay was cut off (x)" in asked.message


def test_a_wait_that_outlasts_the_plan_is_not_begun() -> None:
    """The other side wants an hour, and the plan has five minutes: the cause is told now, not a time-out later."""
    step = Step(effect=Effect.READ, retries=2)
    error = ErrorRecord.of(RateLimited("slow down", retry_after=timedelta(hours=1), status=429))

    def decide(time_left: timedelta | None) -> Next:
        return after_error(
            step, error, phase=Phase.CALLING, jitter=0.9, retry_after=timedelta(hours=1), time_left=time_left
        )

    noted = replace(error, details={"status": 429, "waited_seconds": 3600.0})
    assert decide(None) == decide(timedelta(hours=2)) == RunAgain(noted, timedelta(hours=1), is_wait=True)
    assert isinstance(decide(timedelta(hours=1)), GiveUp), "no time would be left for the call itself"
    short = decide(timedelta(minutes=5))
    assert isinstance(short, GiveUp)
    assert (short.error.code, short.error.details, short.error.retryable) == ("rate_limited", {"status": 429}, True)
    assert short.error.message == "slow down (tried again in 3600 s at the earliest, and the plan ends in 300 s)"


def test_a_question_waits_however_little_time_the_plan_has() -> None:
    step, error = Step(recovery=Recovery.ASK), ErrorRecord.of(TimedOut("x"))

    assert isinstance(after_error(step, error, phase=Phase.CALLING, jitter=0.0, time_left=timedelta(0)), AskPerson)


def lost_together(company: Sequence[str], guilty: set[str], max_losses: int = 3) -> tuple[Counter[str], Counter[str]]:
    """Play out what becomes of a company that was lost; returns how often each was lost, and charged with it.

    In every group the guilty kill before anybody else ends, which is the worst for these.
    """
    lost, charged = Counter[str](company), Counter[str]()
    if len(company) == 1:
        charged.update(company)
    waiting = [list(group) for group in apart(company)]
    while waiting:
        group = waiting.pop()
        alive = [one for one in group if charged[one] < max_losses]
        if not guilty.intersection(alive):
            continue
        lost.update(alive)
        for one in alive:
            step = Step(effect=Effect.READ, worker_losses=charged[one], company=len(alive))
            decided = after_loss(step, max_losses)
            charged[one] += len(alive) == 1
            assert isinstance(decided, GiveUp) == (charged[one] == max_losses)
        waiting += [list(again) for again in apart(alive)]
    return lost, charged


@given(count=st.integers(1, 400), data=st.data())
def test_an_innocent_is_never_charged_and_the_guilty_are_after_their_own_losses(
    count: int, data: st.DataObject
) -> None:
    company = [str(number) for number in range(count)]
    guilty = data.draw(st.sets(st.sampled_from(company), max_size=6))
    lost, charged = lost_together(company, guilty)

    assert {one for one, losses in charged.items() if losses} == guilty | (set(company) if count == 1 else set())
    assert {charged[one] for one in guilty} <= {3}
    innocent = [lost[one] for one in company if one not in guilty]
    assert max(innocent, default=1) <= max(1, ceil(log(count, 4) - 1e-9))


@given(count=st.integers(0, 400), groups=st.integers(1, 9))
def test_groups_are_even_and_hold_everybody_once(count: int, groups: int) -> None:
    parts = apart(range(count), groups)
    assert [one for part in parts for one in part] == list(range(count))
    sizes = [len(part) for part in parts]
    assert len(sizes) == min(count, groups)
    assert max(sizes, default=1) - min(sizes, default=1) <= 1
    assert 0 not in sizes


@pytest.mark.parametrize("recovery", [Recovery.FAIL, Recovery.FIND_OUT])
def test_an_unsafe_step_in_company_keeps_its_rule_and_is_not_charged(recovery: Recovery) -> None:
    decided = after_loss(Step(recovery=recovery, worker_losses=2, attempt=7, company=2), 3)
    assert decided.error.details == {"losses": 2, "attempts": 7}
    if recovery is Recovery.FIND_OUT:
        assert isinstance(decided, RunAgain)
        assert decided.in_doubt
    else:
        assert isinstance(decided, GiveUp)
