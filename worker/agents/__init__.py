"""Tools by which agents call agents; the names that begin with `cp__` are planq's own (docs/decisions.md, D24).

| tool | what it does |
|---|---|
| `cp__agent_orchestrate` | carries out a plan of agent steps and parallel groups, or plans one from a prompt |
| `cp__call_agents` | calls several agents at once and tells how each came out |
| `ask_agent` | asks one agent |
| `cp__call_agent`, `cp__parallel` | the steps of an orchestration's own job |

None of them waits: each returns `Delegated`, and its step holds no worker until the child jobs have ended. A call
that was cut off before that is repeated, so their effect is `idempotent`; a delegation that applied never is.
"""

from __future__ import annotations

from worker.agents.ask_agent import AskAgent
from worker.agents.call_agent import CallAgent
from worker.agents.call_agents import CallAgents
from worker.agents.conclusion import Concluding
from worker.agents.desk import AgentBackends, AgentServices
from worker.agents.orchestrate import Orchestrate
from worker.agents.parallel import Parallel

SWITCHED = ("cp__agent_orchestrate", "cp__call_agents")
"""The tools that the operator can switch off; then they are offered to nobody, and refuse what was planned before."""

AgentTool = AskAgent | CallAgent | CallAgents | Orchestrate | Parallel


def agent_tools(desk: AgentServices) -> list[AgentTool]:
    """Return the tools of one process."""
    return [AskAgent(desk), CallAgent(desk), CallAgents(desk), Orchestrate(desk), Parallel(desk)]


__all__ = ["SWITCHED", "AgentBackends", "AgentServices", "AgentTool", "Concluding", "agent_tools"]
