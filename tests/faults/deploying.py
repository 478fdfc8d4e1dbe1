"""Crash points of tools that not every worker has, and of calls that report: see `reaching`."""

from __future__ import annotations

import signal
from uuid import UUID

from tests.faults.scene import PATIENCE, SETTINGS, Scene
from tests.support.waiting import eventually

NEW = f"{SETTINGS['PLANQ_TOOLS']},tests.faults.deployed"
REPORTING = f"{SETTINGS['PLANQ_TOOLS']},tests.faults.reporting"


def published(scene: Scene, name: str) -> None:
    """Wait until a tool is published."""
    eventually(lambda: scene.read("SELECT 1 FROM tools WHERE name = %s", name), PATIENCE, what=f"{name} is published")


def greeting(scene: Scene) -> UUID:
    """Submit a job whose tool was published by a worker that has gone."""
    gone = scene.worker(PLANQ_TOOLS=NEW)
    published(scene, "deployed_greet")
    scene.signal(gone, signal.SIGTERM)
    eventually(lambda: scene.live() == 0, PATIENCE, what="the only worker that has the tool has gone")
    return scene.submit(("deployed_greet", {"name": "you"}))


def handed_on(scene: Scene, point: str) -> None:
    """A worker dies while it hands on, or puts aside, what it cannot run."""
    job_id = greeting(scene)
    scene.died_at(point)
    scene.worker(PLANQ_TOOLS=NEW)
    scene.completes(job_id, "Hello you")


def put_aside(scene: Scene) -> UUID:
    """Submit the same job and let a worker put its step aside, which then goes."""
    job_id = greeting(scene)
    name = scene.worker()
    aside = "SELECT 1 FROM steps WHERE tool_away_since IS NOT NULL"
    eventually(lambda: scene.read(aside), PATIENCE, what="the step waits for its tool")
    scene.stack.kill(name)
    return job_id


def came_back(scene: Scene, point: str) -> None:
    """A worker that has the tool dies while it wakes what waits for it."""
    job_id = put_aside(scene)
    scene.died_at(point, PLANQ_TOOLS=NEW)
    scene.worker(PLANQ_TOOLS=NEW)
    scene.completes(job_id, "Hello you")


def missed(scene: Scene, point: str) -> None:
    """A worker dies while it fails what has waited for too long."""
    job_id = put_aside(scene)
    scene.died_at(point, PLANQ_TOOL_WAIT_SECONDS="0.1")
    scene.worker(PLANQ_TOOL_WAIT_SECONDS="0.1")
    _, [step] = scene.ends(job_id)
    assert (step["status"], step["attempt"], step["error"]["code"]) == ("failed", 0, "unknown_tool")


def reported(scene: Scene, point: str) -> None:
    """A worker dies while it keeps what a call has reported."""
    name = scene.doomed(point, PLANQ_TOOLS=REPORTING)
    published(scene, "report_slowly")
    job_id = scene.submit(("report_slowly", {"seconds": 1}))
    scene.dies(name)
    scene.worker(PLANQ_TOOLS=REPORTING)
    scene.completes(job_id, "done")


def watched(scene: Scene, point: str) -> None:
    """A worker dies while it gives a call of one of its processes more time."""
    scene.worker(PLANQ_TOOLS=REPORTING)
    name = scene.doomed(point, "cpu", PLANQ_TOOLS=REPORTING)
    published(scene, "compute_slowly")
    job_id = scene.submit(("compute_slowly", {"seconds": 60}))
    scene.dies(name)
    (scene.folder / "end").touch()
    scene.worker("cpu", PLANQ_TOOLS=REPORTING)
    scene.completes(job_id, "done")


DEPLOYING = {
    "store.hand_on": handed_on,
    "store.report_progress": reported,
    "worker_registry.watch_steps": watched,
    "sweep.wake_offered": came_back,
    "sweep.missed_tools": missed,
    "sweep.miss_tool": missed,
}
