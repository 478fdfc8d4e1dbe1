"""A killed worker is seen to be gone by those beside it, long before its lease ends; what may still act is not.

The times are the database's, and each is held against the lease of the same run: the length of a lease proves nothing
here but that nobody waited for its end.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from concurrent.futures import Future
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tests.faults.conftest import Play, Stage, as_play
from tests.faults.reaching import begun_stage
from tests.faults.scene import PATIENCE, SHORT_LEASE, SHORT_LEASE_SECONDS, Scene
from tests.support.living import is_alive
from tests.support.stack import step_processes
from tests.support.waiting import eventually

LONG_SECONDS = 45.0
LONG = {"PLANQ_LEASE_SECONDS": str(LONG_SECONDS)}
HOLD = ("fault_hold", {"until": "go"})
PAYMENT = ("fault_pay", {"text": "a", "until": "never"}), ("fault_note", {"text": "$0.output.text"})


def beat(scene: Scene, name: str) -> datetime:
    """Return when the lease of a worker was renewed last."""
    pid = scene.pid(name)
    (row,) = scene.read("SELECT heartbeat_at FROM workers WHERE name LIKE %s", f"planq-%-{pid}@%")
    found: datetime = row["heartbeat_at"]
    return found


def held(scene: Scene) -> set[int]:
    """Return the workers whose lease nobody has ended, by the numbers of their processes."""
    rows = scene.read("SELECT name FROM workers WHERE heartbeat_at > 'epoch'")
    return {int(row["name"].partition("@")[0].rpartition("-")[2]) for row in rows}


def began(scene: Scene, job_id: UUID, attempt: int, kind: str = "step_started") -> datetime:
    """Return when an attempt began."""
    (found,) = [row["created_at"] for row in scene.told(job_id, kind) if row["data"]["attempt"] == attempt]
    moment: datetime = found
    return moment


def counted(scene: Scene, **losses: int) -> bool:
    """See how often living workers found an attempt lost, by how it was seen."""
    found = Counter[str]()
    for row in scene.read("SELECT counts FROM workers WHERE heartbeat_at > 'epoch'"):
        for kind, *labels, number in row["counts"] or ():
            if kind == "lost":
                found[labels[0]] += number
    assert found == losses
    return True


def kill_alone(scene: Scene, name: str) -> None:
    """Kill the process, and nothing that it has forked."""
    os.kill(scene.pid(name), signal.SIGKILL)


def a_step_of_a_killed_worker_is_taken_over_before_its_lease_has_ended(stage: Stage) -> None:
    """Two others see it at the same time, and one takes the step back."""
    with stage(env=LONG) as scene:
        job_id = scene.submit(HOLD)
        killed = scene.worker()
        scene.runs(job_id)
        others = [scene.worker(), scene.worker()]
        eventually(lambda: scene.live() == 3, PATIENCE, what=f"{others} are there")
        end = beat(scene, killed) + timedelta(seconds=LONG_SECONDS)
        kill_alone(scene, killed)  # and nobody waits for it: it stays a zombie
        eventually(lambda: scene.ran()[f"{job_id}/0"] == 2, PATIENCE, what="another one has taken the step over")
        assert began(scene, job_id, 2) < end
        (scene.folder / "go").touch()
        scene.completes(job_id, "attempt 2")
        assert scene.read("SELECT worker_losses FROM steps") == [{"worker_losses": 1}]
        eventually(lambda: counted(scene, gone=1), PATIENCE, what="the loss is counted, once")
        scene.sound()


def a_stage_of_a_killed_worker_is_taken_over_before_its_lease_has_ended(stage: Stage) -> None:
    with stage(env=LONG) as scene:
        killed = scene.worker()
        job_id = begun_stage(scene, lambda: kill_alone(scene, killed))
        end = beat(scene, killed) + timedelta(seconds=LONG_SECONDS)
        scene.worker()
        scene.mixed_comes_out_right(job_id)
        assert began(scene, job_id, 2, "stage_started") < end
        scene.sound()


def an_unsafe_step_of_a_killed_worker_fails_before_its_lease_has_ended(stage: Stage) -> None:
    with stage(env=LONG) as scene:
        job_id = scene.submit(
            ("fault_pay", {"text": "a", "until": "never"}), ("fault_note", {"text": "$0.output.text"})
        )
        killed = scene.worker()
        scene.runs(job_id)
        end = beat(scene, killed) + timedelta(seconds=LONG_SECONDS)
        kill_alone(scene, killed)
        scene.worker()
        job, steps = scene.ends(job_id)
        assert job["finished_at"] < end
        assert [step["status"] for step in steps] == ["failed", "skipped"]
        assert steps[0]["error"]["code"] == "outcome_unknown"
        assert scene.paid()[f"{job_id}/0"] == 1
        scene.sound()


def the_processes_of_a_killed_cpu_worker_die_with_it(stage: Stage) -> None:
    """Its step runs in one of them, which does nothing any more once the next attempt has begun."""
    with stage(env=LONG) as scene:
        scene.worker()
        killed = scene.worker("cpu")
        job_id = scene.submit(("fault_tick", {"until": "go"}))
        scene.runs(job_id)
        (child,) = step_processes(scene.pid(killed))
        end = beat(scene, killed) + timedelta(seconds=LONG_SECONDS)
        kill_alone(scene, killed)
        scene.worker("cpu")
        eventually(lambda: "2" in scene.ticks(), PATIENCE, what="the second attempt is at work")
        assert began(scene, job_id, 2) < end
        assert not is_alive(child)
        (scene.folder / "go").touch()
        scene.completes(job_id, "attempt 2")
        assert scene.ticks() == sorted(scene.ticks()), "the first attempt did nothing after the second had begun"
        scene.sound()


def what_a_killed_worker_has_forked_is_waited_for(stage: Stage) -> None:
    """A tool has started a program, which lives on; another worker, killed later, is seen to be gone earlier."""
    with stage(env=LONG) as scene:
        job_id = scene.submit(("fault_fork", {"until": "over"}))
        first = scene.worker()
        scene.runs(job_id)
        second = scene.worker()
        scene.worker()
        eventually(lambda: scene.live() == 3, PATIENCE, what="all workers are there")
        end = beat(scene, first) + timedelta(seconds=LONG_SECONDS)
        kill_alone(scene, first)
        kill_alone(scene, second)
        eventually(lambda: scene.pid(second) not in held(scene), PATIENCE, what="the second one's lease is ended")
        assert scene.pid(first) in held(scene)
        assert scene.steps(job_id) == ["running"]
        (scene.folder / "over").touch()
        scene.completes(job_id, "attempt 2")
        assert began(scene, job_id, 2) < end
        scene.sound()


def a_worker_that_stands_still_keeps_its_step_until_its_lease_has_ended(stage: Stage) -> None:
    with stage(env=SHORT_LEASE) as scene:
        job_id = scene.submit(HOLD)
        slow = scene.worker()
        scene.runs(job_id)
        scene.signal(slow, signal.SIGSTOP)
        scene.worker()
        eventually(lambda: scene.ran()[f"{job_id}/0"] == 2, PATIENCE, what="another one has taken the step over")
        assert began(scene, job_id, 2) - beat(scene, slow) >= timedelta(seconds=SHORT_LEASE_SECONDS)
        (scene.folder / "go").touch()
        scene.completes(job_id, "attempt 2")
        eventually(lambda: counted(scene, lease=1), PATIENCE, what="the loss is counted")


def a_killed_worker_that_does_not_tell_where_it_lives_is_lost_with_its_lease(stage: Stage) -> None:
    """As one on another machine, or of a release that did not tell."""
    with stage(env=SHORT_LEASE) as scene:
        job_id = scene.submit(HOLD)
        silent = scene.worker(PLANQ_DETECT_DEAD_PEERS="false")
        scene.runs(job_id)
        kill_alone(scene, silent)
        scene.worker()
        eventually(lambda: scene.ran()[f"{job_id}/0"] == 2, PATIENCE, what="another one has taken the step over")
        assert began(scene, job_id, 2) - beat(scene, silent) >= timedelta(seconds=SHORT_LEASE_SECONDS)
        (scene.folder / "go").touch()
        scene.completes(job_id, "attempt 2")


GONE = (
    a_step_of_a_killed_worker_is_taken_over_before_its_lease_has_ended,
    a_stage_of_a_killed_worker_is_taken_over_before_its_lease_has_ended,
    an_unsafe_step_of_a_killed_worker_fails_before_its_lease_has_ended,
    the_processes_of_a_killed_cpu_worker_die_with_it,
    what_a_killed_worker_has_forked_is_waited_for,
    a_worker_that_stands_still_keeps_its_step_until_its_lease_has_ended,
    a_killed_worker_that_does_not_tell_where_it_lives_is_lost_with_its_lease,
)


@pytest.mark.parametrize(
    "play", [as_play(play, is_rare=play is what_a_killed_worker_has_forked_is_waited_for) for play in GONE]
)
def test_a_killed_worker_is_not_waited_for(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
