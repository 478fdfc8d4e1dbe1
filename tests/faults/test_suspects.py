"""Steps that kill their worker: those beside them are suspected as well, and none of them fails for its neighbour."""

from __future__ import annotations

import signal
from concurrent.futures import Future
from uuid import UUID

import pytest

from planq.deploy.local.child import has_exited
from tests.faults.conftest import Play, Stage, as_play
from tests.faults.scene import PATIENCE, Scene
from tests.support.waiting import eventually

INNOCENTS = 40
LONG = {"PLANQ_LEASE_SECONDS": "45"}
"""No lease ends here while a process lives, however busy the machine is."""

HOLD = ("fault_hold", {"until": "go"})


def until_ended(scene: Scene, job_id: UUID, name: str) -> int:
    """Keep a worker alive, as a supervisor does, until a job has ended; returns how many workers it has killed."""
    killed = 0
    while True:
        process = scene.stack.processes[name]
        eventually(lambda: has_exited(process) or scene.has_ended(job_id), 2 * PATIENCE)  # noqa: B023
        if not has_exited(process):
            return killed
        scene.dies(name, -signal.SIGKILL)
        name = scene.worker()
        killed += 1


def an_innocent_never_fails_for_its_neighbour(stage: Stage) -> None:
    """Forty steps wait beside one that kills whatever process runs it."""
    with stage(env=LONG) as scene:
        innocents = scene.submit(*[HOLD] * INNOCENTS)
        name = scene.worker()
        scene.eventually_running("fault_hold", INNOCENTS)
        guilty = scene.submit(("fault_kill", {}))
        for _ in range(2):
            scene.dies(name, -signal.SIGKILL)
            name = scene.worker()
        scene.in_quarantine(guilty)
        (scene.folder / "go").touch()
        # In a company of 41 twice, of 11 and of 3 at most; then alone.
        assert 1 <= until_ended(scene, guilty, name) <= 2 + 3
        _, steps = scene.ends(innocents)
        assert [step["index"] for step in steps if step["status"] != "succeeded"] == [], "failed for their neighbour"
        assert {step["worker_losses"] for step in steps} == {0}
        assert max(step["attempt"] for step in steps) <= 2 + 3
        job, (killer,) = scene.job(guilty)
        assert (job["status"], killer["status"], killer["error"]["code"]) == ("completed", "failed", "worker_lost")
        assert (killer["worker_losses"], killer["error"]["details"]["losses"]) == (3, 3)
        scene.sound()


def a_step_that_is_alone_is_charged_at_once(stage: Stage) -> None:
    with stage(env=LONG) as scene:
        guilty = scene.submit(("fault_kill", {}))
        assert until_ended(scene, guilty, scene.worker()) == 3
        _, (killer,) = scene.job(guilty)
        assert (killer["attempt"], killer["worker_losses"]) == (3, 3)
        scene.sound()


def an_unsafe_call_beside_it_keeps_its_own_rule(stage: Stage) -> None:
    """It is not repeated blindly, whoever killed the worker."""
    with stage(env=LONG) as scene:
        paying = scene.submit(("fault_pay", {"text": "a", "until": "never"}))
        charging = scene.submit(("fault_charge", {"text": "a", "until": "never"}))
        name = scene.worker()
        scene.runs(paying)
        scene.runs(charging)
        guilty = scene.submit(("fault_kill", {}))
        assert until_ended(scene, guilty, name) <= 2 + 3
        _, (paid,) = scene.ends(paying)
        assert (paid["status"], paid["error"]["code"], paid["attempt"]) == ("failed", "outcome_unknown", 1)
        job, (charged,) = scene.job(charging)
        assert (job["status"], charged["status"], charged["attempt"]) == ("input_required", "waiting", 1)
        scene.sound()


def work_beside_suspects_goes_on(stage: Stage) -> None:
    """What was in flight in two workers that an operator has killed: one of it runs, and holds up one worker only."""
    with stage(env=LONG) as scene:
        job_id = scene.submit(HOLD, HOLD)
        for attempt in (1, 2):
            name = scene.worker()
            eventually(lambda: sum(scene.ran().values()) >= 2 * attempt, PATIENCE, what="both run")  # noqa: B023
            scene.signal(name, signal.SIGKILL)
            scene.dies(name, -signal.SIGKILL)
        third = scene.worker(PLANQ_DRAIN_SECONDS="0")
        eventually(lambda: sum(scene.ran().values()) >= 5, PATIENCE, what="one runs again")
        scene.worker()
        scene.completes(scene.submit(("fault_note", {"text": "b"})), "<b>")
        runs = "SELECT count(*)::int AS n FROM steps WHERE job_id = %s AND status = 'running'"
        assert scene.read(runs, job_id) == [{"n": 1}], "the other one waits for its turn"
        scene.signal(third, signal.SIGTERM)
        scene.dies(third, 0)
        (scene.folder / "go").touch()
        _, steps = scene.ends(job_id)
        assert {(step["status"], step["worker_losses"]) for step in steps} == {("succeeded", 0)}
        scene.sound()


PLAYS = (
    an_innocent_never_fails_for_its_neighbour,
    a_step_that_is_alone_is_charged_at_once,
    an_unsafe_call_beside_it_keeps_its_own_rule,
    work_beside_suspects_goes_on,
)


@pytest.mark.parametrize("play", [as_play(play, is_rare=play is work_beside_suspects_goes_on) for play in PLAYS])
def test_suspects_run_apart(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
