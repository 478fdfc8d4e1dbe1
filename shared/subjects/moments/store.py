"""What tools store and look up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from planq.shared.agentic.tools.contract import Passage, ToolContext
from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.database import Database, Row, as_json, json_text, query
from planq.shared.platform.errors import BudgetExceeded, Conflict, InvalidRequest
from planq.shared.platform.values.schedule import MAX_AHEAD, MAX_REMINDERS, next_time, read_zone
from planq.shared.subjects.agents.store import DocumentStore
from planq.shared.subjects.moments.contract import Moment, MomentQuery, MomentRecord, Reminder


class PostgresMemory:
    """Implements `Memory`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._agents = DocumentStore(database, "agent")

    async def save_moments(self, tenant_id: str, user_id: str, moments: Sequence[Moment]) -> int:
        given = [
            {
                "id": str(moment.id),
                "name": moment.name,
                "summary": moment.summary,
                "body": json_text(dict(moment.body)),
                "starts_at": moment.starts_at and moment.starts_at.isoformat(),
                "ends_at": moment.ends_at and moment.ends_at.isoformat(),
                "tags": list(moment.tags),
            }
            for moment in moments
        ]
        return await self._database.execute(
            "save_moments", tenant_id=tenant_id, user_id=user_id, moments=as_json(given)
        )

    async def find_moments(self, tenant_id: str, user_id: str, wanted: MomentQuery) -> Sequence[MomentRecord]:
        given: dict[str, Any] = {
            "tenant_id": tenant_id,
            "user_id": user_id,
            "tags": list(wanted.tags),
            "since": wanted.since,
            "until": wanted.until,
            "limit": wanted.limit,
        }
        if wanted.query is None:
            rows = await self._database.fetch_all("recent_moments", **given)
        else:
            words = wanted.query.replace("\x00", " ")
            rows = await self._database.fetch_all("search_moments", query=words, **given)
        return [MomentRecord(**{**row, "body": row["body"] or {}}) for row in rows]

    async def change_user(
        self, tenant_id: str, user_id: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        key = {"tenant_id": tenant_id, "user_id": user_id}
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(query("add_user"), key)
            row = await (await connection.execute(query("lock_user"), key)).fetchone()
            present = row["data"] if row is not None else {}
            changed = change(present)
            if changed != present:
                await connection.execute(query("change_user"), {**key, "data": as_json(dict(changed))})
        return changed

    async def emit(self, context: ToolContext, kind: str, data: Mapping[str, Any]) -> bool:
        given = {
            "job_id": UUID(context.job_id),
            "tenant_id": context.tenant_id,
            "round": context.round,
            "index": context.step_index,
            "attempt": context.attempt,
            "kind": kind,
            "data": as_json(data),
        }
        # A separate statement takes the lock: only the next one sees earlier events of other attempts.
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(query("lock_job"), given)
            row = await (await connection.execute(query("append_step_event"), given)).fetchone()
        return row is not None and bool(row["ran"])

    async def schedule(self, context: ToolContext, reminder: Reminder, *, most: int) -> datetime | None:
        if reminder.agent is not None:
            await self._agents.get(context.tenant_id, reminder.agent)
        given = {"id": reminder.id, "tenant_id": context.tenant_id, "job_id": UUID(context.job_id)}
        async with self._database.connection() as connection, connection.transaction():

            async def ask(statement: str, **more: Any) -> Row:
                row = await (await connection.execute(query(statement), {**given, **more})).fetchone()
                if row is None:  # of `add_schedule` alone
                    raise Conflict("the turn that requested the reminder has ended")
                return row

            # A separate statement takes the lock: only the next ones see what others stored before.
            await connection.execute(query("lock_schedules"), given)
            found = await ask("get_schedule")
            if found["is_active"] is not None:
                due: datetime | None = found["next_at"]
                return due
            next_at = _first_time(reminder, found["now"])
            room = await ask("room_for_schedule", most_of_tenant=MAX_REMINDERS)
            _check_room(room, most)
            await ask(
                "add_schedule",
                name=reminder.name,
                agent=reminder.agent,
                input=reminder.input,
                cron=reminder.cron,
                timezone=reminder.zone,
                budget=room["budget_left"],
                next_at=next_at,
            )
        return next_at


def _check_room(room: Row, most: int) -> None:
    if room["kept"] >= most:
        raise Conflict(f"the user has {most} reminders already, the maximum; delete one first")
    if room["kept_of_tenant"] >= room["most_of_tenant"]:
        raise Conflict(
            f"the tenant has {room['most_of_tenant']} reminders already, the maximum for all its "
            "users; delete one first"
        )
    if room["is_spent"]:
        raise BudgetExceeded(
            "the budget of the tree of jobs has nothing left for what a reminder would make; submit it again with a "
            "higher one",
            left=room["budget_left"],
        )


def _first_time(reminder: Reminder, now: datetime) -> datetime:
    if reminder.cron is not None:
        due = next_time(reminder.cron, read_zone(reminder.zone), now)
        if due is None:
            raise InvalidRequest(f"crontab: {reminder.cron!r} is not due in the next 50 years")
        return due
    if reminder.delay is not None:
        due = now + reminder.delay
    elif reminder.at is not None:
        due = reminder.at
    else:
        raise ValueError("expected a reminder with at, delay or cron")
    if due <= now:
        raise InvalidRequest(f"at: expected a future time, found {due.isoformat()}; it is {_told(now)}")
    if due > now + MAX_AHEAD:
        raise InvalidRequest(
            f"at: expected a time within {MAX_AHEAD.days} days, found {due.isoformat()}; it is {_told(now)}"
        )
    return due


def _told(now: datetime) -> str:
    return now.replace(microsecond=0).isoformat()


@dataclass(frozen=True, slots=True)
class Piece:
    """A searchable piece of a document below a `heading`."""

    heading: str
    body: str


class PostgresKnowledge:
    """Full-text search over documents, ranked by cover density (`ts_rank_cd`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def search(self, tenant_id: str, query: str, limit: int) -> Sequence[Passage]:
        """Return at most `limit` passages that share a word, best first."""
        rows = await self._database.fetch_all(
            "search_passages", tenant_id=tenant_id, query=query.replace("\x00", " "), limit=limit
        )
        return [
            Passage(
                title=row["title"] if not row["heading"] else f"{row['title']} — {row['heading']}",
                source=row["source"],
                text=row["body"],
                score=row["score"],
            )
            for row in rows
        ]

    async def load(self, tenant_id: str, *, source: str, title: str, digest: str, pieces: Sequence[Piece]) -> bool:
        """Store a document, replacing its source's; False if its digest is the same."""
        passages = [{"position": n, "heading": p.heading, "body": p.body} for n, p in enumerate(pieces)]
        async with self._database.connection() as connection, connection.transaction():
            cursor = await connection.execute(
                query("load_document"),
                {"id": new_id(), "tenant_id": tenant_id, "source": source, "title": title, "digest": digest},
            )
            row = await cursor.fetchone()
            if row is None:
                return False
            key = {"document_id": row["id"], "tenant_id": tenant_id}
            await connection.execute(query("drop_passages"), key)
            await connection.execute(query("load_passages"), {**key, "passages": as_json(passages)})
            return True
