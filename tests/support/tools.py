"""Tools for tests that need real worker processes: `PLANQ_TOOLS=tests.support.tools`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

from planq.worker.tools import ToolContext, ToolError, tool


@tool(name="test_hold", effect="read", output_schema={"type": "object", "properties": {"pid": {"type": "integer"}}})
async def hold(seconds: float) -> dict[str, int]:
    """Occupy a slot for a while."""
    await asyncio.sleep(seconds)
    return {"pid": os.getpid()}


@tool(name="test_crunch", effect="pure", pool="cpu", timeout_seconds=30)
def crunch(seconds: float) -> dict[str, int]:
    """Occupy a process for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
    return {"pid": os.getpid()}


def _grind(path: str, seconds: float) -> dict[str, int]:
    _append(Path(path), f"{os.getpid()}\n")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(200_000_000))  # some seconds in C, where no signal handler of Python's runs
    return {"pid": os.getpid()}


@tool(name="test_grind", effect="pure", pool="cpu", timeout_seconds=60)
def grind(path: str, seconds: float = 60.0) -> dict[str, int]:
    """Write this process's id to a file, then compute without ever listening."""
    return _grind(path, seconds)


@tool(name="test_grind_once", effect="unsafe", pool="cpu", timeout_seconds=60)
def grind_once(path: str, seconds: float = 60.0) -> dict[str, int]:
    """The same as a tool that may not be repeated."""
    return _grind(path, seconds)


@tool(name="test_block", effect="read")
def block(path: str, seconds: float) -> dict[str, int]:
    """Hold a thread of the `io` pool, which nothing can stop."""
    _append(Path(path), f"{os.getpid()}\n")
    time.sleep(seconds)
    return {"pid": os.getpid()}


@tool(name="test_hang", effect="unsafe", pool="cpu", timeout_seconds=0.5)
def hang() -> dict[str, int]:
    """Never answer; nothing but the end of the process stops it."""
    while True:
        time.sleep(0.05)


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


@tool(name="test_ledger", effect="unsafe")
async def ledger(path: str, line: str, context: ToolContext, seconds: float = 0.0) -> dict[str, str]:
    """Append a line with the idempotency key to a file, then wait: an effect that must happen once."""
    _append(Path(path), f"{context.idempotency_key} {line}\n")
    await asyncio.sleep(seconds)
    return {"line": line}


def _called(path: Path) -> int:
    _append(path, "called\n")
    return len(path.read_text(encoding="utf-8").splitlines())


@tool(name="test_flaky", effect="idempotent")
async def flaky(path: str) -> dict[str, int]:
    """Fail the first time as if something were away for a moment, succeed the second time; `path` is its memory."""
    calls = _called(Path(path))
    if calls == 1:
        raise ToolError("not now", retryable=True)
    return {"calls": calls}


@tool(name="test_raise", effect="unsafe")
async def fail(message: str) -> dict[str, str]:
    """Raise what nobody foresaw."""
    return _break(message)


@tool(name="test_poison", effect="read", pool="cpu")
def poison() -> dict[str, str]:
    """Kill the process that it runs in, every time."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


@tool(name="test_raise_apart", effect="unsafe", pool="cpu")
def fail_apart(message: str) -> dict[str, str]:
    """Raise it in a process of the `cpu` pool."""
    return _break(message)


def _break(message: str) -> dict[str, str]:
    logging.getLogger("shop.billing").info("about to break")
    raise RuntimeError(message)
