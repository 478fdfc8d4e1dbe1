"""The tools of the chaos run (`PLANQ_TOOLS=tests.chaos.tools`): each writes to the ledger when it begins and ends."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import TypedDict

from planq.worker.tools import NotHappened, ToolContext, ToolError, tool
from tests.chaos import ledger
from tests.chaos.blob import blob
from tests.support import beating

LEDGER_VARIABLE = "PLANQ_CHAOS_LEDGER"

LOOKED_INTO_SECONDS = 3.0
"""The time-out of what is looked into: nobody looks before it is over, unless the worker is known to have ended."""


class Value(TypedDict):
    """What most of the tools return."""

    value: int


class Text(TypedDict):
    """A long text."""

    text: str


@contextmanager
def _entered(context: ToolContext, effect: str) -> Iterator[None]:
    """Write the start now, and the finish unless the call is cut off."""
    path = Path(os.environ[LEDGER_VARIABLE])
    call = (context.idempotency_key, context.attempt, effect, context.tool_name)
    ledger.write(path, ledger.START, *call)
    yield
    ledger.write(path, ledger.FINISH, *call)


@tool(name="chaos_add", effect="pure")
async def add(a: int, b: int, context: ToolContext) -> Value:
    """Add."""
    with _entered(context, "pure"):
        return {"value": a + b}


@tool(name="chaos_square", effect="pure")
async def square(n: int, seconds: float, context: ToolContext) -> Value:
    """Square a number, slowly."""
    with _entered(context, "pure"):
        await asyncio.sleep(seconds)
        return {"value": n * n}


@tool(name="chaos_total", effect="pure")
async def total(values: list[int], context: ToolContext) -> Value:
    """Add up what a fan-out has found."""
    with _entered(context, "pure"):
        return {"value": sum(values)}


@tool(name="chaos_hold", effect="read")
async def hold(seconds: float, value: int, context: ToolContext) -> Value:
    """Occupy a slot for a while."""
    with _entered(context, "read"):
        await asyncio.sleep(seconds)
        return {"value": value}


@tool(name="chaos_kill", effect="read")
async def kill(value: int, times: int, context: ToolContext) -> Value:
    """Kill the process in the first attempts, and whatever else runs in it."""
    with _entered(context, "read"):
        if context.attempt <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"value": value}


@tool(name="chaos_freeze", effect="read")
async def freeze(value: int, hold: bool, context: ToolContext) -> Value:
    """Hold the interpreter of the process, once, until a guard or a fault kills it with all that runs in it."""
    path = Path(os.environ[LEDGER_VARIABLE])
    with _entered(context, "read"):
        if hold and not ledger.has_entered(path, context.idempotency_key, ledger.HOLD):
            ledger.write(path, ledger.HOLD, context.idempotency_key, context.attempt, "read", context.tool_name)
            beating.hold()
        return {"value": value}


@tool(name="chaos_flaky", effect="read")
async def flaky(value: int, failures: int, context: ToolContext) -> Value:
    """Fail in the first attempts, in a way that may pass."""
    with _entered(context, "read"):
        if context.attempt <= failures:
            raise ToolError(f"not in attempt {context.attempt}", retryable=True)
        return {"value": value}


@tool(name="chaos_put", effect="idempotent")
async def put(value: int, seconds: float, context: ToolContext) -> Value:
    """Write what may be written again under the same key."""
    with _entered(context, "idempotent"):
        await asyncio.sleep(seconds)
        return {"value": value}


def _happen(context: ToolContext) -> None:
    """Make the effect of an unsafe call: late, so that one which was not stopped in time makes it a second time."""
    path = Path(os.environ[LEDGER_VARIABLE])
    ledger.write(path, ledger.EFFECT, context.idempotency_key, context.attempt, "unsafe", context.tool_name)


@tool(name="chaos_effect", effect="unsafe")
async def effect(value: int, seconds: float, context: ToolContext) -> Value:
    """Do what must never be done twice."""
    with _entered(context, "unsafe"):
        await asyncio.sleep(seconds)
        _happen(context)
        return {"value": value}


async def happened(value: int, context: ToolContext) -> Value | NotHappened:
    """Look the effect up in the ledger."""
    path = Path(os.environ[LEDGER_VARIABLE])
    return {"value": value} if ledger.has_entered(path, context.idempotency_key, ledger.EFFECT) else NotHappened()


@tool(name="chaos_book", effect="unsafe", find_out=happened, timeout_seconds=LOOKED_INTO_SECONDS)
async def book(value: int, seconds: float, context: ToolContext) -> Value:
    """Do what must not be done twice, and can be looked up."""
    with _entered(context, "unsafe"):
        await asyncio.sleep(seconds)
        await context.confirm()
        _happen(context)
        return {"value": value}


@tool(name="chaos_book_late", effect="unsafe", find_out=happened, timeout_seconds=LOOKED_INTO_SECONDS)
async def book_late(value: int, seconds: float, context: ToolContext) -> Value:
    """The same without asking."""
    with _entered(context, "unsafe"):
        await asyncio.sleep(seconds)
        _happen(context)
        return {"value": value}


@tool(name="chaos_book_thread", effect="unsafe", find_out=happened, pool="io", timeout_seconds=LOOKED_INTO_SECONDS)
def book_thread(value: int, seconds: float, context: ToolContext) -> Value:
    """The same in a thread, which nobody can stop."""
    with _entered(context, "unsafe"):
        time.sleep(seconds)
        _happen(context)
        return {"value": value}


@tool(name="chaos_book_cpu", effect="unsafe", find_out=happened, timeout_seconds=LOOKED_INTO_SECONDS)
def book_cpu(value: int, seconds: float, context: ToolContext) -> Value:
    """The same in a process of the `cpu` pool."""
    with _entered(context, "unsafe"):
        time.sleep(seconds)
        _happen(context)
        return {"value": value}


@tool(name="chaos_charge", effect="unsafe", recovery="ask", timeout_seconds=LOOKED_INTO_SECONDS)
async def charge(value: int, seconds: float, context: ToolContext) -> Value:
    """Do what must not be done twice; what became of a call that was cut off, the client says."""
    with _entered(context, "unsafe"):
        await asyncio.sleep(seconds)
        _happen(context)
        return {"value": value}


@tool(name="chaos_crunch", effect="pure", pool="cpu")
def crunch(n: int, seconds: float, context: ToolContext) -> Value:
    """Occupy a process for a while, and add up the squares below n."""
    with _entered(context, "pure"):
        time.sleep(seconds)
        return {"value": sum(i * i for i in range(n))}


@tool(name="chaos_blob", effect="read")
async def large(seed: int, size: int, context: ToolContext) -> Text:
    """Return a text of `size` characters."""
    with _entered(context, "read"):
        return {"text": blob(seed, size)}


@tool(name="chaos_digest", effect="pure")
async def digest(text: str, context: ToolContext) -> Text:
    """Return the SHA-256 of a text, in hex."""
    with _entered(context, "pure"):
        return {"text": hashlib.sha256(text.encode()).hexdigest()}
