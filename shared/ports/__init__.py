"""What the core needs from the world, as contracts.

Adapters stand behind these Protocols: `shared/store` (PostgreSQL), `shared/broker` (Celery), `worker/llm` (models),
`worker/tools` (Python functions, MCP servers). The engine knows nothing else.
"""

from shared.ports.jobs import ArtifactRecord, JobStore, Moved, ReadyStep, StageClaim, StepClaim
from shared.ports.models import Planner, Responder
from shared.ports.sweep import DueTimer, ExpiredPlan, LostStage, LostStep, SweepStore
from shared.ports.tools import Knowledge, Passage, Suspended, Tool, Toolbox, ToolContext
from shared.ports.wakes import Announcer, PlanWake, Publisher, RespondWake, StepWake, Tracker, Wake

__all__ = [
    "Announcer",
    "ArtifactRecord",
    "DueTimer",
    "ExpiredPlan",
    "JobStore",
    "Knowledge",
    "LostStage",
    "LostStep",
    "Moved",
    "Passage",
    "PlanWake",
    "Planner",
    "Publisher",
    "ReadyStep",
    "RespondWake",
    "Responder",
    "StageClaim",
    "StepClaim",
    "StepWake",
    "Suspended",
    "SweepStore",
    "Tool",
    "ToolContext",
    "Toolbox",
    "Tracker",
    "Wake",
]
