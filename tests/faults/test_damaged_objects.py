"""Files of large outputs that are lost or damaged behind planq's back: nobody gets them, and they are made good."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from tests.faults.conftest import Play, Stage, as_play
from tests.faults.scene import PATIENCE, Scene
from tests.support.waiting import eventually

HARMS: dict[str, Callable[[Path], object]] = {
    "same length": lambda file: file.write_bytes(b"x" * file.stat().st_size),
    "shorter": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "empty": lambda file: file.write_bytes(b""),
    "lost": lambda file: file.unlink(),
}

SIZE, PARTS = 300_000, 8
"""Together more than two of the slices in which the API sends; one alone is as long as an argument may be."""


def folder(scene: Scene) -> Path:
    return scene.folder / "objects"


def harmed(scene: Scene, how: Callable[[Path], object], before: set[Path]) -> None:
    """Harm every file that was not there `before`."""
    fresh = files(scene) - before
    assert fresh
    for file in fresh:
        how(file)


def files(scene: Scene) -> set[Path]:
    return {path for path in folder(scene).rglob("*") if path.is_file()}


def output(scene: Scene, job_id: UUID, index: int) -> httpx.Response:
    """Ask the API for an output."""
    return httpx.get(f"{scene.stack.url}/jobs/{job_id}/steps/{index}/output", timeout=PATIENCE)


def given(scene: Scene, job_id: UUID, index: int, text: str) -> None:
    """See that an output is this text, under its hash."""
    response = output(scene, job_id, index)
    assert (response.status_code, response.json()) == (200, {"text": text})
    assert response.headers["etag"] == f'"{hashlib.sha256(response.content).hexdigest()}"'


def refused(scene: Scene, job_id: UUID, index: int) -> None:
    """See that an output cannot be had for now, and that it is told where it lies."""
    response = output(scene, job_id, index)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (503, "storage_unavailable"), problem
    assert "etag" not in response.headers
    assert str(folder(scene)) in problem["detail"]


def made(scene: Scene, text: str) -> UUID:
    """Return a job that has come to three large outputs, each made from the one before."""
    job_id = scene.submit(
        ("fault_note", {"text": text}),
        ("fault_join", {"parts": ["$0.output.text"] * PARTS}),
        ("fault_note", {"text": "$1.output.text"}),
    )
    job, steps = scene.ends(job_id)
    assert (job["status"], [step["status"] for step in steps]) == ("completed", ["succeeded"] * 3)
    assert all(step["payload_hash"] for step in steps)
    return job_id


def on_files(stage: Stage, play: Callable[[Scene], None]) -> None:
    """Play with large outputs in a folder."""
    with stage() as scene:
        env = {"PLANQ_PAYLOADS": f"file://{folder(scene)}"}
        scene.api(**env)
        scene.worker(**env)
        play(scene)


def a_new_job_with_the_same_output_makes_good_what_was_lost_or_damaged(stage: Stage) -> None:
    """The same content is stored once; one bad file must not spoil every job that ever comes to it."""

    def play(scene: Scene) -> None:
        for number, how in enumerate(HARMS.values()):
            text = str(number) * SIZE
            joined = "+".join([f"<{text}>"] * PARTS)
            before = files(scene)
            first = made(scene, text)
            given(scene, first, 1, joined)
            harmed(scene, how, before)
            for index in range(3):
                refused(scene, first, index)
            made(scene, text)
            for index, right in enumerate((f"<{text}>", joined, f"<{joined}>")):
                given(scene, first, index, right)
        scene.sound()

    on_files(stage, play)


def a_step_whose_input_is_damaged_waits_for_it_and_never_sees_it(stage: Stage) -> None:
    """Its tool is not called with other bytes; once they are there again it goes on."""

    def play(scene: Scene) -> None:
        text = "a" * SIZE
        held = scene.submit(
            ("fault_look", {"text": text}),
            ("fault_hold", {"until": "go"}),
            ("fault_join", {"parts": ["$0.output.text", "$1.output.text"]}),
        )
        scene.runs(held, 1)
        eventually(lambda: scene.told(held, "step_succeeded"), PATIENCE, what="the output is stored")
        harmed(scene, HARMS["same length"], set())
        (scene.folder / "go").touch()
        retrying = eventually(lambda: scene.told(held, "step_retrying"), PATIENCE, what="it cannot be read")
        assert retrying[0]["data"]["error"]["code"] == "storage_unavailable"
        assert scene.ran()[f"{held}/2"] == 0
        scene.ends(scene.submit(("fault_look", {"text": text})))
        job, steps = scene.ends(held)
        assert (job["status"], [step["status"] for step in steps]) == ("completed", ["succeeded"] * 3)
        given(scene, held, 2, f"<{text}>+attempt 1")
        assert scene.ran()[f"{held}/2"] == 1
        scene.sound()

    on_files(stage, play)


PLAYS = (
    a_new_job_with_the_same_output_makes_good_what_was_lost_or_damaged,
    a_step_whose_input_is_damaged_waits_for_it_and_never_sees_it,
)


@pytest.mark.parametrize("play", [as_play(play) for play in PLAYS])
def test_damaged_objects(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    name, _ = play
    plays[name].result()
