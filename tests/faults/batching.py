"""Batches of the fault tests: each line becomes one job and ends once, whoever dies in the middle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import psycopg

from planq.shared.kernel.new_ids import new_id
from planq.shared.subjects.batches.rules import TERMINAL_BATCH
from tests.faults.scene import PATIENCE, Call, Scene
from tests.support.batches import item, stored_batch
from tests.support.waiting import eventually

Recipe = Callable[[Scene, str], None]


def batch_of(scene: Scene, *calls: Call, **columns: Any) -> UUID:
    """Store a batch that has been validated, with a line for each call."""
    plans = [{"calls": [{"tool_name": name, "arguments": arguments}]} for name, arguments in calls]
    with psycopg.connect(scene.database_url, autocommit=True) as connection:
        return stored_batch(connection, [item("", plan=plan) for plan in plans], **columns)


def batch_ends(scene: Scene, batch_id: UUID) -> tuple[str, Counter[str]]:
    """Wait until a batch has ended; see that every line was settled once, and return how all of it ended."""

    def ended() -> bool:
        return scene.read("SELECT status FROM batches WHERE id = %s", batch_id)[0]["status"] in TERMINAL_BATCH

    eventually(ended, PATIENCE, every=0.05, what="the batch ends")
    (batch,) = scene.read("SELECT * FROM batches WHERE id = %s", batch_id)
    lines = scene.read("SELECT * FROM batch_lines WHERE batch_id = %s ORDER BY line", batch_id)
    stands = Counter(line["status"] for line in lines)
    assert len({line["settled"] for line in lines} - {None}) == len(lines), "each has ended at a time of its own"
    assert stands == {name: batch[name] for name in ("completed", "failed", "cancelled") if batch[name]}
    (made,) = scene.read("SELECT count(*) AS jobs FROM jobs WHERE batch_id = %s", batch_id)
    assert made["jobs"] == sum(line["tries"] for line in lines), "no job beside those of the lines"
    return batch["status"], stands


def each_line_once(scene: Scene, point: str) -> None:
    """Recipe: a worker dies while it turns lines into jobs, or ends them with these."""
    batch_id = batch_of(scene, *[("fault_note", {"text": str(n)}) for n in range(6)])
    scene.died_at(point)
    scene.worker()
    assert batch_ends(scene, batch_id) == ("completed", {"completed": 6})


def cancelled(scene: Scene, point: str) -> None:
    """Recipe: a worker dies while it cancels what there is of a batch, in the middle of one of its jobs."""
    batch_id = batch_of(
        scene, ("fault_note", {"text": "a"}), ("fault_hold", {"until": "never"}), ("fault_note", {"text": "b"})
    )
    first = scene.worker()
    running = "SELECT 1 FROM steps WHERE tool_name = 'fault_hold' AND status = 'running'"
    settled = "SELECT 1 FROM batches WHERE completed = 2"
    eventually(lambda: scene.read(running) and scene.read(settled), PATIENCE, what="one line alone is left")
    scene.stack.kill(first)
    scene.read("SELECT planq_change_batch(%s, 'default', 'cancel')", batch_id)
    scene.died_at(point)
    scene.worker()
    assert batch_ends(scene, batch_id) == ("cancelled", {"completed": 2, "cancelled": 1})


def all_of_a_filter(scene: Scene, point: str) -> None:
    """Recipe: a worker dies at what was asked for all jobs of a filter."""
    ids = [scene.submit(("fault_hold", {"until": "never"})) for _ in range(60)]
    action = new_id()
    scene.read(
        "INSERT INTO job_actions (id, tenant_id, act, filter, after_job) VALUES (%s, 'default', 'cancel', '{}', %s)",
        action,
        UUID(int=0),
    )
    scene.died_at(point)
    scene.read(
        "UPDATE job_actions SET held_until = now() WHERE held_until IS NOT NULL"
    )  # or its hold were waited for
    scene.worker()
    over = "SELECT 1 FROM job_actions WHERE status = 'completed'"
    eventually(lambda: scene.read(over), PATIENCE, every=0.05, what="the action is over")
    (acted,) = scene.read("SELECT * FROM job_actions")
    assert (acted["done"], acted["refused"]) == (len(ids), 0)
    ends = scene.read("SELECT job_id FROM events WHERE kind = 'job_cancelled'")
    assert sorted(row["job_id"] for row in ends) == sorted(ids), "each job ended once"


BATCHING: Mapping[str, Recipe] = {
    "action_sweep.act": all_of_a_filter,
    "line_sweep.admit": each_line_once,
    "line_sweep.cancel": cancelled,
}
