"""Agents for tests: a model that answers one text after the other, and jobs that run an agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from planq.shared.agentic.agents.document import parse_agent
from planq.shared.agentic.models.contract import CutOff
from planq.shared.agentic.models.exchange import Ask, Findings, ModelFailed, ModelReply
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.errors import ErrorRecord, ExecutionFailed
from planq.shared.subjects.agents.store import DocumentStore
from tests.support.harness import Harness, ScriptedModel


@dataclass
class TalkingModel(ScriptedModel):
    """Answers with `texts` one after the other, the last one again and again; an error is raised."""

    texts: Sequence[str | ExecutionFailed] = ()
    told: list[Findings] = field(default_factory=list)

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: CutOff | None = None) -> ModelReply:
        text = self.texts[min(len(self.told), len(self.texts) - 1)]
        self.asked.append((ask, findings))
        self.told.append(findings)
        call = ModelCall(Purpose.RESPOND, ask.model, 5, 13, 3)
        if isinstance(text, ExecutionFailed):
            failed = ModelCall(call.purpose, call.model, 5, attempts=3, error=ErrorRecord.of(text))
            raise ModelFailed(text, failed)
        return ModelReply(text, (), call)


def saying(*texts: str | Mapping[str, Any] | ExecutionFailed, planned: Any = "unused") -> TalkingModel:
    """A model that says these texts; an object is said as JSON."""
    said = [json.dumps(text) if isinstance(text, Mapping) else text for text in texts]
    return TalkingModel(planned, texts=said)


async def keep_agent(harness: Harness, document: Mapping[str, Any], **skills: str) -> int:
    """Store an agent and the skills that it lists; returns its version."""
    for name, text in skills.items():
        await DocumentStore(harness.database, "skill").put("default", name, text)
    parsed = parse_agent({**document, "skills": list(skills)})
    store = DocumentStore(harness.database, "agent")
    kept = await store.put("default", parsed.name, json.dumps(parsed.to_json()), skills=parsed.skills)
    return kept.version


async def submit_agent(harness: Harness, document: Mapping[str, Any], text: str = "do it", **fields: Any) -> UUID:
    """Store an agent and a job that runs it; `skills` are texts by name."""
    skills: Mapping[str, str] = fields.pop("skills", {})
    version = await keep_agent(harness, document, **skills)
    return await harness.submit(
        text, agent=document["name"], agent_version=version, skill_versions=[1] * len(skills), **fields
    )


async def run_agent(harness: Harness, document: Mapping[str, Any], text: str = "do it", **fields: Any) -> Any:
    """Run a job of an agent to its end; returns its row, its steps, its messages and its events (kind, data)."""
    job_id = await submit_agent(harness, document, text, **fields)
    await harness.drain()
    return await look(harness, job_id)


async def rows(harness: Harness, statement: str, *values: Any) -> list[Any]:
    """Return what a statement finds."""
    async with harness.database.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(statement.encode(), values)
        return await cursor.fetchall()


async def look(harness: Harness, job_id: UUID) -> Any:
    """Return what is stored of a job: its row, its steps, its messages, its events."""
    _, steps = await harness.requests.job("default", job_id)
    (job,) = await rows(harness, "SELECT * FROM jobs WHERE id = %s", job_id)
    messages = await rows(harness, "SELECT * FROM messages WHERE job_id = %s ORDER BY id", job_id)
    events = await rows(harness, "SELECT kind, data FROM events WHERE job_id = %s ORDER BY sequence", job_id)
    return job, steps, messages, [(event["kind"], event["data"]) for event in events]
