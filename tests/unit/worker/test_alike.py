"""Among how many workers a wide round is divided: those of other priorities take no part of it."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.kernel.states import Pool, Priority
from planq.worker.runtime.lifecycle import alike


def worker(only: Priority | None, pool: Pool = Pool.IO) -> dict[str, Any]:
    return {"pools": [str(pool)], "only_priority": None if only is None else str(only)}


@pytest.mark.parametrize(("only", "count"), [(Priority.INTERACTIVE, 2), (Priority.BULK, 3), (None, 4)])
def test_workers_that_serve_another_pool_or_priority_are_not_counted(only: Priority | None, count: int) -> None:
    alive = [worker(None), worker(Priority.INTERACTIVE), worker(Priority.BULK), worker(Priority.BULK)]
    assert alike([*alive, worker(None, Pool.CPU)], Pool.IO, only) == count
