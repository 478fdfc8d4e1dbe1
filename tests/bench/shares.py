"""B26: a lone job of one tenant, first alone, then beside a flood of another: of each kind on a planq of its own.

A thousand small jobs or lines, or as many steps, are under way for each lone job, and as some end, others follow.
The flood comes from a process of its own, so that sending costs the measured client nothing but the processors.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import perf_counter

import orjson

from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.bench import plans
from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.jobs import finished
from tests.support.ports import free_port
from tests.support.stack import ROOT

MOST = 2.0
MS = 1_000.0
SECONDS, QUICK_SECONDS = 30, 12
PAUSE_SECONDS = 0.1
PATIENCE_SECONDS = 30.0
"""What takes longer counts as so much."""

SPREADING_SECONDS = 3.0
"""What has no end to count is under way by then."""

TIMES = 1_000
WIDTH, WIDE_JOBS = 2_000, 6
LINES = 20_000
DRIP_SECONDS = 0.2

_CALL = plans.asking(1)


def measure(context: Context) -> list[Figure]:
    """Measure idle and beside each kind of flood."""
    return [_figure(context, kind) for kind in KINDS]


def _figure(context: Context, kind: str) -> Figure:
    database_url = context.create_migrated()
    quiet, crowd = asyncio.run(_keys(database_url))
    pages_port = free_port()
    env = {"DATABASE_URL": database_url, "PLANQ_HTTP_FETCH_ALLOW_HOSTS": f"127.0.0.1:{pages_port}"}
    seconds = float(context.either(SECONDS, QUICK_SECONDS))
    with context.planq(env=env) as stack:
        run(_lone_jobs(stack.url, quiet, seconds / 2))
        idle = run(_lone_jobs(stack.url, quiet, seconds))
        with _flooding(stack.url, crowd, pages_port, kind):
            beside = run(_lone_jobs(stack.url, quiet, seconds))
    told = (
        f"p50 {MS * statistics.median(beside):.0f} ms, idle {MS * statistics.median(idle):.0f} ms; {len(beside)} jobs"
    )
    context.say(f"  {kind}: p95 {MS * _p95(beside):.0f} ms, idle {MS * _p95(idle):.0f} ms; {told}")
    return Figure(
        f"B26 p95 of a lone job beside {kind}",
        MS * _p95(beside),
        "ms",
        limits={"idle": MS * _p95(idle)},
        bounds=[Bound(MOST, "idle")],
        samples=[MS * wait for wait in beside],
        note=told,
    )


def _p95(waits: Sequence[float]) -> float:
    return statistics.quantiles(waits, n=20)[-1] if len(waits) > 1 else max(waits)


async def _keys(database_url: str) -> tuple[str, str]:
    made = []
    config = TenantConfig(model="offline", job_rate_limit=10_000_000, max_unfinished_jobs=1_000_000)
    async with Database(database_url, max_connections=1) as database:
        for name in ("quiet", "crowd"):
            tenant = await TenantStore(database).create(name, "", config)
            made.append((await ApiKeyStore(database).create(tenant.id, "bench", frozenset({KeyScope.JOBS}), None))[1])
    return made[0], made[1]


async def _lone_jobs(url: str, key: str, seconds: float) -> list[float]:
    """Run one job after the other, with a pause, for so many seconds; returns how long each took."""
    waits, end = [], perf_counter() + seconds
    async with Client(url, headers={"Authorization": f"Bearer {key}"}) as client:
        await client.answering()
        while perf_counter() < end:
            begun = perf_counter()
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await finished(client, _CALL)
            waits.append(perf_counter() - begun)
            await asyncio.sleep(PAUSE_SECONDS)
    return waits


@contextmanager
def _flooding(url: str, key: str, pages_port: int, kind: str) -> Iterator[None]:
    """Let a process send a flood; it has sent the first thousand when the block begins."""
    command = [sys.executable, "-m", "tests.bench.shares", url, key, str(pages_port), kind]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.communicate(b"\n")


async def _post(client: Client, path: str, body: plans.Body | bytes) -> plans.Body:
    answer = await client.post(path, body)
    if answer.status not in (200, 201, 202):
        raise RuntimeError(f"expected an accepted request, found {answer.status}: {answer.body[:500]!r}")
    found: plans.Body = answer.json()
    return found


async def _until_ended(client: Client, job: plans.Body) -> None:
    while job["status"] not in ("completed", "failed", "cancelled"):
        job = (await client.get(f"/jobs/{job['id']}?wait=60")).json()


async def _small(client: Client, page: str) -> None:
    """Send small jobs, each as soon as the one before is accepted."""
    await _post(client, "/jobs", _CALL)


async def _dripping(client: Client, page: str) -> None:
    call = {"tool_name": "http_fetch", "arguments": {"url": page}}
    await _until_ended(
        client, await _post(client, "/jobs", {"input": "fetch", "plan": {"calls": [call]}, "respond": "model"})
    )


async def _wide(client: Client, page: str) -> None:
    await _until_ended(client, await _post(client, "/jobs", plans.chains(WIDTH, 1)))


async def _cancelled(client: Client, page: str) -> None:
    job = await _post(client, "/jobs", plans.chains(WIDTH, 1))
    await asyncio.sleep(PAUSE_SECONDS)
    await client.post(f"/jobs/{job['id']}/cancel", b"")


async def _batch(client: Client, page: str) -> None:
    line = {"body": _CALL}
    file = b"".join(orjson.dumps({"custom_id": f"line-{number}", **line}) + b"\n" for number in range(LINES))
    await client.post("/batches", file, content_type="application/jsonl")
    await asyncio.Event().wait()  # it lasts for longer than is measured


KINDS: Mapping[str, tuple[Callable[[Client, str], Awaitable[None]], int, int]] = {
    "small jobs": (_small, 8, TIMES),
    "calls of a host that drips": (_dripping, TIMES, 0),
    "wide jobs": (_wide, WIDE_JOBS, 0),
    "a batch": (_batch, 1, 0),
    "cancelled wide jobs": (_cancelled, WIDE_JOBS, WIDE_JOBS),
}
"""What is done again and again, how often at a time, and how often before it counts as a flood."""


async def _flood(url: str, key: str, pages_port: int, kind: str) -> None:
    work, at_once, ahead = KINDS[kind]
    server = await asyncio.start_server(_drip, "127.0.0.1", pages_port)
    is_over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    done, is_ahead = 0, asyncio.get_running_loop().create_future()
    if not ahead:
        is_ahead.set_result(None)

    async def repeat(client: Client) -> None:
        nonlocal done
        while not is_over.done():
            await work(client, f"http://127.0.0.1:{pages_port}/")
            done += 1
            if done >= ahead and not is_ahead.done():
                is_ahead.set_result(None)

    async with server, Client(url, connections=at_once, headers={"Authorization": f"Bearer {key}"}) as client:
        tasks = [asyncio.create_task(repeat(client)) for _ in range(at_once)]
        await asyncio.wait([is_ahead, *tasks], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(SPREADING_SECONDS)
        print("ready", flush=True)  # noqa: T201 - for the process that measures
        await asyncio.wait([is_over, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
            task.cancel()


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request with one byte after the other, until the client has enough of it."""
    # uvloop says of a client that has gone, and whose handle it has closed, that it is a RuntimeError.
    with suppress(ConnectionError, RuntimeError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000000\r\n\r\n")
        while not reader.at_eof():
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(DRIP_SECONDS)
    writer.close()


if __name__ == "__main__":
    run(_flood(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
