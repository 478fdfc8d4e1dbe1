"""Two sessions on one database: the first one's transaction is open while the second one acts. And both in series.

Each run gets a scene of its own, in a tenant of its own: jobs, messages or batches in a state in which many
operations find something to do. What a scene has come to is read from every table that knows its tenant, so that
nothing needs to be listed that two operations might leave in a different state.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import Database
from planq.shared.subjects.jobs.store import RequestStore
from tests.support.sessions import OpenTransaction, waits_for_locks

LEASE = timedelta(seconds=3600)
"""No worker of a scene is lost by itself, however slow the machine is."""


class Session:
    """One connection, and both sides of the store over it."""

    def __init__(self, database: Database, worker: UUID) -> None:
        self.database = database
        self.worker = worker
        self.store = PostgresJobStore(database, worker, as_called)
        self.requests = RequestStore(database)
        self.registry = WorkerRegistry(database, LEASE)

    async def run(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement; returns its rows."""
        async with self.database.connection() as connection:
            cursor = await connection.execute(statement.encode(), values)
            return list(await cursor.fetchall()) if cursor.description else []

    async def one(self, statement: str, *values: Any) -> Any:
        """Return the only value of the only row of a query."""
        (row,) = await self.run(statement, *values)
        return next(iter(row.values()))

    async def tenant(self) -> str:
        """Make a tenant; returns its name."""
        name = f"t{new_id().hex}"
        await self.run("INSERT INTO tenants (id) VALUES (%s)", name)
        return name

    async def submit(self, tenant: str, **fields: Any) -> UUID:
        """Submit a job; returns its id."""
        submission = Submission(new_id(), tenant, "x", Strategy.PLAN, "offline", Limits(), **fields)
        await self.requests.submit(submission)
        return submission.id


class Scene(Protocol):
    """What stands in the database before two operations meet."""

    tenant: str

    @property
    def names(self) -> Mapping[UUID, str]:
        """What the ids mean that were known before, the same in every scene of a kind."""


S = TypeVar("S", bound=Scene)


@dataclass(frozen=True, slots=True)
class Operation(Generic[S]):
    """What one session does in a scene.

    `before` puts the scene into the state that it is about, whatever the other one is; `breaks` is the invariant that
    this breaks until the sweeper comes. One that `passes` leaves what others hold to the next sweep.
    """

    name: str
    act: Callable[[Session, S], Awaitable[Any]]
    before: Callable[[Session, S], Awaitable[None]] | None = None
    breaks: str | None = None
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What two operations returned, in the order in which they are named, and what the tables say then."""

    first: str
    second: str
    rows: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Meeting:
    """What became of two operations at once, and in either order in series; of one that passes, also without it."""

    beside: Outcome
    after: Outcome
    before: Outcome
    without: tuple[str, ...] | None = None

    @property
    def is_serial(self) -> bool:
        """True when it is as if one of the two had come after the other."""
        return self.beside in (self.after, self.before)

    @property
    def is_passed_over(self) -> bool:
        """True when it is as if the second one had not come: the next sweep does what it was to do."""
        return self.beside.rows == self.without

    def difference(self) -> str:
        """Say in what both at once differ from the first one before the second, and from the other order."""
        return "\n".join(
            f"against {order}:\n{_compared(self.beside, series)}"
            for order, series in (("first, then second", self.after), ("second, then first", self.before))
        )


class Sessions:
    """The connections of an arena: two that meet, one that builds scenes and reads them, one that watches."""

    def __init__(self, url: str) -> None:
        self.worker = new_id()
        self.held = OpenTransaction(url, max_connections=1)
        self.watch = Database(url, max_connections=1)
        self._others = [Database(url, max_connections=1) for _ in range(2)]
        self.first = Session(self.held, self.worker)
        self.second, self.builder = (Session(database, self.worker) for database in self._others)
        self._reading = self._clearing = ""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Sessions]:
        """Open all of them, and announce the worker that every claim of a scene is held by."""
        async with self.held, self.watch, self._others[0], self._others[1]:
            await self.builder.registry.register(self.worker, "any", ["io"], [], 1000, "1")
            columns = await self.builder.run(_COLUMNS)
            tables = {row["name"]: row["columns"] for row in columns}
            self._reading = " UNION ALL ".join(_reading(name, columns) for name, columns in tables.items())
            self._clearing = ";".join(f"DELETE FROM {name} WHERE tenant_id = '{{0}}'" for name in tables)
            yield self

    async def rows(self, tenant: str) -> list[str]:
        """Return what all tables say of a tenant, as texts: of times only whether they are there, and due."""
        found = await self.builder.run(self._reading.replace("{0}", tenant))
        return [row["row"] for row in found]

    async def clear(self, tenant: str) -> None:
        """Remove a tenant and all it has."""
        async with self.builder.database.connection() as connection:
            removing = self._clearing.replace("{0}", tenant)
            await connection.execute(
                f"SET session_replication_role = replica; {removing}; DELETE FROM tenants WHERE id = '{tenant}'; "
                "DELETE FROM budget_holds WHERE root_job_id NOT IN (SELECT id FROM jobs); "
                "RESET session_replication_role".encode()
            )


_COLUMNS = """
SELECT t.table_name AS name, json_object_agg(c.column_name, c.data_type) AS columns
FROM information_schema.tables t JOIN information_schema.columns c USING (table_schema, table_name)
WHERE t.table_schema = 'planq' AND t.table_type = 'BASE TABLE'
GROUP BY t.table_name HAVING bool_or(c.column_name = 'tenant_id') ORDER BY t.table_name
"""

_UNCOMPARED = frozenset({"tenant_id", "xid", "sequence", "id", "created_at", "updated_at", "wakes"})
"""Numbers that the server deals out, and what says nothing of a state; what points at a row tells its id."""


def _reading(table: str, columns: Mapping[str, str]) -> str:
    """Return a query for the rows of a tenant in a table."""
    shown = ", ".join(
        f'{_shown(name, kind)} AS "{name}"' for name, kind in columns.items() if name not in _UNCOMPARED
    )
    rows = f"SELECT {shown} FROM {table} WHERE tenant_id = '{{0}}'"
    return f"SELECT '{table} ' || json_strip_nulls(row_to_json(t)) AS row FROM ({rows}) t"


def _shown(name: str, kind: str) -> str:
    column = f'"{name}"'
    if kind.startswith("timestamp"):
        past, ahead = f"{column} <= clock_timestamp()", f"{column} < planq_never()"
        return f"CASE WHEN {past} THEN 'past' WHEN {ahead} THEN 'ahead' WHEN {column} IS NOT NULL THEN 'never' END"
    if name == "settled":
        return f"{column} IS NOT NULL"
    return column


Series = dict[tuple[str, str], Outcome]
"""What pairs of operations of one kind come to one after the other, by their names in this order."""


class Arena(Generic[S]):
    """Runs pairs of operations, each in a new scene."""

    def __init__(self, build: Callable[[Session], Awaitable[S]], sessions: Sessions, series: Series) -> None:
        self._build = build
        self._sessions = sessions
        self._series = series

    async def meet(self, first: Operation[S], second: Operation[S]) -> Meeting:
        """Let two operations meet, and run them in both orders.

        An operation that fails has its error as its outcome; the server undoes what it did. Raises AssertionError
        where an invariant is broken afterwards.
        """
        scene = await self._scene(first, second)
        held = self._sessions.held
        await held.begin()
        try:
            one = await _outcome(first, self._sessions.first, scene)
            acting = asyncio.ensure_future(_outcome(second, self._sessions.second, scene))
            await waits_for_locks(self._sessions.watch, acting, 1)
        finally:
            await held.commit()
        other = await acting
        expected = {first.breaks, second.breaks}
        beside = await self._end(scene, one, other, expected)
        after = await self._in_series(first, second, turned=False)
        before = await self._in_series(first, second, turned=True)
        without = await self._without(first, second) if second.passes else None
        return Meeting(beside, after, before, without)

    async def _without(self, first: Operation[S], second: Operation[S]) -> tuple[str, ...]:
        scene = await self._scene(first, second)
        said = await _outcome(first, self._sessions.second, scene)
        return (await self._end(scene, said, None, {first.breaks, second.breaks})).rows

    async def _scene(self, first: Operation[S], second: Operation[S]) -> S:
        scene = await self._build(self._sessions.builder)
        # In an order of their own, so that who meets whom makes no difference to the state.
        for operation in sorted({first, second}, key=lambda one: one.name):
            if operation.before is not None:
                await operation.before(self._sessions.builder, scene)
        return scene

    async def _in_series(self, first: Operation[S], second: Operation[S], *, turned: bool) -> Outcome:
        """Run two operations one after the other, `turned` the second one first; each order once for both pairs."""
        order = (second, first) if turned else (first, second)
        key = order[0].name, order[1].name
        found = self._series.get(key)
        if found is None:
            scene = await self._scene(first, second)
            # On the connections that they use when they meet: the worker is the same.
            said = [await _outcome(operation, self._sessions.second, scene) for operation in order]
            found = self._series[key] = await self._end(scene, said[0], said[1], {first.breaks, second.breaks})
        return Outcome(found.second, found.first, found.rows) if turned else found

    async def _end(self, scene: S, first: Any, second: Any, expected: Collection[str | None]) -> Outcome:
        found = await self._sessions.builder.registry.broken_invariants()
        rows = await self._sessions.rows(scene.tenant)
        await self._sessions.clear(scene.tenant)
        broken = [row for row in found if row["invariant"] not in expected]
        assert broken == [], f"{broken} after {first} and {second}"

        def plain(text: str) -> str:
            return _plain(text.replace(scene.tenant, "tenant"), scene.names)

        # Most rows of most outcomes are the same, and thousands of outcomes are kept.
        return Outcome(plain(repr(first)), plain(repr(second)), tuple(sorted(sys.intern(plain(row)) for row in rows)))


async def _outcome(operation: Operation[S], session: Session, scene: S) -> Any:
    try:
        return await operation.act(session, scene)
    except Exception as error:  # whatever it is: it is compared
        return type(error).__name__, str(error)


_UUID = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")
_TIME = re.compile(r"datetime\.\w+\([^()]*(?:\([^()]*\))?[^()]*\)|\d{4}-\d\d-\d\d[T ][\d:.]+(?:\+[\d:]+)?")
_SPAN = re.compile(r"\d+\.\d+")


def _plain(text: str, names: Mapping[UUID, str]) -> str:
    """Return a text without what differs from run to run: ids become names, times and spans are left out.

    A list is as good as a tuple.
    """
    text = text.replace("[", "(").replace("]", ")").replace(",)", ")")
    text = _UUID.sub(lambda found: names.get(UUID(found[0]), "new"), text)
    return _SPAN.sub("#", _TIME.sub("time", text))


def _compared(one: Outcome, other: Outcome) -> str:
    said = (one.first, other.first), (one.second, other.second)
    lines = [f"  it returned {a}, not {b}" for a, b in said if a != b]
    lines += [f"  - {row}" for row in sorted(set(other.rows) - set(one.rows))]
    lines += [f"  + {row}" for row in sorted(set(one.rows) - set(other.rows))]
    if not lines and one.rows != other.rows:
        lines.append("  a row is there more or less often")
    return "\n".join(lines)
