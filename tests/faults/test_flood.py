"""A flood of bulk jobs: what they leave free goes to interactive ones, and all of them come to their end."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from planq.shared.kernel.states import Priority
from tests.faults.conftest import Play, Stage, as_play
from tests.faults.scene import Scene
from tests.support.rabbitmq import RabbitMQ

SLOTS, OF_BULK = 4, 3
WHERE = """SELECT DISTINCT j.priority, w.name
    FROM steps s JOIN jobs j ON j.id = s.job_id JOIN workers w ON w.id = s.worker_id"""


def flooded(scene: Scene, pool: str) -> None:
    """Bulk steps hold all slots that they may; interactive jobs come and go, and then the other bulk ones."""
    tool = "fault_hold" if pool == "io" else "fault_crunch"
    scene.worker(pool, concurrency=SLOTS)
    if pool == "cpu":
        scene.worker()
    (scene.folder / "now").touch()
    bulk = [scene.submit((tool, {"until": "go"}), priority=Priority.BULK) for _ in range(3 * SLOTS)]
    scene.eventually_running(tool, OF_BULK)
    for _ in range(2):
        for job_id in [scene.submit((tool, {"until": "now"})) for _ in range(3)]:
            scene.completes(job_id, "attempt 1")
    held = "SELECT count(*) AS n FROM steps WHERE status = 'running'"
    assert scene.read(held) == [{"n": OF_BULK}], "no more of the bulk jobs than may"
    (scene.folder / "go").touch()
    for job_id in bulk:
        scene.completes(job_id, "attempt 1")
    scene.sound()


def of_waiting_steps(scene: Scene) -> None:
    """In the `io` pool."""
    flooded(scene, "io")


def of_computing_steps(scene: Scene) -> None:
    """In the `cpu` pool."""
    flooded(scene, "cpu")


def apart(scene: Scene) -> None:
    """Each priority has a worker of its own, and neither is taken by the other's."""
    for priority in Priority:
        options = "io", "--concurrency", str(SLOTS), "--priority", priority
        scene.stack.run(f"io-{priority}", "-m", "planq.worker", *options)
    bulk = [scene.submit(("fault_hold", {"until": "go"}), priority=Priority.BULK) for _ in range(2 * SLOTS)]
    scene.eventually_running("fault_hold", SLOTS)
    (scene.folder / "now").touch()
    scene.completes(scene.submit(("fault_hold", {"until": "now"})), "attempt 1")
    (scene.folder / "go").touch()
    for job_id in bulk:
        scene.completes(job_id, "attempt 1")
    for row in scene.read(WHERE):
        assert row["name"].startswith(f"planq-io-{row['priority']}-")
    scene.sound()


@pytest.mark.parametrize("play", [as_play(of_waiting_steps), as_play(of_computing_steps), as_play(apart)])
def test_a_flood_of_bulk_jobs_keeps_no_interactive_one(
    play: tuple[str, Play], plays: dict[str, Future[None]]
) -> None:
    plays[play[0]].result()


@pytest.mark.rabbitmq
@pytest.mark.whole
@pytest.mark.parametrize("pool", ["io", "cpu"])
def test_nor_does_it_on_rabbitmq(stage: Stage, rabbitmq: RabbitMQ, pool: str) -> None:
    url = rabbitmq.create()
    try:
        with stage(broker_url=url) as scene:
            flooded(scene, pool)
    finally:
        rabbitmq.drop(url)
