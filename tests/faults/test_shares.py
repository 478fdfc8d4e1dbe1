"""One tenant floods the queues: jobs of others begin within the next few tasks, however many of its own wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from uuid import UUID

import pytest

from planq.shared.kernel.states import Priority
from tests.faults.conftest import Play, Stage, as_play
from tests.faults.scene import PATIENCE, Scene
from tests.support.rabbitmq import RabbitMQ
from tests.support.waiting import eventually

CROWD, JOBS = "crowd", 2_000
LONE = [f"lone-{number}" for number in range(9)]
SLOTS = 16


def end(scene: Scene, jobs: Sequence[UUID]) -> None:
    for job_id in jobs:
        eventually(lambda job_id=job_id: scene.has_ended(job_id), PATIENCE, what=f"job {job_id} ends")
    assert scene.read("SELECT 1 FROM jobs WHERE id = ANY (%s) AND status <> 'completed'", list(jobs)) == []


def few_jobs_beside_thousands(scene: Scene, pool: str = "io") -> None:
    """Nobody has taken a message when the last one comes, so tasks are counted, not time."""
    tool = ("fault_note", {"text": "a"}) if pool == "io" else ("fault_crunch", {"until": "now"})
    (scene.folder / "now").touch()
    scene.tenants(CROWD, *LONE)
    jobs = JOBS if pool == "io" else JOBS // 10
    for _ in range(jobs):
        scene.submit(tool, tenant=CROWD)
    if pool == "cpu":  # all wait for the one process when it comes
        scene.worker()
        waiting = "SELECT 1 FROM steps WHERE tenant_id = %s AND status = 'ready'"
        eventually(lambda: len(scene.read(waiting, CROWD)) == jobs, PATIENCE, what="all steps wait")
    few = [scene.submit(tool, tenant=tenant) for tenant in LONE]
    if pool == "cpu":
        waiting = "SELECT 1 FROM steps WHERE job_id = ANY (%s) AND status = 'ready'"
        eventually(lambda: len(scene.read(waiting, few)) == len(few), PATIENCE, what="all steps wait")
        scene.worker("cpu")
    else:
        scene.worker(concurrency=4)
    end(scene, few)
    table = "jobs" if pool == "io" else "steps"
    last = f"SELECT max(started_at) FROM {table} WHERE tenant_id <> %s"
    began = f"SELECT count(*) AS n FROM {table} WHERE tenant_id = %s AND started_at < ({last})"
    ahead = scene.read(began, CROWD, CROWD)[0]["n"]
    # Valkey is asked for the next list in turn; RabbitMQ takes one by lot.
    most = len(LONE) + SLOTS if scene.broker_url.startswith("redis") else 10 * len(LONE)
    assert ahead <= most, f"{ahead} of {jobs} jobs of the crowd began before the last of the others"


def of_the_io_pool(scene: Scene) -> None:
    """Whole jobs."""
    few_jobs_beside_thousands(scene)


def of_the_cpu_pool(scene: Scene) -> None:
    """Steps, which a worker publishes that has seen the jobs before them."""
    few_jobs_beside_thousands(scene, "cpu")


def beside_calls_that_hold_every_slot(scene: Scene) -> None:
    """More jobs than there are slots wait for a host, bulk ones too: what is kept beyond the slots is for others."""
    scene.tenants(CROWD, *LONE)
    scene.worker(concurrency=SLOTS)
    held = [scene.submit(("fault_hold", {"until": "go"}), tenant=CROWD) for _ in range(4 * SLOTS)]
    held += [
        scene.submit(("fault_hold", {"until": "go"}), tenant=CROWD, priority=Priority.BULK) for _ in range(2 * SLOTS)
    ]
    scene.eventually_running("fault_hold", SLOTS)
    for tenant in LONE:
        end(scene, [scene.submit(("fault_note", {"text": "a"}), tenant=tenant)])
    running = "SELECT 1 FROM steps WHERE tool_name = 'fault_hold' AND status = 'running'"
    assert SLOTS <= len(scene.read(running)) < 2 * SLOTS, "all of them still hold their slots"
    (scene.folder / "go").touch()
    end(scene, held)
    scene.sound()


PLAYS = [as_play(of_the_io_pool), as_play(of_the_cpu_pool), as_play(beside_calls_that_hold_every_slot)]


@pytest.mark.parametrize("play", PLAYS)
def test_the_jobs_of_others_do_not_wait_for_those_of_the_crowd(
    play: tuple[str, Play], plays: dict[str, Future[None]]
) -> None:
    plays[play[0]].result()


@pytest.mark.rabbitmq
@pytest.mark.whole
@pytest.mark.parametrize("played", [of_the_io_pool, of_the_cpu_pool, beside_calls_that_hold_every_slot])
def test_nor_do_they_on_rabbitmq(stage: Stage, rabbitmq: RabbitMQ, played: Callable[[Scene], None]) -> None:
    url = rabbitmq.create()
    try:
        with stage(broker_url=url) as scene:
            played(scene)
    finally:
        rabbitmq.drop(url)
