"""Loops that freeze: a guard logs the stack, kills the process and starts it again; the guilty step is given up."""

from __future__ import annotations

import json
from concurrent.futures import Future

import httpx
import pytest

from tests.faults.conftest import Play, Stage, as_play
from tests.faults.scene import PATIENCE, Scene
from tests.support.waiting import eventually

LONG = {"PLANQ_LEASE_SECONDS": "60"}
"""No lease ends here: the others see that a worker has gone."""

INNOCENTS = 12

LOSSES = 3
"""`PLANQ_MAX_WORKER_LOSSES`."""

LONG_PATIENCE = 3 * PATIENCE
"""What is given up here ends up to seven processes one after the other, each of which freezes and starts again."""


def freezes(scene: Scene, name: str) -> list[dict[str, str]]:
    """Return what the guard of a process has logged of loops that froze."""
    lines = scene.stack.log(name).read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"event": "froze"')]


def ends_its_process_alone(stage: Stage, how: str, tool: str = "freeze") -> None:
    """The guard ends each process that freezes; the step is given up in the end, and no innocent one is."""
    with stage(env=LONG) as scene:
        name = scene.guarded()
        innocents = scene.submit(*[("fault_hold", {"until": "go"})] * INNOCENTS)
        scene.eventually_running("fault_hold", INNOCENTS)
        guilty = scene.submit((f"fault_{tool}", {"how": how}))
        scene.in_quarantine(guilty)
        (scene.folder / "go").touch()
        job, (step,) = scene.ends(guilty, LONG_PATIENCE)

        assert (job["status"], step["status"], step["error"]["code"]) == ("completed", "failed", "worker_lost")
        assert step["worker_losses"] == LOSSES, "only losses in which it was alone are charged"
        stacks = [line["stack"] for line in freezes(scene, name)]
        assert any(f"in {how}" in stack and f"in {tool}" in stack for stack in stacks)

        _, steps = scene.ends(innocents)
        assert {step["status"] for step in steps} == {"succeeded"}
        assert {step["worker_losses"] for step in steps} == {0}
        scene.completes(scene.submit(("fault_note", {"text": "b"})), "<b>")
        scene.sound()


def what_holds_the_interpreter_ends_its_process_alone(stage: Stage) -> None:
    """A regular expression: no thread of the worker gets a turn, its heartbeat neither."""
    ends_its_process_alone(stage, "hold")


def what_blocks_the_loop_ends_its_process_alone(stage: Stage) -> None:
    """The worker beats, so its lease goes on, and nothing else does."""
    ends_its_process_alone(stage, "block")


def a_synchronous_tool_that_holds_the_interpreter_ends_its_process_alone(stage: Stage) -> None:
    """Its thread has no loop, and it holds up the one of its worker all the same."""
    ends_its_process_alone(stage, "hold", "freeze_thread")


def a_stage_that_freezes_is_given_up(stage: Stage, name: str) -> None:
    with stage(env=LONG) as scene:
        worker = ("-m", "tests.support.freezing_worker", "io", "--concurrency", "100")
        guard = scene.guarded("io", *worker, FAULT_STAGE=name)
        innocent = scene.submit(("fault_hold", {"until": "go"}))
        scene.eventually_running("fault_hold", 1)
        guilty = scene.submit(text="calculate 1 + 2, then calculate it + 3")
        scene.in_quarantine(guilty)
        (scene.folder / "go").touch()
        job, steps = scene.ends(guilty, LONG_PATIENCE)

        assert (job["status"], job["error"]["code"]) == ("failed", "worker_lost")
        assert job["error"]["details"]["losses"] == LOSSES
        assert [step["status"] for step in steps] == ([] if name == "plan" else ["succeeded"] * 2)
        assert any("in freeze" in line["stack"] for line in freezes(scene, guard))

        _, (step,) = scene.ends(innocent)
        assert (step["status"], step["worker_losses"]) == ("succeeded", 0)
        scene.sound()


def a_planning_that_freezes_is_given_up(stage: Stage) -> None:
    a_stage_that_freezes_is_given_up(stage, "plan")


def an_answering_that_freezes_is_given_up(stage: Stage) -> None:
    a_stage_that_freezes_is_given_up(stage, "respond")


def a_job_that_is_cancelled_while_its_suspect_freezes_is_cancelled(stage: Stage) -> None:
    """The frozen process hears nothing of the cancel: the guard ends it, and nobody begins the step again."""
    with stage(env=LONG) as scene:
        name = scene.guarded()
        innocents = scene.submit(*[("fault_hold", {"until": "go"})] * INNOCENTS)
        scene.eventually_running("fault_hold", INNOCENTS)
        guilty = scene.submit(("fault_freeze", {"how": "hold"}))
        scene.in_quarantine(guilty)
        (scene.folder / "go").touch()
        eventually(lambda: scene.began(guilty, 3), LONG_PATIENCE, what="it runs apart from all others")
        scene.caller.do(scene.caller.requests.cancel("default", guilty))
        job, (step,) = scene.ends(guilty)

        assert (job["status"], step["status"]) == ("cancelled", "cancelled")
        eventually(lambda: len(freezes(scene, name)) >= 3, PATIENCE, what="the frozen process is ended")
        _, steps = scene.ends(innocents)
        assert {(step["status"], step["worker_losses"]) for step in steps} == {("succeeded", 0)}
        assert not scene.began(guilty, 4)
        scene.completes(scene.submit(("fault_note", {"text": "b"})), "<b>")
        scene.sound()


def an_api_whose_loop_is_held_is_started_again(stage: Stage) -> None:
    with stage() as scene:
        name = scene.guarded("api", "-m", "tests.support.freezing_api")

        def pid() -> int | None:
            try:
                answer = httpx.get(f"{scene.stack.url}/pid", timeout=60)
            except httpx.TransportError:
                return None
            return int(answer.text) if answer.is_success else None

        first = eventually(pid, PATIENCE, what="the API answers")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{scene.stack.url}/hold", timeout=PATIENCE)
        second = eventually(pid, PATIENCE, what="the API answers again")

        assert first != second
        # A busy machine may hold up a loop for as long, without a route that holds it: such a line is true, too.
        assert any("freezing_api.py" in line["stack"] for line in freezes(scene, name))


PLAYS = (
    what_holds_the_interpreter_ends_its_process_alone,
    what_blocks_the_loop_ends_its_process_alone,
    a_synchronous_tool_that_holds_the_interpreter_ends_its_process_alone,
    a_planning_that_freezes_is_given_up,
    an_answering_that_freezes_is_given_up,
    a_job_that_is_cancelled_while_its_suspect_freezes_is_cancelled,
    an_api_whose_loop_is_held_is_started_again,
)


@pytest.mark.parametrize("play", [as_play(play) for play in PLAYS])
def test_a_freeze_ends_with_its_process(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
