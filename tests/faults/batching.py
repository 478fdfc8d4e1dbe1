"""Batches of the fault tests: each line becomes one job and ends once, whoever dies in the middle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import psycopg

from planq.shared.domain.batches.states import TERMINAL_BATCH
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
    scene.read("SELECT planq_cancel_batch(%s, 'default')", batch_id)
    scene.died_at(point)
    scene.worker()
    assert batch_ends(scene, batch_id) == ("cancelled", {"completed": 2, "cancelled": 1})


BATCHING: Mapping[str, Recipe] = {
    "sweep.settle_lines": each_line_once,
    "sweep.admit_lines": each_line_once,
    "sweep.cancel_lines": cancelled,
}
