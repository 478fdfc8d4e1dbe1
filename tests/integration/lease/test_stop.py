"""Workers that are told to stop, stand still, or hear nothing: others go on, nothing is done twice."""

from __future__ import annotations

import signal
from collections.abc import Callable
from time import monotonic

import pytest

from planq.deploy.local.child import send
from planq.shared.broker.celery_config import create_celery
from tests.integration.lease.conftest import Scene
from tests.support.waiting import eventually

MakeScene = Callable[..., Scene]

HOLDER = """SELECT w.name FROM workers w JOIN steps s ON s.worker_id = w.id
WHERE s.job_id = %s AND s.status = 'running'"""


def holder(scene: Scene, job_id: str) -> str:
    """The stack's name for the worker that runs the job's step."""
    scene.until_running(job_id)
    [row] = scene.sql(HOLDER, job_id)
    pid = int(row["name"].partition("@")[0].rpartition("-")[2])
    return next(name for name, process in scene.stack.processes.items() if process.pid == pid)


def test_a_stopping_cpu_worker_drains_then_hands_its_steps_over(make_scene: MakeScene) -> None:
    scene = make_scene(cpu=2, PLANQ_DRAIN_SECONDS="1")
    safe = scene.submit(("test_grind", {"path": str(scene.path)}))
    stopping = holder(scene, safe)
    process = scene.stack.processes[stopping]
    scene.pids()
    begun = monotonic()

    send(process, signal.SIGTERM)
    first, second = scene.pids(2)
    assert monotonic() - begun < 45, "another worker went on at once, long before the step's end"
    eventually(lambda: process.poll() is not None, 60, what="the worker has ended")
    assert process.returncode == 0
    assert first != second
    [step] = scene.job(safe)["steps"]
    assert (step["status"], step["attempt"]) == ("running", 2)
    assert scene.sql("SELECT worker_losses, releases FROM steps") == [{"worker_losses": 0, "releases": 1}]
    assert scene.cancel(safe) == 200


def test_a_stopping_cpu_worker_does_not_repeat_an_unsafe_step(make_scene: MakeScene) -> None:
    scene = make_scene(cpu=1, PLANQ_DRAIN_SECONDS="0.5")
    job = scene.submit(("test_grind_once", {"path": str(scene.path)}))
    process = scene.stack.processes[holder(scene, job)]
    scene.pids()

    send(process, signal.SIGTERM)
    [step] = scene.ended(job, 30)["steps"]
    assert (step["status"], step["attempt"], step["error"]["code"]) == ("failed", 1, "outcome_unknown")
    eventually(lambda: process.poll() is not None, 60, what="the worker has ended")
    assert len(scene.pids()) == 1


@pytest.mark.parametrize("pool", ["io", "cpu"])
def test_a_worker_that_stood_still_cuts_off_what_others_took(make_scene: MakeScene, pool: str) -> None:
    scene = make_scene(**{pool: 2})
    tool, arguments = ("test_hold", {"seconds": 4}) if pool == "io" else ("test_crunch", {"seconds": 4})
    job = scene.submit((tool, arguments))
    frozen = holder(scene, job)
    process = scene.stack.processes[frozen]

    process.send_signal(signal.SIGSTOP)
    eventually(lambda: scene.job(job)["steps"][0]["attempt"] == 2, what="another worker went on")
    process.send_signal(signal.SIGCONT)

    eventually(lambda: "attempt_cut_off" in scene.stack.log(frozen).read_text(), 60, what="the frozen worker let go")
    done = scene.ended(job)
    assert done["status"] == "completed"
    assert [step["attempt"] for step in done["steps"]] == [2]
    again = [scene.submit((tool, arguments | {"seconds": 0.1})) for _ in range(4)]
    assert {scene.ended(job_id)["status"] for job_id in again} == {"completed"}


def test_a_worker_that_hears_nothing_ends_to_be_started_again(make_scene: MakeScene, broker_url: str) -> None:
    scene = make_scene(PLANQ_CONSUMER_WATCHDOG_SECONDS="6", PLANQ_REMOTE_CONTROL="cancel_consumer")
    process = scene.stack.processes["io-1"]
    # A worker that has not begun to listen would do so after it was told to stop.
    assert scene.ended(scene.submit(("test_hold", {"seconds": 0})))["status"] == "completed"

    def is_cancelled() -> bool:
        replies = app.control.cancel_consumer("planq.io", reply=True, timeout=1)
        return any("planq-io" in name for reply in replies for name in reply)

    with create_celery(broker_url) as app:
        eventually(is_cancelled, what="the io worker takes no messages any more")
    job = scene.submit(("test_hold", {"seconds": 0}))

    def has_ended() -> bool:
        # As if the sweeper had published it once already, so that it does so again now and not in half a minute. What
        # it has published for the second time stays as it is: the watchdog believes what it has seen twice.
        scene.sql(
            "UPDATE jobs SET wakes = 1, wake_at = now()"
            " WHERE status = 'queued' AND stage_worker IS NULL AND wakes < 2"
        )
        return process.poll() is not None

    eventually(has_ended, 120, every=1, what="the deaf worker has ended")
    assert process.returncode == 75
    assert "consumer_stalled" in scene.stack.log("io-1").read_text()
    scene.stack.run_worker("io", 2)
    assert scene.ended(job)["status"] == "completed"
