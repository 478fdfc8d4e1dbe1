"""The asyncio pool: each message is concluded once, and a process whose loop has ended does not stay behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded, Terminated

from planq.worker.celery.pool import AsyncioPool, WorkFailed
from tests.support.garbage import garbage
from tests.support.waiting import eventually

_POOL_WITH_A_BROKEN_LOOP = """
import threading
from types import SimpleNamespace
from planq.worker.celery.pool import AsyncioPool

class Runtime:
    async def open(self):
        import asyncio
        def interrupt():
            raise KeyboardInterrupt
        asyncio.get_running_loop().call_soon(interrupt)

app = SimpleNamespace(conf=SimpleNamespace(accept_content=["json"]), planq_runtime=Runtime())
AsyncioPool(app=app).on_start()
threading.Event().wait(600)
"""


def test_a_process_whose_loop_has_ended_ends_and_says_so() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _POOL_WITH_A_BROKEN_LOOP], capture_output=True, text=True, timeout=120, check=False
    )

    assert ended.returncode == 70, ended.stderr
    assert "loop_ended" in ended.stderr


class Runtime:
    drain_seconds = 0.0
    is_in_quarantine = False

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""


async def give(value: str) -> str:
    return value


async def fail(error: Exception) -> None:
    raise error


async def wait() -> None:
    await asyncio.Event().wait()


@pytest.fixture
def pool() -> Iterator[AsyncioPool]:
    tasks = {function.__name__: SimpleNamespace(run=function) for function in (give, fail, wait)}
    app = SimpleNamespace(conf=SimpleNamespace(accept_content=["json"]), planq_runtime=Runtime(), tasks=tasks)
    running = AsyncioPool(app=app)
    running.on_start()
    yield running
    running.on_terminate()


def apply(pool: AsyncioPool, name: str, *arguments: Any, **options: Any) -> tuple[Any, list[Any]]:
    """Hand a message to the pool; returns its job and the list that its outcomes go to."""
    told: list[Any] = []
    body: Any = (arguments, {}, {})
    job = pool.on_apply(print, (name, "id", {}, body, None, None), callback=told.append, **options)
    return job, told


def error_of(told: list[Any]) -> BaseException:
    [(failed, info, runtime)] = told
    assert failed == 1
    assert runtime >= 0
    error: BaseException = info.exception.exc
    return error


def test_a_value_and_every_kind_of_failure_are_told_once(pool: AsyncioPool) -> None:
    _, given = apply(pool, "give", "v")
    _, failed = apply(pool, "fail", WorkFailed("no"))
    _, broken = apply(pool, "fail", KeyError("odd"))
    _, late = apply(pool, "wait", soft_timeout=0.01)
    eventually(lambda: given and failed and broken and late, 60, what="four outcomes")
    assert given[0][:2] == (0, "v")
    assert len(given) == 1
    assert isinstance(error_of(failed), WorkFailed)
    assert isinstance(error_of(broken), KeyError)
    assert isinstance(error_of(late), SoftTimeLimitExceeded)
    eventually(lambda: pool.info["in-flight"] == 0, 60, what="an empty pool")


@pytest.mark.parametrize("begun", [True, False])
def test_a_terminated_message_is_told_once_even_before_its_first_step(pool: AsyncioPool, begun: bool) -> None:
    hold, held = threading.Event(), threading.Event()
    if not begun:

        def stand_still() -> None:
            """Let the message be accepted and terminated before the loop sees either."""
            held.set()
            hold.wait(60)

        pool._loop.call_soon_threadsafe(stand_still)
        assert held.wait(60)
    job, told = apply(pool, "wait")
    if begun:
        eventually(lambda: job.task is not None, 60, what="a begun task")
    job.terminate()
    hold.set()
    eventually(lambda: told, 60, what="an outcome")
    assert isinstance(error_of(told), Terminated)
    eventually(lambda: pool.info["in-flight"] == 0, 60, what="an empty pool")


def test_a_callback_that_raises_leaves_nothing_behind(pool: AsyncioPool) -> None:
    def refuse(outcome: Any) -> None:
        raise RuntimeError("the consumer is gone")

    pool.on_apply(print, ("give", "id", {}, (("v",), {}, {}), None, None), callback=refuse)
    eventually(lambda: pool.info["in-flight"] == 0, 60, what="an empty pool")
    _, told = apply(pool, "give", "still here")
    eventually(lambda: told, 60, what="an outcome")
    assert told[0][:2] == (0, "still here")


def test_a_message_that_failed_leaves_nothing_to_the_garbage_collector(pool: AsyncioPool) -> None:
    def one_of_each() -> None:
        _, failed = apply(pool, "fail", WorkFailed("no"))
        _, late = apply(pool, "wait", soft_timeout=0.01)
        job, told = apply(pool, "wait")
        job.terminate()
        eventually(lambda: failed and late and told and pool.info["in-flight"] == 0, 60, what="three outcomes")

    one_of_each()
    with garbage() as found:
        for _ in range(3):
            one_of_each()
    assert not found
