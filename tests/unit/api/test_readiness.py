"""When a pool counts as ready: workers of it serve both priorities, and lack nothing."""

from __future__ import annotations

from typing import Any

import pytest

from planq.api.metrics.readiness import pool_check


def worker(only: str | None = None, *, pool: str = "io", missing: list[str] | None = None) -> dict[str, Any]:
    return {"name": "w", "pools": [pool], "missing": missing, "only_priority": only}


@pytest.mark.parametrize(
    ("alive", "detail"),
    [
        ([], "none alive; start one with `planq worker io`"),
        ([worker(pool="cpu")], "none alive; start one with `planq worker io`"),
        ([worker("interactive")], "1 alive, and none serves bulk jobs; start one with `planq worker io`"),
        ([worker("bulk")] * 2, "2 alive, and none serves interactive jobs; start one with `planq worker io`"),
        ([worker(), worker("bulk", missing=["no network"])], "w: no network"),
    ],
)
def test_a_pool_is_not_ready_and_says_why(alive: list[dict[str, Any]], detail: str) -> None:
    assert pool_check("io", alive) == {"ok": False, "detail": detail}


@pytest.mark.parametrize("alive", [[worker()], [worker("bulk"), worker("interactive")], [worker("bulk"), worker()]])
def test_a_pool_is_ready_whose_workers_serve_both_priorities(alive: list[dict[str, Any]]) -> None:
    assert pool_check("io", alive) == {"ok": True, "detail": f"{len(alive)} alive"}
