"""Reads the event log so that a follower gets each event exactly once, despite transactions that commit late."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from planq.shared.platform.batching import Batcher
from planq.shared.platform.database import Database, Row
from planq.shared.subjects.events.position import END, Position
from planq.shared.subjects.streams.contract import Epoch, TextPiece


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event of a job; `data` is JSON as it was stored, None where there is none."""

    position: Position
    tenant_id: str
    job_id: UUID
    kind: str
    data: str | None
    created_at: datetime
    conversation_id: UUID | None = None
    lineage: Collection[UUID] = ()
    """Its job and the jobs above it. It and `conversation_id` are known only where somebody follows such."""


@dataclass(frozen=True, slots=True)
class LogHorizon:
    """Events of transactions `below` can be read; `following` is above every transaction that has been committed."""

    below: int
    following: int

    @property
    def position(self) -> Position:
        return Position(self.below, 0)


@dataclass(frozen=True, slots=True)
class FreshEvents:
    """What one look for all who follow has found; `reached` is from where the next one has to look on."""

    horizon: LogHorizon
    reached: Position
    found: Sequence[LoggedEvent | TextPiece]


HELD_SECONDS = 10.0
"""A transaction that has written and is open for longer is told of: statements of planq take a part of a second."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The transaction that holds events back, for so many seconds; `pid` is None where no session has it open."""

    pid: int | None
    application: str
    database: str
    seconds: float

    def __str__(self) -> str:
        process = "" if self.pid is None else f" (process {self.pid})"
        who = f"{self.application[:80] or 'a session without a name'}{process} in the database {self.database}"
        return f"held back by a transaction that {who} has kept open for {self.seconds:.0f} s"


_TOGETHER, _AT_ONCE = 32, 2
"""Jobs of one statement, by then its own cost no longer counts; and statements under way."""


class _Page(NamedTuple):
    """The first `limit` events of a tenant's job after a position, up to and with `to`."""

    tenant_id: str
    job_id: UUID
    after: Position
    to: Position
    limit: int


class EventLog:
    """Reads events in an order in which none comes in before one that was read."""

    def __init__(self, database: Database) -> None:
        """`database` is opened and closed by others."""
        self._database = database
        self._pages: Batcher[_Page, Sequence[LoggedEvent]] = Batcher(
            self._of_jobs, at_once=_AT_ONCE, max_weight=_TOGETHER
        )

    async def of_job(
        self,
        tenant_id: str,
        job_id: UUID,
        after: Position,
        limit: int,
        *,
        to: Position = END,
        with_children: bool = False,
    ) -> Sequence[LoggedEvent]:
        """Return the first events of a tenant's job after a position, up to and with `to`.

        Of jobs that are asked for at the same time one statement reads them, so that thousands may come back at once.
        `with_children` those of all jobs below it, too. Fewer than `limit` are all that there are for now; what an
        open transaction holds back comes later. Raises `DatabaseUnavailable`.
        """
        if not with_children:
            return await self._pages.do(_Page(tenant_id, job_id, after, to, limit))
        rows = await self._database.fetch_all(
            "events_of_tree",
            **_span(after, to),
            tenant_id=tenant_id,
            job_id=job_id,
            limit=limit,
        )
        return [_event_of(row, tenant_id) for row in rows]

    async def _of_jobs(self, pages: Sequence[_Page]) -> Sequence[Sequence[LoggedEvent]]:
        rows = await self._database.fetch_all(
            "events_of_jobs",
            job_ids=[page.job_id for page in pages],
            tenant_ids=[page.tenant_id for page in pages],
            xids=[str(page.after.xid) for page in pages],
            sequences=[page.after.sequence for page in pages],
            to_xids=[str(page.to.xid) for page in pages],
            to_sequences=[page.to.sequence for page in pages],
            limits=[page.limit for page in pages],
        )
        found: list[list[LoggedEvent]] = [[] for _ in pages]
        for row in rows:
            place = row["n"] - 1
            found[place].append(_event_of(row, pages[place].tenant_id))
        return found

    async def last_of_job(
        self, tenant_id: str, job_id: UUID, before: Position, limit: int, *, with_children: bool = False
    ) -> Sequence[LoggedEvent]:
        """Return the last events of a tenant's job before a position, the newest first; else as `of_job`."""
        rows = await self._database.fetch_all(
            "last_events_of_job",
            xid=str(before.xid),
            sequence=before.sequence,
            tenant_id=tenant_id,
            job_id=job_id,
            with_children=with_children,
            limit=limit,
        )
        return [_event_of(row, tenant_id) for row in rows]

    async def last_of_tenant(self, tenant_id: str, before: Position, limit: int) -> Sequence[LoggedEvent]:
        """Return the last events of a tenant before a position, the newest first; else as `of_tenant`."""
        rows = await self._database.fetch_all(
            "last_events_of_tenant",
            xid=str(before.xid),
            sequence=before.sequence,
            tenant_id=tenant_id,
            limit=limit,
        )
        return [_event_of(row, tenant_id) for row in rows]

    async def of_conversation(
        self, tenant_id: str, conversation_id: UUID, after: Position, limit: int, *, to: Position = END
    ) -> Sequence[LoggedEvent]:
        """Return the first events of a conversation's turns and of the jobs below, as `of_job` does with one job."""
        rows = await self._database.fetch_all(
            "events_of_conversation",
            **_span(after, to),
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            limit=limit,
        )
        return [_event_of(row, tenant_id) for row in rows]

    async def root_of(self, tenant_id: str, job_id: UUID) -> UUID:
        """Return the outermost job above a tenant's job, itself where there is none; raises `NotFound`."""
        row = await self._database.fetch_existing("root_of_job", f"job {job_id}", tenant_id=tenant_id, job_id=job_id)
        root: UUID = row["root"]
        return root

    async def of_tenant(
        self, tenant_id: str, after: Position, limit: int, *, to: Position = END
    ) -> Sequence[LoggedEvent]:
        """Return the first events of a tenant after a position, up to and with `to`; else as `of_job`."""
        rows = await self._database.fetch_all(
            "events_of_tenant", **_span(after, to), tenant_id=tenant_id, limit=limit
        )
        return [_event_of(row, tenant_id) for row in rows]

    async def fresh(
        self,
        after: Position,
        *,
        texts_from: int,
        jobs: Collection[UUID],
        roots: Collection[UUID],
        conversations: Collection[UUID],
        tenants: Collection[str],
        texts: Collection[UUID],
        limit: int,
    ) -> FreshEvents:
        """Look for all who follow at once: events after a position, pieces of text of transactions `texts_from` on.

        `jobs`, `roots` with all jobs below them, `conversations` and `tenants` are whose events, `texts` are the jobs
        whose texts are wanted. At most `limit` events are returned. Raises `DatabaseUnavailable`.
        """
        rows = await self._database.fetch_all(
            "fresh_events",
            xid=str(after.xid),
            sequence=after.sequence,
            text_xid=str(texts_from),
            job_ids=list(jobs),
            roots=list(roots),
            conversation_ids=list(conversations),
            tenant_ids=list(tenants),
            text_ids=list(texts),
            limit=limit,
        )
        horizon = _horizon_of(rows[0])
        found = [_event_of(row, row["tenant_id"]) if row["kind"] else _piece_of(row) for row in rows if row["job_id"]]
        events = [one for one in found if isinstance(one, LoggedEvent)]
        return FreshEvents(horizon, events[-1].position if len(events) == limit else horizon.position, found)

    async def horizon(self) -> LogHorizon:
        """Return up to where events can be read now; raises `DatabaseUnavailable`."""
        row = await self._database.fetch_one("event_horizon")
        assert row is not None
        return _horizon_of(row)

    async def has_more(self, tenant_id: str, job_id: UUID, after: Position, *, with_children: bool = False) -> bool:
        """Return whether a tenant's job has events after a position, also such as cannot be read yet.

        `with_children` whether any of the jobs below it has. Raises `DatabaseUnavailable`.
        """
        row = await self._database.fetch_one(
            "has_events_after",
            tenant_id=tenant_id,
            job_id=job_id,
            xid=str(after.xid),
            sequence=after.sequence,
            with_children=with_children,
        )
        return row is not None and row["found"]

    async def unfinished_below(self, tenant_id: str, job_id: UUID) -> set[UUID]:
        """Return the jobs below a tenant's job that have not ended; raises `DatabaseUnavailable`."""
        rows = await self._database.fetch_all("unfinished_jobs_below", tenant_id=tenant_id, job_id=job_id)
        return {row["id"] for row in rows}

    async def unfinished_in(self, tenant_id: str, conversation_id: UUID) -> set[UUID]:
        """Return the unfinished turns of a tenant's conversation and jobs below; raises `DatabaseUnavailable`."""
        rows = await self._database.fetch_all(
            "unfinished_jobs_of_conversation", tenant_id=tenant_id, conversation_id=conversation_id
        )
        return {row["id"] for row in rows}

    async def holder(self) -> OpenTransaction | None:
        """Return what has held events back for `HELD_SECONDS`, None where nothing has.

        Nothing that was committed after it is read before it ends. Raises `DatabaseUnavailable`.
        """
        row = await self._database.fetch_one("events_held_back", seconds=HELD_SECONDS)
        return None if row is None else OpenTransaction(**row)

    async def held_seconds(self) -> float:
        """Return for how long the oldest event is held back, 0 where none is; needs no right to see other sessions.

        Raises `DatabaseUnavailable`.
        """
        row = await self._database.fetch_one("events_held_seconds")
        return 0.0 if row is None else max(0.0, float(row["seconds"]))

    async def ahead(self) -> int:
        """Return how many events the server will only come to: they are from a backup of another one.

        Nobody is sent these, and the order of all others is wrong beside them. Raises `DatabaseUnavailable`.
        """
        row = await self._database.fetch_one("events_ahead")
        return 0 if row is None else int(row["n"])


def _span(after: Position, to: Position) -> dict[str, str | int]:
    return {"xid": str(after.xid), "sequence": after.sequence, "to_xid": str(to.xid), "to_sequence": to.sequence}


def _horizon_of(row: Row) -> LogHorizon:
    return LogHorizon(int(row["below"]), int(row["following"]))


def _event_of(row: Row, tenant_id: str) -> LoggedEvent:
    position = Position(int(row["xid"]), row["sequence"])
    fields = (row["job_id"], row["kind"], row["data"], row["created_at"])
    return LoggedEvent(position, tenant_id, *fields, row.get("conversation_id"), row.get("lineage") or ())


def _piece_of(row: Row) -> TextPiece:
    epoch = Epoch(row["job_id"], row["attempt"], row["try"])
    return TextPiece(epoch, row["tenant_id"], row["stage"], row["start"], row["data"])
