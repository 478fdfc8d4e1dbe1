"""Computing beside a loop: one piece of work after the other, and the loop has its turns meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from itertools import pairwise

import pytest

from planq.shared.platform.computing import off_loop

_said: contextvars.ContextVar[str] = contextvars.ContextVar("said", default="nothing")


def compute(seconds: float) -> tuple[float, float]:
    """Take the interpreter for a while, and return from when to when."""
    begun = time.monotonic()
    while time.monotonic() < begun + seconds:
        pass
    return begun, time.monotonic()


def test_one_piece_of_work_is_done_after_the_other_and_the_loop_has_many_turns_meanwhile() -> None:
    """Six threads that compute would leave the loop a seventh of its turns, each of them five milliseconds late."""
    turns = 0

    async def turning() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def work() -> list[tuple[float, float]]:
        beside = asyncio.create_task(turning())
        found = await asyncio.gather(*(off_loop(compute, 0.1) for _ in range(6)))
        beside.cancel()
        return found

    spans = sorted(asyncio.run(work()))
    assert all(ended <= begun for (_, ended), (begun, _) in pairwise(spans))
    assert turns > 60


def test_it_carries_context_arguments_and_errors_over() -> None:
    async def work() -> tuple[str, int]:
        _said.set("this")
        with pytest.raises(ZeroDivisionError):
            await off_loop(lambda: 1 / 0)
        return await off_loop(_said.get), await off_loop(int, "11", base=2)

    assert asyncio.run(work()) == ("this", 3)


def test_what_was_given_up_before_its_turn_is_never_begun() -> None:
    begun = threading.Event()
    go = threading.Event()

    async def work() -> None:
        first = asyncio.create_task(off_loop(go.wait))
        second = asyncio.create_task(off_loop(begun.set))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        go.set()
        await first
        await off_loop(int)

    asyncio.run(work())
    assert not begun.is_set()


FORKING = """
import asyncio, os
from planq.shared.platform.computing import off_loop
asyncio.run(off_loop(int))
if os.fork() == 0:
    os._exit(asyncio.run(asyncio.wait_for(off_loop(int, "7"), 60)))
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_forked_process_has_a_thread_of_its_own() -> None:
    """A `cpu` worker forks the processes of its steps: its thread stays with it."""
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "7"
