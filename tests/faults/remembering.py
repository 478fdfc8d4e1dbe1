"""How the crash points of what tools keep, and of reminders, are reached; part of `reaching.REACH`."""

from __future__ import annotations

from tests.faults.scene import PATIENCE, Scene
from tests.support.waiting import eventually

REMINDERS = 6


def reminded(scene: Scene, point: str) -> None:
    """A worker dies while it makes the jobs of reminders that are due; two that race make one job of each."""
    ids = [scene.schedule(f"calculate {n} + 1", "0 seconds") for n in range(REMINDERS)]
    scene.died_at(point)
    scene.worker()
    scene.worker()
    made = "SELECT last_job_id FROM schedules WHERE id = ANY (%s) AND NOT is_active AND last_job_id IS NOT NULL"
    fired = eventually(
        lambda: len(rows := scene.read(made, ids)) == REMINDERS and rows, PATIENCE, what="all reminders are fired"
    )
    outputs = []
    for row in fired:
        job, steps = scene.ends(row["last_job_id"])
        assert job["status"] == "completed"
        outputs += [step["output"]["result"] for step in steps]
    assert sorted(outputs) == [n + 1 for n in range(REMINDERS)]
    assert scene.read("SELECT count(*) AS n FROM jobs") == [{"n": REMINDERS}]


def kept(scene: Scene, point: str) -> None:
    """A worker dies in a tool that keeps something: it is kept once."""
    job_id = scene.submit(
        ("action", {"type": "observation"}),
        ("save_moments", {"moments": [{"name": "dream-a"}]}),
        ("update_user_metadata", {"metadata": {"a": 1}}),
        ("remind_me", {"description": "later", "delay_seconds": 3600}),
    )
    scene.died_at(point)
    scene.worker()
    job, steps = scene.ends(job_id)
    assert (job["status"], [step["status"] for step in steps]) == ("completed", ["succeeded"] * 4)
    assert scene.read("SELECT count(*) AS n FROM events WHERE kind = 'action'") == [{"n": 1}]
    assert scene.read("SELECT name FROM moments") == [{"name": "A"}]
    assert scene.read("SELECT data FROM user_metadata") == [{"data": {"a": 1}}]
    assert scene.read("SELECT input, is_active FROM schedules") == [{"input": "later", "is_active": True}]


REMEMBERING = {
    "memory.save_moments": kept,
    "memory.change_user": kept,
    "memory.emit": kept,
    "memory.schedule": kept,
    "schedule_sweep.due": reminded,
    "schedule_sweep.fire": reminded,
}
