"""What an orchestration may use up: how deep, how many steps, how many agents at once, how long.

Defaults and depth: docs/decisions.md, D11 and D12. An operator's settings are the caps; a request can only lower
them, and zero or less is refused, never "unlimited". What it asks for above a cap is lowered to it (case oc-062),
and that is told as a warning. Cases orchestrate_compile (`derive_limits`) and orchestrate_engine (`parallel_limit`,
`step_timeout`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from shared.domain.errors import InvalidRequest
from shared.domain.limits import Limits
from shared.domain.model_names import check_model_name
from shared.domain.schemas import excerpt
from worker.agents.orchestration.defects import MAX_TIMEOUT_MS, Defect

DEPTH_EXCEEDED = "agent orchestrator maximum depth exceeded"
"""Case oe-094."""


@dataclass(frozen=True, slots=True)
class OrchestrateLimits:
    """The bounds of one orchestration.

    `max_depth` is the depth from which on no agent may call another (the outermost job has depth 0), `max_steps`
    bounds the steps of a plan (the agents of a group do not count), `max_parallel` the agents of a group that run at
    once, and `default_timeout_ms` is what an agent gets that names no time of its own.
    """

    max_depth: int = 3
    max_steps: int = 12
    max_parallel: int = 4
    default_timeout_ms: int = 60_000

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """Return what a job's limits say of orchestrations."""
        return cls(
            max_depth=limits.orchestrate_max_depth,
            max_steps=limits.orchestrate_max_steps,
            max_parallel=limits.orchestrate_max_parallel,
            default_timeout_ms=round(limits.agent_timeout_seconds * 1000),
        )

    def lowered(self, request: Mapping[str, Any]) -> Self:
        """Return these limits with a request's `max_parallel` and `timeout_ms` put lower; higher ones change nothing.

        Precondition: `request_defects` finds nothing.
        """
        wanted_parallel, wanted_timeout = request.get("max_parallel"), request.get("timeout_ms")
        return replace(
            self,
            max_parallel=min(self.max_parallel, wanted_parallel or self.max_parallel),
            default_timeout_ms=min(self.default_timeout_ms, wanted_timeout or self.default_timeout_ms),
        )

    def capped(self, caps: Self) -> Self:
        """Return these limits, none above `caps`."""
        return type(self)(*(min(getattr(self, one.name), getattr(caps, one.name)) for one in fields(self)))

    def lowerings(self, request: Mapping[str, Any]) -> list[Defect]:
        """Return what of a request is above these limits, so that `lowered` does not give it.

        Precondition: `request_defects` finds nothing.
        """
        caps = {"max_parallel": self.max_parallel, "timeout_ms": self.default_timeout_ms}
        return [_lowering(name, request[name], cap) for name, cap in caps.items() if (request.get(name) or 0) > cap]

    def group_lowerings(self, children: int, wanted: int | None, path: str) -> list[Defect]:
        """Return whether a group's own number, which stands at `path`, is above what its agents can have at once."""
        is_above = wanted is not None and min(wanted, children) > self.max_parallel
        return [_lowering(path, wanted, self.max_parallel)] if is_above else []

    def is_too_deep(self, depth: int) -> bool:
        """True when a job of this depth may call no agent any more."""
        return depth >= self.max_depth

    def parallel(self, children: int, wanted: int | None) -> int:
        """Return how many agents of a group of `children` may run at once; `wanted` is the group's own number."""
        return min(self.max_parallel, children, wanted or self.max_parallel)

    def step_timeout_ms(self, own_ms: int | None, remaining_ms: float | None = None) -> int:
        """Return what one agent gets: its own time or the default, and never more than its caller has left.

        The own time may be longer than the default (case oe-061), up to the hard cap. `remaining_ms` is None where
        the caller has no deadline; 0 is returned when that has passed: there is nothing left to begin with.
        """
        wanted = min(own_ms or self.default_timeout_ms, MAX_TIMEOUT_MS)
        return wanted if remaining_ms is None else max(0, min(wanted, int(remaining_ms)))


def request_defects(request: Mapping[str, Any]) -> list[Defect]:
    """Return what is wrong with the limits that a request asks for, and with its planner's model."""
    found = [
        Defect(name, "min", f"{name}: expected a whole number of at least 1, found {excerpt(request[name])}")
        for name in ("max_parallel", "timeout_ms")
        if request.get(name) is not None and not _is_positive(request[name])
    ]
    if request.get("planner_model") is not None:
        try:
            check_model_name(str(request["planner_model"]), allow_cassette=False)
        except InvalidRequest as error:
            found.append(Defect("planner_model", "unknown_model", f"planner_model: {error.message}"))
    return found


def _lowering(path: str, wanted: Any, cap: int) -> Defect:
    told = f"{path}: {excerpt(wanted)} is above the limit of {cap}, and {cap} is what holds; ask for at most that"
    return Defect(path, "lowered", told)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
