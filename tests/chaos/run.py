"""One run: start everything, load it, strike it, let it drain, and hold the result against what should be."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.chaos.audit import Phase, audit
from tests.chaos.batches import Batches
from tests.chaos.client import Client
from tests.chaos.faults import Dealer, Dealt
from tests.chaos.memory import Growth, Memory
from tests.chaos.neighbours import Neighbour, Pages
from tests.chaos.observer import Observer
from tests.chaos.processes import End, Processes
from tests.chaos.recipes import KINDS, PEACEFUL, recipes
from tests.chaos.schedule import APIS, WORKERS, schedule
from tests.chaos.servers import Servers
from tests.chaos.talks import Talks
from tests.chaos.tools import LEDGER_VARIABLE

START_PATIENCE_SECONDS = 120.0
_MEMORY_SECONDS = 2.0
_ROLLING_FIRST_JOB = 1_000_000
"""Jobs of the rolling restart are numbered from here, so that their idempotency keys are others."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is to be. `lease`, `every` and `drain_patience` in seconds, `rate` in jobs a second.

    `seconds` of chaos come first (none for 0), then, unless `rolling_seconds` is 0, a rolling restart that takes as
    long and at least one turn. `drain_patience` bounds the wait for the last job, not the speed of anything.
    """

    seconds: float
    seed: int
    every: float = 2.0
    rate: float = 4.0
    lease: float = 15.0
    rolling_seconds: float = 20.0
    most_in_flight: int = 120
    drain_patience: float = 240.0

    @property
    def environment(self) -> dict[str, str]:
        """What the processes are told beside their servers."""
        return {
            "PLANQ_TOOLS": "tests.chaos.tools",
            "PLANQ_LEASE_SECONDS": str(self.lease),
            "PLANQ_HEARTBEAT_SECONDS": str(self.lease / 3),
            # Below the longest step here, so that a stopping worker has something to give back.
            "PLANQ_DRAIN_SECONDS": "3",
            "PLANQ_FREEZE_SECONDS": str(self.lease / 2),
            # Workers are killed on purpose here: a step may be alone in several of them. Only what was alone counts.
            "PLANQ_MAX_WORKER_LOSSES": "12",
            "PLANQ_LOG_LEVEL": "INFO",
        }


@dataclass(slots=True)
class Report:
    """Everything that a run found."""

    options: Options
    phases: list[Phase] = field(default_factory=list)
    dealt: list[Dealt] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    memory: list[Growth] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """True when nothing was lost, wrong, doubled, repeated, stuck or broken."""
        return not any(phase.faults_found for phase in self.phases)

    @property
    def unforeseen_ends(self) -> list[End]:
        """Processes that ended though nothing had been dealt to them: a server that was away at their start, say."""
        return [end for end in self.ends if not end.intended]

    def to_json(self) -> dict[str, Any]:
        """Return the report as one JSON object."""
        return {
            "is_good": self.is_good,
            "options": asdict(self.options),
            "phases": [phase.to_json() for phase in self.phases],
            "memory": [asdict(one) for one in self.memory],
            "process_ends": len(self.ends),
            "unforeseen_ends": [asdict(end) for end in self.unforeseen_ends],
            "dealt": [{"at": d.at, "kind": d.fault.kind, "target": d.fault.target, "met": d.met} for d in self.dealt],
        }


class Run:
    """The servers and processes of one run, in a folder of its own."""

    def __init__(self, options: Options, folder: Path, say: Callable[[str], None]) -> None:
        self._options = options
        self._ledger = folder / "ledger"
        self._objects = folder / "objects"
        self._say = say
        self._servers = Servers(folder)
        self._pages = ""
        self._neighbours_key = ""
        self._folder = folder
        self._memory = Memory()
        self._report = Report(options)

    async def run(self) -> Report:
        """Carry the run out; everything is stopped at its end."""
        async with self._everything() as processes:
            observer = Observer(self._servers.postgres.url)
            await self._wait_ready(processes, observer)
            async with _beside(self._watch_memory(processes)):
                if self._options.seconds > 0:
                    self._report.phases.append(await self._chaos(processes, observer))
                if self._options.rolling_seconds > 0:
                    self._report.phases.append(await self._rolling(processes, observer))
            self._report.ends = list(processes.ends)
        self._report.memory = self._memory.growth()
        return self._report

    @contextlib.asynccontextmanager
    async def _everything(self) -> AsyncIterator[Processes]:
        try:
            self._servers.start()
            self._neighbours_key = await Neighbour.create(self._servers.postgres.url)
            async with Pages().serving() as self._pages:
                environment = {
                    **self._options.environment,
                    LEDGER_VARIABLE: str(self._ledger),
                    "PLANQ_PAYLOADS": f"file://{self._objects}",
                    "PLANQ_HTTP_FETCH_ALLOW_HOSTS": self._pages,
                }
                processes = Processes(self._folder, self._servers, environment)
                try:
                    processes.start()
                    yield processes
                finally:
                    await processes.stop()
        finally:
            self._servers.stop()

    async def _wait_ready(self, processes: Processes, observer: Observer) -> None:
        async with asyncio.timeout(START_PATIENCE_SECONDS):
            for name in (*WORKERS, *APIS):
                await self._wait_for(name, processes, observer)

    async def _wait_for(
        self, name: str, processes: Processes, observer: Observer, other_than: int | None = None
    ) -> None:
        """Wait until the process that has this name, another one than the given pid, does its work."""
        url = dict(zip(APIS, processes.api_urls, strict=True)).get(name)
        async with httpx.AsyncClient(timeout=2) as http:
            while True:
                pid = processes.pid(name)
                if pid != other_than and await self._works(pid, url, http, observer):
                    return
                await asyncio.sleep(0.1)

    async def _works(self, pid: int, url: str | None, http: httpx.AsyncClient, observer: Observer) -> bool:
        if url is None:
            return pid in await observer.live_workers(self._options.lease)
        try:
            return (await http.get(f"{url}/statusz")).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _client(self, processes: Processes) -> Client:
        options = self._options
        return Client(processes.api_urls, self._ledger, run=str(options.seed), most_in_flight=options.most_in_flight)

    async def _chaos(self, processes: Processes, observer: Observer) -> Phase:
        options = self._options
        client = self._client(processes)
        neighbour = Neighbour(client, self._neighbours_key, self._pages, run=str(options.seed))
        dealer = Dealer(
            self._servers,
            processes,
            observer,
            neighbour,
            ledger_path=self._ledger,
            objects=self._objects,
            lease=options.lease,
        )
        begun = time.monotonic()

        async def strike() -> None:
            for fault in schedule(options.seed, int(options.seconds / options.every)):
                await asyncio.sleep(max(0.0, begun + (fault.tick + 1) * options.every - time.monotonic()))
                dealer.deal(fault)
            await asyncio.sleep(max(0.0, begun + options.seconds - time.monotonic()))

        talks, batches = Talks(client, run=str(options.seed)), Batches(client, run=str(options.seed))
        try:
            await self._load(client, talks, batches, 0, strike)
            await dealer.settle()
            self._say("faults have stopped; what is left must drain")
            await client.drain(options.drain_patience)
            await talks.drain(options.drain_patience)
            await batches.drain(options.drain_patience)
            await neighbour.drain(options.drain_patience)
        finally:
            await neighbour.close()
            await talks.close()
            await batches.close()
            await client.close()
            self._report.dealt = sorted(dealer.dealt, key=lambda one: one.at)
        return await audit(
            "chaos",
            client,
            talks,
            batches,
            observer,
            self._ledger,
            seconds=time.monotonic() - begun,
            lease=options.lease,
            jobs_before=0,
            freezes=processes.count_freezes(),
            neighbour=neighbour,
            interruptions=dealer.interruptions,
            outages=self._servers.outages,
            faults=dealer.by_kind,
        )

    async def _rolling(self, processes: Processes, observer: Observer) -> Phase:
        await self._wait_ready(processes, observer)
        jobs_before = await observer.count_jobs()
        begun = time.monotonic()
        restarts: dict[str, int] = dict.fromkeys((*WORKERS, *APIS), 0)

        async def in_turn(names: Sequence[str]) -> None:
            while time.monotonic() - begun < self._options.rolling_seconds:
                for name in names:
                    await self._restart(name, processes, observer)
                    restarts[name] += 1

        async def restart_in_turn() -> None:
            """Workers and APIs are two deployments: each has one process on its way at a time."""
            await asyncio.gather(in_turn(WORKERS), in_turn(APIS))

        client = self._client(processes)
        run = f"{self._options.seed}-rolling"
        talks, batches = Talks(client, run=run), Batches(client, run=run)
        try:
            # A step that kills its worker would leave outcomes unknown, which no restart in peace may.
            await self._load(client, talks, batches, _ROLLING_FIRST_JOB, restart_in_turn, PEACEFUL)
            await client.drain(self._options.drain_patience)
            await talks.drain(self._options.drain_patience)
            await batches.drain(self._options.drain_patience)
        finally:
            await talks.close()
            await batches.close()
            await client.close()
        return await audit(
            "rolling restart",
            client,
            talks,
            batches,
            observer,
            self._ledger,
            seconds=time.monotonic() - begun,
            lease=self._options.lease,
            jobs_before=jobs_before,
            freezes=processes.count_freezes(),
            faults={f"SIGTERM {name}": count for name, count in restarts.items()},
            must_know_every_outcome=True,
        )

    async def _restart(self, name: str, processes: Processes, observer: Observer) -> None:
        """Stop a process in peace and wait until its successor works."""
        async with asyncio.timeout(START_PATIENCE_SECONDS):
            before = processes.pid(name)
            processes.terminate(name)
            await self._wait_for(name, processes, observer, other_than=before)

    async def _load(
        self,
        client: Client,
        talks: Talks,
        batches: Batches,
        first: int,
        work: Callable[[], Any],
        kinds: Sequence[str] = tuple(KINDS),
    ) -> None:
        """Keep the streams of jobs, messages and batches going while `work` goes on."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            jobs = recipes(self._options.seed, first, kinds)
            group.create_task(client.stream(jobs, per_second=self._options.rate, until=stop))
            group.create_task(talks.stream(stop))
            group.create_task(batches.stream(stop))
            await work()
            stop.set()

    async def _watch_memory(self, processes: Processes) -> None:
        while True:
            now = time.monotonic()
            for name, pid, mb in processes.memory():
                self._memory.add(name, pid, now, mb)
            pid = self._servers.valkey.pid
            if pid is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._memory.add("valkey", pid, now, psutil.Process(pid).memory_info().rss / 1e6)
            await asyncio.sleep(_MEMORY_SECONDS)


@contextlib.asynccontextmanager
async def _beside(work: Any) -> AsyncIterator[None]:
    """Run a coroutine beside the body, and end it with the body."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
