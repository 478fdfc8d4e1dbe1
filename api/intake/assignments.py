"""The agent, strategy, model and limits of a job, from its request and from the agent that it names.

Agents and skills are pinned to their present version. The agent of a turn is named by, in this order, the message,
its conversation, the tenant's channel, the tenant (docs/decisions.md, D90). The commit that stores a message checks
the agent and the pinned version of its conversation. If the job was made for another agent, nothing is stored, and
the job is made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

from fastapi import Header

from planq.api.intake.plan_checks import listed
from planq.shared.agentic.agents.checks import NamedAgent, read_named_agent
from planq.shared.agentic.rounds.block import LoopBlock, block_refused, merged
from planq.shared.agentic.source import Finding
from planq.shared.agentic.tools.names import suggestion
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.errors import Conflict, NotFound, capped
from planq.shared.platform.values.defects import Defect, body_refused
from planq.shared.platform.values.describe import excerpt
from planq.shared.subjects.agents.store import DocumentStore, PinnedAgent, pin_agent, with_prompt
from planq.shared.subjects.conversations.store import ConversationStore, Inbound, InboundResult, OtherAgent


class Assignment(NamedTuple):
    """The agent of a job and how it works; each field is that of the same name of a `Submission`."""

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
        """Return it for an agent, with the agent's loop block, which `asked` narrows; raises `InvalidRequest`."""
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
    """Looks up the agents, skills (as prompts) and planners that assignments name."""

    agents: DocumentStore
    skills: DocumentStore
    workers: WorkerRegistry

    async def pinned(self, tenant_id: str, agent: NamedAgent, *, may_be_retired: bool = False) -> PinnedAgent:
        """Return an agent in the named version, or in its newest; raises `NotFound` as `pin_agent` does."""
        return await pin_agent(
            *(self.agents, self.skills, tenant_id), *(agent.name, agent.version), may_be_retired=may_be_retired
        )

    async def completed(self, tenant_id: str, assignment: Assignment) -> Assignment:
        """Return an assignment with the text of the skill that its loop block names as prompt.

        Raises `InvalidRequest` for an unknown skill, and for a planner that no live worker has.
        """
        if assignment.loop is None:
            return assignment
        await self._check_planner(assignment.loop.get("planner"))
        return assignment._replace(loop=await with_prompt(self.skills, tenant_id, assignment.loop))

    async def _check_planner(self, name: str | None) -> None:
        """Raise `InvalidRequest` for a planner that no live worker has. Without workers, every name passes."""
        if name is None or (known := await self.workers.planners()) is None or name in known:
            return
        there = listed(sorted(known)) or "none"
        message = f"no worker has a planner {capped(name, 80)!r}; {suggestion(name, known)}there are {there}"
        raise block_refused([(("planner",), message)])


def without_rounds(block: LoopBlock) -> list[Finding]:
    """Return a defect for each field of a block that has no meaning for a job without rounds."""
    message = "only a job with rounds has it; send strategy: loop, or strategy: react"
    return [((name,), message) for name in block.of_loops_alone()]


AGENT_HEADER = "X-Agent-Schema-Name"

AgentHeader = Annotated[
    str | None, Header(alias=AGENT_HEADER, description="Names the agent where `agent` of the body does not.")
]

_LOOKS = 5
"""Maximum number of tries while other requests change the agent of the conversation."""


def named_agent(agent: str | None, header: str | None, metadata: Mapping[str, Any] | None) -> NamedAgent | None:
    """Return the agent that a request names: in its body, else its header, else its metadata.

    Raises `InvalidRequest` for metadata that name it other than by a text.
    """
    if agent is not None:
        return read_named_agent(agent)
    if header is not None and header.strip():
        return read_named_agent(header.strip())
    found = (metadata or {}).get("agent")
    if found is None:
        return None
    if not isinstance(found, str) or not found:
        message = f"expected the name of an agent, found {excerpt(found)}"
        raise body_refused([Defect("metadata.agent", "", message)])
    return read_named_agent(found)


async def received_for_agent(
    conversations: ConversationStore, assignments: Assignments, inbound: Inbound
) -> InboundResult:
    """Store a message with a job of its agent; a message that was sent as a job has the agent already.

    Raises as `ConversationStore.receive` does, `NotFound` for an unknown agent, and `InvalidRequest` for one that
    lists unknown skills.
    """
    if inbound.is_job:
        return await conversations.receive(inbound)
    wanted = inbound.named_agent or inbound.default_agent
    given, refusal = inbound, None
    try:
        given = await _for(assignments, inbound, wanted)
    except NotFound as error:  # its conversation may have another one, or keep a version that is retired
        refusal = error
    for _ in range(_LOOKS):
        try:
            return await conversations.receive(given)
        except OtherAgent as other:
            if refusal is not None and _wanted(inbound, other.agent) == wanted:
                raise refusal from None
            given = await _for(assignments, inbound, _wanted(inbound, other.agent), keeps=other.agent)
    raise Conflict("its conversation is being given other agents all the time; send the message again")


def _wanted(inbound: Inbound, found: NamedAgent | None) -> NamedAgent | None:
    if found is None or found.version is not None:
        return found
    said = inbound.named_agent or inbound.default_agent
    return said if said is not None and said.name == found.name else found


async def _for(
    assignments: Assignments, inbound: Inbound, agent: NamedAgent | None, keeps: NamedAgent | None = None
) -> Inbound:
    if agent is None:
        return inbound
    submission = inbound.submission
    is_kept = keeps is not None and keeps.version is not None
    pinned = await assignments.pinned(submission.tenant_id, agent, may_be_retired=is_kept)
    mine = Assignment(submission.strategy, submission.model, submission.limits).to_agent(
        agent.name, pinned, pinned.strategy(submission.strategy), pinned.model_or(submission.model)
    )
    mine = await assignments.completed(submission.tenant_id, mine)
    return replace(inbound, submission=replace(submission, **mine._asdict()))
