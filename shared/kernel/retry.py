"""What becomes of an attempt that broke off: another try, a question to a person, or the end.

docs/decisions.md, D10, says what is tried again. Exponential backoff with full jitter (Brooker, "Exponential Backoff
and Jitter", AWS 2015): the delay is drawn from zero to the exponential bound, so that steps which failed together do
not return together. The draw is an argument.

An `unsafe` call that may have taken effect is never simply repeated: its tool's `Recovery` decides. This is the one
place that does, for a living worker, for one that stops, and for the sweeper that speaks for a dead one.

What was in flight when a worker was lost is suspected of having killed it. From its second loss in a row on it runs
in quarantine, in groups that each further loss makes smaller (`apart`). The loss is charged only to what was alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.questions import OUTCOME_SCHEMA, StepQuestion
from planq.shared.kernel.states import UNSTARTED_STEP, Effect, QuestionKind, Recovery, StepStatus
from planq.shared.platform.errors import (
    AuthFailed,
    ErrorRecord,
    HostBusy,
    InvalidArguments,
    OutcomeUnknown,
    PolicyDenied,
    RateLimited,
    ToolFailed,
    UnknownTool,
    Unreached,
    UnreadableReply,
    WorkerLost,
    capped,
)
from planq.shared.platform.values.backoff import pause_after

_WITHOUT_EFFECT = frozenset({RateLimited.code, HostBusy.code, ToolFailed.code, Unreached.code})
"""Retryable errors after which an unsafe call is known not to have taken effect."""

_NEVER_MADE = frozenset({AuthFailed.code, InvalidArguments.code, PolicyDenied.code, UnknownTool.code})
"""Errors of calls that were refused before they could take effect."""

_PATIENT_RETRIES = 6
"""Least extra attempts where an input could not be read: about half a minute, and the tool has not been called."""

_FIND_OUT_RETRIES = 3
"""Attempts beyond the tool's own retries in which it may find out whether a call took effect: one, and two retries,
as for a read."""

LONGEST_WAITED = timedelta(hours=1)
"""Maximum sum of the waits that a tool's other side may ask for without using up the step's retries."""

WAITED = "waited_seconds"
"""The detail of a step's error that has this sum."""

_STILL_ON_ITS_WAY = timedelta(seconds=2)
"""How long a call that broke off may still be taking effect on the other side; nobody finds out earlier."""


_GROUPS = 4
"""Into how many groups the company of a loss is divided. An innocent attempt in a company of n is then lost log4(n)
times more, rounded up, at most: 5 times of 300. One by one they would wait for the sum of their times, 300 of a
minute for five hours; with two groups it would take more losses until the guilty one is alone."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of the wait between two attempts."""

    base: timedelta = timedelta(seconds=0.5)
    cap: timedelta = timedelta(seconds=60)

    def delay_before(self, attempt: int, jitter: float) -> timedelta:
        """Return the wait before `attempt` (2 is the first retry); `jitter` is a uniform draw from [0, 1)."""
        seconds = pause_after(attempt - 1, self.base.total_seconds(), self.cap.total_seconds())
        return timedelta(seconds=seconds) * jitter


class RetryTerms(BaseModel):
    """What a tool says about further attempts; its definition, a step and a claim have it as one value.

    `retries` counts extra attempts.
    """

    model_config = ConfigDict(frozen=True)

    retries: int = Field(default=0, ge=0, le=100)


class StepAttempt(Protocol):
    """An attempt at a step, as its worker or the sweeper knows it; see `StepClaim`."""

    @property
    def ref(self) -> StepRef: ...
    @property
    def tool_name(self) -> str: ...
    @property
    def effect(self) -> Effect: ...
    @property
    def recovery(self) -> Recovery: ...
    @property
    def attempt(self) -> int: ...
    @property
    def tries(self) -> int: ...
    @property
    def retry(self) -> RetryTerms: ...
    @property
    def worker_losses(self) -> int: ...
    @property
    def in_doubt(self) -> bool: ...


_MODEL_POLICY = RetryPolicy(timedelta(seconds=1), timedelta(seconds=10))
"""Of stages: what waits for a model goes on within ten seconds of its return, half of it sooner than in five."""


_UNREADABLE_TRIES = 3
"""Tries of a stage whose model's replies cannot be read; each of them asks as often as a call may be sent."""


@dataclass(frozen=True, slots=True)
class StageTries:
    """Tries at one stage of a job that its model's passing failures ended: how many, and how many requests they sent.

    `seconds` is how long they took, together with the waits after them; what a job is paused for does not count.
    `awaits` are the models at whose open circuits the stage waits for its turn.
    """

    tries: int = 0
    requests: int = 0
    seconds: float = 0.0
    awaits: tuple[str, ...] = ()


NOT_TRIED = StageTries()


class Phase(StrEnum):
    """How far an attempt had come when it broke off."""

    PREPARING = "preparing"
    FINDING_OUT = "finding_out"
    CALLING = "calling"
    GATHERED = "joined"  # the tool has seen how its child jobs came out, and failed with that


@dataclass(frozen=True, slots=True)
class RunAgain:
    """The step is tried again after `delay`; with `in_doubt` its tool finds out first whether it has taken effect.

    `anew`: its child jobs have failed, so it delegates again. Otherwise a step that has joined only gathers again.
    `is_wait`: the other side only asked for a wait, so the attempt does not count.
    """

    error: ErrorRecord
    delay: timedelta
    in_doubt: bool = False
    anew: bool = False
    is_wait: bool = False


@dataclass(frozen=True, slots=True)
class AskPerson:
    """The step waits until a person has said whether the call took effect."""

    error: ErrorRecord
    question: StepQuestion


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The step has failed for good."""

    error: ErrorRecord


Next = RunAgain | AskPerson | GiveUp


def retry_delay(
    error: ErrorRecord,
    *,
    effect: Effect,
    attempt: int,
    retries: int,
    jitter: float,
    retry_after: timedelta | None = None,
) -> timedelta | None:
    """Return how long to wait before the next attempt, or None when there is to be none.

    None when the error is not retryable, when `attempt` was the last of `1 + retries`, or when an `unsafe` call broke
    off and its effect may have happened: such a call is repeated only where the other side refused it (a rate limit)
    or the tool itself says that it may be. `retry_after`, the other side's wish, is a floor. Attempts cut off by
    a lost worker are judged by `after_loss` and do not count in `attempt`.
    """
    if not error.retryable or attempt > retries:
        return None
    if effect is Effect.UNSAFE and error.code not in _WITHOUT_EFFECT:
        return None
    delay = RetryPolicy().delay_before(attempt + 1, jitter)
    return max(delay, retry_after) if retry_after is not None else delay


def after_error(
    step: StepAttempt,
    error: ErrorRecord,
    *,
    phase: Phase,
    jitter: float,
    retry_after: timedelta | None = None,
    time_left: timedelta | None = None,
    waited: timedelta = timedelta(0),
) -> Next:
    """Decide after an attempt that ended by an error, or that its living worker had to let go.

    A wait that the other side asks for (`retry_after`) is no attempt, until it and what the step has `waited` for it
    before are longer than `LONGEST_WAITED`. `jitter` is a uniform draw from [0, 1). A wait for which the plan has no
    `time_left` (None: not known) is not begun: the step fails at once, with the cause instead of a time-out.
    """
    if retry_after is not None:
        # At least a back-off over all attempts, so that a server which asks for no time is not asked without an end.
        retry_after = max(retry_after, RetryPolicy().delay_before(step.attempt + 1, jitter))
    is_wait = retry_after is not None and waited + retry_after <= LONGEST_WAITED
    decided = _after_error(step, error, phase, jitter, retry_after, is_wait=is_wait)
    if not isinstance(decided, RunAgain):
        return decided
    if time_left is not None and decided.delay >= time_left:
        return GiveUp(_too_late(decided, time_left))
    waited += decided.delay if decided.is_wait else timedelta(0)
    if not waited:
        return decided
    details = {**decided.error.details, WAITED: waited.total_seconds()}
    return replace(decided, error=replace(decided.error, details=details))


class LostAttempt(StepAttempt, Protocol):
    """An attempt whose worker was lost; see `LostStep`."""

    @property
    def company(self) -> int: ...


def after_loss(step: LostAttempt, max_losses: int) -> Next:
    """Decide after the worker of an attempt was lost; `step.worker_losses` counts the losses charged before.

    Only an attempt that was alone in its worker is charged. What may be repeated is, until `max_losses` are charged:
    it is what kills them then. The error of a step that is given up says how many losses and attempts there were.
    """
    is_charged = step.company == 1
    losses = step.worker_losses + is_charged
    is_spared = losses < max_losses or not is_charged
    history: dict[str, Any] = {"losses": losses, "attempts": step.attempt}
    beside = "" if is_charged else f" with {step.company - 1} others in it; whether this step did it is not known"
    if step.effect is not Effect.UNSAFE:
        if is_spared:
            lost = WorkerLost(f"the worker of attempt {step.attempt} was lost{beside}", **history)
            return RunAgain(ErrorRecord.of(lost), timedelta(0))
        given_up = f"the workers of {losses} attempts were lost while this step ran; it is given up"
        return GiveUp(ErrorRecord.of(WorkerLost(given_up, **history)))
    unknown = f"the worker was lost while the unsafe tool {step.tool_name!r} ran; whether it took effect is unknown"
    if step.recovery is Recovery.ASK:
        return _ask(step, ErrorRecord.of(OutcomeUnknown(unknown, **history)))
    if step.recovery is Recovery.FIND_OUT and is_spared:
        return RunAgain(ErrorRecord.of(OutcomeUnknown(unknown, **history)), _STILL_ON_ITS_WAY, in_doubt=True)
    return GiveUp(ErrorRecord.of(OutcomeUnknown(f"{unknown}, so it is not repeated", **history)))


def apart(company: Sequence[T], groups: int = _GROUPS) -> list[Sequence[T]]:
    """Divide what was in flight when a worker was lost into groups that run again apart from each other.

    None is empty, and neighbours stay neighbours: in the order of their tools, attempts at one that always kills are
    together, and hold up few others.
    """
    parts = min(groups, len(company))
    cuts = [round(len(company) * part / parts) for part in range(parts + 1)] if parts else []
    return [company[start:end] for start, end in pairwise(cuts)]


def after_model_error(
    tried: StageTries,
    error: ErrorRecord,
    *,
    jitter: float,
    patience: timedelta,
    retry_after: timedelta | None = None,
    time_left: timedelta | None = None,
    turn: timedelta | None = None,
) -> RunAgain | GiveUp:
    """Decide after a try at a stage that its model has failed; `tried` counts that one, too.

    The stage is tried again, later each time, as long as all of it takes no longer than `patience` (0: never): the
    last try is made when that is over. `turn`, at an open circuit, takes the place of the back-off. `retry_after`,
    the other side's wish, is a floor. No wait is begun that does not fit into what is left of the patience, or
    into the job's `time_left` (None: no end). The error of a stage that is given up tells of all its tries; one
    that would only come again is not changed. A reply that cannot be read is no outage: its stage is tried
    `_UNREADABLE_TRIES` times.
    """
    left = patience - timedelta(seconds=tried.seconds)
    if not error.retryable or not patience:
        return GiveUp(error if tried.tries <= 1 else _with_tries(tried, error, ""))
    backoff = _MODEL_POLICY.delay_before(tried.tries + 1, jitter) if turn is None else turn
    delay = min(backoff, max(left, timedelta(0)))
    if time_left is not None:
        delay = min(delay, time_left / 2)  # time must be left for the try itself
    if retry_after is not None:
        delay = max(delay, retry_after)
    if error.code == UnreadableReply.code and tried.tries >= _UNREADABLE_TRIES:
        why = f"such a reply is asked for {_UNREADABLE_TRIES} times at most"
    elif left <= timedelta(0) or delay > left:
        why = f"it is tried again for {patience.total_seconds():g} s at most"
    elif time_left is not None and time_left <= max(delay, _MODEL_POLICY.base):
        why = f"the job ends in {max(time_left.total_seconds(), 0.0):.0f} s"
    else:
        return RunAgain(error, delay)
    wish = "" if retry_after is None else f", and it asks for a wait of {retry_after.total_seconds():.0f} s"
    return GiveUp(_with_tries(tried, error, f" ({why}{wish})"))


def _with_tries(tried: StageTries, error: ErrorRecord, why: str) -> ErrorRecord:
    message = error.message
    if tried.tries > 1:
        message = f"the model failed {tried.tries} times in {tried.seconds:.0f} s, the last time: {message}"
    history = {
        "attempts": tried.tries,
        "requests": tried.requests,
        "seconds": round(tried.seconds, 1),
        "last_answer": error.message,
    }
    return ErrorRecord(error.code, capped(f"{message}{why}"), error.retryable, {**error.details, **history})


def may_have_taken_effect(
    status: StepStatus, effect: Effect, error_code: str | None, *, is_begun: bool, is_in_doubt: bool
) -> bool:
    """True when a step without success may have done for good what must not be done twice.

    So it is with an `unsafe` call that was cut off with its job, or that ended by an error which does not say that
    nothing happened. `is_begun` says that an attempt has begun which was not given back; `is_in_doubt` that an
    earlier one may have taken effect, and so it is also with a step that was skipped before its tool could find out.
    """
    if effect is not Effect.UNSAFE or not status.is_terminal or status is StepStatus.SUCCEEDED:
        return False
    return is_in_doubt or (
        status is not StepStatus.SKIPPED and is_begun and error_code not in _WITHOUT_EFFECT | _NEVER_MADE
    )


def is_in_doubt(
    status: StepStatus, effect: Effect, error_code: str | None, *, is_begun: bool, is_in_doubt: bool
) -> bool:
    """True when another job must not do what a step does, because it may have been done or is being done.

    As `may_have_taken_effect`, and also while an `unsafe` step runs, waits, or is about to find out. A success is no
    doubt. What such a step does under its own idempotency key, nobody finds out under that of another job.
    """
    is_open = is_in_doubt if status in UNSTARTED_STEP else not status.is_terminal
    if effect is Effect.UNSAFE and is_open:
        return True
    return may_have_taken_effect(status, effect, error_code, is_begun=is_begun, is_in_doubt=is_in_doubt)


def _after_error(
    step: StepAttempt,
    error: ErrorRecord,
    phase: Phase,
    jitter: float,
    retry_after: timedelta | None,
    *,
    is_wait: bool,
) -> Next:
    is_called = phase in (Phase.CALLING, Phase.GATHERED)
    if step.effect is Effect.UNSAFE:
        if not is_called and step.in_doubt:
            return _in_doubt(step, error, phase, jitter, retry_after, is_wait=is_wait)
        if is_called and error.code not in _WITHOUT_EFFECT | _NEVER_MADE:
            return _after_cut_off(step, error, jitter)
    delay = retry_delay(
        error,
        effect=step.effect if is_called else Effect.READ,
        attempt=_tries_of(step, is_wait=is_wait),
        retries=step.retry.retries if is_called else max(step.retry.retries, _PATIENT_RETRIES),
        jitter=jitter,
        retry_after=retry_after,
    )
    if delay is None:
        return GiveUp(error)
    return RunAgain(error, delay, anew=phase is Phase.GATHERED, is_wait=is_wait)


def _tries_of(step: StepAttempt, *, is_wait: bool) -> int:
    """Return the tries that count, this one included unless it only learned that it has to wait."""
    return step.tries - is_wait


def _after_cut_off(step: StepAttempt, error: ErrorRecord, jitter: float) -> Next:
    """An unsafe call broke off, and may have taken effect."""
    if step.recovery is Recovery.ASK:
        return _ask(step, error)
    if step.recovery is Recovery.FAIL:
        return GiveUp(error)
    if step.tries > step.retry.retries + _FIND_OUT_RETRIES:
        return GiveUp(_unknown(step, error))
    delay = RetryPolicy().delay_before(step.tries + 1, jitter)
    return RunAgain(_unknown(step, error), max(delay, _STILL_ON_ITS_WAY), in_doubt=True)


def _in_doubt(
    step: StepAttempt,
    error: ErrorRecord,
    phase: Phase,
    jitter: float,
    retry_after: timedelta | None,
    *,
    is_wait: bool,
) -> Next:
    unknown = _unknown(step, error)
    patience = _FIND_OUT_RETRIES if phase is Phase.FINDING_OUT else _PATIENT_RETRIES
    delay = retry_delay(
        error,
        effect=Effect.READ,
        attempt=_tries_of(step, is_wait=is_wait),
        retries=step.retry.retries + patience,
        jitter=jitter,
        retry_after=retry_after,
    )
    return GiveUp(unknown) if delay is None else RunAgain(unknown, delay, in_doubt=True, is_wait=is_wait)


def _unknown(step: StepAttempt, error: ErrorRecord) -> ErrorRecord:
    if error.code == OutcomeUnknown.code:
        return error
    message = f"whether the unsafe tool {step.tool_name!r} took effect is not known: {error.message}"
    return ErrorRecord.of(OutcomeUnknown(message, cause=error.code))


def _ask(step: StepAttempt, error: ErrorRecord) -> AskPerson:
    """Return the question about a call; its key is what the other side of the call knows it by."""
    details = {
        "tool_name": step.tool_name,
        "idempotency_key": f"{step.ref.job_id}/{step.ref.index}",
        "attempt": step.attempt,
        "code": error.code,
    }
    message = (
        f"The call of {step.tool_name} was cut off ({error.message}). Did it take effect? "
        "Look it up by its idempotency key where the tool's other side keeps that."
    )
    return AskPerson(error, StepQuestion(QuestionKind.OUTCOME, message, OUTCOME_SCHEMA, details=details))


def _too_late(again: RunAgain, time_left: timedelta) -> ErrorRecord:
    error = again.error
    wait, left = again.delay.total_seconds(), max(time_left.total_seconds(), 0.0)
    message = f"{error.message} (tried again in {wait:.0f} s at the earliest, and the plan ends in {left:.0f} s)"
    return ErrorRecord(error.code, capped(message), error.retryable, error.details)
