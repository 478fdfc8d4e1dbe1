"""Conversations of the fault tests: turns come in their order, each is answered once, whoever dies in the middle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import httpx

from planq.shared.agentic.turns.messages import Policy
from planq.shared.kernel.store.signals import CANCELLED
from planq.shared.subjects.conversations.store import ConversationStore, InboundResult
from tests.faults.scene import PATIENCE, Scene
from tests.support.conversations import message
from tests.support.waiting import eventually

Recipe = Callable[[Scene, str], None]


def says(scene: Scene, text: str, *, publish: bool = True, **fields: Any) -> InboundResult:
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
    scene.died_at("store.serve_end:before")
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
    "turns.history": turns,
    "store.note_outcome": interrupted,
}


def sends(scene: Scene, text: str, source_id: str, **fields: Any) -> httpx.Response:
    """Send a message over HTTP."""
    body = {"tenant_id": "default", "channel": "web", "from": {"external_id": "ann"}, "thread": "t"}
    body |= {"source_message_id": source_id, "content": {"text": text}, **fields}
    return httpx.post(f"{scene.stack.url}/messages/inbound", json=body, timeout=PATIENCE)


def a_worker_is_killed_in_the_middle_of_each_of_five_turns(scene: Scene) -> None:
    """Every message is answered once, in order; then ten come at once, and wait for their answers."""
    name = scene.worker()
    scene.api()
    eventually(lambda: scene.read("SELECT 1 FROM tools"), PATIENCE, what="the worker has published its tools")
    for number in range(5):
        text = f'call fault_hold with {{"until": "go-{number}"}}'
        taken = sends(scene, text, f"m{number}", async_processing=True)
        assert taken.status_code == 202, taken.text
        assert sends(scene, text, f"m{number}", async_processing=True).json()["job_id"] == taken.json()["job_id"]
        scene.eventually_running("fault_hold", 1)
        scene.stack.kill(name)
        (scene.folder / f"go-{number}").touch()
        name = scene.worker()
        answered = sends(scene, text, f"m{number}")
        assert answered.status_code == 200, answered.text
        assert "attempt 2" in answered.json()["message"]["content"]["text"]
    with ThreadPoolExecutor(10) as people:
        rapid = list(people.map(lambda n: sends(scene, f"calculate {n} + 100", f"r{n}"), range(10)))
    told = [answer.json()["message"]["content"]["text"] for answer in rapid]
    assert [str(100 + n) in text for n, text in enumerate(told)] == [True] * 10, told
    (conversation,) = scene.read("SELECT id, messages_in, messages_out, active_job_id FROM conversations")
    assert (conversation["messages_in"], conversation["messages_out"], conversation["active_job_id"]) == (
        15,
        15,
        None,
    )
    is_answered(scene, conversation["id"], 15)
    scene.sound()
