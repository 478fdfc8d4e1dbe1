"""Chains of pure steps."""

from __future__ import annotations

from uuid import UUID

from tests.faults.scene import Call, Scene


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
