"""Whether this process can serve, and whether a job that is submitted now would run.

Each answer is kept for a second, so that impatient supervisors cost nothing, and a check that hangs counts as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from celery import Celery

from planq.shared.broker.depth import patient_connection, reply_of, require_service
from planq.shared.kernel.states import OWN_POOLS, Priority, pools_of
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.data_folder import LEAST_FREE_BYTES, lacks_space
from planq.shared.platform.database import Database, Row
from planq.shared.platform.errors import DatabaseUnavailable, capped
from planq.shared.subjects.events.store import EventLog

_FRESH_SECONDS = 1.0
_PATIENCE_SECONDS = 2.0

_FULL_SECONDS = 30.0
_MOST_CHARS = 1_000
"""How long a database that refused to write for want of space counts as full: nothing says when it can again."""


class BrokerProbe:
    """Connects to the broker, in a thread, to see whether it answers."""

    def __init__(self, app: Celery) -> None:
        """Raises `Misconfigured` when the broker's URL cannot be read."""
        self._connection = patient_connection(app, _PATIENCE_SECONDS)

    def try_once(self) -> None:
        """Connect, see that it would take a wake-up, disconnect; raises what the broker's client raises."""
        with self._connection.clone() as connection:
            require_service(connection, _PATIENCE_SECONDS)


class _Checked:
    """Checks that are made again once their answer is a second old."""

    def __init__(self, check: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._check = check
        self._lock = asyncio.Lock()
        self._kept: tuple[float, dict[str, Any]] | None = None

    async def document(self) -> dict[str, Any]:
        """Return `{is_good, checks}`, at most one second old."""
        async with self._lock:
            if self._kept is None or monotonic() - self._kept[0] >= _FRESH_SECONDS:
                checks = await self._check()
                self._kept = (monotonic(), {"is_good": all(one["ok"] for one in checks.values()), "checks": checks})
            return self._kept[1]


class ReadinessChecks:
    """The checks behind `/readyz`: can this process accept jobs? Anybody may read them, so they name no host."""

    def __init__(self, database: Database, worker_registry: WorkerRegistry) -> None:
        self._database = database
        self._registry = worker_registry
        self.document = _Checked(self._check).document

    async def _check(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                is_ours = await self._registry.has_our_functions()
        except (DatabaseUnavailable, TimeoutError):
            return {"database": _no(_ASK_OPERATOR), "schema": _no("not known while the database does not answer")}
        full = self._database.refused_for_want_of_space(within=_FULL_SECONDS)
        return {
            "database": _yes("answers") if full is None else _no("has no space left"),
            "schema": _yes("is this release's") if is_ours else _no("is not this release's; run `planq migrate`"),
        }


_ASK_OPERATOR = "does not answer; `planq doctor` says why"


class StatusChecks:
    """The checks behind `/statusz`: would a job run? Their details are for operators."""

    def __init__(
        self,
        database: Database,
        worker_registry: WorkerRegistry,
        probe: BrokerProbe,
        *,
        rates: Callable[[], Awaitable[str]],
        data: Path | None = None,
        least_free: int = LEAST_FREE_BYTES,
    ) -> None:
        """`data` is the folder of embedded servers, in which `least_free` bytes have to be left; None for others.

        `rates` says where messages are counted; jobs run however that is.
        """
        self._database = database
        self._registry = worker_registry
        self._probe = probe
        self._rates = rates
        self._data = data
        self._least_free = least_free
        self._probing: asyncio.Task[None] | None = None
        self.document = _Checked(self._check).document

    async def _check(self) -> dict[str, Any]:
        seen, broker, rates, events, tools = await asyncio.gather(
            self._workers(), self._broker(), self._rates(), self._events(), self._tools()
        )
        informative = {
            "rates": _yes(rates),
            "events": _yes(events),
            "tools": _yes(tools),
        }  # jobs run however these are
        return {**self._seen(seen), "broker": broker, **informative, **self._disk()}

    async def _events(self) -> str:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                holder = await EventLog(self._database).holder()
        except (DatabaseUnavailable, TimeoutError):
            return "not known while the database does not answer"
        return "read as they are committed" if holder is None else f"{holder}; streams wait for its end"

    async def _tools(self) -> str:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                steps = sum(row["n"] for row in await self._registry.awaited_tools())
        except (DatabaseUnavailable, TimeoutError):
            return "not known while the database does not answer"
        if not steps:
            return "no step waits for a worker that has its tool"
        return (
            f"{steps} step{'s wait' if steps > 1 else ' waits'} for tools that no live worker has, see `planq doctor`"
        )

    def _seen(self, seen: Sequence[Row] | str) -> dict[str, Any]:
        """Return what the database's answer, the live workers, says of it and of them.

        A text is why there is none.
        """
        if isinstance(seen, str):
            unknown = _no("not known while the database does not answer")
            return {"database": _no(seen), **{f"worker_{pool}": unknown for pool in OWN_POOLS}}
        full = self._database.refused_for_want_of_space(within=_FULL_SECONDS)
        return {
            "database": _yes("answers") if full is None else _no(full),
            **{f"worker_{pool}": pool_check(pool, seen) for pool in pools_of(seen)},
        }

    def _disk(self) -> dict[str, Any]:
        """Say where room lacks: servers that read well may be unable to write for a while, or soon."""
        lacking = None if self._data is None else lacks_space(self._data, self._least_free)
        return {} if lacking is None else {"disk": _no(lacking)}

    async def _workers(self) -> Sequence[Row] | str:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await self._registry.live()
        except DatabaseUnavailable as error:
            return error.message
        except TimeoutError:
            return f"no answer within {_PATIENCE_SECONDS:g} s; check DATABASE_URL and that the server runs"

    async def _broker(self) -> dict[str, Any]:
        # One thread at most: a probe that hangs is asked again, not joined by another.
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(asyncio.to_thread(self._probe.try_once))
        await asyncio.wait((self._probing,), timeout=_PATIENCE_SECONDS)
        if not self._probing.done():
            return _no(f"no answer within {_PATIENCE_SECONDS:g} s; check BROKER_URL and that the broker runs")
        error = self._probing.exception()
        if error is not None and (reply := reply_of(error)):
            return _no(f"refuses wake-ups: {reply}")
        if error is not None:
            return _no(f"does not answer ({type(error).__name__}); check BROKER_URL and that the broker runs")
        return _yes("answers")


def pool_check(pool: str, workers: Sequence[Row]) -> dict[str, Any]:
    """Return whether jobs of both priorities have a worker of a pool, among the live ones, and what it lacks."""
    alive = [row for row in workers if pool in row["pools"]]
    lacking = [f"{row['name']}: {'; '.join(row['missing'])}" for row in alive if row["missing"]]
    if lacking:
        return _no(capped(" · ".join(lacking), _MOST_CHARS))
    if not alive:
        return _no(f"none alive; start one with `planq worker {pool}`")
    served = {row["only_priority"] for row in alive}
    for priority in Priority:
        if served.isdisjoint((None, priority)):
            start = f"start one with `planq worker {pool}`"
            return _no(f"{len(alive)} alive, and none serves {priority} jobs; {start}")
    return _yes(f"{len(alive)} alive")


def _yes(detail: str) -> dict[str, Any]:
    return {"ok": True, "detail": detail}


def _no(detail: str) -> dict[str, Any]:
    return {"ok": False, "detail": detail}
