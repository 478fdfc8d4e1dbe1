"""What the core needs from the world, as contracts.

Adapters stand behind these Protocols: `shared/store` (PostgreSQL), `shared/broker` (Celery), `worker/llm` (models),
`worker/tools` (Python functions, MCP servers). The engine knows nothing else.
"""

from shared.ports.jobs import (
    ArtifactRecord,
    JobStore,
    Moved,
    RanStep,
    ReadyStep,
    ReusedStep,
    StageClaim,
    StepClaim,
    Take,
)
from shared.ports.leases import Attempt, Held, Place, job_of
from shared.ports.models import CutOff, Planner, Responder
from shared.ports.payloads import PayloadRecord, Payloads
from shared.ports.retention import Removed, RetentionStore
from shared.ports.sweep import (
    Due,
    DueTimer,
    ExpiredJob,
    ExpiredPlan,
    ExpiredQuestion,
    LostStage,
    LostStep,
    SweepPart,
    SweepStore,
)
from shared.ports.tools import FindsOut, Knowledge, NotHappened, Passage, Suspended, Tool, Toolbox, ToolContext
from shared.ports.wakes import (
    AnyWake,
    PlanWake,
    Publisher,
    Queues,
    RespondWake,
    StepsWake,
    StepWake,
    Tracker,
    Wake,
)

__all__ = [
    "AnyWake",
    "ArtifactRecord",
    "Attempt",
    "CutOff",
    "Due",
    "DueTimer",
    "ExpiredJob",
    "ExpiredPlan",
    "ExpiredQuestion",
    "FindsOut",
    "Held",
    "JobStore",
    "Knowledge",
    "LostStage",
    "LostStep",
    "Moved",
    "NotHappened",
    "Passage",
    "PayloadRecord",
    "Payloads",
    "Place",
    "PlanWake",
    "Planner",
    "Publisher",
    "Queues",
    "RanStep",
    "ReadyStep",
    "Removed",
    "RespondWake",
    "Responder",
    "RetentionStore",
    "ReusedStep",
    "StageClaim",
    "StepClaim",
    "StepWake",
    "StepsWake",
    "Suspended",
    "SweepPart",
    "SweepStore",
    "Take",
    "Tool",
    "ToolContext",
    "Toolbox",
    "Tracker",
    "Wake",
    "job_of",
]
