"""Jobs that are turns of a conversation: as they were sent, in the order of its messages (docs/decisions.md, D91)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from planq.api.http.ids import conversation_id_of
from planq.api.intake.messages import Messages
from planq.api.intake.submission import Submissions, SubmittedJob
from planq.api.schemas import JobRequest
from planq.shared.agentic.agents.checks import NamedAgent, read_named_agent
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import Row
from planq.shared.subjects.conversations.store import Arrival, Inbound


@dataclass(frozen=True, slots=True)
class TurnSubmissions:
    """Stores jobs, those that name a conversation to be had in as turns of it."""

    submissions: Submissions
    messages: Messages

    async def submit(
        self,
        tenant_id: str,
        body: JobRequest,
        sent: Any,
        *,
        idempotency_key: str | None,
        traceparent: str | None,
    ) -> SubmittedJob:
        """Store a job and publish its wake-up, as a turn where its request names a conversation to have it in.

        Raises as `Submissions.submit` does; for a turn `NotFound` where the conversation is not there, and
        `Conflict` where that takes none.
        """
        if body.conversation_id is None or body.conversation == "read":
            return await self.submissions.submit(
                tenant_id, body, sent, idempotency_key=idempotency_key, traceparent=traceparent
            )
        conversation_id = conversation_id_of(body.conversation_id)
        given, earlier = await self.submissions.sender_of(tenant_id, sent, idempotency_key, traceparent)
        if earlier is not None:
            return SubmittedJob(earlier)
        row = await self.messages.conversations.get(tenant_id, conversation_id)
        kept = {} if row["follows_agent"] else row["agent_versions"] or {}
        submission = await self.submissions.builder.build(tenant_id, _kept(body, kept), given)
        return await self._store_turn(submission, row)

    async def store(self, submission: Submission, conversation_id: UUID | None) -> SubmittedJob:
        """Store a checked job, as a turn if a conversation is given, and publish its wake-up; raises as `submit`."""
        if conversation_id is None:
            return await self.submissions.store(submission)
        row = await self.messages.conversations.get(submission.tenant_id, conversation_id)
        return await self._store_turn(submission, row)

    async def _store_turn(self, submission: Submission, row: Row) -> SubmittedJob:
        agent = None if submission.agent is None else NamedAgent(submission.agent, submission.agent_version)
        headers = await self.submissions.let_in(submission)
        config = (await self.submissions.tenants.of(submission.tenant_id)).config
        # The key is the message's: of the same one in the same conversation there is one, with one job.
        received = await self.messages.receive(
            Inbound(
                submission=replace(submission, idempotency_key=None, request_hash=None),
                channel=row["channel"],
                thread=row["thread"],
                idempotency_key=submission.idempotency_key,
                request_hash=submission.request_hash,
                user_id=submission.user_id,
                text=submission.input,
                metadata=submission.metadata,
                policy=config.policy,
                is_job=True,
                named_agent=agent,
            ),
        )
        assert received.job_id is not None  # only a rejected message has none
        is_new = received.outcome is not Arrival.DUPLICATE
        return SubmittedJob(received.job_id, submission if is_new else None, headers=headers)


def _kept(body: JobRequest, versions: Mapping[str, int]) -> JobRequest:
    agent = None if body.agent is None else read_named_agent(body.agent)
    if agent is None or agent.version is not None or agent.name not in versions:
        return body
    return body.model_copy(update={"agent": f"{agent.name}@{versions[agent.name]}"})
