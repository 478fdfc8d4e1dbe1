"""A model that is away: jobs outlive that, whose workers die meanwhile too; what it says stays with its job."""

from __future__ import annotations

import json
from concurrent.futures import Future
from functools import partial
from urllib.parse import unquote

import pytest
import redis

from planq.shared.broker.celery_config import create_celery
from tests.faults.conftest import Play, Stage, as_play
from tests.faults.scene import PATIENCE, Scene
from tests.integration.llm.dialects import KEY, OPENAI_CHAT
from tests.integration.llm.wire import Reply, WireServer, wire_server
from tests.support.monitor import Monitor
from tests.support.waiting import eventually

SECRET = "PROMPTSECRET"
BUSY = Reply({"error": {"message": f"busy with {SECRET}"}}, 503)
REFUSES = Reply({"error": {"message": f"cannot read {SECRET}"}}, 400)
ANSWERS = Reply(OPENAI_CHAT.reply("Twelve.", None))


def env(model: WireServer) -> dict[str, str]:
    """Return the settings of a worker that asks this server and can be watched."""
    return {
        "OPENAI_BASE_URL": f"{model.url}/v1",
        "OPENAI_API_KEY": KEY,
        "PLANQ_MODEL_ATTEMPTS": "2",
        "PLANQ_TASK_EVENTS": "true",
        # No lease ends here for want of processor time: what an interrupted stage had asked would count too.
        "PLANQ_LEASE_SECONDS": "60",
    }


def twenty_jobs_outlive_a_model_that_is_away_and_the_worker_that_asked_it(scene: Scene) -> None:
    """Half of them wait to plan and half to answer; nobody holds them, so the death of their worker is no loss."""
    with wire_server() as model:
        model.script(BUSY)
        planned = [scene.submit(text="what is 3 * 4?", model=OPENAI_CHAT.model) for _ in range(10)]
        answered = [
            scene.submit(("fault_note", {"text": "a"}), text="what is 3 * 4?", model=OPENAI_CHAT.model)
            for _ in range(10)
        ]
        jobs = [*planned, *answered]
        first = scene.worker(**env(model))

        def all_wait() -> bool:
            found = scene.read(
                "SELECT job_id FROM events WHERE kind = 'stage_retrying' GROUP BY job_id HAVING count(*) >= 2"
            )
            return len(found) == len(jobs)

        eventually(all_wait, 2 * PATIENCE, what="every stage has been tried again, and in vain")
        scene.stack.kill(first)
        states = scene.read("SELECT status, count(*) AS n FROM jobs GROUP BY status ORDER BY status")
        assert [(row["status"], row["n"]) for row in states] == [("planning", 10), ("responding", 10)]
        model.script(ANSWERS)
        scene.worker(**env(model))
        for job_id in jobs:
            job, _ = scene.ends(job_id, 2 * PATIENCE)
            assert (job["status"], job["answer"], job["model_calls"]) == ("completed", "Twelve.", 1)
        scene.sound()


def what_a_provider_says_reaches_neither_the_broker_nor_monitors(stage: Stage) -> None:
    """It may repeat the prompt; Flower shows every event to everybody, without a tenant and often without a key."""
    with stage() as scene, wire_server() as model:
        app = create_celery(scene.broker_url)
        monitor = Monitor(app)
        try:
            model.script(BUSY, BUSY, REFUSES)
            asked = {"text": f"keep {SECRET}", "model": OPENAI_CHAT.model}
            # Of the second, RESPOND is carried out in the Celery task of its step: planq tells monitors of it itself.
            scene.worker(**env(model))
            first, _ = scene.ends(scene.submit(**asked))
            second, _ = scene.ends(scene.submit(("fault_note", {"text": "a"}), **asked))
            failed = partial(_failures, monitor)
            eventually(lambda: len(failed()) >= 3, PATIENCE, what="every failed attempt is heard of")
        finally:
            monitor.close()
            app.close()
        for job in (first, second):
            assert (job["status"], job["error"]["code"]) == ("failed", "model_refused")
            assert SECRET in job["error"]["message"], "the job itself tells"
        told = json.dumps(failed())
        assert all(code in told for code in ("transient", "model_refused"))
        assert SECRET not in json.dumps(monitor.events, default=str)
        assert SECRET not in _broker(scene)
        assert all(SECRET not in log.read_text("utf-8") for log in scene.folder.glob("*.log"))


def _failures(monitor: Monitor) -> list[dict[str, str]]:
    return [event for event in monitor.events if event["type"] == "task-failed"]


def _broker(scene: Scene) -> str:
    """Return everything that lies in the broker."""
    place, _, number = scene.broker_url.removeprefix("redis+socket://").partition("?virtual_host=")
    with redis.Redis(unix_socket_path=unquote(place), db=int(number)) as client:
        return "".join(str(client.dump(key)) for key in client.scan_iter())


PLAYS = (
    twenty_jobs_outlive_a_model_that_is_away_and_the_worker_that_asked_it,
    what_a_provider_says_reaches_neither_the_broker_nor_monitors,
)


@pytest.mark.parametrize("play", [as_play(play) for play in PLAYS])
def test_outages(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
