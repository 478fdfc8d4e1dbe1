"""Celery canvas: a job is a chain of five tasks, a fan-out a chord. Its workers are processes of their own."""

from __future__ import annotations

from celery import chain, chord
from celery.result import AsyncResult

from tests.bench.peers.celery_app import FAN_QUEUE, join, step, wait
from tests.bench.peers.orders import STEPS, WAIT_SECONDS, expect, serve

PATIENCE = 120


def submit(steps: int) -> AsyncResult:
    """Send a chain of steps, each of which takes what the one before returned."""
    return chain(step.s(1), *(step.s() for _ in range(steps - 1)))()


def one(_: int) -> None:
    """Send a job and wait for its result."""
    expect(submit(STEPS).get(timeout=PATIENCE), 1)


def many(jobs: int) -> None:
    """Send all jobs, then wait for every one."""
    for sent in [submit(STEPS) for _ in range(jobs)]:
        expect(sent.get(timeout=PATIENCE), 1)


def fan(width: int) -> None:
    """Run waiting steps beside one another, then a join."""
    steps = [wait.s(WAIT_SECONDS).set(queue=FAN_QUEUE) for _ in range(width)]
    expect(chord(steps)(join.s().set(queue=FAN_QUEUE)).get(timeout=PATIENCE), width)


def long(steps: int) -> None:
    """Run a chain of so many steps."""
    expect(submit(steps).get(timeout=PATIENCE), 1)


def message(_: int) -> None:
    """Send one task that does nothing, and wait for its result."""
    expect(step.delay(1).get(timeout=PATIENCE), 1)


def main() -> None:
    """Wait for both workers, then follow orders."""
    step.delay(1).get(timeout=PATIENCE)
    join.apply_async(([],), queue=FAN_QUEUE).get(timeout=PATIENCE)
    serve({"B1": one, "B2": many, "B3": fan, "B4": long, "message": message})


if __name__ == "__main__":
    main()
