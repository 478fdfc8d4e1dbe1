"""B9: requests a second of the API, against a bare FastAPI route that does one INSERT or one SELECT.

The API is asked without a key, and with one that it finds in the database. Both servers run under uvicorn with the
same settings, on the same database server, with the same driver and as many connections, and are asked by the same
client over the same number of connections, in turns. No worker runs: what a job costs once it is stored is other
measurements' business. Every look is at another job than the one before.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import psutil
import psycopg

from planq.shared.kernel.ids import TENANT
from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.keys import KeyScope
from planq.worker.tools import tool
from tests.bench import bare_api
from tests.bench.client import Answer, Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.support.harness import Harness, ScriptedModel, make_tool
from tests.support.stack import Stack

BARE = "bare FastAPI"
KEYED = "planq with a key"
REQUESTS, QUICK_REQUESTS = 2_000, 1_000
CONNECTIONS = 32
POST_FACTOR, GET_FACTOR, HOPED_FACTOR = 0.6, 0.7, 0.9
KEYED_FACTOR = 0.95
MS = 1_000.0


@tool(effect="pure")
async def note(value: int) -> dict[str, int]:
    """Return the value."""
    return {"value": value}


PLAN = {
    "calls": [
        {"tool_name": "note", "arguments": {"value": value}} for value in (1, "$0.output.value", "$1.output.value")
    ]
}
BODIES: Mapping[str, dict[str, Any]] = {
    "input": {"input": "Take these notes, please."},
    "plan": {"plan": PLAN, "respond": "model"},
}

KINDS = {
    "POST input": "B9 POST /jobs, an input",
    "POST plan": "B9 POST /jobs, a plan of 3 steps",
    "GET queued": "B9 GET /jobs/{id}, queued",
    "GET finished": "B9 GET /jobs/{id}, finished, 3 steps",
}
"""What is asked, and what its figure is called."""

KEYED_KINDS = ("POST input", "GET queued")
"""What is compared with and without a key."""


@dataclass
class Load:
    """What one kind of request took from one server, a number for each round."""

    per_second: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Server:
    """A server that answers; `jobs` are the paths of those of each kind that may be looked at."""

    url: str
    database_url: str
    process: psutil.Process
    jobs: dict[str, list[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


Loads = Mapping[tuple[str, str], Load]


def measure(context: Context) -> list[Figure]:
    """Ask both servers in turns, after a round that does not count."""
    with serving(context) as servers:
        loads = run(compared(servers, context.repeats, context.either(REQUESTS, QUICK_REQUESTS)))
    figures = [_figure(kind, name, loads) for kind, name in KINDS.items()]
    return [*figures, *(_keyed_figure(kind, loads) for kind in KEYED_KINDS)]


@contextmanager
def serving(context: Context) -> Iterator[Mapping[str, Server]]:
    """Run both servers, and nothing else of planq."""
    database_url = context.create_migrated()
    with psycopg.connect(database_url) as connection:
        connection.execute(bare_api.TABLE.encode())
    finished = asyncio.run(_finish(database_url, CONNECTIONS))
    with ExitStack() as stacks:
        servers = {}
        for name, module in (("planq", "api"), (BARE, "tests.bench.bare_api")):
            stack = Stack(context.new_folder("api"), database_url, context.valkey.url, fresh=True)
            stacks.callback(stack.stop)
            process = stack.run("api", "-m", module)
            servers[name] = Server(stack.url, database_url, psutil.Process(process.pid))
        headers = {"Authorization": f"Bearer {asyncio.run(_make_key(database_url))}"}
        servers[KEYED] = replace(servers["planq"], jobs={}, headers=headers)
        for name in ("planq", KEYED):
            servers[name].jobs["finished"] = finished
        yield servers


async def _make_key(database_url: str) -> str:
    """Make a key that may do what is asked for without one, for the same tenant."""
    async with Database(database_url, max_connections=1) as database:
        _, text = await ApiKeyStore(database).create(TENANT, "bench", frozenset({KeyScope.JOBS}), None)
        return text


async def _finish(database_url: str, jobs: int) -> list[str]:
    """Publish the tool and carry out jobs; return their paths."""
    database = Database(database_url, max_connections=2)
    await database.open()
    try:
        harness = Harness(database, ScriptedModel.planning(), [make_tool(note)])
        await harness.open()
        found = [await harness.run(plan=PLAN) for _ in range(jobs)]
    finally:
        await database.close()
    for job, steps in found:
        if job["status"] != "completed" or any(step["status"] != "succeeded" for step in steps):
            raise RuntimeError(f"a job did not complete: {job['error']}")
    return [f"/jobs/{job['id']}" for job, _ in found]


async def compared(servers: Mapping[str, Server], rounds: int, requests: int) -> Loads:
    """Send each server so many requests of every kind in every round, and in one before that does not count."""
    loads: dict[tuple[str, str], Load] = {}
    for server in servers.values():
        async with Client(server.url, connections=CONNECTIONS, headers=server.headers) as client:
            await client.answering()
            stored = [(await client.post("/jobs", BODIES["plan"])).json()["id"] for _ in range(CONNECTIONS)]
        server.jobs["queued"] = [f"/jobs/{job}" for job in stored]
        server.jobs.setdefault("finished", server.jobs["queued"])
    for turn, kind in itertools.product(range(rounds + 1), KINDS):
        for name, server in servers.items():
            if name == KEYED and kind not in KEYED_KINDS:
                continue
            load = loads.setdefault((name, kind), Load())
            await ask(server, kind, requests, load if turn else Load())
    return loads


async def ask(server: Server, kind: str, requests: int, load: Load) -> None:
    """Send so many requests of a kind, and note what that took."""
    method, _, which = kind.partition(" ")
    paths = itertools.cycle(server.jobs.get(which, ()))

    async def send(client: Client) -> Answer:
        return await (client.post("/jobs", BODIES[which]) if method == "POST" else client.get(next(paths)))

    await flood(server, send, requests, load, expected=202 if method == "POST" else 200)


async def flood(
    server: Server, send: Callable[[Client], Awaitable[Answer]], requests: int, load: Load, *, expected: int
) -> None:
    """Send so many requests as fast as the answers come, and note what that took; raises for another status."""
    async with Client(server.url, connections=CONNECTIONS, headers=server.headers) as client:
        left = iter(range(requests))

        async def keep_asking() -> None:
            for _ in left:
                answer = await send(client)
                if answer.status != expected:
                    raise RuntimeError(f"expected {expected}, found {answer.status} {answer.body[:300]!r}")

        before, begun = sum(server.process.cpu_times()[:2]), perf_counter()
        await asyncio.gather(*(keep_asking() for _ in range(CONNECTIONS)))
        load.per_second.append(requests / (perf_counter() - begun))
        load.cpu_seconds.append((sum(server.process.cpu_times()[:2]) - before) / requests)


def _figure(kind: str, name: str, loads: Loads) -> Figure:
    planq, bare = loads["planq", kind], loads[BARE, kind]
    factor = POST_FACTOR if kind.startswith("POST") else GET_FACTOR
    return Figure(
        name,
        statistics.median(planq.per_second),
        "/s",
        limits={BARE: statistics.median(bare.per_second)},
        bounds=[Bound(factor, BARE, at_most=False)],
        hopes=[Bound(HOPED_FACTOR, BARE, at_most=False)],
        more_is_better=True,
        samples=planq.per_second,
        note=f"CPU of the serving process for one request, ms, planq and bare FastAPI: {_told(loads)}",
    )


def _keyed_figure(kind: str, loads: Loads) -> Figure:
    keyed, without = loads[KEYED, kind], loads["planq", kind]
    own, other = (MS * statistics.median(load.cpu_seconds) for load in (keyed, without))
    return Figure(
        f"{KINDS[kind]}, with a key",
        statistics.median(keyed.per_second),
        "/s",
        limits={"without": statistics.median(without.per_second)},
        bounds=[Bound(KEYED_FACTOR, "without", at_most=False)],
        more_is_better=True,
        samples=keyed.per_second,
        note=f"CPU of the serving process for one request, ms, with a key and without: {own:.3f} and {other:.3f}",
    )


def _told(loads: Loads) -> str:
    told = []
    for kind in KINDS:
        planq, bare = (MS * statistics.median(loads[name, kind].cpu_seconds) for name in ("planq", BARE))
        told.append(f"{kind} {planq:.2f} and {bare:.2f}")
    return "; ".join(told)
