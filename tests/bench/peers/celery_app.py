"""Celery's application: the steps as tasks, their results in Redis. `PEER_BROKER` and `PEER_RESULTS` are its URLs."""

from __future__ import annotations

import os
import time

from celery import Celery

FAN_QUEUE = "fan"
"""Steps of B3 go to a worker with a thread for each: two processes would need 50 rounds."""

app = Celery("peer", broker=os.environ["PEER_BROKER"], backend=os.environ["PEER_RESULTS"])
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=4, broker_connection_retry_on_startup=True)


@app.task
def step(value: int = 0) -> int:
    """Return the value at once."""
    return value


@app.task
def wait(seconds: float) -> int:
    """Do nothing for so long."""
    time.sleep(seconds)
    return 0


@app.task
def join(values: list[int]) -> int:
    """Count the values."""
    return len(values)
