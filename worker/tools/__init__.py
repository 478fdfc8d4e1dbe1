"""How a Python function or an MCP server becomes a `Tool`.

Tool authors need only the names exported here: `@tool` for a typed function, `@resource` for objects that its calls
share, `ToolError` to report a failure, and the two types that a function may have as parameters, `ToolContext` (the
caller) and `ToolServices` (the services of this process). Nothing here imports the engine, the store or Celery.
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
