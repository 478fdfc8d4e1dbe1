"""Dealing the faults of the schedule, and noting which attempts each of them interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.chaos import ledger
from tests.chaos.neighbours import Neighbour
from tests.chaos.observer import Observer
from tests.chaos.processes import Processes
from tests.chaos.recovery import Interruption
from tests.chaos.schedule import Fault, Kind
from tests.chaos.servers import Servers
from tests.support.proxy import TcpProxy

PAST_THE_LEASE_SECONDS = 1.5
"""How much longer than a lease a freeze or a silence lasts: the sweep (each second) has acted before it ends."""

HARMED_SECONDS = 2.0
"""How long objects are not what they were: much shorter than a step waits for its input."""

_HARMS: Sequence[Callable[[bytes], bytes | None]] = (
    lambda body: b"x" * len(body),
    lambda body: body[:-1],
    lambda _: b"",
    lambda _: None,
)

_BUSY_PATIENCE_SECONDS = 1.5
"""How long an out-of-memory kill waits for a process that runs a step."""


@dataclass(frozen=True, slots=True)
class Dealt:
    """A fault that was dealt: `at` in seconds since the run began, and what it met."""

    at: float
    fault: Fault
    met: str

    def __str__(self) -> str:
        return f"{self.at:7.1f} s  {self.fault.kind:<22} {self.fault.target:<10} {self.met}"


class Dealer:
    """Deals faults, each in an asyncio task of its own, so that a slow one does not delay the next."""

    def __init__(
        self,
        servers: Servers,
        processes: Processes,
        observer: Observer,
        neighbour: Neighbour,
        *,
        ledger_path: Path,
        objects: Path,
        lease: float,
    ) -> None:
        """`objects` is the folder of `PLANQ_PAYLOADS`."""
        self._servers = servers
        self._processes = processes
        self._observer = observer
        self._ledger = ledger_path
        self._past_lease = lease + PAST_THE_LEASE_SECONDS
        self._begun = time.monotonic()
        self._work: list[asyncio.Task[None]] = []
        self._deal: dict[Kind, Callable[[Fault], Awaitable[str]]] = {
            Kind.KILL_WORKER: self._kill_worker,
            Kind.KILL_API: self._kill_api,
            Kind.KILL_CPU_CHILD: self._kill_child,
            Kind.OUT_OF_MEMORY: self._out_of_memory,
            Kind.TERMINATE: self._terminate,
            Kind.FREEZE_WORKER: self._freeze,
            Kind.BROKER_EMPTY_RESTART: lambda _: servers.restart_broker_empty(),
            Kind.BROKER_FLUSHALL: lambda _: servers.flush_broker(),
            Kind.BROKER_TORN_RESTART: lambda fault: servers.restart_broker_torn(fault.tick),
            Kind.BROKER_REFUSES: lambda fault: servers.let_broker_refuse(fault.tick),
            Kind.BROKER_POISON: lambda _: servers.poison_broker(),
            Kind.BROKER_CLIENT_KILL: lambda _: servers.kill_broker_clients(),
            Kind.BROKER_HALF_OPEN: lambda _: self._half_open(servers.broker_proxy),
            Kind.DATABASE_RESTART: lambda _: servers.restart_database(),
            Kind.DATABASE_TERMINATE: lambda _: servers.terminate_backends(),
            Kind.DATABASE_HALF_OPEN: lambda _: self._half_open(servers.database_proxy),
            Kind.FLOOD: lambda fault: neighbour.flood(fault.tick),
            Kind.HOSTILE_PAGE: lambda fault: neighbour.fetch(fault.tick),
            Kind.STORAGE_HARM: lambda _: self._harm(objects),
        }
        self._harming = asyncio.Lock()
        self.dealt: list[Dealt] = []
        self.interruptions: list[Interruption] = []

    def deal(self, fault: Fault) -> None:
        """Deal a fault now; returns at once."""
        self._work.append(asyncio.get_running_loop().create_task(self._carry_out(fault)))

    async def settle(self) -> None:
        """Wait until every fault is over: what was frozen goes on, what was restarted answers.

        Raises what a fault raised that could not be dealt: then the run proves nothing.
        """
        await asyncio.gather(*self._work)

    @property
    def by_kind(self) -> dict[str, int]:
        """How many faults of each kind were dealt."""
        counted = Counter(str(one.fault.kind) for one in self.dealt)
        return {str(kind): counted[kind] for kind in Kind}

    async def _carry_out(self, fault: Fault) -> None:
        at = time.monotonic() - self._begun
        met = await self._deal[fault.kind](fault)
        self.dealt.append(Dealt(round(at, 1), fault, met))

    async def _kill_worker(self, fault: Fault) -> str:
        at, pid = time.time(), self._processes.pid(fault.target)
        self._processes.kill(fault.target)
        return self._interrupted(fault, at, await self._observer.running_on(pid))

    async def _kill_api(self, fault: Fault) -> str:
        self._processes.kill(fault.target)
        return "killed"

    async def _terminate(self, fault: Fault) -> str:
        self._processes.terminate(fault.target)
        return "asked to stop"

    async def _freeze(self, fault: Fault) -> str:
        at, pid = time.time(), self._processes.pid(fault.target)
        frozen = self._processes.freeze(fault.target)
        try:
            met = self._interrupted(fault, at, await self._observer.running_on(pid))
            await asyncio.sleep(self._past_lease - (time.time() - at))
        finally:
            self._processes.thaw(frozen)
        return met

    async def _kill_child(self, fault: Fault) -> str:
        children = self._processes.children(fault.target)
        if not children:
            return "no child was there"
        return await self._kill_of_child(fault, children[fault.tick % len(children)])

    async def _out_of_memory(self, fault: Fault) -> str:
        """The kernel takes the largest process, and a process is large while it works."""
        until = time.monotonic() + _BUSY_PATIENCE_SECONDS
        busy: list[psutil.Process] = []
        while not busy and time.monotonic() < until:
            entries = ledger.read_tail(self._ledger)
            busy = [one for one in self._processes.children(fault.target) if ledger.open_calls(entries, one.pid)]
            if not busy:
                await asyncio.sleep(0.05)
        if not busy:
            return "no child ran a step"
        return await self._kill_of_child(fault, max(busy, key=_resident))

    async def _kill_of_child(self, fault: Fault, child: psutil.Process) -> str:
        at = time.time()
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
        cut_off = {entry.key: entry.attempt for entry in ledger.open_calls(ledger.read_tail(self._ledger), child.pid)}
        running = await self._observer.running_among(cut_off)
        met = [(job, index, n) for job, index, n in running if cut_off[f"{job}/{index}"] == n]
        return self._interrupted(fault, at, met)

    async def _harm(self, objects: Path) -> str:
        # Two at once would put aside, and then back, what the first had harmed.
        async with self._harming:
            return await harm_objects(objects)

    async def _half_open(self, proxy: TcpProxy | None) -> str:
        assert proxy is not None
        count = proxy.freeze()
        await asyncio.sleep(self._past_lease)
        proxy.reset_frozen()
        return f"{count} connections"

    def _interrupted(self, fault: Fault, at: float, running: Iterable[tuple[str, int | None, int]]) -> str:
        found = [Interruption(job, index, attempt, at, str(fault.kind)) for job, index, attempt in running]
        # What lies frozen can be struck once more; its time runs from the first blow.
        known = {(one.job, one.index, one.attempt) for one in self.interruptions}
        self.interruptions += [one for one in found if (one.job, one.index, one.attempt) not in known]
        return f"{len(found)} attempts interrupted"


async def harm_objects(folder: Path) -> str:
    """Make every object below a folder other bytes, shorter, empty or nothing, by turns; then put them all back.

    What was stored again meanwhile lies under a name of its own.
    """
    put_aside = _harm(folder)
    try:
        await asyncio.sleep(HARMED_SECONDS)
    finally:
        for aside, file in put_aside:
            aside.rename(file)
    return f"{len(put_aside)} objects"


def _harm(folder: Path) -> list[tuple[Path, Path]]:
    """Harm the objects; returns where each of them lies now, and where it belongs."""
    beside = folder.with_name(f"{folder.name}-aside")
    beside.mkdir(exist_ok=True)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for number, file in enumerate(files):
        harmed = _HARMS[number % len(_HARMS)](file.read_bytes())
        file.rename(beside / file.name)
        if harmed is not None:
            file.write_bytes(harmed)
    return [(beside / file.name, file) for file in files]


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
