"""What a job may use up. Defaults: docs/decisions.md, D11; a request can only lower them, and zero is refused.

An operator may give a tenant limits of its own, lower or higher than everybody's; they are its caps then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self, TypeAlias

from planq.shared.platform.errors import InvalidRequest, capped
from planq.shared.platform.values.decoding import decode
from planq.shared.platform.values.describe import excerpt

MAX_TIMEOUT_SECONDS = 300.0
"""The hard cap of one step, and of one run of an agent (docs/decisions.md, D11)."""

MAX_LONGEST_SECONDS = 86_400.0
"""The same for a call that reports, or that a process watches which can end it."""

INLINE_OUTPUT_BYTES = 65_536
"""Largest output, in bytes of JSON, that is stored with its step. A claim and a job's document carry these."""

TenantLimits: TypeAlias = Mapping[str, Mapping[str, Any]]
"""What an operator allows single tenants in the place of everybody's limits: tenant → limit → number."""


def _limit(default: float, meaning: str) -> Any:
    """Declare a limit. The HTTP API accepts it and describes it by its `meaning`; a tenant's `limits` may have it."""
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one job.

    In `react`, `max_tool_steps` bounds the turns that call tools, and the calls of one turn. `loop_timeout_seconds`
    runs from the acceptance of the first plan. A step whose tool names no time-out has 60 s. `job_timeout_seconds` is
    measured from the submission. The time that steps wait in timers or for a person, and the time a job is paused,
    counts against neither the plan's nor the job's. Agents at the depth `orchestrate_max_depth` call no others; the
    outermost job has 0.
    """

    max_tool_steps: int = _limit(10, "Most steps of a model's plan.")
    max_plan_steps: int = _limit(10_000, "Most steps of a caller's plan.")
    max_rounds: int = _limit(20, "Most rounds of the strategy `loop`.")
    loop_timeout_seconds: float = _limit(900.0, "Over all rounds of `loop`, without the time of people.")
    plan_timeout_seconds: float = _limit(300.0, "From the acceptance of the plan to its last step.")
    step_timeout_seconds: float = _limit(300.0, "Cap of every step's own time-out.")
    queue_timeout_seconds: float = _limit(86_400.0, "Until a worker begins the job.")
    job_timeout_seconds: float = _limit(604_800.0, "The whole life of the job.")
    human_wait_seconds: float = _limit(604_800.0, "How long a step waits for a person.")
    orchestrate_max_depth: int = _limit(3, "How deeply agents that call agents are nested.")
    orchestrate_max_steps: int = _limit(12, "Steps of one orchestration.")
    orchestrate_max_parallel: int = _limit(4, "Agents of one group at once.")
    agent_timeout_seconds: float = _limit(60.0, "What a called agent gets if its caller names none.")

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

    def of_tenant(self, own: Mapping[str, Any] | None) -> Self:
        """Return these limits with those that an operator has given one tenant, None for none, in their place.

        Precondition: they come from `read_tenant_limits`.
        """
        return self if own is None else replace(self, **own)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if _IMPLIED.get(name) != value}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Read the stored form; what it neither has nor implies gets its default, an unknown name is not ours."""
        known = cls.__dataclass_fields__
        return cls(**{**_IMPLIED, **{name: value for name, value in stored.items() if name in known}})


_IMPLIED: Mapping[str, Any] = {
    "max_tool_steps": 10,
    "max_plan_steps": 10_000,
    "step_timeout_seconds": 300.0,
    "max_rounds": 20,
    "loop_timeout_seconds": 900.0,
    "orchestrate_max_depth": 3,
    "orchestrate_max_steps": 12,
    "orchestrate_max_parallel": 4,
    "agent_timeout_seconds": 60.0,
}
"""What the stored form leaves out: 220 bytes of every job. They stay as they are when a default changes, for they say
what is stored already. SQL reads the four that are not among them."""


def read_tenant_limits(raw: Any) -> TenantLimits:
    """Return the limits of single tenants, from JSON text or a decoded object:

        {"acme": {"orchestrate_max_depth": 2, "orchestrate_max_parallel": 8}}

    Raises `ValueError` that names every defect by tenant and limit.
    """
    found = _decoded(raw) if isinstance(raw, str) else raw
    if not isinstance(found, Mapping):
        raise ValueError(f'expected a JSON object {{"tenant": {{"limit": number}}}}, found {excerpt(found)}')
    defects = [defect for tenant, own in found.items() for defect in _tenant_defects(tenant, own)]
    if defects:
        raise ValueError("; ".join(defects))
    present = Limits()
    return {
        tenant: {name: int(value) if _is_whole(present, name) else float(value) for name, value in own.items()}
        for tenant, own in found.items()
    }


def _decoded(text: str) -> Any:
    if not text.strip():
        return {}
    try:
        return decode(text, is_unique=True)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected a JSON object, found {excerpt(text)}: {capped(str(error), 200)}") from None


def _tenant_defects(tenant: Any, own: Any) -> Iterator[str]:
    shown = excerpt(tenant)
    if not isinstance(tenant, str) or not tenant.strip():
        yield f"expected the name of a tenant, found {shown}"
    if not isinstance(own, Mapping):
        yield f"{shown}: expected an object with limits, found {excerpt(own)}"
        return
    for name, value in own.items():
        defect = _limit_defect(name, value)
        if defect is not None:
            yield f"{shown}: {defect}"


def _limit_defect(name: Any, value: Any) -> str | None:
    known = [field.name for field in fields(Limits)]
    if name not in known:
        return f"unknown limit {excerpt(name)}; known limits are {', '.join(sorted(known))}"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_whole = _is_whole(Limits(), name)
    wanted = "a whole number of at least 1" if is_whole else "a number above 0"
    if not is_number or not 0 < value < math.inf or (is_whole and not float(value).is_integer()):
        return f"{name}: expected {wanted}, found {excerpt(value)}"
    if name == "agent_timeout_seconds" and value > MAX_TIMEOUT_SECONDS:
        return f"{name}: expected at most {MAX_TIMEOUT_SECONDS:g}, found {excerpt(value)}"
    return None


def _is_whole(limits: Limits, name: str) -> bool:
    return isinstance(getattr(limits, name), int)
