"""`ask_agent`: one agent asks another.

Its answer is a result and no error even when the other agent fails: the one who asked can tell what went wrong and go
on without. Data is handed over as data; it is no part of what the other agent is told to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.domain.agents.chaining import shown
from shared.ports import ChildOutcome, ChildRequest, Delegated, ToolContext
from worker.agents.definitions import AGENT_ID, define
from worker.agents.desk import AgentServices, tell_of
from worker.agents.orchestration.merging import Status
from worker.agents.outcomes import error_of, output_of, status_of

_INPUT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["agent_name", "input_text"],
    "properties": {
        "agent_name": {**AGENT_ID, "description": "The agent to ask."},
        "input_text": {"type": "string", "minLength": 1, "description": "What it is asked."},
        "input_data": {"type": "object", "description": "Data that belongs to it."},
    },
}

_OUTPUT = {
    "type": "object",
    "required": ["status"],
    "properties": {
        "status": {"enum": ["success", "error"]},
        "output": {"description": "The answer: an object, or a text."},
        "text_response": {"type": ["string", "null"], "description": "The answer as text; null of a structured one."},
        "agent_schema": {"type": "string", "description": "The name of the agent."},
        "is_structured_output": {"type": "boolean"},
        "chained_tool_result": {"description": "What came of the agent's chained tool; null where it has none."},
        "exec_id": {"type": "string", "description": "The agent's job."},
        "error": {"type": "object", "description": "Why there is no answer: code and message."},
    },
}


class AskAgent:
    """The tool; see the module."""

    def __init__(self, desk: AgentServices) -> None:
        self._desk = desk
        self.definition = define("ask_agent", "Ask another agent and wait for its answer.", _INPUT, _OUTPUT)

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Delegate to the other agent's job."""
        self._desk.check_depth(context)
        child = ChildRequest(
            agent=arguments["agent_name"].strip(),
            input=arguments["input_text"],
            timeout_seconds=self._desk.seconds(None, context),
            with_=arguments.get("input_data") or {},
        )
        return Delegated([child], max_parallel=1)

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        """Return the answer, or why there is none."""
        (child,) = children
        tell_of(children, context, [status_of(child)], None)
        known = {"agent_schema": child.agent or arguments["agent_name"], "exec_id": str(child.job_id)}
        if status_of(child) is not Status.SUCCESS:
            return {"status": "error", **known, "output": "", "text_response": "", "error": error_of(child)}
        is_structured = child.output is not None
        return {
            "status": "success",
            **known,
            "output": output_of(child) if is_structured else child.answer or "",
            "text_response": None if is_structured else child.answer or "",
            "is_structured_output": is_structured,
            "chained_tool_result": shown(child.chained),
        }
