"""How the crash points of what tools keep, and of reminders, are reached; part of `reaching.REACH`."""

from __future__ import annotations

from tests.faults.scene import PATIENCE, Scene
from tests.support.waiting import eventually


def reminded(scene: Scene, point: str) -> None:
    """A worker dies while it makes the job of a reminder that is due: there is one job, and it runs."""
    schedule_id = scene.schedule("calculate 40 + 2", "0 seconds")
    scene.died_at(point)
    scene.worker()
    made = "SELECT last_job_id FROM schedules WHERE id = %s AND NOT is_active"
    (row,) = eventually(lambda: scene.read(made, schedule_id), PATIENCE, what="the reminder is fired")
    job, steps = scene.ends(row["last_job_id"])
    assert (job["status"], [step["output"] for step in steps]) == ("completed", [{"result": 42}])
    assert scene.read("SELECT count(*) AS n FROM jobs") == [{"n": 1}]


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
    "memory.tell": kept,
    "memory.schedule": kept,
    "sweep.due_schedules": reminded,
    "sweep.fire_schedule": reminded,
}
