"""Which attempt holds up a loop: said by the name of a function, which the stack of a frozen process shows. Pure.

A process whose interpreter is held writes nothing but its stack, from a signal handler in C. So each attempt runs
below a frame that has its name. It costs 4 µs an attempt (2026-11). To note which one runs whenever the loop goes on
would cost every resumption of every coroutine.
"""

from __future__ import annotations

from collections.abc import Coroutine
from types import FunctionType
from typing import Any, TypeVar
from uuid import UUID

from shared.domain.jobs.ids import StepRef

T = TypeVar("T")


async def _named(work: Coroutine[Any, Any, T]) -> T:
    return await work


def under_name(place: StepRef | UUID, attempt: int, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Return a coroutine that awaits `work` in a frame that is named after an attempt at a step or stage."""
    job, at = (place.job_id, f"{place.round}:{place.index}") if isinstance(place, StepRef) else (place, "0:-1")
    code = _named.__code__.replace(co_name=f"planq:{job}:{at}:{attempt}")
    started: Coroutine[Any, Any, T] = FunctionType(code, {})(work)
    return started
