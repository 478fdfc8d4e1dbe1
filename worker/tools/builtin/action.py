"""`action`: an agent says something to the program around it, by a structured event of its job.

The result is `{_action_event: true, action_type, status, payload?}`. The type
`elicit` is recorded as every other; whoever listens to the job's events asks the user.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from shared.domain.errors import Cancelled
from shared.domain.states import Effect
from shared.ports import ToolContext
from worker.tools.builtin.kept import check_size, storable_json
from worker.tools.declare import tool
from worker.tools.services import ToolServices

EVENT = "action"
"""The kind of the event; its data is `{round, index, type, payload}`."""

MAX_PAYLOAD_BYTES = 16 * 1024

OUTPUT_SCHEMA = {
    "type": "object",
    "properties": {
        "_action_event": {"const": True, "description": "Always true: this is the result of an action."},
        "action_type": {"type": "string", "description": "The type that was given."},
        "status": {"const": "success"},
        "payload": {"type": "object", "description": "The payload, when one was given."},
    },
    "required": ["_action_event", "action_type", "status"],
}


@tool(effect=Effect.IDEMPOTENT, timeout_seconds=30, output_schema=OUTPUT_SCHEMA)
async def action(
    type: Annotated[
        str,
        Field(
            description="What kind of action: `observation`, `elicit` (asks the user), or a name of your own.",
            min_length=1,
            max_length=100,
        ),
    ],
    context: ToolContext,
    services: ToolServices,
    payload: Annotated[
        dict[str, Any] | None,
        Field(description="What belongs to it, at most 16 kB of JSON; such as question, options."),
    ] = None,
) -> dict[str, Any]:
    """Emit a structured event, which whoever follows the job receives; the same step emits it once."""
    check_size("action: payload", payload, MAX_PAYLOAD_BYTES)
    said = {"type": storable_json(type), "payload": storable_json(payload)}
    if not await services.memory.tell(context, EVENT, said):
        raise Cancelled("action: the attempt that emits the event is over, so nothing was emitted")
    result: dict[str, Any] = {"_action_event": True, "action_type": type, "status": "success"}
    if payload is not None:
        result["payload"] = payload
    return result
