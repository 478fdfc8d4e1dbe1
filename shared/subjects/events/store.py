"""Read the event log so that a follower gets each event exactly once, although transactions commit late."""

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
    """An event of a job; `data` is JSON as stored, or None.

    `lineage` (the job and the jobs above it) and `conversation_id` are only set if somebody follows them.
    """

    position: Position
    tenant_id: str
    job_id: UUID
    kind: str
    data: str | None
    created_at: datetime
    conversation_id: UUID | None = None
    lineage: Collection[UUID] = ()


@dataclass(frozen=True, slots=True)
class LogHorizon:
    """Events of transactions `below` can be read; `following` is above all committed transactions."""

    below: int
    following: int

    @property
    def position(self) -> Position:
        return Position(self.below, 0)


@dataclass(frozen=True, slots=True)
class FreshEvents:
    """The result of one look for all followers; the next one begins at `reached`."""

    horizon: LogHorizon
    reached: Position
    found: Sequence[LoggedEvent | TextPiece]


HELD_SECONDS = 10.0
"""A longer writing transaction is reported: planq's take a part of a second."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The transaction that holds events back; `pid` is None without a session."""

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
    """The first `limit` events of a job after a position, up to and including `to`."""

    tenant_id: str
    job_id: UUID
    after: Position
    to: Position
    limit: int


class EventLog:
    """Reads events in an order where none appears before one that was read."""

    def __init__(self, database: Database) -> None:
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
        """Return a job's first events after a position up to `to`, maybe with those of all jobs below.

        One statement serves all concurrent requests. Fewer than `limit` are all readable ones; open transactions may
        add others later. Raises `DatabaseUnavailable`.
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
        """Return a job's last events before a position, newest first; otherwise like `of_job`."""
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
        """Return a tenant's last events before a position, newest first; otherwise like `of_tenant`."""
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
        """Return the first events of a conversation's turns and the jobs below, like `of_job`."""
        rows = await self._database.fetch_all(
            "events_of_conversation",
            **_span(after, to),
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            limit=limit,
        )
        return [_event_of(row, tenant_id) for row in rows]

    async def root_of(self, tenant_id: str, job_id: UUID) -> UUID:
        """Return the outermost job above a job, or itself; raises `NotFound`."""
        row = await self._database.fetch_existing("root_of_job", f"job {job_id}", tenant_id=tenant_id, job_id=job_id)
        root: UUID = row["root"]
        return root

    async def of_tenant(
        self, tenant_id: str, after: Position, limit: int, *, to: Position = END
    ) -> Sequence[LoggedEvent]:
        """Return a tenant's first events after a position up to `to`, like `of_job`."""
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
        """Return events after a position and texts of transactions from `texts_from` on, for all followers.

        Events are of `jobs`, `roots` with all jobs below, `conversations` and `tenants`, at most `limit`; texts are
        of the jobs `texts`. Raises `DatabaseUnavailable`.
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
        """Return up to where events can be read; raises `DatabaseUnavailable`."""
        row = await self._database.fetch_one("event_horizon")
        assert row is not None
        return _horizon_of(row)

    async def has_more(self, tenant_id: str, job_id: UUID, after: Position, *, with_children: bool = False) -> bool:
        """Return whether a job, or with children the jobs below, has later events, also unreadable ones."""
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
        """Return the unfinished jobs below a job; raises `DatabaseUnavailable`."""
        rows = await self._database.fetch_all("unfinished_jobs_below", tenant_id=tenant_id, job_id=job_id)
        return {row["id"] for row in rows}

    async def unfinished_in(self, tenant_id: str, conversation_id: UUID) -> set[UUID]:
        """Return a conversation's unfinished turns and jobs below; raises `DatabaseUnavailable`."""
        rows = await self._database.fetch_all(
            "unfinished_jobs_of_conversation", tenant_id=tenant_id, conversation_id=conversation_id
        )
        return {row["id"] for row in rows}

    async def holder(self) -> OpenTransaction | None:
        """Return the transaction that has held later events back for `HELD_SECONDS`, or None."""
        row = await self._database.fetch_one("events_held_back", seconds=HELD_SECONDS)
        return None if row is None else OpenTransaction(**row)

    async def held_seconds(self) -> float:
        """Return for how long the oldest event is held back, or 0; needs no right to see sessions."""
        row = await self._database.fetch_one("events_held_seconds")
        return 0.0 if row is None else max(0.0, float(row["seconds"]))

    async def ahead(self) -> int:
        """Return how many events are ahead of the server, from another one's backup: they break the order."""
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
