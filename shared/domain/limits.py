"""What a job may use up. Defaults are readings row 11; a request can only lower them, and zero is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from shared.domain.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one job.

    `max_tool_steps` bounds a plan made by a model; `max_plan_steps` bounds a plan sent by the caller.
    `plan_timeout_seconds` runs from the acceptance of the plan; the time that steps spend in durable timers is added.
    `step_timeout_seconds` caps every step's own timeout (60 s where its tool names none).
    `queue_timeout_seconds` bounds the time before a worker begins the job, `job_timeout_seconds` its whole life from
    then on measured from its submission, `human_wait_seconds` how long a step waits for a person. The time that steps
    wait in timers or for a person, and the time a job is paused, counts against neither the plan's nor the job's.
    Of agents that call agents, none may at the depth `orchestrate_max_depth` or below it (the outermost job has 0);
    an orchestration has at most `orchestrate_max_steps` steps and runs `orchestrate_max_parallel` agents at once; an
    agent gets `agent_timeout_seconds` where its caller names no time.
    """

    max_tool_steps: int = 10
    max_plan_steps: int = 10_000
    plan_timeout_seconds: float = 300.0
    step_timeout_seconds: float = 300.0
    queue_timeout_seconds: float = 86_400.0
    job_timeout_seconds: float = 604_800.0
    human_wait_seconds: float = 86_400.0
    orchestrate_max_depth: int = 3
    orchestrate_max_steps: int = 12
    orchestrate_max_parallel: int = 4
    agent_timeout_seconds: float = 60.0

    def lowered(self, wanted: Mapping[str, Any]) -> Self:
        """Return these limits with the given ones put lower.

        Raises `InvalidRequest` for an unknown name, a value that is no positive number, and a value above the limit.
        """
        known = {field.name for field in fields(self)}
        changed: dict[str, Any] = {}
        for name, value in wanted.items():
            if name not in known:
                raise InvalidRequest(f"unknown limit {name!r}; known limits are {', '.join(sorted(known))}")
            present = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise InvalidRequest(f"limit {name}: expected a number above 0, found {value!r}")
            if isinstance(present, int) and not float(value).is_integer():
                raise InvalidRequest(f"limit {name}: expected a whole number, found {value!r}")
            if value > present:
                raise InvalidRequest(
                    f"limit {name}: a request can only lower it; expected at most {present:.15g}, found {value:.15g}"
                )
            changed[name] = int(value) if isinstance(present, int) else float(value)
        return type(self)(**{**asdict(self), **changed})

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read the stored form; a missing name gets its default, one of a newer release is not ours to enforce."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in known})
