"""Tools for the fault tests: they keep ledgers outside planq, in the folder `FAULT_FOLDER`."""

from __future__ import annotations

import asyncio
import mmap
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

from planq.worker.tools import NotHappened, ToolContext, tool
from tests.support import beating

OUTPUT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

_LOOK_SECONDS = 0.02
PATIENT = 300.0
"""A tool that waits for a file waits as long as a slow machine needs to make it."""


def _folder() -> Path:
    return Path(os.environ["FAULT_FOLDER"])


def enter(ledger: Path, line: str) -> None:
    """Append a line that survives even a power cut."""
    handle = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, f"{line}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def entered(context: ToolContext) -> None:
    """Note that a tool was called for a step."""
    enter(_folder() / "ran", f"{context.idempotency_key} {context.attempt}")


async def _until(name: str) -> None:
    file = _folder() / name
    while True:
        if file.exists():
            return
        await asyncio.sleep(_LOOK_SECONDS)


@tool(name="fault_note", effect="pure", output_schema=OUTPUT)
async def note(text: str, context: ToolContext) -> dict[str, str]:
    """Put a text in brackets."""
    entered(context)
    return {"text": f"<{text}>"}


@tool(name="fault_paid", effect="pure", output_schema=OUTPUT, price_usd=0.25)
async def paid(text: str, context: ToolContext) -> dict[str, str]:
    """Put a text in brackets, for a quarter."""
    entered(context)
    return {"text": f"<{text}>"}


@tool(name="fault_whose", effect="read", output_schema=OUTPUT, user_scoped=["whose"])
async def whose(whose: str, text: str, context: ToolContext) -> dict[str, str]:
    """Say for whom, which nobody chooses."""
    entered(context)
    return {"text": f"{text} for {whose or 'nobody'}"}


@tool(name="fault_look", effect="read", output_schema=OUTPUT)
async def look(text: str, context: ToolContext) -> dict[str, str]:
    """Put a text in brackets, as a call that looks at the world."""
    entered(context)
    return {"text": f"<{text}>"}


@tool(name="fault_join", effect="pure", output_schema=OUTPUT)
async def join(parts: list[str], context: ToolContext) -> dict[str, str]:
    """Join texts."""
    entered(context)
    return {"text": "+".join(parts)}


@tool(name="fault_flaky", effect="idempotent", output_schema=OUTPUT)
async def flaky(text: str, context: ToolContext) -> dict[str, str]:
    """Break the connection the first time that anybody calls for this job, then put the text in brackets."""
    entered(context)
    try:
        (_folder() / f"flaky-{context.job_id}").touch(exist_ok=False)
    except FileExistsError:
        return {"text": f"<{text}>"}
    raise ConnectionResetError("the first call never works")


@tool(name="fault_freeze", effect="read", output_schema=OUTPUT)
async def freeze(how: str, context: ToolContext) -> dict[str, str]:
    """Hold the interpreter (`hold`), or only the loop (`block`), for ever."""
    entered(context)
    {"hold": beating.hold, "block": beating.block}[how]()
    return {"text": how}


@tool(name="fault_freeze_thread", effect="read", pool="io", output_schema=OUTPUT)
def freeze_thread(how: str, context: ToolContext) -> dict[str, str]:
    """As `fault_freeze`, from a thread of the `io` pool: to block there holds up nobody."""
    entered(context)
    {"hold": beating.hold}[how]()
    return {"text": how}


@tool(name="fault_pay", effect="unsafe", output_schema=OUTPUT, timeout_seconds=PATIENT)
async def pay(text: str, context: ToolContext, until: str | None = None) -> dict[str, str]:
    """Do what must happen once; with `until` the answer comes only when a file of this name exists."""
    enter(_folder() / "paid", context.idempotency_key)
    entered(context)
    if until is not None:
        await _until(until)
    return {"text": f"<{text}>"}


@tool(name="fault_charge", effect="unsafe", recovery="ask", output_schema=OUTPUT, timeout_seconds=PATIENT)
async def charge(text: str, until: str, context: ToolContext) -> dict[str, str]:
    """Do what must happen once; what became of a call that was cut off, a person has to say."""
    enter(_folder() / "paid", context.idempotency_key)
    entered(context)
    await _until(until)
    return {"text": f"<{text}>"}


async def booked(text: str, context: ToolContext) -> dict[str, str] | NotHappened:
    """Look a booking up in the ledger."""
    ledger = _folder() / "paid"
    keys = ledger.read_text("utf-8").splitlines() if ledger.exists() else []
    return {"text": f"<{text}>"} if context.idempotency_key in keys else NotHappened()


@tool(name="fault_book", effect="unsafe", find_out=booked, output_schema=OUTPUT)
async def book(text: str, context: ToolContext) -> dict[str, str]:
    """Do what must happen once, and can be looked up."""
    enter(_folder() / "paid", context.idempotency_key)
    entered(context)
    return {"text": f"<{text}>"}


@tool(name="fault_sure_book", effect="unsafe", find_out=booked, output_schema=OUTPUT)
async def sure_book(text: str, context: ToolContext) -> dict[str, str]:
    """Do what must happen once, if the database says that it may be done."""
    entered(context)
    await context.confirm(database=True)
    enter(_folder() / "paid", context.idempotency_key)
    return {"text": f"<{text}>"}


async def _act_late(context: ToolContext) -> None:
    """Do what must happen once, but only when a file `act-ATTEMPT` exists; say when this attempt is over."""
    entered(context)
    try:
        await _until(f"act-{context.attempt}")
        enter(_folder() / "paid", context.idempotency_key)
    finally:
        enter(_folder() / "over", f"{context.idempotency_key} {context.attempt}")


def _act_late_in_a_thread(context: ToolContext) -> None:
    """As `_act_late`, where nobody can stop it."""
    entered(context)
    while not (_folder() / f"act-{context.attempt}").exists():
        time.sleep(_LOOK_SECONDS)
    enter(_folder() / "paid", context.idempotency_key)
    enter(_folder() / "over", f"{context.idempotency_key} {context.attempt}")


LATE_SECONDS = 12.0
"""The time-out of the tools that act late."""


@tool(name="fault_late_book", effect="unsafe", find_out=booked, timeout_seconds=LATE_SECONDS, output_schema=OUTPUT)
async def late_book(text: str, context: ToolContext) -> dict[str, str]:
    """Do, late in the call, what must happen once and can be looked up."""
    await _act_late(context)
    return {"text": f"<{text}>"}


@tool(name="fault_late_charge", effect="unsafe", recovery="ask", timeout_seconds=LATE_SECONDS, output_schema=OUTPUT)
async def late_charge(text: str, context: ToolContext) -> dict[str, str]:
    """Do, late in the call, what must happen once; what became of it, a person has to say."""
    await _act_late(context)
    return {"text": f"<{text}>"}


@tool(name="fault_late_pay", effect="unsafe", timeout_seconds=LATE_SECONDS, output_schema=OUTPUT)
async def late_pay(text: str, context: ToolContext) -> dict[str, str]:
    """Do, late in the call, what must happen once."""
    await _act_late(context)
    return {"text": f"<{text}>"}


@tool(
    name="fault_thread_book",
    effect="unsafe",
    pool="io",
    find_out=booked,
    timeout_seconds=LATE_SECONDS,
    output_schema=OUTPUT,
)
def thread_book(text: str, context: ToolContext) -> dict[str, str]:
    """As `fault_late_book`, in a thread of the `io` pool."""
    _act_late_in_a_thread(context)
    return {"text": f"<{text}>"}


@tool(name="fault_block_book", effect="unsafe", find_out=booked, timeout_seconds=LATE_SECONDS, output_schema=OUTPUT)
async def block_book(text: str, context: ToolContext) -> dict[str, str]:
    """As `fault_late_book`, on the event loop, which hangs for as long."""
    _act_late_in_a_thread(context)
    return {"text": f"<{text}>"}


@tool(name="fault_cpu_book", effect="unsafe", find_out=booked, timeout_seconds=LATE_SECONDS, output_schema=OUTPUT)
def cpu_book(text: str, context: ToolContext) -> dict[str, str]:
    """As `fault_late_book`, in a process of the `cpu` pool."""
    _act_late_in_a_thread(context)
    return {"text": f"<{text}>"}


@tool(name="fault_hold", effect="read", output_schema=OUTPUT, timeout_seconds=PATIENT)
async def hold(until: str, context: ToolContext) -> dict[str, str]:
    """Wait until a file of this name exists, then tell which attempt this was."""
    entered(context)
    await _until(until)
    return {"text": f"attempt {context.attempt}"}


@tool(name="fault_crunch", effect="pure", pool="cpu", timeout_seconds=PATIENT, output_schema=OUTPUT)
def crunch(until: str, context: ToolContext) -> dict[str, str]:
    """Occupy a process of the cpu pool until a file of this name exists, then tell which attempt this was."""
    entered(context)
    while not (_folder() / until).exists():
        time.sleep(_LOOK_SECONDS)
    return {"text": f"attempt {context.attempt}"}


@tool(name="fault_tick", effect="pure", pool="cpu", timeout_seconds=PATIENT, output_schema=OUTPUT)
def tick(until: str, context: ToolContext) -> dict[str, str]:
    """As `fault_crunch`, and enter the attempt into the ledger `ticks` all the time."""
    entered(context)
    while not (_folder() / until).exists():
        enter(_folder() / "ticks", str(context.attempt))
        time.sleep(_LOOK_SECONDS)
    return {"text": f"attempt {context.attempt}"}


@tool(name="fault_fork", effect="read", output_schema=OUTPUT)
async def fork(until: str, context: ToolContext) -> dict[str, str]:
    """Start a program that runs until a file of this name exists, and wait for it."""
    script = 'while [ ! -e "$0" ]; do sleep 0.05; done'
    program = await asyncio.to_thread(subprocess.Popen, ["/bin/sh", "-c", script, str(_folder() / until)])
    entered(context)
    await asyncio.to_thread(program.wait)
    return {"text": f"attempt {context.attempt}"}


@tool(name="fault_block", effect="read", timeout_seconds=60, output_schema=OUTPUT)
async def block(until: str, context: ToolContext) -> dict[str, str]:
    """Block the event loop, as a badly written tool does, until a file of this name exists."""
    entered(context)
    while not (_folder() / until).exists():
        time.sleep(_LOOK_SECONDS)  # noqa: ASYNC251 - what a tool must not do is the point
    return {"text": f"attempt {context.attempt}"}


@tool(name="fault_devour", effect="pure", pool="cpu", timeout_seconds=60, output_schema=OUTPUT)
def devour(times: int, context: ToolContext) -> dict[str, str]:
    """Ask for more memory than the process may have; the first `times` attempts then end as the kernel ends them."""
    entered(context)
    if context.attempt <= times:
        room = 256 * 1024 * 1024
        used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
        try:
            bytearray(2 * room)
        except MemoryError:
            # Without the limit it is the kernel that answers, and it does not raise: it kills.
            os.kill(os.getpid(), signal.SIGKILL)
    return {"text": f"attempt {context.attempt}"}


@tool(name="fault_hunger", effect="pure", pool="cpu", retries=0, timeout_seconds=60, output_schema=OUTPUT)
def hunger(context: ToolContext) -> dict[str, str]:
    """Ask for more memory than the process may have, and let Python say so."""
    entered(context)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 32, resource.RLIM_INFINITY))
    return {"text": str(len(bytearray(1 << 40)))}


@tool(name="fault_kill", effect="read", output_schema=OUTPUT)
async def kill(context: ToolContext) -> dict[str, str]:
    """Kill the worker, every time."""
    entered(context)
    os.kill(os.getpid(), signal.SIGKILL)
    return {"text": "unreachable"}


@tool(name="fault_strike", effect="pure", output_schema=OUTPUT)
async def strike(text: str, context: ToolContext) -> dict[str, str]:
    """Kill the worker, every time, by what depends on the arguments alone."""
    entered(context)
    os.kill(os.getpid(), signal.SIGKILL)
    return {"text": text}
