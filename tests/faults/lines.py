"""Chains of pure steps, which run ahead of the commits that claim them."""

from __future__ import annotations

from uuid import UUID

from deploy.local.child import has_ended
from tests.faults.scene import PATIENCE, Call, Scene
from tests.support.waiting import eventually


def line(scene: Scene, point: str) -> None:
    """Chains of pure steps, until one ran ahead of the commits that claim its steps, and the worker dies of it.

    A worker that a busy machine held up has lost its first attempt at planning; then that chain goes step by step.
    """
    name, jobs = scene.doomed(point), list[UUID]()
    process = scene.stack.processes[name]
    while not has_ended(process):
        jobs.append(scene.submit(*line_of(30)))
        eventually(lambda: has_ended(process) or scene.has_ended(jobs[-1]), PATIENCE, what="it dies, or is done")
    scene.dies(name)
    scene.worker()
    for job_id in jobs:
        line_comes_out_right(scene, job_id, 30)


def line_of(length: int) -> list[Call]:
    """Return a chain of pure steps."""
    rest = [("fault_note", {"text": f"${index}.output.text"}) for index in range(length - 1)]
    return [("fault_note", {"text": "a"}), *rest]


def line_comes_out_right(scene: Scene, job_id: UUID, length: int) -> int:
    """See a chain end right, each step having succeeded once and each attempt accounted for; returns the attempts."""
    scene.completes(job_id, "<" * length + "a" + ">" * length)
    succeeded = scene.read(
        "SELECT data->>'index' AS index FROM events WHERE job_id = %s AND kind = 'step_succeeded'", job_id
    )
    assert sorted(int(row["index"]) for row in succeeded) == list(range(length))
    steps = scene.read("SELECT index, attempt, worker_losses, releases FROM steps WHERE job_id = %s", job_id)
    assert [step for step in steps if step["attempt"] != 1 + step["worker_losses"] + step["releases"]] == []
    return sum(step["attempt"] for step in steps)
