"""Crash points of ends that the database refuses: see `reaching`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.faults.scene import PATIENCE, Scene
from tests.integration.llm.dialects import KEY, OPENAI_CHAT
from tests.integration.llm.wire import Reply, wire_server
from tests.support.waiting import eventually

_REFUSING = (
    "CREATE FUNCTION refuse_end() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'no end today' USING ERRCODE = 'undefined_function'; END $$",
    "CREATE TRIGGER refuse_end AFTER UPDATE OF status ON jobs FOR EACH ROW WHEN (NEW.finished_at IS NOT NULL) "
    "EXECUTE FUNCTION refuse_end()",
)
_ALLOWING = ("DROP TRIGGER refuse_end ON jobs", "DROP FUNCTION refuse_end()")


@contextmanager
def _refused(scene: Scene) -> Iterator[None]:
    """No job comes to its end within the block."""
    for statement in _REFUSING:
        scene.execute(statement)
    yield
    for statement in _ALLOWING:
        scene.execute(statement)


def _ends(scene: Scene, during: Callable[[dict[str, str]], None]) -> int:
    """Have a job answered whose end is refused while `during` plays; returns how often its model was called."""
    with wire_server() as model:
        model.script(Reply(OPENAI_CHAT.reply("Twelve.", None)))
        env = {"OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": KEY}
        job_id = scene.submit(text="what is 3 * 4?", model=OPENAI_CHAT.model)
        during(env)
        scene.worker(**env)
        job, _ = scene.ends(job_id)
    assert (job["status"], job["answer"]) == ("completed", "Twelve.")
    scene.sound()
    calls: int = job["model_calls"]
    return calls


def unkept(scene: Scene, point: str) -> None:
    """A worker dies while it keeps what a job came to whose end is refused: only that may cost a second call."""

    def during(env: dict[str, str]) -> None:
        with _refused(scene):
            scene.died_at(point, **env)

    _ends(scene, during)


def kept(scene: Scene, point: str) -> None:
    """A worker dies while it ends a job whose end was refused: its model has answered, and is not asked again."""

    def during(env: dict[str, str]) -> None:
        with _refused(scene):
            name = scene.worker(**env)
            is_kept = "SELECT 1 FROM jobs WHERE stage_retry IS NOT NULL AND stage_worker IS NULL"
            eventually(lambda: scene.read(is_kept), PATIENCE, what="the answer is kept")
            scene.stack.kill(name)
        scene.died_at(point, **env)

    assert _ends(scene, during) == 1


ENDING: dict[str, Callable[[Scene, str], None]] = {"store.end_kept": kept}
