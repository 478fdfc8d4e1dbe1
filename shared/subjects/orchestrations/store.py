"""Orchestration jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from planq.shared.kernel.children import ChildOutcome
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import StepStatus
from planq.shared.kernel.store.children import error_record, outcomes
from planq.shared.platform.database import Database, as_json, query
from planq.shared.platform.errors import InternalFault, storable
from planq.shared.subjects.orchestrations.contract import OrchestratedStep, Orchestration, TreeUsage


class PostgresOrchestrations:
    """Orchestration jobs; all methods raise `DatabaseUnavailable`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def look(self, job_id: UUID, *, with_agents: bool = True) -> Orchestration | None:
        """Return an orchestration with its steps, maybe with child jobs; None without steps."""
        rows = await self._database.fetch_all("look_at_orchestration", job_id=job_id)
        if not rows:
            return None
        children: Mapping[int, Sequence[ChildOutcome]] = {}
        if with_agents:
            children = await outcomes(self._database, StepRef(job_id, 0, rows[0]["index"]), rows[-1]["index"])
        steps = [
            OrchestratedStep(
                index=row["index"],
                status=StepStatus(row["status"]),
                was_called=row["was_called"],
                error=None if row["error"] is None else error_record(row["error"]),
                elapsed_ms=None if row["seconds"] is None else round(row["seconds"] * 1000),
                children=children.get(row["index"], ()),
            )
            for row in rows
        ]
        return Orchestration(rows[0]["frame"], steps)

    async def frame(self, job_id: UUID) -> Mapping[str, Any] | None:
        """Return a job's frame, also without steps; None if it has none."""
        row = await self._database.fetch_one("frame_of_orchestration", job_id=job_id)
        return None if row is None else row["frame"]

    async def journal(self, job_id: UUID, transitions: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Append the new ones of all transitions so far, by their number `n`; return their numbers."""
        rows = await self._append(
            "journal_orchestration", {"job_id": job_id, "transitions": as_json(list(transitions))}
        )
        return [row["n"] for row in rows]

    async def journal_refusal(self, job_id: UUID, step_index: int, transitions: Sequence[Mapping[str, Any]]) -> bool:
        """Append a refused plan's transitions to the asking step's job, once; False if they exist."""
        events = as_json([{**one, "step": step_index} for one in transitions])
        given = {"job_id": job_id, "step": step_index, "transitions": events}
        return bool(await self._append("journal_refusal", given))

    async def _append(self, statement: str, given: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        # A separate statement takes the lock: only the next one sees what others appended before.
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(query("lock_orchestration"), given)
            return await (await connection.execute(query(statement), given)).fetchall()

    async def usage(self, job_id: UUID) -> TreeUsage:
        row = await self._database.fetch_one("tree_usage", job_id=job_id)
        return TreeUsage(0, 0, 0, 0, None) if row is None else TreeUsage(**row)

    async def model_of(self, job_id: UUID) -> str:
        row = await self._database.fetch_one("model_of_job", job_id=job_id)
        if row is None:
            raise InternalFault(f"the job {job_id} is gone")
        return str(row["model"])

    async def documents(self, tenant_id: str, names: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return the newest documents of agents in use, by name."""
        wanted = list(dict.fromkeys(storable(name) for name in names))
        rows = await self._database.fetch_all("agents_in_use", tenant_id=tenant_id, names=wanted)
        return {row["name"]: row["document"] for row in rows}

    async def catalogue(self, tenant_id: str, most: int) -> Mapping[str, Mapping[str, Any]]:
        """Return the newest documents of at most `most` agents in use, sorted by name."""
        rows = await self._database.fetch_all("agent_catalogue", tenant_id=tenant_id, limit=most)
        return {row["name"]: row["document"] for row in rows}
