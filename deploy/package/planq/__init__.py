"""planq, a durable backend for agentic jobs: what other programs import from here is all that is promised."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planq.shared.agentic.plan.planner import PlanningRequest
    from planq.shared.agentic.tools.contract import NotHappened, Question, Suspended, ToolContext
    from planq.shared.client import AsyncClient, Client, JobCancelled, JobFailed, JobPartial
    from planq.shared.platform.errors import AnswerDeclined, Cancelled, OwnershipLost, PlanqError
    from planq.worker.tools import Artifact, ToolError, ToolResponse, ToolServices, resource, tool

__all__ = [
    "AnswerDeclined",
    "Artifact",
    "AsyncClient",
    "Cancelled",
    "Client",
    "JobCancelled",
    "JobFailed",
    "JobPartial",
    "NotHappened",
    "OwnershipLost",
    "PlanningRequest",
    "PlanqError",
    "Question",
    "Suspended",
    "ToolContext",
    "ToolError",
    "ToolResponse",
    "ToolServices",
    "resource",
    "tool",
]

_CLIENT = "planq.shared.client"
_ELSEWHERE = {
    "AsyncClient": _CLIENT,
    "Client": _CLIENT,
    "JobCancelled": _CLIENT,
    "JobFailed": _CLIENT,
    "JobPartial": _CLIENT,
    "PlanningRequest": "planq.shared.agentic.plan.planner",
    "PlanqError": "planq.shared.platform.errors",
}


def __getattr__(name: str) -> Any:
    # Only who uses a name pays for its import: every process of planq begins with this module.
    if name in __all__:
        return getattr(import_module(_ELSEWHERE.get(name, "planq.worker.tools")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
