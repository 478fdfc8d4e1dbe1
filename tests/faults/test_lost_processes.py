"""Out of memory, and steps that kill whoever runs them: the step is tried again, then given up; others go on."""

from __future__ import annotations

import signal
from concurrent.futures import Future

import psutil
import pytest

from planq.deploy.local.child import has_exited
from tests.faults.conftest import Play, Stage, as_play
from tests.faults.conversing import a_worker_is_killed_in_the_middle_of_each_of_five_turns
from tests.faults.delegating import the_workers_of_a_family_are_killed_in_the_middle
from tests.faults.lines import line_comes_out_right, line_of
from tests.faults.orchestrating import all_workers_are_killed_in_the_middle_of_three_levels
from tests.faults.scene import PATIENCE, Scene
from tests.faults.telling import (
    a_reply_that_may_have_arrived_is_sent_again,
    five_turns_over_telegram_are_answered_in_order_though_each_worker_is_killed,
)
from tests.support.waiting import eventually


def a_process_that_the_kernel_killed_for_its_memory_loses_nothing(scene: Scene) -> None:
    """The parent of the `cpu` pool lives on, so no lease ends; the step runs again in another process."""
    scene.worker()
    parent = psutil.Process(scene.pid(scene.worker("cpu")))
    job_id = scene.submit(("fault_devour", {"times": 1}), ("fault_note", {"text": "$0.output.text"}))
    steps = scene.completes(job_id, "attempt 2", "<attempt 2>")
    assert [step["worker_losses"] for step in steps] == [1, 0]
    assert parent.is_running()
    scene.sound()


def a_tool_that_python_refuses_memory_fails_by_its_own_error(scene: Scene) -> None:
    scene.worker()
    scene.worker("cpu")
    (scene.folder / "go").touch()
    hungry = scene.submit(("fault_hunger", {}))
    job, steps = scene.ends(hungry)
    assert (job["status"], steps[0]["status"], steps[0]["error"]["code"]) == ("completed", "failed", "internal")
    scene.completes(scene.submit(("fault_crunch", {"until": "go"})), "attempt 1")
    scene.sound()


def a_step_that_always_kills_its_process_is_given_up_with_its_history(scene: Scene) -> None:
    scene.worker()
    scene.worker("cpu")
    (scene.folder / "go").touch()
    job_id = scene.submit(
        ("fault_note", {"text": "a"}), ("fault_devour", {"times": 99}), ("fault_note", {"text": "b"})
    )
    job, steps = scene.ends(job_id, 2 * PATIENCE)
    assert job["status"] == "completed"
    killer = steps[1]
    assert (killer["status"], killer["error"]["code"], killer["attempt"]) == ("failed", "worker_lost", 3)
    assert scene.ran()[f"{job_id}/1"] == 3
    scene.completes(scene.submit(("fault_crunch", {"until": "go"})), "attempt 1")
    scene.sound()


def a_worker_that_is_lost_in_a_unit_costs_no_finished_step(stage: Stage) -> None:
    """It dies in the tool of a chain's ninth step: what has run of its unit, and was not stored, runs again."""
    with stage() as scene:
        job_id = scene.submit(*line_of(20))
        scene.died_at("tool.call:after@9")
        scene.worker()
        attempts = line_comes_out_right(scene, job_id, 20)
        calls = [times for key, times in scene.ran().items() if key.startswith(f"{job_id}/")]
        assert (len(calls), attempts) == (20, 21), "the attempt that was lost is that of the unit's first step"
        assert (max(calls), sum(calls) <= 20 + 9) == (2, True)
        scene.sound()


def a_step_that_kills_its_worker_in_a_unit_is_the_one_given_up(stage: Stage) -> None:
    """One death is charged to the first step of the unit; then the chain goes step by step."""
    with stage() as scene:
        job_id = scene.submit(
            *line_of(2), ("fault_strike", {"text": "$1.output.text"}), ("fault_note", {"text": "b"})
        )
        # The fifth worker lives, or the fourth one where a slow machine stored the steps before it.
        for _ in range(5):
            process = scene.stack.processes[name := scene.worker()]
            eventually(lambda: has_exited(process) or "failed" in scene.steps(job_id), PATIENCE)  # noqa: B023
            if not has_exited(process):
                break
            scene.dies(name, -signal.SIGKILL)
        job, steps = scene.ends(job_id)
        assert (job["status"], steps[2]["error"]["code"]) == ("completed", "worker_lost")
        assert [step["status"] for step in steps[:3]] == ["succeeded", "succeeded", "failed"]
        assert [step["worker_losses"] > 1 for step in steps[:3]] == [False, False, True]
        scene.sound()


def a_step_that_always_kills_its_worker_is_given_up_and_later_workers_live(stage: Stage) -> None:
    with stage() as scene:
        job_id = scene.submit(("fault_kill", {}))
        for _ in range(3):
            scene.dies(scene.worker(), -signal.SIGKILL)
        last = scene.worker()
        job, steps = scene.ends(job_id)
        assert (job["status"], steps[0]["status"], steps[0]["attempt"]) == ("completed", "failed", 3)
        assert steps[0]["error"]["code"] == "worker_lost"
        assert "3" in steps[0]["error"]["message"]
        told = scene.read(
            "SELECT kind FROM events WHERE job_id = %s AND kind LIKE 'step%%' ORDER BY sequence", job_id
        )
        assert [row["kind"] for row in told] == [
            *["step_started", "step_retrying"] * 2,
            "step_started",
            "step_failed",
        ]
        eventually(lambda: scene.live() == 1, PATIENCE, what="the leases of the killed workers have ended")
        assert psutil.pid_exists(scene.pid(last))
        scene.sound()


LOSSES = (
    all_workers_are_killed_in_the_middle_of_three_levels,
    the_workers_of_a_family_are_killed_in_the_middle,
    a_worker_is_killed_in_the_middle_of_each_of_five_turns,
    five_turns_over_telegram_are_answered_in_order_though_each_worker_is_killed,
    a_reply_that_may_have_arrived_is_sent_again,
    a_process_that_the_kernel_killed_for_its_memory_loses_nothing,
    a_tool_that_python_refuses_memory_fails_by_its_own_error,
    a_step_that_always_kills_its_process_is_given_up_with_its_history,
    a_worker_that_is_lost_in_a_unit_costs_no_finished_step,
    a_step_that_kills_its_worker_in_a_unit_is_the_one_given_up,
    a_step_that_always_kills_its_worker_is_given_up_and_later_workers_live,
)
RARE = (
    five_turns_over_telegram_are_answered_in_order_though_each_worker_is_killed,
    a_worker_is_killed_in_the_middle_of_each_of_five_turns,  # `test_rounds.py` kills one in each place of a turn
    the_workers_of_a_family_are_killed_in_the_middle,
    a_step_that_kills_its_worker_in_a_unit_is_the_one_given_up,
)


@pytest.mark.parametrize("play", [as_play(play, is_rare=play in RARE) for play in LOSSES])
def test_a_lost_process_costs_no_more_than_its_step(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
