"""Models that speak while somebody follows: whoever dies in the middle, no text is shown twice, nor mixed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import UUID

from planq.shared.kernel.new_ids import new_id
from planq.shared.subjects.streams.contract import LiveText
from planq.shared.subjects.streams.followers import StreamStore
from tests.faults.scene import PATIENCE, Scene
from tests.integration.llm.dialects import KEY, OPENAI_CHAT
from tests.integration.llm.wire import Reply, wire_server
from tests.support.waiting import eventually

Recipe = Callable[[Scene, str], None]

FOUR = "It is four, and here is why: " + "two and two make four. " * 20
FIVE = "It is five, and here is why: " + "two and two make five. " * 20

_SHOWN = 3
"""The look by which a text is there: after each look that found somebody it is written."""


def live_text(scene: Scene, job_id: UUID) -> LiveText | None:
    """Return what somebody sees who follows a job."""
    found: LiveText | None = scene.caller.do(StreamStore(scene.caller.database).live_text("default", job_id, 2**63))
    return found


def speaking(scene: Scene, point: str) -> None:
    """Recipe: a worker dies while its model speaks; what the next one hears takes the place of what was shown."""
    shown = threading.Event()
    with wire_server() as model:
        model.script(
            Reply(OPENAI_CHAT.reply(FIVE, None), count=6, then="hang"),
            Reply(OPENAI_CHAT.reply(FOUR, None), count=6, gate=shown, then="rest"),
        )
        given = {"OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": KEY}
        job_id = scene.submit(text="What is 2+2?", model=OPENAI_CHAT.model)
        scene.caller.do(StreamStore(scene.caller.database).watch([job_id], new_id(), 10 * PATIENCE))
        scene.died_at(point, **given)
        broken = live_text(scene, job_id)
        if point == "texts.write:before":
            assert broken is None
        else:  # none yet, where the reply's first words came after the look
            assert broken is None or FIVE.startswith(broken.text)

        scene.worker(**given)
        eventually(lambda: _is_newer(live_text(scene, job_id), broken), PATIENCE, what="the second reply is shown")
        assert FOUR.startswith(_text(live_text(scene, job_id))), "nothing of the first one is left in it"
        shown.set()
        job, _ = scene.ends(job_id)
    assert (job["status"], job["answer"]) == ("completed", _text(live_text(scene, job_id)))


def spoken(scene: Scene, point: str) -> None:
    """Recipe: as `speaking`, at a look after the first words were written."""
    speaking(scene, f"{point}@{_SHOWN}")


def _text(text: LiveText | None) -> str:
    assert text is not None
    return text.text


def _is_newer(text: LiveText | None, than: LiveText | None) -> bool:
    return text is not None and (than is None or text.epoch.attempt > than.epoch.attempt)


SPEAKING: dict[str, Recipe] = {"texts.write": speaking, "texts.followed": spoken}
