"""What a finished job leaves behind grows with its steps, not with their square."""

from __future__ import annotations

import pytest

from tests.bench.storage import row_bytes
from tests.support.servers import TestPostgres


@pytest.fixture(scope="module")
def stored(postgres: TestPostgres) -> dict[int, float]:
    """The bytes of all rows of one finished job, by the number of its steps."""
    return {steps: row_bytes(postgres.create_migrated(), steps) for steps in (10, 20, 40)}


def test_a_finished_job_grows_at_most_linearly_in_its_steps(stored: dict[int, float]) -> None:
    first, second = stored[20] - stored[10], stored[40] - stored[20]

    assert second <= 2 * first * 1.05, "twice as many steps more add twice as much, but for longer numbers"
    assert stored[40] <= 4 * stored[10]


def test_a_step_leaves_less_than_a_kilobyte(stored: dict[int, float]) -> None:
    assert (stored[40] - stored[10]) / 30 < 1_000
    assert stored[20] < 20_000
