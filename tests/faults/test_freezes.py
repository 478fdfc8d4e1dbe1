"""Loops that freeze: a guard notes where, kills the process and starts it again; the guilty step is given up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from datetime import datetime
from typing import IO
from uuid import UUID

import httpx
import pytest

from tests.faults.conftest import Play, Stage, as_play
from tests.faults.scene import PATIENCE, Scene
from tests.support.stack import ROOT
from tests.support.waiting import eventually

LONG = {"PLANQ_LEASE_SECONDS": "60"}
"""No lease ends here: the others see that a worker has gone."""

INNOCENTS = 12


def freezes(scene: Scene) -> list[dict[str, object]]:
    return scene.read("SELECT * FROM freezes ORDER BY noted_at")


def is_given_up_the_second_time(stage: Stage, how: str, tool: str = "freeze") -> None:
    with stage(env=LONG) as scene:
        name = scene.guarded()
        innocents = scene.submit(*[("fault_hold", {"until": "go"})] * INNOCENTS)
        scene.eventually_running("fault_hold", INNOCENTS)
        guilty = scene.submit((f"fault_{tool}", {"how": how}))
        job, (step,) = scene.ends(guilty)

        # A busy machine may hold up a loop for as long, in which nobody is guilty.
        first, second = (row for row in freezes(scene) if row["job_id"] is not None)
        assert (job["status"], step["status"], step["error"]["code"]) == ("completed", "failed", "froze")
        assert (step["attempt"], step["worker_losses"]) == (2, 2), "nobody beside it was suspected in its place"
        place = step["error"]["details"]["place"]
        assert "tests.support.beating:" in place
        assert " < tests.faults.tools:" in place
        assert place.endswith(f" {tool}")
        assert "/" not in place
        assert [row["place"] for row in (first, second)] == [place, place]
        assert [(row["job_id"], row["index"], row["attempt"]) for row in (first, second)] == [
            (guilty, 0, 1),
            (guilty, 0, 2),
        ]
        assert "suspects" in str(second["process"])
        assert f"planq:{guilty}:0:0:1" in scene.stack.log(name).read_text(), "the log has the whole stack"

        (scene.folder / "go").touch()
        _, steps = scene.ends(innocents)
        assert {step["status"] for step in steps} == {"succeeded"}
        assert {step["worker_losses"] for step in steps} == {0}
        scene.completes(scene.submit(("fault_note", {"text": "b"})), "<b>")
        scene.sound()


def what_holds_the_interpreter_is_given_up_the_second_time(stage: Stage) -> None:
    """A regular expression: no thread of the worker gets a turn, its heartbeat neither."""
    is_given_up_the_second_time(stage, "hold")


def what_blocks_the_loop_is_given_up_the_second_time(stage: Stage) -> None:
    """The worker beats, so its lease goes on, and nothing else does."""
    is_given_up_the_second_time(stage, "block")


def a_synchronous_tool_that_holds_the_interpreter_is_given_up_the_second_time(stage: Stage) -> None:
    """Its thread has no loop, and it holds up the one of its worker all the same."""
    is_given_up_the_second_time(stage, "hold", "freeze_thread")


def a_stage_that_freezes_is_given_up_the_second_time(stage: Stage, name: str) -> None:
    with stage(env=LONG) as scene:
        worker = ("-m", "tests.support.freezing_worker", "io", "--concurrency", "100")
        scene.guarded("io", *worker, FAULT_STAGE=name)
        innocent = scene.submit(("fault_hold", {"until": "go"}))
        scene.eventually_running("fault_hold", 1)
        guilty = scene.submit(text="calculate 1 + 2, then calculate it + 3")
        job, steps = scene.ends(guilty)

        assert (job["status"], job["error"]["code"]) == ("failed", "froze")
        assert "tests.support.freezing_worker:" in job["error"]["details"]["place"]
        assert [step["status"] for step in steps] == ([] if name == "plan" else ["succeeded"] * 2)
        noted = [(row["job_id"], row["index"], row["attempt"]) for row in freezes(scene)]
        assert [(job_id, index) for job_id, index, _ in noted] == [(guilty, -1)] * 2
        assert len({attempt for _, _, attempt in noted}) == 2, "once among others, and once apart"

        (scene.folder / "go").touch()
        _, (step,) = scene.ends(innocent)
        assert (step["status"], step["worker_losses"]) == ("succeeded", 0)
        scene.sound()


def a_planning_that_freezes_is_given_up_the_second_time(stage: Stage) -> None:
    a_stage_that_freezes_is_given_up_the_second_time(stage, "plan")


def an_answering_that_freezes_is_given_up_the_second_time(stage: Stage) -> None:
    a_stage_that_freezes_is_given_up_the_second_time(stage, "respond")


def a_job_that_is_cancelled_while_its_suspect_freezes_is_cancelled(stage: Stage) -> None:
    """The frozen process hears nothing of the cancel: the guard ends it, and nobody begins the step again."""
    with stage(env=LONG) as scene:
        scene.guarded()
        innocents = scene.submit(*[("fault_hold", {"until": "go"})] * INNOCENTS)
        scene.eventually_running("fault_hold", INNOCENTS)
        guilty = scene.submit(("fault_freeze", {"how": "hold"}))
        eventually(lambda: scene.began(guilty, 2), PATIENCE, what="it runs apart from all others")
        scene.caller.do(scene.caller.requests.cancel("default", guilty))
        job, (step,) = scene.ends(guilty)

        assert (job["status"], step["status"]) == ("cancelled", "cancelled")
        eventually(lambda: len(freezes(scene)) == 2, PATIENCE, what="the frozen process is ended")
        (scene.folder / "go").touch()
        _, steps = scene.ends(innocents)
        assert {(step["status"], step["worker_losses"]) for step in steps} == {("succeeded", 0)}
        assert not scene.began(guilty, 3)
        scene.completes(scene.submit(("fault_note", {"text": "b"})), "<b>")
        scene.sound()


def a_lease_is_held_for_as_long_as_a_loop_may_have_frozen(stage: Stage) -> None:
    """On a busy machine longer than a lease: who took its work back by then would know of no freeze."""
    with stage() as scene:
        name = scene.worker()
        eventually(lambda: scene.live() == 1, PATIENCE, what="the worker has a lease")
        scene.signal(name, signal.SIGSTOP)

        def beat() -> tuple[UUID, datetime]:
            [row] = scene.read("SELECT id, heartbeat_at FROM workers")
            return row["id"], row["heartbeat_at"]

        worker, last = beat()
        env = {**os.environ, "DATABASE_URL": scene.database_url, "PLANQ_LEASE_SECONDS": "16"}
        command = [sys.executable, "-m", "planq.deploy.local.freezes"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=env, cwd=ROOT) as recorder:
            assert recorder.stdin is not None
            recorder.stdin.write(f"{worker.hex}\n".encode())
            for _ in range(3):  # the worker's own last one may have been on its way

                def is_held(before: datetime = last, told: IO[bytes] = recorder.stdin) -> bool:
                    told.write(b"\n")
                    told.flush()
                    return beat()[1] > before

                eventually(is_held, PATIENCE, every=0.2, what="its lease is held")
                _, last = beat()
            recorder.communicate()
        assert (recorder.returncode, freezes(scene)) == (0, [])
        scene.signal(name, signal.SIGCONT)


def a_freeze_is_noted_once_the_database_takes_it(stage: Stage) -> None:
    with stage() as scene:
        scene.read("ALTER TABLE freezes RENAME TO away")
        env = {**os.environ, "DATABASE_URL": scene.database_url, "PLANQ_LOG_FORMAT": "json"}
        command = [sys.executable, "-m", "planq.deploy.local.freezes"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd=ROOT
        ) as recorder:
            assert recorder.stdin is not None
            assert recorder.stdout is not None
            noted = {"process": "p", "kind": "io", "worker": "0" * 32, "late_seconds": 1, "stack": ""}
            recorder.stdin.write(f"{'0' * 32}\n{json.dumps(noted)}".encode())
            recorder.stdin.close()
            assert b'"froze"' in recorder.stdout.readline()
            assert b'"freeze_not_noted_yet"' in recorder.stdout.readline()
            scene.read("ALTER TABLE away RENAME TO freezes")
            recorder.stdout.read()
        assert recorder.returncode == 0
        assert [row["process"] for row in freezes(scene)] == ["p"]


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
        notes = freezes(scene)
        # A busy machine may hold up a loop for as long, of which no route is guilty: such a note is true, too.
        [_] = [row for row in notes if " < tests.support.freezing_api:" in str(row["place"])]
        assert {(row["kind"], row["job_id"]) for row in notes} == {("api", None)}

        def metrics_agree() -> str | None:
            text = httpx.get(f"{scene.stack.url}/metrics", timeout=60).text
            return text if f'planq_recent_freezes{{kind="api"}} {len(freezes(scene))}.0' in text else None

        metrics = eventually(metrics_agree, PATIENCE, what="the metrics count what is noted")
        assert 'planq_recent_freezes{kind="io"} 0.0' in metrics
        assert '"event": "froze"' in scene.stack.log(name).read_text()


def the_status_tells_of_freezes(stage: Stage) -> None:
    with stage() as scene:
        scene.read("INSERT INTO freezes (id, process, kind, place) VALUES (%s, 'p', 'io', 'x:1 f')", UUID(int=1))
        scene.api()
        checks = httpx.get(f"{scene.stack.url}/statusz").json()["checks"]
        assert "1 froze within an hour" in checks["worker_io"]["detail"]
        assert "froze" not in checks["worker_cpu"]["detail"]
        assert "x:1 f" not in str(checks), "where it stood is for the operator"


PLAYS = (
    what_holds_the_interpreter_is_given_up_the_second_time,
    what_blocks_the_loop_is_given_up_the_second_time,
    a_synchronous_tool_that_holds_the_interpreter_is_given_up_the_second_time,
    a_planning_that_freezes_is_given_up_the_second_time,
    an_answering_that_freezes_is_given_up_the_second_time,
    a_job_that_is_cancelled_while_its_suspect_freezes_is_cancelled,
    a_lease_is_held_for_as_long_as_a_loop_may_have_frozen,
    a_freeze_is_noted_once_the_database_takes_it,
    an_api_whose_loop_is_held_is_started_again,
    the_status_tells_of_freezes,
)


@pytest.mark.parametrize("play", [as_play(play) for play in PLAYS])
def test_a_freeze_ends_with_its_process(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
