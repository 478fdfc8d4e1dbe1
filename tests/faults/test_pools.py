"""Pools that tools name themselves: a queue each, workers of their own, on a loop or with processes."""

from __future__ import annotations

import httpx
import pytest

from tests.faults.conftest import Stage
from tests.faults.scene import PATIENCE, SETTINGS, Scene
from tests.faults.test_rabbitmq import own_host
from tests.support.rabbitmq import RabbitMQ
from tests.support.waiting import eventually

TOOLS = "tests.faults.pools"
BOTH = f"{SETTINGS['PLANQ_TOOLS']},{TOOLS}"


def gpu_worker(scene: Scene, *options: str, name: str = "gpu-1") -> str:
    scene.stack.run(name, "-m", "planq.worker", "gpu", "--slots", "2", "--tools", TOOLS, *options)
    return name


def planned(scene: Scene, *calls: tuple[str, str]) -> object:
    published = "SELECT 1 FROM tools WHERE name = 'gpu_train'"
    eventually(lambda: scene.read(published), PATIENCE, what="the tools are published")
    return scene.submit(*((name, {"text": text}) for name, text in calls))


@pytest.mark.parametrize("options", [(), ("--process",)], ids=["loop", "processes"])
def test_steps_of_a_pool_run_on_its_workers_alone(stage: Stage, options: tuple[str, ...]) -> None:
    with stage() as scene:
        scene.worker(PLANQ_TOOLS=BOTH)
        name = gpu_worker(scene, *options)
        job_id = planned(scene, ("gpu_train", "a"), ("fault_note", "$0.output.text"), ("gpu_train", "$1.output.text"))
        eventually(lambda: scene.has_ended(job_id), PATIENCE, what="the job ends")
        job, steps = scene.job(job_id)
        assert (job["status"], [step["pool"] for step in steps]) == ("completed", ["gpu", "io", "gpu"])
        pids = {int(steps[index]["output"]["text"].split()[0]) for index in (0, 2)}
        assert (scene.pid(name) in pids) is not bool(options), "with processes it runs in one of the worker's own"


@pytest.mark.whole
@pytest.mark.rabbitmq
def test_a_pool_has_queues_on_rabbitmq_that_were_declared_before_anybody_listens(
    stage: Stage, rabbitmq: RabbitMQ
) -> None:
    with own_host(rabbitmq) as url, stage(broker_url=url) as scene:
        scene.worker(PLANQ_TOOLS=BOTH)
        job_id = planned(scene, ("gpu_train", "a"), ("gpu_train", "$0.output.text"))
        ready = "SELECT 1 FROM steps WHERE job_id = %s AND status = 'ready'"
        eventually(lambda: scene.read(ready, job_id), PATIENCE, what="its wake-up is published")
        gpu_worker(scene)
        eventually(lambda: scene.has_ended(job_id), PATIENCE, what="the job ends")
        job, steps = scene.job(job_id)
        assert (job["status"], [step["attempt"] for step in steps]) == ("completed", [1, 1])


@pytest.mark.whole
def test_a_process_of_a_pool_that_dies_costs_its_step_an_attempt(stage: Stage) -> None:
    with stage() as scene:
        scene.worker(PLANQ_TOOLS=BOTH)
        gpu_worker(scene, "--process")
        job_id = planned(scene, ("gpu_kill", "a"))
        eventually(lambda: scene.has_ended(job_id), PATIENCE, what="the job ends")
        _, [step] = scene.job(job_id)
        assert (step["status"], step["attempt"], step["worker_losses"]) == ("succeeded", 2, 1)


@pytest.mark.whole
def test_a_pool_is_shown_where_pools_are(stage: Stage) -> None:
    with stage() as scene:
        scene.worker(PLANQ_TOOLS=BOTH)
        scene.worker("cpu")
        gpu_worker(scene)
        scene.api()
        url = scene.stack.url

        def is_seen() -> bool:
            return "worker_gpu" in httpx.get(f"{url}/statusz", timeout=60).json()["checks"]

        eventually(is_seen, PATIENCE, what="/statusz tells of the pool")
        assert 'planq_live_workers{pool="gpu"} 1.0' in httpx.get(f"{url}/metrics", timeout=60).text
        tools = {one["name"]: one for one in httpx.get(f"{url}/tools", timeout=60).json()["items"]}
        assert tools["gpu_train"]["pool"] == "gpu"
