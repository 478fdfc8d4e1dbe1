"""Calls longer than their time-out: those that report go on, also beyond the time of their plan."""

from __future__ import annotations

import signal

import pytest

from planq.shared.kernel.limits import Limits
from tests.faults.conftest import Stage
from tests.faults.scene import PATIENCE, SETTINGS, Scene
from tests.support.waiting import eventually

TOOLS = f"{SETTINGS['PLANQ_TOOLS']},tests.faults.reporting"
SHORT = Limits(plan_timeout_seconds=3)
"""A plan has less time than its call takes."""


def submit(scene: Scene, name: str, limits: Limits = SHORT, **arguments: object) -> object:
    published = "SELECT 1 FROM tools WHERE name = %s"
    eventually(lambda: scene.read(published, name), PATIENCE, what="the tool is published")
    return scene.submit((name, arguments), limits=limits)


@pytest.mark.parametrize(
    ("name", "pool"),
    [("report_slowly", "io"), ("report_from_thread", "io"), ("compute_slowly", "cpu")],
)
def test_a_long_call_goes_on_while_it_reports_or_its_process_is_watched(stage: Stage, name: str, pool: str) -> None:
    with stage() as scene:
        scene.worker(PLANQ_TOOLS=TOOLS)
        if pool == "cpu":
            scene.worker("cpu", PLANQ_TOOLS=TOOLS)
        job_id = submit(scene, name, seconds=15 if pool == "cpu" else 6)
        if pool == "io":
            told = "SELECT progress->>'done' AS done FROM steps WHERE status = 'running' AND progress IS NOT NULL"
            (seen,) = eventually(lambda: scene.read(told), PATIENCE, what="the step says how far it is")
            assert 0 <= float(seen["done"]) <= 1
        eventually(lambda: scene.has_ended(job_id), PATIENCE, what="the job ends")
        job, [step] = scene.job(job_id)
        assert (job["status"], step["status"], step["attempt"]) == ("completed", "succeeded", 1), step["error"]
        events = scene.told(job_id, "step_progress")
        assert bool(events) is (pool == "io")
        assert len(events) < 10, "once a second at most"


def test_a_call_that_says_nothing_any_more_ends_at_its_time_out(stage: Stage) -> None:
    with stage() as scene:
        scene.worker(PLANQ_TOOLS=TOOLS)
        job_id = submit(scene, "report_slowly", Limits(), seconds=50, silent=True)
        timed_out = "SELECT 1 FROM events WHERE job_id = %s AND kind = 'step_retrying'"
        eventually(lambda: scene.read(timed_out, job_id), PATIENCE, what="the call is cut off")
        _, [step] = scene.job(job_id)
        assert "did not answer within 2 s" in step["error"]["message"]


def test_a_call_that_reports_for_ever_ends_at_its_limit(stage: Stage) -> None:
    with stage() as scene:
        scene.worker(PLANQ_TOOLS=TOOLS)
        job_id = submit(scene, "report_for_ever", Limits())
        timed_out = "SELECT 1 FROM events WHERE job_id = %s AND kind = 'step_retrying'"
        eventually(lambda: scene.read(timed_out, job_id), PATIENCE, what="the call is cut off")
        _, [step] = scene.job(job_id)
        assert "it ran for 3 s" in step["error"]["message"]


@pytest.mark.whole
def test_a_long_call_whose_worker_is_killed_is_taken_back_in_seconds(stage: Stage) -> None:
    with stage() as scene:
        scene.worker(PLANQ_TOOLS=TOOLS)
        name = scene.worker("cpu", PLANQ_TOOLS=TOOLS)
        job_id = submit(scene, "compute_slowly", Limits(), seconds=55)
        scene.eventually_running("compute_slowly", 1)
        scene.signal(name, signal.SIGKILL)
        back = "SELECT 1 FROM steps WHERE job_id = %s AND worker_losses = 1"
        eventually(lambda: scene.read(back, job_id), 30.0, what="it is taken back long before its time is over")
        scene.worker("cpu", PLANQ_TOOLS=TOOLS)
        again = "SELECT 1 FROM steps WHERE job_id = %s AND attempt = 2 AND status = 'running'"
        eventually(lambda: scene.read(again, job_id), PATIENCE, what="it runs again")
        longer = f"{again} AND deadline > now() AND started_at < now() - interval '25 seconds'"
        eventually(lambda: scene.read(longer, job_id), PATIENCE, what="it runs on, beyond its time-out and any grace")
        (scene.folder / "end").touch()
        eventually(lambda: scene.has_ended(job_id), PATIENCE, what="the job ends")
        _, [step] = scene.job(job_id)
        assert (step["status"], step["attempt"]) == ("succeeded", 2)
