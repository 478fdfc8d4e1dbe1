"""Every table of planq: who imports this has `SQLModel.metadata` whole."""

from sqlmodel import SQLModel

from planq.shared.kernel import tables as kernel
from planq.shared.subjects.actions import tables as actions
from planq.shared.subjects.adaptations import tables as adaptations
from planq.shared.subjects.agents import tables as agents
from planq.shared.subjects.batches import tables as batches
from planq.shared.subjects.conversations import tables as conversations
from planq.shared.subjects.events import tables as events
from planq.shared.subjects.insights import tables as insights
from planq.shared.subjects.jobs import tables as jobs
from planq.shared.subjects.metrics import tables as metrics
from planq.shared.subjects.moments import tables as moments
from planq.shared.subjects.payloads import tables as payloads
from planq.shared.subjects.questions import tables as questions
from planq.shared.subjects.schedules import tables as schedules
from planq.shared.subjects.streams import tables as streams
from planq.shared.subjects.tenants import tables as tenants
from planq.shared.subjects.tools import tables as tools
from planq.shared.subjects.webhooks import tables as webhooks

METADATA = SQLModel.metadata

__all__ = [
    "METADATA",
    "actions",
    "adaptations",
    "agents",
    "batches",
    "conversations",
    "events",
    "insights",
    "jobs",
    "kernel",
    "metrics",
    "moments",
    "payloads",
    "questions",
    "schedules",
    "streams",
    "tenants",
    "tools",
    "webhooks",
]
