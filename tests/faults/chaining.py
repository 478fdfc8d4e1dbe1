"""How the crash points of an agent's job are reached: its budget, its warnings, and the round of its chained tool."""

from __future__ import annotations

import json
from uuid import UUID

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.submission import Submission
from planq.shared.kernel.wakes import Wake
from planq.shared.subjects.agents.store import DocumentStore
from tests.faults.scene import Scene

AGENT = {
    "name": "clerk",
    "description": "You extract.",
    "structured_output": True,
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "chained_tool": "fault_note",
    "tools": ["gone"],
}


def agents_job(scene: Scene, text: str) -> UUID:
    """Store a job of an agent that lists a tool that is not there, in a tree with a budget for what it does."""
    kept = scene.caller.do(
        DocumentStore(scene.caller.database, "agent").put("default", "clerk", json.dumps(AGENT), skills=[])
    )
    job_id = new_id()
    submission = Submission(
        job_id,
        "default",
        text,
        Strategy.PLAN,
        "offline",
        Limits(),
        agent="clerk",
        agent_version=kept.version,
        budget={"max_model_calls": 1, "max_steps": 1},
    )
    scene.caller.do(scene.caller.requests.submit(submission))
    scene.caller.publisher.publish_soon([Wake.plan(job_id)])
    return job_id


def chained(scene: Scene, point: str) -> None:
    """An agent's structured answer goes to its chained tool: one round, one result, one pair of messages."""
    job_id = agents_job(scene, "Keep this.")
    scene.died_at(point)
    scene.worker()
    job, steps = scene.ends(job_id)
    assert (job["status"], job["output"]) == ("completed", {"text": "Keep this."})
    assert job["chained"]["result"] == {"text": "<Keep this.>"}
    assert [step["status"] for step in steps] == ["succeeded"]
    assert [message["kind"] for message in scene.read("SELECT kind FROM messages ORDER BY id")] == [
        "tool_call",
        "tool_response",
    ]
    assert job["model_calls"] == 1, "a call that was paid for is not made again once its answer is stored"
    assert scene.read("SELECT count(*) AS n FROM events WHERE kind = 'agent_tools_missing'") == [{"n": 1}]


CHAINING = {"store.chain_tool": chained, "store.reserve": chained}
