"""The tools of agents without an engine: agent services over a memory, for decisions before any job is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from planq.shared.agentic.models.contract import CutOff
from planq.shared.agentic.models.exchange import Ask, Findings, ModelFailed, ModelReply
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.budget import Holder, Reservation, ReservationRequest
from planq.shared.kernel.job_store import JobStore
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.errors import ErrorRecord, ExecutionFailed
from planq.shared.subjects.orchestrations.store import PostgresOrchestrations
from planq.shared.subjects.payloads.contract import Payloads
from planq.worker.agents import AgentBackends, AgentServices
from planq.worker.agents.planner import is_planning
from tests.support.orchestras import document


@dataclass
class Surroundings:
    """The backends of agent services: agents by name, one reply of the planner, what was recorded and asked."""

    agents: Sequence[str] = ()
    reply: str | ExecutionFailed = ""
    asked: list[Ask] = field(default_factory=list)
    was_planning: list[bool] = field(default_factory=list)
    recorded: list[ModelCall] = field(default_factory=list)
    refused: list[tuple[int, list[Mapping[str, Any]]]] = field(default_factory=list)
    reserved: Reservation = field(default_factory=Reservation)

    def backends(self) -> AgentBackends:
        """Return it as the tools see it."""
        return AgentBackends(
            cast(JobStore, self),
            cast(PostgresOrchestrations, self),
            self,
            cast(Payloads, self),
            64 * 1024 * 1024,
        )

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: CutOff | None = None) -> ModelReply:
        self.asked.append(ask)
        self.was_planning.append(is_planning())
        call = ModelCall(Purpose.RESPOND, ask.model, 5, 1, 1)
        if isinstance(self.reply, ExecutionFailed):
            failed = ModelCall(Purpose.RESPOND, ask.model, 5, error=ErrorRecord.of(self.reply))
            raise ModelFailed(self.reply, failed)
        return ModelReply(self.reply, (), call)

    async def reserve(self, holder: Holder, wanted: ReservationRequest) -> Reservation:
        return self.reserved

    async def record_calls(self, job_id: UUID, calls: Sequence[ModelCall]) -> None:
        self.recorded += calls

    async def journal_refusal(self, job_id: UUID, step_index: int, made: Sequence[Mapping[str, Any]]) -> bool:
        self.refused.append((step_index, list(made)))
        return True

    async def model_of(self, job_id: UUID) -> str:
        return "offline"

    async def look(self, job_id: UUID, *, with_agents: bool = True) -> None:
        return None

    async def catalogue(self, tenant_id: str, most: int) -> Mapping[str, Any]:
        return {name: document(name) for name in self.agents}

    async def documents(self, tenant_id: str, names: Sequence[str]) -> Mapping[str, Any]:
        return {name: document(name) for name in names if name in self.agents}


def agent_services(around: Surroundings | None = None) -> AgentServices:
    """Agent services; without surroundings, those of a process that has not opened."""
    return AgentServices(backends=None if around is None else around.backends())


def context(tool_name: str, **fields: Any) -> ToolContext:
    """What a step of a caller's plan tells its tool."""
    names = dict.fromkeys(("user_id", "context_id", "request_id", "trace_id"), "")
    given: dict[str, Any] = {"limits": Limits(), "tenant_id": "default", **names, **fields}
    return ToolContext(job_id=str(new_id()), step_index=0, attempt=1, tool_name=tool_name, **given)
