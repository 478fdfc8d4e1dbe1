"""Tools by which agents call agents; the names that begin with `cp__` are planq's own (docs/decisions.md, D24).

| tool | what it does |
|---|---|
| `cp__agent_orchestrate` | carries out a plan of agent steps and parallel groups, or plans one from a prompt |
| `cp__call_agents` | calls several agents at once and returns the outcome of each |
| `ask_agent` | asks one agent |
| `cp__call_agent`, `cp__parallel` | the steps of an orchestration's own job |

None of them waits: each returns `Delegated`, and its step holds no worker until the child jobs have ended. A call
that was cut off before that is repeated, so their effect is `idempotent`; a delegation that applied never is.
"""

from __future__ import annotations

from planq.worker.agents.calls import AskAgent, CallAgent, CallAgents, Parallel
from planq.worker.agents.orchestrate import Orchestrate
from planq.worker.agents.orchestration_jobs import conclude_orchestration
from planq.worker.agents.services import AgentBackends, AgentServices

AgentTool = AskAgent | CallAgent | CallAgents | Orchestrate | Parallel


def agent_tools(services: AgentServices) -> list[AgentTool]:
    return [kind(services) for kind in (AskAgent, CallAgent, CallAgents, Orchestrate, Parallel)]


__all__ = ["AgentBackends", "AgentServices", "AgentTool", "agent_tools", "conclude_orchestration"]
