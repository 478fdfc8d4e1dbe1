"""`cp__call_agent`: one agent does something, as a step of an orchestration or of any plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from shared.domain.errors import InvalidArguments
from shared.ports import ChildOutcome, ChildRequest, Delegated, ToolContext
from worker.agents.definitions import CALL_PROPERTIES, TEXTS, define
from worker.agents.desk import AgentServices, tell_of
from worker.agents.journal import tell_progress
from worker.agents.orchestration.compiling import CALL_AGENT
from worker.agents.orchestration.defects import render
from worker.agents.orchestration.merging import Status
from worker.agents.orchestration.request import AgentRequest, agent_request
from worker.agents.orchestration.templates import restored
from worker.agents.outcomes import failure_of, output_of, status_of

_OUTPUT = {
    "type": "object",
    "required": ["output", "exec_id"],
    "properties": {
        "output": {"description": "What the agent answered: its object, or its text as {text}."},
        "exec_id": {"type": "string", "description": "The agent's job."},
        "agent_id": {"type": "string"},
        "action_id": {"type": "string"},
        "elapsed_ms": {"type": "integer"},
        "chained": {"description": "What came of its chained tool; null where it has none."},
    },
}


def child_request(
    raw: dict[str, Any], desk: AgentServices, context: ToolContext, *, path: str = "", key: str | None = None
) -> ChildRequest:
    """Return the child job that a call of an agent asks for; raises `InvalidArguments` naming every defect."""
    call = _restored(raw, path)
    request = agent_request(call, desk.limits(context).default_timeout_ms)
    if not isinstance(request, AgentRequest):
        raise InvalidArguments(
            f"{path}{render(request)}", error_code="InvalidArgument", errors=[defect.to_json() for defect in request]
        )
    return ChildRequest(
        agent=request.agent_id,
        input=str(call.get("prompt") or ""),
        timeout_seconds=desk.seconds(request.timeout_ms, context),
        action=str(call.get("action_id") or "").strip() or None,
        with_=call.get("with") or {},
        key=key,
    )


def _restored(raw: dict[str, Any], path: str) -> dict[str, Any]:
    """Return a call with its texts in their places: compiled plans are sound, other callers write what they like."""
    try:
        call = restored(raw, raw.get("texts") or {})
    except (LookupError, TypeError, ValueError, AttributeError):
        call = {"with": None}
    if isinstance(call.get("with", {}), dict):
        return call
    raise InvalidArguments(
        f'{path}texts: expected JSON pointers to texts of prompt and with, each with a list of {{"text": …}} or '
        '{"value": …}; leave texts out and put the text itself where it belongs',
        error_code="InvalidArgument",
    )


class CallAgent:
    """The tool; see the module."""

    def __init__(self, desk: AgentServices) -> None:
        self._desk = desk
        self.definition = define(
            CALL_AGENT,
            "Call one agent and wait for its answer. With retries, one that failed by what may pass is called anew.",
            {
                "type": "object",
                "additionalProperties": False,
                "required": ["agent_id"],
                "properties": {**CALL_PROPERTIES, "step_id": {"type": "string"}, "texts": TEXTS},
            },
            _OUTPUT,
        )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Delegate to the agent's job."""
        self._desk.check_depth(context)
        child = child_request(arguments, self._desk, context)
        if arguments.get("step_id"):
            await tell_progress(self._desk, UUID(context.job_id))
        return Delegated([child], max_parallel=1)

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        """Return `{output, exec_id, …}` of the agent; an agent that did not succeed fails the step with its error."""
        (child,) = children
        tell_of(children, context, [status_of(child)], arguments.get("step_id"))
        if status_of(child) is not Status.SUCCESS:
            raise failure_of(child)
        return {
            "output": output_of(child),
            "exec_id": str(child.job_id),
            "agent_id": child.agent or "",
            "action_id": child.action or "",
            "elapsed_ms": child.elapsed_ms,
            "chained": child.chained,
        }
