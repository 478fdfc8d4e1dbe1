"""Every operation of the engine × every failure: the job ends as if nothing had been, and so does the next one.

A worker stands still exactly in the operation (a failpoint that holds), the failure strikes, the call goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest

from tests.faults import striking
from tests.faults.conftest import Play, Stage

OPERATIONS = {
    "plan": "store.accept_plan:before",
    "claim": "store.claim:after",
    "finish": "store.succeed_step:before",
    "unlock": "store.succeed_step:after",
    "publish": "publisher.publish:before",
    "respond": "store.end_job:before",
}

FAILURES: dict[str, Callable[[Stage, str], None]] = {
    "kill -9": striking.killed,
    "kill -9 elsewhere": striking.killed_elsewhere,
    "out of memory": striking.starved,
    "SIGTERM": striking.terminated,
    "SIGSTOP past the lease": striking.stopped,
    "FLUSHALL": striking.emptied,
    "CLIENT KILL": striking.disconnected,
    "broker restarted empty": striking.broker_restarted,
    "broker half-open": striking.broker_silent,
    "pg_terminate_backend": striking.sessions_ended,
    "PostgreSQL restarted": striking.database_restarted,
    "PostgreSQL half-open": striking.database_silent,
}


def play_of(failure: str, operation: str) -> object:
    name = f"{failure} in {operation}"
    marks = [] if (failure, operation) in ALWAYS else [pytest.mark.whole]
    return pytest.param((name, partial(_strike, FAILURES[failure], OPERATIONS[operation])), id=name, marks=marks)


def _strike(failure: Callable[[Stage, str], None], point: str, stage: Stage) -> None:
    failure(stage, point)


# A process of the `cpu` pool, whose death is not that of its worker, neither plans nor answers.
NOT_THERE = {("out of memory", "plan"), ("out of memory", "respond")}
CELLS = [(failure, operation) for failure in FAILURES for operation in OPERATIONS]

ALWAYS = {
    (failure, operation)
    for row, failure in enumerate(FAILURES)
    for column, operation in enumerate(OPERATIONS)
    if (row + column) % 6 == 0
}
"""A sixth of the cells: every failure meets one operation, every operation two failures."""


@pytest.mark.parametrize("play", [play_of(*cell) for cell in CELLS if cell not in NOT_THERE])
def test_the_job_and_the_next_one_come_out_right(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
