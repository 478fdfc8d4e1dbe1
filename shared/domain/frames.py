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

_frame: ContextVar[FunctionType | None] = ContextVar("planq.attempt", default=None)
"""That of the attempt which runs in this context; threads and tasks are started with a copy of it."""


async def _named(work: Coroutine[Any, Any, T], frame: FunctionType) -> T:
    _frame.set(frame)  # for good: whatever else runs in this context is an attempt, too
    return await work


def _called(work: Callable[[], T]) -> T:
    return work()


_GLOBALS = {"_frame": _frame}


def under_name(place: StepRef | UUID, attempt: int, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Return a coroutine that awaits `work` in a frame that is named after an attempt at a step or stage."""
    job, at = (place.job_id, f"{place.round}:{place.index}") if isinstance(place, StepRef) else (place, "0:-1")
    frame = FunctionType(_named.__code__.replace(co_name=f"planq:{job}:{at}:{attempt}"), _GLOBALS)
    started: Coroutine[Any, Any, T] = frame(work, frame)
    return started


def under_same_name(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """Return a coroutine, for a task of its own, that awaits `work` in a frame named as that of this context."""
    frame = _frame.get()
    return work if frame is None else frame(work, frame)


def under_its_name(work: Callable[[], T]) -> T:
    """Call `work` in a frame that is named after the attempt to which this context belongs, where it does to one."""
    if (frame := _frame.get()) is None:
        return work()
    done: T = FunctionType(_called.__code__.replace(co_name=frame.__code__.co_name), {})(work)
    return done
