"""Among how many workers a wide round is divided: those of other priorities take no part of it."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.kernel.states import Lane, Priority
from planq.worker.runtime.lifecycle import alike


def worker(only: Priority | None, lane: Lane = Lane.IO) -> dict[str, Any]:
    return {"lanes": [str(lane)], "only_priority": None if only is None else str(only)}


@pytest.mark.parametrize(("only", "count"), [(Priority.INTERACTIVE, 2), (Priority.BULK, 3), (None, 4)])
def test_workers_that_serve_another_lane_or_priority_are_not_counted(only: Priority | None, count: int) -> None:
    alive = [worker(None), worker(Priority.INTERACTIVE), worker(Priority.BULK), worker(Priority.BULK)]
    assert alike([*alive, worker(None, Lane.CPU)], Lane.IO, only) == count
