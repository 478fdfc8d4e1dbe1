"""A new tool is deployed, one worker after the other: jobs that need it fail nowhere, and run it once each."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from planq.deploy.local.child import has_exited
from tests.faults.conftest import Stage
from tests.faults.scene import PATIENCE, SETTINGS, Scene
from tests.support.waiting import eventually

JOBS = 500
NEW = f"{SETTINGS['PLANQ_TOOLS']},tests.faults.deployed"


def ended(scene: Scene) -> int:
    return int(scene.read("SELECT count(*) AS n FROM jobs WHERE finished_at IS NOT NULL")[0]["n"])


def submit(scene: Scene, most: int) -> None:
    for number in range(most):
        scene.submit(
            ("fault_note", {"text": str(number)}),
            ("deployed_greet", {"name": "$0.output.text"}),
            ("fault_note", {"text": "$1.output.text"}),
        )


@pytest.mark.whole
def test_a_rolling_deployment_of_a_tool_fails_no_job(stage: Stage) -> None:
    with stage() as scene:
        old = [scene.worker(), scene.worker()]
        eventually(lambda: scene.live() == 2, PATIENCE, what="the workers of before live")
        scene.worker(PLANQ_TOOLS=NEW)
        published = "SELECT 1 FROM tools WHERE name = 'deployed_greet'"
        eventually(lambda: scene.read(published), PATIENCE, what="the tool is published")
        submit(scene, JOBS // 2)
        eventually(lambda: ended(scene) >= JOBS // 4, PATIENCE, what="jobs run beside workers without the tool")
        for name in old:
            scene.signal(name, signal.SIGTERM)
            eventually(lambda name=name: has_exited(scene.stack.processes[name]), PATIENCE, what=f"{name} has gone")
            scene.worker(PLANQ_TOOLS=NEW)
            submit(scene, JOBS // 4)
        eventually(lambda: ended(scene) == JOBS, PATIENCE, what="all jobs end")
        told = scene.read("SELECT status, count(*) AS n FROM steps GROUP BY status")
        assert told == [{"status": "succeeded", "n": 3 * JOBS}], scene.read(
            "SELECT error::text, count(*) FROM steps WHERE status = 'failed' GROUP BY 1"
        )
        calls = Counter(line.split()[0] for line in (scene.folder / "ran").read_text().splitlines())
        greeted = [n for key, n in calls.items() if key.endswith("/1")]
        assert (len(greeted), set(greeted)) == (JOBS, {1}), "the new tool was called once for each job"


def test_a_step_whose_tool_no_worker_has_waits_for_one(stage: Stage) -> None:
    with stage() as scene:
        scene.worker()
        gone = scene.worker(PLANQ_TOOLS=NEW)
        published = "SELECT 1 FROM tools WHERE name = 'deployed_greet'"
        eventually(lambda: scene.read(published), PATIENCE, what="the tool is published")
        scene.signal(gone, signal.SIGTERM)
        eventually(lambda: scene.live() == 1, PATIENCE, what="the only worker that has it has gone")
        job_id = scene.submit(("deployed_greet", {"name": "you"}))
        waits = "SELECT 1 FROM steps WHERE tool_away_since IS NOT NULL AND attempt = 0"
        eventually(lambda: scene.read(waits), PATIENCE, what="the step waits")
        scene.worker(PLANQ_TOOLS=NEW)
        eventually(lambda: scene.has_ended(job_id), PATIENCE, what="the job ends")
        job, [step] = scene.job(job_id)
        assert (job["status"], step["status"], step["attempt"]) == ("completed", "succeeded", 1)
