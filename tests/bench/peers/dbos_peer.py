"""DBOS: a job is a workflow of five steps. `PEER_DATABASE` is a database of its own.

It runs in the client's own process, without broker or HTTP: through its queues it takes a second where this takes ten
milliseconds. The many jobs of B2 run in two processes.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from dbos import DBOS, DBOSConfig

from tests.bench.peers.orders import STEPS, WAIT_SECONDS, expect, orders, serve

PROCESSES = 2


@DBOS.step()
def step(value: int) -> int:
    """Return the value at once."""
    return value


@DBOS.step()
async def wait(seconds: float) -> int:
    """Do nothing for so long."""
    await asyncio.sleep(seconds)
    return 1


@DBOS.workflow()
def chain(steps: int) -> int:
    """Run so many steps, each of which takes what the one before returned."""
    value = 1
    for _ in range(steps):
        value = step(value)
    return value


@DBOS.workflow()
async def wide(width: int) -> int:
    """Run waiting steps beside one another, then join them."""
    return len(await asyncio.gather(*(wait(WAIT_SECONDS) for _ in range(width))))


def launch(executor: str) -> None:
    """Start DBOS in this process."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": os.environ["PEER_DATABASE"],
        "run_admin_server": False,
        "log_level": "ERROR",
        "executor_id": executor,
    }
    DBOS(config=config)
    DBOS.launch()


def launch_one() -> None:
    """Start DBOS in a process of the pool."""
    launch(f"bench-{os.getpid()}")


def long(steps: int) -> None:
    """Run a chain of so many steps."""
    expect(chain(steps), 1)


def one(_: int) -> None:
    """Run a job."""
    long(STEPS)


def fan(width: int) -> None:
    """Run waiting steps beside one another, then a join."""
    expect(asyncio.run(wide(width)), width)


def share(jobs: int) -> None:
    """Run jobs one after the other."""
    for _ in range(jobs):
        one(0)


def main() -> None:
    """Start DBOS here and in the processes of B2, then follow orders."""
    launch("bench")
    pool = ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn"), initializer=launch_one)
    atexit.register(pool.shutdown)
    list(pool.map(share, [1] * PROCESSES))

    def many(jobs: int) -> None:
        list(pool.map(share, [jobs // PROCESSES] * PROCESSES))

    try:
        serve({**orders(one, many, long), "B3": fan})
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    main()
