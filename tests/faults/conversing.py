"""Conversations of the fault tests: turns come in their order, each is answered once, whoever dies in the middle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from shared.domain.conversations.messages import Policy
from shared.store.conversations import ConversationStore, Received
from shared.store.jobs.signals import CANCELLED
from tests.faults.scene import PATIENCE, Scene
from tests.support.conversations import message
from tests.support.waiting import eventually

Recipe = Callable[[Scene, str], None]


def says(scene: Scene, text: str, *, publish: bool = True, **fields: Any) -> Received:
    """Receive a message on the one thread of the scene, as the API does."""
    received = scene.caller.do(ConversationStore(scene.caller.database).receive(message(text, **fields)))
    if publish:
        scene.caller.publisher.publish_soon(received.wakes)
    return received


def is_answered(scene: Scene, conversation_id: UUID, replies: int) -> None:
    """Wait until so many turns are settled, and see that they were in order and one at a time."""
    out = (
        "SELECT job_id, text FROM conversation_messages WHERE conversation_id = %s AND direction = 'outbound' "
        "ORDER BY sequence"
    )
    eventually(lambda: len(scene.read(out, conversation_id)) >= replies, PATIENCE, what="all turns are settled")
    answered = [row["job_id"] for row in scene.read(out, conversation_id)]
    asked = scene.read(
        "SELECT job_id FROM conversation_messages WHERE conversation_id = %s AND direction = 'inbound' "
        "ORDER BY sequence",
        conversation_id,
    )
    assert answered == [row["job_id"] for row in asked], "each once, in the order of the messages"
    began = scene.read("SELECT started_at, finished_at FROM jobs WHERE id = ANY (%s) ORDER BY started_at", answered)
    ends = [row["finished_at"] for row in began]
    assert all(end <= row["started_at"] for end, row in zip(ends, began[1:], strict=False)), "one after the other"


def turns(scene: Scene, point: str) -> None:
    """Recipe: a worker dies at a point in the first of three turns, or between two of them."""
    received = [says(scene, f"calculate {n} + 2") for n in range(3)]
    scene.died_at(point)
    scene.worker()
    is_answered(scene, received[0].conversation_id, 3)


def unsettled(scene: Scene, point: str) -> None:
    """Recipe: a worker died before it settled a turn, and the one whose sweeper does so dies."""
    received = [says(scene, f"calculate {n} + 2") for n in range(3)]
    scene.died_at("store.settle_turn:before")
    scene.died_at(point)
    scene.worker()
    is_answered(scene, received[0].conversation_id, 3)


def interrupted(scene: Scene, point: str) -> None:
    """Recipe: a worker dies where it tells what an unsafe call came to whose turn was interrupted."""
    plan = {"plan": {"calls": [{"tool_name": "fault_charge", "arguments": {"text": "a", "until": "go"}}]}}
    first = says(scene, "charge", submission=plan)
    assert first.job_id is not None
    name = scene.doomed(point)
    scene.runs(first.job_id)
    second = says(scene, "calculate 1 + 2", policy=Policy.INTERRUPT)
    assert second.ended == (first.job_id,)
    scene.read("SELECT pg_notify(%s, %s)", CANCELLED, str(first.job_id))
    (scene.folder / "go").touch()
    scene.dies(name)
    scene.worker()
    is_answered(scene, first.conversation_id, 2)
    assert scene.paid()[f"{first.job_id}/0"] == 1
    told = scene.read(
        "SELECT content FROM conversation_messages WHERE kind = 'tool_response' AND job_id = %s", first.job_id
    )
    is_known = point.endswith(":after")
    assert [list(row["content"])[-1] for row in told] == ["output" if is_known else "error"]


CONVERSING: Mapping[str, Recipe] = {
    "store.settle_turn": turns,
    "store.history": turns,
    "store.note_outcome": interrupted,
    "sweep.unsettled_turns": unsettled,
    "sweep.settle_turn": unsettled,
}


def a_worker_is_killed_in_the_middle_of_each_of_five_turns(scene: Scene) -> None:
    """Every turn is answered once, in order, and what it had done before is not done again."""
    name = scene.worker()
    for number in range(5):
        plan = {
            "plan": {
                "calls": [
                    {"tool_name": "fault_note", "arguments": {"text": f"m{number}"}},
                    {"tool_name": "fault_hold", "arguments": {"until": f"go-{number}"}},
                ]
            }
        }
        received = says(scene, f"turn {number}", submission=plan)
        job_id = received.job_id
        assert job_id is not None
        scene.runs(job_id, 1)
        stored = "SELECT 1 FROM steps WHERE job_id = %s AND index = 0 AND status = 'succeeded'"
        eventually(lambda stored=stored, job_id=job_id: scene.read(stored, job_id), PATIENCE, what="the first step")
        scene.stack.kill(name)
        (scene.folder / f"go-{number}").touch()
        name = scene.worker()
        is_answered(scene, received.conversation_id, number + 1)
        assert scene.ran()[f"{job_id}/0"] == 1
    rows = scene.read("SELECT kind, turn FROM conversation_messages WHERE kind <> 'message' ORDER BY sequence")
    called = [(row["kind"], row["turn"]) for row in rows]
    assert called == [(kind, turn) for turn in range(1, 6) for kind in ("tool_call", "tool_response") * 2]
    scene.sound()
