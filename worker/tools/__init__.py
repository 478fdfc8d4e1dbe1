"""The tools room: how a Python function or an MCP server becomes a `Tool`.

Tool authors need only what is exported here: `@tool` for a typed function, `@resource` for what its calls share,
`ToolError` to report a failure, and the
two types that a function may ask for in its signature, `ToolContext` (who calls) and `ToolServices` (what this
process offers); `Artifact` is what a tool returns that makes one, `Question` what `ToolContext.ask` takes,
`NotHappened` what a `find_out` function may answer, `OwnershipLost` what `ToolContext.confirm` raises, and
`AnswerDeclined` and `Cancelled` what `ToolContext.ask` raises.
Nothing here knows the engine, the store or Celery.
"""

from planq.shared.agentic.tools.contract import NotHappened, Question, Suspended, ToolContext
from planq.shared.platform.errors import AnswerDeclined, Cancelled, OwnershipLost
from planq.worker.tools.declare import tool
from planq.worker.tools.errors import ToolError
from planq.worker.tools.resources import resource
from planq.worker.tools.response import Artifact, ToolResponse
from planq.worker.tools.services import ToolServices

__all__ = [
    "AnswerDeclined",
    "Artifact",
    "Cancelled",
    "NotHappened",
    "OwnershipLost",
    "Question",
    "Suspended",
    "ToolContext",
    "ToolError",
    "ToolResponse",
    "ToolServices",
    "resource",
    "tool",
]
