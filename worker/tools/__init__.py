"""The tools room: how a Python function or an MCP server becomes a `Tool`.

Tool authors need only what is exported here: `@tool` for a typed function, `@resource` for what its calls share,
`ToolError` to report a failure, and the
two types that a function may ask for in its signature, `ToolContext` (who calls) and `ToolServices` (what this
process offers); `ToolResponse` wraps an artifact, `NotHappened` is what a `find_out` function may answer,
`OwnershipLost` what `ToolContext.confirm` raises, and `AnswerDeclined` and `Cancelled` what `ToolContext.ask` raises.
Nothing here knows the engine, the store or Celery.
"""

from planq.shared.domain.errors import AnswerDeclined, Cancelled, OwnershipLost
from planq.shared.ports import NotHappened, Suspended, ToolContext
from planq.worker.tools.declare import tool
from planq.worker.tools.errors import ToolError
from planq.worker.tools.resources import resource
from planq.worker.tools.response import ToolResponse
from planq.worker.tools.services import ToolServices

__all__ = [
    "AnswerDeclined",
    "Cancelled",
    "NotHappened",
    "OwnershipLost",
    "Suspended",
    "ToolContext",
    "ToolError",
    "ToolResponse",
    "ToolServices",
    "resource",
    "tool",
]
