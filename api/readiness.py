"""Whether a job that is submitted now would run: database, broker, and a live worker for each lane.

Each answer is kept for a second, so that impatient supervisors cost nothing, and a check that hangs counts as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

from celery import Celery

from shared.broker.depth import open_once, patient_connection
from shared.domain.errors import DatabaseUnavailable
from shared.domain.states import Lane
from shared.store.database import Row
from shared.store.fleet import Fleet

_FRESH_SECONDS = 1.0
_PATIENCE_SECONDS = 2.0


class BrokerProbe:
    """Connects to the broker, in a thread, to see whether it answers."""

    def __init__(self, app: Celery) -> None:
        """Raises `Misconfigured` when the broker's URL cannot be read."""
        self._connection = patient_connection(app, _PATIENCE_SECONDS)

    def try_once(self) -> None:
        """Connect and disconnect; raises what the broker's client raises."""
        with self._connection.clone() as connection:
            open_once(connection, _PATIENCE_SECONDS)


class Readiness:
    """The checks behind `/readyz`."""

    def __init__(self, fleet: Fleet, probe: BrokerProbe) -> None:
        self._fleet = fleet
        self._probe = probe
        self._lock = asyncio.Lock()
        self._kept: tuple[float, dict[str, Any]] | None = None
        self._probing: asyncio.Task[None] | None = None

    async def document(self) -> dict[str, Any]:
        """Return a `Readiness` document, at most one second old."""
        async with self._lock:
            if self._kept is None or monotonic() - self._kept[0] >= _FRESH_SECONDS:
                checks = await self._check()
                status = "ready" if all(check["ok"] for check in checks.values()) else "not_ready"
                self._kept = (monotonic(), {"status": status, "checks": checks})
            return self._kept[1]

    async def _check(self) -> dict[str, Any]:
        workers, broker = await asyncio.gather(self._workers(), self._broker())
        if isinstance(workers, str):
            unknown = _no("not known while the database does not answer")
            return {
                "database": _no(workers),
                "broker": broker,
                **{f"worker_{lane}": unknown for lane in Lane},
            }
        return {
            "database": _yes("answers"),
            "broker": broker,
            **{f"worker_{lane}": _lane(lane, workers) for lane in Lane},
        }

    async def _workers(self) -> Sequence[Row] | str:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await self._fleet.live()
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
        if error is not None:
            return _no(f"does not answer ({type(error).__name__}); check BROKER_URL and that the broker runs")
        return _yes("answers")


def _lane(lane: Lane, workers: Sequence[Row]) -> dict[str, Any]:
    names = [row["name"] for row in workers if lane in row["lanes"]]
    return _yes(f"{len(names)} alive") if names else _no(f"none alive; start one with `planq worker {lane}`")


def _yes(detail: str) -> dict[str, Any]:
    return {"ok": True, "detail": detail}


def _no(detail: str) -> dict[str, Any]:
    return {"ok": False, "detail": detail}
