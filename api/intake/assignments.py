"""Who works on a job, and how: what its request says, and what the agent says that the request names.

Agents and skills are pinned to the version that they have now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from planq.api.intake.plan_checks import listed
from planq.shared.agentic.agents.checks import NamedAgent
from planq.shared.agentic.rounds.block import LoopBlock, block_refused, merged
from planq.shared.agentic.source import Finding
from planq.shared.agentic.tools.names import suggestion
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.errors import capped
from planq.shared.subjects.agents.store import DocumentStore, PinnedAgent, pin_agent, with_prompt


class Assignment(NamedTuple):
    """Who works on a job, and how; each field is that of the same name of a `Submission`."""

    strategy: Strategy
    model: str
    limits: Limits
    loop: Mapping[str, Any] | None = None
    agent: str | None = None
    agent_version: int | None = None
    skill_versions: Sequence[int] | None = None

    def to_agent(
        self, name: str, agent: PinnedAgent, strategy: Strategy, model: str, asked: LoopBlock | None = None
    ) -> Assignment:
        """Return it as an agent's, with the agent's loop block, which `asked` narrows.

        Raises `InvalidRequest` for a skill that is not there.
        """
        own = agent.document.loop_block()
        block = merged(own, asked)
        return Assignment(
            strategy=strategy,
            model=model,
            limits=self.limits if own is None else own.lowered(self.limits),
            loop=None if block is None else block.to_json(),
            agent=name,
            agent_version=agent.version,
            skill_versions=agent.skill_versions(),
        )


@dataclass(frozen=True, slots=True)
class Assignments:
    """Looks up what assignments name: agents, skills as prompts, and planners of workers."""

    agents: DocumentStore
    skills: DocumentStore
    workers: WorkerRegistry

    async def pinned(self, tenant_id: str, agent: NamedAgent, *, may_be_retired: bool = False) -> PinnedAgent:
        """Return an agent in the version that is named, or in its newest; raises `NotFound` as `pin_agent` does."""
        return await pin_agent(
            *(self.agents, self.skills, tenant_id),
            *(agent.name, agent.version),
            may_be_retired=may_be_retired,
        )

    async def completed(self, tenant_id: str, assignment: Assignment) -> Assignment:
        """Return an assignment with the text of the skill that its loop block names as prompt.

        Raises `InvalidRequest` for a skill that is none, and for a planner that no worker alive has.
        """
        if assignment.loop is None:
            return assignment
        await self._check_planner(assignment.loop.get("planner"))
        return assignment._replace(loop=await with_prompt(self.skills, tenant_id, assignment.loop))

    async def _check_planner(self, name: str | None) -> None:
        """Raise `InvalidRequest` for a planner that no worker alive has; while none is there nobody knows."""
        if name is None or (known := await self.workers.planners()) is None or name in known:
            return
        there = listed(sorted(known)) or "none"
        message = f"no worker has a planner {capped(name, 80)!r}; {suggestion(name, known)}there are {there}"
        raise block_refused([(("planner",), message)])


def without_rounds(block: LoopBlock) -> list[Finding]:
    """Return a defect for each field of a block that means nothing to a job without rounds."""
    message = "only a job with rounds has it; send strategy: loop, or strategy: react"
    return [((name,), message) for name in block.of_loops_alone()]
