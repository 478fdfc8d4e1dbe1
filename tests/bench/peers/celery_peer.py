"""Celery canvas: a job is a chain of five tasks, a fan-out a chord. Its workers are processes of their own."""

from __future__ import annotations

from time import monotonic
from typing import Any

from celery import chain, chord
from celery.exceptions import TimeoutError
from celery.result import AsyncResult

from tests.bench.peers.celery_app import FAN_QUEUE, join, step, wait
from tests.bench.peers.orders import STEPS, WAIT_SECONDS, expect, orders, serve

PATIENCE_SECONDS = 120.0

LOOK_AGAIN_SECONDS = 0.25
"""Celery asks for a result while its subscription to it is under way: what comes between the two is never told to a
waiting `get` (seen about once in 10 000 results). One that asks again has it."""


def submit(steps: int) -> AsyncResult:
    """Send a chain of steps, each of which takes what the one before returned."""
    return chain(step.s(1), *(step.s() for _ in range(steps - 1)))()


def result_of(sent: AsyncResult) -> Any:
    """Wait for a result and return it; raises `TimeoutError` of Celery's when there is none for a long time."""
    give_up = monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return sent.get(timeout=LOOK_AGAIN_SECONDS)
        except TimeoutError:
            if monotonic() > give_up:
                raise


def one(_: int) -> None:
    """Send a job and wait for its result."""
    expect(result_of(submit(STEPS)), 1)


def many(jobs: int) -> None:
    """Send all jobs, then wait for every one."""
    for sent in [submit(STEPS) for _ in range(jobs)]:
        expect(result_of(sent), 1)


def fan(width: int) -> None:
    """Run waiting steps beside one another, then a join."""
    steps = [wait.s(WAIT_SECONDS).set(queue=FAN_QUEUE) for _ in range(width)]
    expect(result_of(chord(steps)(join.s().set(queue=FAN_QUEUE))), width)


def long(steps: int) -> None:
    """Run a chain of so many steps."""
    expect(result_of(submit(steps)), 1)


def message(_: int) -> None:
    """Send one task that does nothing, and wait for its result."""
    expect(result_of(step.delay(1)), 1)


def main() -> None:
    """Wait for both workers, then follow orders."""
    result_of(step.delay(1))
    result_of(join.apply_async(([],), queue=FAN_QUEUE))
    serve({**orders(one, many, long), "B3": fan, "message": message})


if __name__ == "__main__":
    main()
