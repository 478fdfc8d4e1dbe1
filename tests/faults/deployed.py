"""The tool of a new deployment: workers that were started before do not have it."""

from __future__ import annotations

from planq.worker.tools import ToolContext, tool
from tests.faults.tools import OUTPUT, entered


@tool(effect="unsafe", output_schema=OUTPUT)
async def deployed_greet(name: str, context: ToolContext) -> dict[str, str]:
    """Greet somebody, once."""
    entered(context)
    return {"text": f"Hello {name}"}
