"""Conversations of the fault tests: turns come in their order, each is answered once, whoever dies in the middle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from shared.store.conversations import ConversationStore, Received
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


CONVERSING: Mapping[str, Recipe] = {
    "store.settle_turn": turns,
    "store.history": turns,
    "sweep.unsettled_turns": unsettled,
    "sweep.settle_turn": unsettled,
}
