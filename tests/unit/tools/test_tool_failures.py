"""What tools raise, and sync functions in threads: every failure becomes one of ours, nothing holds up the loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import httpx
import pytest

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.platform.errors import (
    AuthFailed,
    ExecutionFailed,
    InternalFault,
    InvalidArguments,
    RateLimited,
    TimedOut,
    ToolFailed,
    Transient,
)
from planq.shared.platform.redact import Redaction
from planq.worker.tools import ToolError, errors
from planq.worker.tools.threads import ToolThreads
from tests.support.garbage import garbage
from tests.unit.tools.conftest import Make


def _status(code: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "https://example.org/x")
    response = httpx.Response(code, headers=headers, request=request)
    return httpx.HTTPStatusError("bad", request=request, response=response)


class Unprintable(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "expected", "retryable", "words"),
    [
        (ToolError("no such book"), ToolError, False, "^no such book$"),
        (ToolError("busy", retryable=True), ToolError, True, "^busy$"),
        (ValueError("odd"), InternalFault, False, "fails raised ValueError: odd"),
        (ValueError("x" * 9_000), InternalFault, False, "more characters"),
        (FileNotFoundError(2, "No such file"), InternalFault, False, "FileNotFoundError"),
        (SystemExit(3), InternalFault, False, "SystemExit: 3"),
        (KeyboardInterrupt(), InternalFault, False, "KeyboardInterrupt"),
        (BaseExceptionGroup("all", [KeyboardInterrupt()]), InternalFault, False, "KeyboardInterrupt"),
        (GeneratorExit(), InternalFault, False, "GeneratorExit"),
        (Unprintable(), InternalFault, False, "fails raised Unprintable$"),
        (TimeoutError(), TimedOut, True, "time limit"),
        (ConnectionResetError("gone"), Transient, True, "ConnectionResetError: gone"),
        (OSError(113, "No route to host"), Transient, True, "No route"),
        (httpx.ConnectError("refused"), Transient, True, "refused"),
        (httpx.ReadTimeout("slow"), TimedOut, True, "slow"),
        (_status(401), AuthFailed, False, "401"),
        (_status(403), AuthFailed, False, "403"),
        (_status(404), ToolFailed, False, "404"),
        (_status(429, **{"retry-after": "7"}), RateLimited, True, "429"),
        (_status(503), Transient, True, "503"),
        (InvalidArguments("mine"), InvalidArguments, False, "mine"),
        (ExceptionGroup("one", [ConnectionError("inner")]), Transient, True, "inner"),
    ],
)
@pytest.mark.parametrize("in_thread", [False, True])
def test_exceptions_become_ours(
    make: Make,
    context: ToolContext,
    error: BaseException,
    expected: type[ExecutionFailed],
    retryable: bool,
    words: str,
    in_thread: bool,
) -> None:
    async def fails() -> None:
        raise error

    def fails_sync() -> None:
        raise error

    fails_sync.__name__ = "fails"

    with pytest.raises(expected, match=words) as caught:
        asyncio.run(make(fails_sync if in_thread else fails).call({}, context))

    assert type(caught.value) is expected
    assert caught.value.retryable is retryable


def test_wish_of_a_rate_limit_is_kept(make: Make, context: ToolContext) -> None:
    async def fails() -> None:
        raise _status(429, **{"retry-after": "7"})

    with pytest.raises(RateLimited) as caught:
        asyncio.run(make(fails).call({}, context))

    assert caught.value.retry_after == timedelta(seconds=7)


def test_sync_function_runs_beside_the_loop_with_context_variables(make: Make, context: ToolContext) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    def blocking() -> str:
        assert threading.current_thread() is not threading.main_thread()
        return variable.get()

    async def run() -> Any:
        variable.set("carried")
        return await make(blocking).call({}, context)

    assert asyncio.run(run()) == {"text": "carried"}


def test_cancelling_returns_although_a_sync_function_hangs(make: Make, context: ToolContext) -> None:
    release = threading.Event()
    started = threading.Event()

    def hang() -> None:
        started.set()
        release.wait(60)

    async def run() -> None:
        calling = asyncio.create_task(make(hang).call({}, context))
        assert await asyncio.to_thread(started.wait, 60)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    try:
        asyncio.run(run())
    finally:
        release.set()


def test_too_many_hanging_threads_refuse_further_calls(make: Make, context: ToolContext) -> None:
    release = threading.Event()
    threads = ToolThreads(running=2, alive=3)

    begun = threading.Semaphore(0)

    def hang() -> None:
        begun.release()
        release.wait(60)

    async def run() -> None:
        made = make(hang, threads)
        for _ in range(3):
            calling = asyncio.create_task(made.call({}, context))
            assert await asyncio.to_thread(begun.acquire, timeout=60)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
        with pytest.raises(Transient, match="a tool hangs"):
            await made.call({}, context)

    try:
        asyncio.run(run())
    finally:
        release.set()


def test_tool_that_cancels_itself_fails_instead_of_cancelling_its_caller(make: Make, context: ToolContext) -> None:
    async def odd() -> None:
        raise asyncio.CancelledError

    with pytest.raises(InternalFault, match="cancelled itself"):
        asyncio.run(make(odd).call({}, context))


def test_a_call_that_failed_or_was_cancelled_leaves_nothing_to_the_garbage_collector(
    make: Make, context: ToolContext
) -> None:
    async def refuse() -> str:
        raise ToolError("no")

    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    async def run() -> Counter[str]:
        refusing, hanging = make(refuse), make(hang)
        with garbage() as found:
            for _ in range(3):
                with pytest.raises(ToolError):
                    await refusing.call({}, context)
                call = asyncio.create_task(hanging.call({}, context))
                await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait([call])
        return found

    assert not asyncio.run(run())


def test_a_quoted_exception_shows_no_secret_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK repeats the key that it was refused with."""
    monkeypatch.setattr(errors, "redaction", Redaction(["sk-only-for-tests"]))
    error = ValueError("bad key sk-only-for-tests for https://me:pass@host/x?q=1")
    assert errors.quoted(error) == "ValueError: bad key … for https://…@host/x?…"
