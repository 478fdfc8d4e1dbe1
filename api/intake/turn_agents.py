"""The agent of a turn: which one a message or a task names, and the job that is made for it.

The nearest names it: the message, its conversation, the tenant's channel, the tenant (docs/decisions.md, D90). Which
agent a conversation has, and which version it keeps, is looked at in the commit that stores the message: where the
job was made for another one, nothing is stored, and it is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Header

from planq.api.intake.assignments import Assignment, Assignments
from planq.shared.agentic.agents.checks import NamedAgent, read_named_agent
from planq.shared.platform.errors import Conflict, NotFound
from planq.shared.platform.values.defects import Defect, body_refused
from planq.shared.platform.values.describe import excerpt
from planq.shared.subjects.conversations.store import ConversationStore, Inbound, InboundResult, OtherAgent

AGENT_HEADER = "X-Agent-Schema-Name"

AgentHeader = Annotated[
    str | None,
    Header(alias=AGENT_HEADER, description="Names the agent where `agent` of the body does not."),
]

_LOOKS = 5
"""How often a job is made anew because somebody gives its conversation another agent at this moment."""


def named_agent(agent: str | None, header: str | None, metadata: Mapping[str, Any] | None) -> NamedAgent | None:
    """Return the agent that a request names: in its body, else in its header, else in its metadata.

    Raises `InvalidRequest` for metadata that name it in another way than by a text.
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
    """Store a message with a job of the agent that it is for; one that was sent as a job has it already.

    Raises as `ConversationStore.receive` does, `NotFound` for an agent that is not there, and `InvalidRequest` for
    one that lists skills which are not.
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
