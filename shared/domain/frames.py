"""Which attempt holds up a loop: said by the name of a function, which the stack of a frozen process shows. Pure.

A process whose interpreter is held writes nothing but its stack, from a signal handler in C. So each attempt runs
below a frame that has its name, and so does what it has done in a thread. It costs 4 µs an attempt (2026-11). To note
which one runs whenever the loop goes on would cost every resumption of every coroutine.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from types import FunctionType
from typing import Any, TypeVar
from uuid import UUID

from planq.shared.domain.jobs.ids import StepRef

T = TypeVar("T")

_name: ContextVar[str | None] = ContextVar("planq.attempt", default=None)
"""Of the attempt that runs in this context; threads are started with a copy of it."""


async def _named(work: Coroutine[Any, Any, T], name: str) -> T:
    _name.set(name)  # for good: whatever else runs in this context is an attempt, too
    return await work


def _called(work: Callable[[], T]) -> T:
    return work()


_GLOBALS = {"_name": _name}


def under_name(place: StepRef | UUID, attempt: int, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Return a coroutine that awaits `work` in a frame that is named after an attempt at a step or stage."""
    job, at = (place.job_id, f"{place.round}:{place.index}") if isinstance(place, StepRef) else (place, "0:-1")
    name = f"planq:{job}:{at}:{attempt}"
    started: Coroutine[Any, Any, T] = FunctionType(_named.__code__.replace(co_name=name), _GLOBALS)(work, name)
    return started


def under_its_name(work: Callable[[], T]) -> T:
    """Call `work` in a frame that is named after the attempt to which this context belongs, where it does to one."""
    if (name := _name.get()) is None:
        return work()
    done: T = FunctionType(_called.__code__.replace(co_name=name), {})(work)
    return done
