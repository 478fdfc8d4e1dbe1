"""The planners of installed packages: found by their entry points, and asked in the place of a model.

A decision goes the way of a model's reply, as a call of `__planning__`, so that the same reading and the same checks
follow and the same record is kept. Nothing is trusted: a planner has a time-out, and what it returns is copied.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import uuid4

from planq.shared.agentic.models.contract import CutOff
from planq.shared.agentic.models.exchange import ModelFailed, ModelReply, ToolCallRequest
from planq.shared.agentic.plan.interpret import PLANNING_TOOL_NAME
from planq.shared.agentic.plan.planner import OwnPlanner, PlanningRequest
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.errors import (
    Cancelled,
    ErrorRecord,
    ExecutionFailed,
    InternalFault,
    InvalidArguments,
    InvalidOutput,
    Misconfigured,
    TimedOut,
    capped,
)
from planq.shared.platform.values.describe import excerpt

PLANNERS_GROUP = "planq.planners"

_SECONDS = 60.0
_MAX_DECISION_CHARS = 1_000_000


class InstalledPlanners:
    def __init__(
        self,
        planners: Mapping[str, OwnPlanner],
        *,
        seconds: float = _SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._planners = dict(planners)
        self._seconds = seconds
        self._clock = clock

    @property
    def names(self) -> list[str]:
        return sorted(self._planners)

    async def decide(self, name: str, request: PlanningRequest, *, cut_off: CutOff | None = None) -> ModelReply:
        """Call a planner; return its decision as a call of `__planning__`, or raise `ModelFailed`."""
        started = self._clock()

        def record(error: ExecutionFailed | None) -> ModelCall:
            return ModelCall(
                purpose=Purpose.PLAN,
                model=f"planner:{capped(name, 100)}",
                latency_ms=round((self._clock() - started) * 1000),
                cost_usd=Decimal(0),
                error=None if error is None else ErrorRecord.of(error),
                id=uuid4(),
            )

        try:
            decision = await self._decision(name, request)
        except ExecutionFailed as error:
            raise ModelFailed(error, record(error)) from error
        except asyncio.CancelledError:
            if cut_off is not None:
                cut_off(record(Cancelled("the planner was cut off: its job had ended, or its worker stopped")))
            raise
        return ModelReply("", [ToolCallRequest(PLANNING_TOOL_NAME, decision)], record(None))

    async def _decision(self, name: str, request: PlanningRequest) -> Mapping[str, Any]:
        shown = repr(capped(name, 80))
        planner = self._planners.get(name)
        if planner is None:
            known = ", ".join(self.names) or "none"
            raise InvalidArguments(f"loop/planner: no planner {shown} is installed here; there are {known}")
        try:
            async with asyncio.timeout(self._seconds):
                decided: Any = await planner.plan(request)
        except ExecutionFailed:
            raise
        except TimeoutError as error:
            raise TimedOut(f"planner {shown} took more than {self._seconds:g} s") from error
        except Exception as error:
            message = capped(f"{type(error).__name__}: {error}", 500)
            raise InternalFault(f"planner {shown} raised {message}") from error
        return _checked(decided, shown)


def _checked(decided: Any, shown: str) -> Mapping[str, Any]:
    if not isinstance(decided, Mapping):
        raise InvalidOutput(f"planner {shown} returned {excerpt(decided)}; expected an object with a type")
    try:
        text = json.dumps(decided, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidOutput(f"planner {shown} returned what is no JSON: {capped(str(error), 200)}") from error
    if len(text) > _MAX_DECISION_CHARS:
        raise InvalidOutput(
            f"planner {shown} returned {len(text)} characters; at most {_MAX_DECISION_CHARS} are read"
        )
    found: Mapping[str, Any] = json.loads(text)
    return found


@dataclass(frozen=True, slots=True)
class _Function:
    plan: Any


def load_planners(group: str = PLANNERS_GROUP) -> InstalledPlanners:
    """Return the planners of all installed entry points: async functions `plan(request)`, or objects with one."""
    found: dict[str, OwnPlanner] = {}
    for entry in sorted(importlib.metadata.entry_points(group=group), key=lambda entry: entry.name):
        place = f"entry point {group}:{entry.name} ({entry.value})"
        if entry.name in found:
            raise Misconfigured(f"{place}: another package offers a planner of this name")
        found[entry.name] = _planner(entry, place)
    return InstalledPlanners(found)


def _planner(entry: importlib.metadata.EntryPoint, place: str) -> OwnPlanner:
    try:
        loaded = entry.load()
        made = loaded() if inspect.isclass(loaded) else loaded
    except Exception as error:
        raise Misconfigured(f"{place} cannot be loaded: {type(error).__name__}: {capped(str(error), 300)}") from error
    planner: Any = _Function(made) if inspect.isroutine(made) else made
    if not inspect.iscoroutinefunction(getattr(planner, "plan", None)):
        raise Misconfigured(
            f"{place}: expected an async function plan(request), or an object with one; found {made!r}"
        )
    found: OwnPlanner = planner
    return found
