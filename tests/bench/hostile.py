"""B25: a lone job and `/healthz`, first alone, then while another tenant sends what once froze a process.

Every second it sends each of seven inputs: three jobs that fetch a page made to be costly, a loop's template and a
body that are, a plan of five million lists, and a plan whose four queries count ten million steps. Each of them held
a loop for seconds to minutes. It comes from a process of its own, so that sending costs the measured client nothing.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import orjson

from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.jobs import peak_memory, processes
from tests.bench.noisy_tenant import Sender
from tests.support.ports import free_port
from tests.support.stack import ROOT, Stack

SECONDS, QUICK_SECONDS = 20.0, 10.0
PAUSE_SECONDS = 0.1
PATIENCE_SECONDS = 10.0
"""What takes longer counts as so much, so that a run on a process that is frozen comes to an end."""

SETTLING_SECONDS = 60.0
MOST, MOST_MB = 1.5, 600.0
MS = 1_000.0
MB = 1_000_000

Json = dict[str, Any]

PAGES: Mapping[str, bytes] = {
    "/declarations": b"<?xml" * (MB // 5),
    "/metas": b"<meta" * 20_000 + b" " * (2 * MB - 100_000),
    "/sections": b"<![cdata[>" * (MB // 10),
}
"""Each was read in time that grows with the square of its length, under the interpreter's lock."""

_QUERY = f"[{','.join(['[?@>`0`]'] * 200)}]"
_ROWS = [1] * 5_500


def _calls(*calls: tuple[str, Json]) -> Json:
    return {
        "plan": {"type": "tool_calls", "calls": [{"tool_name": name, "arguments": given} for name, given in calls]}
    }


def inputs(pages: str) -> dict[str, tuple[str, bytes]]:
    """Return what is sent, by name: the path and the body; `pages` is where the pages lie."""
    query = ("json_query", {"expression": _QUERY, "data": _ROWS})
    loop = {"input": "go on", "strategy": "loop", "loop": {"after": [{"tool": "now", "with": {"a": "{{" * 31_000}}]}}
    return {
        **{name: ("/jobs", orjson.dumps(_calls(("http_fetch", {"url": f"{pages}{name}"})))) for name in PAGES},
        "templates": ("/jobs", orjson.dumps(loop)),
        "fields": ("/jobs", b'{"input":"x",' + b",".join(b'"%x":0' % one for one in range(1_550_000)) + b"}"),
        "lists": ("/plans/validate", b'{"plan":{"type":"tool_calls","calls":[' + b"[]," * 5_000_000 + b"[]]}}"),
        "queries": ("/jobs", orjson.dumps(_calls(*[query] * 4))),
    }


@dataclass
class Phase:
    """What the quiet tenant and a probe waited for, in seconds."""

    jobs: list[float] = field(default_factory=list)
    healthz: list[float] = field(default_factory=list)


def p95(waits: Sequence[float]) -> float:
    """Return the wait that one in twenty exceeds; the longest where a frozen process left fewer than two."""
    return statistics.quantiles(waits, n=20)[-1] if len(waits) > 1 else max(waits)


def measure(context: Context) -> list[Figure]:
    """Measure without the hostile inputs, then with them, after a phase that does not count."""
    database_url = context.create_migrated()
    quiet, hostile = asyncio.run(_tenants(database_url))
    pages_port = free_port()
    env = {"DATABASE_URL": database_url, "PLANQ_HTTP_FETCH_ALLOW_HOSTS": f"127.0.0.1:{pages_port}"}
    with context.planq(env=env) as stack:
        seconds = context.either(int(SECONDS), int(QUICK_SECONDS))
        alone, beside = run(_alternating(context, stack, quiet, hostile, pages_port, float(seconds)))
        memory = {name: _peak(pid) for name, pid in _members(context, stack)}
    largest = max(memory, key=memory.__getitem__)
    return [
        *(
            Figure(
                f"B25 p95 of {what} beside hostile inputs",
                MS * statistics.median(p95(waits(phase)) for phase in beside),
                "ms",
                limits={"alone": MS * statistics.median(p95(waits(phase)) for phase in alone)},
                bounds=[Bound(MOST, "alone")],
                samples=[MS * p95(waits(phase)) for phase in beside],
                note=f"longest {MS * max(max(waits(phase)) for phase in beside):.0f} ms; counted up to "
                f"{PATIENCE_SECONDS:g} s",
            )
            for what, waits in _PROBES.items()
        ),
        Figure("B25 memory of the largest process, peak", memory[largest], "MB", MOST_MB, note=largest),
    ]


_PROBES: Mapping[str, Callable[[Phase], Sequence[float]]] = {
    "another tenant's lone job": lambda phase: phase.jobs,
    "/healthz": lambda phase: phase.healthz,
}


async def _tenants(database_url: str) -> tuple[Sender, Sender]:
    async with Database(database_url, max_connections=1) as database:
        made = []
        for name in ("quiet", "hostile"):
            tenant = await TenantStore(database).create(name, "", TenantConfig(job_rate_limit=1_000_000))
            _, key = await ApiKeyStore(database).create(tenant.id, "bench", frozenset({KeyScope.JOBS}), None)
            made.append(Sender(tenant.id, key))
    return made[0], made[1]


async def _alternating(
    context: Context, stack: Stack, quiet: Sender, hostile: Sender, pages_port: int, seconds: float
) -> tuple[Sequence[Phase], Sequence[Phase]]:
    headers = {"Authorization": f"Bearer {quiet.key}"}
    async with Client(stack.url, headers=headers) as client, Client(stack.url) as probe:
        await client.answering()
        await _phase(client, probe, seconds / 2)
        # First, and not in turns: what froze a process would slow what is compared with it, too.
        alone = [await _phase(client, probe, seconds) for _ in range(context.repeats)]
        beside = []
        for number in range(context.repeats):
            with _sending(stack.url, hostile, pages_port):
                beside.append(await _phase(client, probe, seconds))
            context.say(f"  {number + 1}: {[MS * p95(one) for one in (beside[-1].jobs, beside[-1].healthz)]} ms")
            await _settled(client, alone[-1])
    return alone, beside


async def _phase(client: Client, probe: Client, seconds: float) -> Phase:
    """Run a job and ask for `/healthz` one after the other, each with a pause, for so many seconds."""
    found, end = Phase(), perf_counter() + seconds

    async def repeat(work: Callable[[], Any], into: list[float]) -> None:
        while perf_counter() < end:
            begun = perf_counter()
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await work()
            into.append(perf_counter() - begun)
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(
        repeat(lambda: _lone_job(client), found.jobs), repeat(lambda: probe.get("/healthz"), found.healthz)
    )
    return found


async def _lone_job(client: Client) -> None:
    job = (await client.post("/jobs", _calls(("calculate", {"expression": "40 + 2"})))).json()
    while job["status"] not in ("completed", "failed", "cancelled"):
        job = (await client.get(f"/jobs/{job['id']}?wait=60")).json()
    if job["status"] != "completed":
        raise RuntimeError(f"expected a completed job, found {str(job)[:500]}")


async def _settled(client: Client, alone: Phase) -> None:
    """Wait until ten jobs in a row take no longer than twice the p95 alone, or for some minutes."""
    end, in_a_row = perf_counter() + SETTLING_SECONDS, 0
    while in_a_row < 10 and perf_counter() < end:
        begun = perf_counter()
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await _lone_job(client)
        in_a_row = in_a_row + 1 if perf_counter() - begun < 2 * p95(alone.jobs) else 0


@contextmanager
def _sending(url: str, sender: Sender, pages_port: int) -> Iterator[None]:
    """Let a process send every input once a second, and serve the pages; what it sent is cancelled at the end."""
    command = [sys.executable, "-m", "tests.bench.hostile", url, sender.key, str(pages_port)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has made its inputs
        try:
            yield
        finally:
            process.communicate(b"\n")


async def _send_all(url: str, key: str, pages_port: int) -> None:
    sent = inputs(f"http://127.0.0.1:{pages_port}")
    server = await asyncio.start_server(_serve, "127.0.0.1", pages_port)
    jobs: list[str] = []
    under_way: set[asyncio.Task[None]] = set()
    headers = {"Authorization": f"Bearer {key}"}
    is_over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print("ready", flush=True)  # noqa: T201 - for the process that measures
    async with server, Client(url, connections=200, headers=headers) as client:
        begun, turn = perf_counter(), 0
        while not is_over.done():
            for path, body in sent.values():
                task = asyncio.create_task(_send(client, path, body, jobs))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            turn += 1
            await asyncio.wait([is_over], timeout=max(0.0, begun + turn - perf_counter()))
        for task in under_way:
            task.cancel()
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                for job in jobs:
                    await client.post(f"/jobs/{job}/cancel", b"")


async def _send(client: Client, path: str, body: bytes, jobs: list[str]) -> None:
    with suppress(ConnectionError):
        answer = await client.post(path, body)
        if answer.status == 202:
            jobs.append(answer.json()["id"])


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request with the page of its path."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        page = PAGES[path]
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        writer.write(head % len(page) + page)
        await writer.drain()
    writer.close()


def _members(context: Context, stack: Stack) -> Iterator[tuple[str, int]]:
    import psutil

    servers = {context.postgres.pid, context.valkey.pid}
    for root in processes(context, stack):
        if root in servers:
            continue
        for one in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                yield f"{' '.join(one.cmdline()[1:4])} ({one.pid})", one.pid


def _peak(pid: int) -> float:
    try:
        return peak_memory(pid)
    except OSError:
        return 0.0


if __name__ == "__main__":
    run(_send_all(sys.argv[1], sys.argv[2], int(sys.argv[3])))
