"""What a tree of jobs may use up together: the outermost job and everything below it share one budget.

    {"max_tokens": 50000, "max_cost_usd": 0.5, "max_model_calls": 20, "max_steps": 100, "soft": 0.8, "ask": true}

A hard limit ends the job that would pass it with `budget_exceeded`. When a share of `soft` of any limit is used or
reserved, that is told once, in an event of the outermost job; with `ask` the tree is paused then, until somebody
resumes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from planq.shared.kernel.usage import ModelCall
from planq.shared.platform.errors import BudgetExceeded, InvalidRequest
from planq.shared.platform.values.describe import excerpt

LIMITS = ("max_tokens", "max_cost_usd", "max_model_calls", "max_steps")
FIELDS = (*LIMITS, "soft", "ask")

_WHOLE_MOST = 2**31 - 1


STAGE = -1
"""The index of those who reserve for a stage of a job, and not for one of its steps."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who reserves: an attempt at a stage of a job, or at the step `index` of its `round`."""

    job_id: UUID
    attempt: int
    round: int = 0
    index: int = STAGE


@dataclass(frozen=True, slots=True)
class Price:
    """What a model call costs in US dollars: its question, and each token of its reply."""

    asked_usd: float
    token_usd: float


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """What a stage or step asks to reserve: the tokens of a question and of its reply, model calls, and steps.

    The reply may be cut to `least_tokens`. `price` is None where it is not known: then it is taken to be what the
    tree's tokens have cost so far. `call_id` is that of the call, by whose record the reservation ends. `made` are
    calls of the stage that are not recorded yet. `own` are limits of the agent's, which count for this job alone.
    With `may_ask` the tree may be paused instead, when it comes to its soft limit.
    """

    asked_tokens: int = 0
    reply_tokens: int = 0
    least_tokens: int = 0
    model_calls: int = 0
    steps: int = 0
    made: Sequence[ModelCall] = ()
    own: Mapping[str, int] = field(default_factory=dict)
    may_ask: bool = True
    price: Price | None = None
    call_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """The result of a reservation: the reply may have `reply_tokens` (None: as many as wanted).

    Nothing is granted where a limit is `exceeded` (then `most` it allows, `used` of it), the tree `is_paused`, or the
    holder `is_late`: somebody else may have its work by now.
    """

    reply_tokens: int | None = None
    exceeded: str | None = None
    most: float = 0
    used: float = 0
    is_paused: bool = False
    is_late: bool = False


def read_budget(raw: Any) -> dict[str, Any]:
    """Return a budget as it is stored; raises `InvalidRequest` that names every field that is wrong."""
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"budget: expected an object with {', '.join(FIELDS)}, found {excerpt(raw)}")
    defects = {name: f"unknown field; known are {', '.join(FIELDS)}" for name in raw if name not in FIELDS}
    defects |= {name: message for name in FIELDS if name in raw and (message := _defect(name, raw[name]))}
    if not defects and not any(name in raw for name in LIMITS):
        defects = {"": f"expected at least one of {', '.join(LIMITS)}"}
    if defects:
        errors = [{"field": f"budget.{name}".rstrip("."), "message": message} for name, message in defects.items()]
        raise InvalidRequest("; ".join(f"{one['field']}: {one['message']}" for one in errors), errors=errors)
    return dict(raw)


def _defect(name: str, value: Any) -> str | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name == "ask":
        return None if isinstance(value, bool) else f"expected true or false, found {excerpt(value)}"
    if name == "soft":
        fits = is_number and 0 < value < 1
        return None if fits else f"expected a share between 0 and 1, found {excerpt(value)}"
    if name == "max_cost_usd":
        fits = is_number and 0 < value < 1e9
        return None if fits else f"expected dollars above 0, found {excerpt(value)}"
    fits = is_number and 0 < value <= _WHOLE_MOST and float(value).is_integer()
    return None if fits else f"expected a whole number above 0, found {excerpt(value)}"


def check_reserved(wanted: ReservationRequest, reserved: Reservation) -> None:
    """Raise `BudgetExceeded` that names the limit where a reservation was refused."""
    if reserved.exceeded is None:
        return
    whose = "the agent's own limit" if reserved.exceeded in wanted.own else "the budget of the tree of jobs"
    raise BudgetExceeded(
        f"{whose} does not suffice: {reserved.exceeded} is {reserved.most:g}, and {reserved.used:g} are used or "
        "reserved; try again with a higher one",
        limit=reserved.exceeded,
        most=reserved.most,
        used=reserved.used,
    )
