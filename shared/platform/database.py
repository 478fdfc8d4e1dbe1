"""The connection pool of a process, statements by name, rows as records, and planq's errors.

Every statement is its own transaction (autocommit). Named statements are in the folders `sql` of kernel and subjects
(`sql_files.py`) and in `listings.py`; a test compares the names with those in use. A statement that the server undid
(a deadlock, a plan that a migration made void) is repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, lru_cache, partial
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]
from operator import attrgetter
from time import monotonic
from types import UnionType
from typing import Any, Self, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints
from uuid import UUID

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Json, set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolTimeout
from pydantic import BaseModel, TypeAdapter

from planq.shared.platform.errors import DatabaseUnavailable, ErrorRecord, Misconfigured, NotFound, storable
from planq.shared.platform.sql_files import is_query, sql_files
from planq.shared.platform.values.decoding import decode_stored
from planq.shared.platform.values.encoding import JsonText

Row = Mapping[str, Any]
Record = TypeVar("Record")


KEEPALIVE: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "connect_timeout": 10,
}
"""Drops a silent connection after some 15 s instead of libpq's quarter of an hour (ms for tcp_user_timeout)."""


_AWAY = (
    PoolTimeout,
    psycopg.OperationalError,  # 08 connections, 40 undone, 53 resources, 55 locks, 57 operators, 58 the system
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
    TimeoutError,
)
"""Errors of a database that cannot serve now, by SQLSTATE class (PostgreSQL 18, appendix A)."""

_LOST = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction)
"""Errors of a connection that may be useless."""

_OPTIONS = "-c idle_in_transaction_session_timeout=60s -c client_connection_check_interval=1s"
"""End abandoned statements within a second, and frozen transactions, which hold locks and stop event streams."""

_RENEW_SECONDS = 0.1
"""Hundreds of statements on dead connections renew them once."""

_UNDONE = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
"""The server undid the statement for another one."""

_MOST_TEXTS = 2000
"""Maximum number of statements whose text a pool keeps: more than there are, except for those of filtered lists."""

_TRIES = 4
"""Maximum tries of an undone statement; the second nearly always suffices."""


def as_json(value: Any) -> Json | None:
    """Wrap a value, or its JSON text, as a `json` parameter; None is SQL null; NaN raises `ValueError`."""
    if isinstance(value, JsonText):
        return Json(value, dumps=attrgetter("body"))
    return None if value is None else Json(value, dumps=json_text)


def _no_json(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is no JSON")


# `json.JSONEncoder` would make this for each text, which takes three times as long as encoding a short text.
_pieces = c_make_encoder(None, _no_json, encode_basestring_ascii, None, ":", ",", False, False, False)


def json_text(value: Any) -> str:
    """Return ASCII JSON; NaN and infinities raise `ValueError`."""
    return "".join(_pieces(value, 0))


def stored_text(value: Any) -> str | None:
    """Return the JSON text to store; None is SQL null."""
    if isinstance(value, JsonText):
        return value.body.decode()
    return None if value is None else json_text(value)


def record(kind: type[Record], row: Row, /, **more: Any) -> Record:
    """Return a row, or a JSON object from SQL, as a dataclass with fields of the same names.

    `more` adds or replaces fields; unknown names are ignored. JSON of users (`Any`, mappings) is not validated.
    Raises `ValueError`.
    """
    return cast(Record, _reader(cast(Any, kind)).validate_python({**row, **more} if more else row))


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def sql_fields(item: Any) -> dict[str, Any]:
    """Return a record's fields that are not None, as SQL functions take them.

    Users' JSON and errors become text: `json` functions refuse NUL and lone surrogates, which the type stores.
    """
    names, values_of, writes = _writer(cast(Any, type(item)))
    return {
        name: value if write is None else write(value)
        for name, value, write in zip(names, values_of(item), writes, strict=True)
        if value is not None
    }


def storable_fields(item: Any) -> dict[str, Any]:
    """Return `sql_fields` with unstorable characters replaced."""
    return {name: storable(value) if type(value) is str else value for name, value in sql_fields(item).items()}


_Write: TypeAlias = Callable[[Any], Any]


@cache
def _writer(kind: Any) -> tuple[Sequence[str], _Write, Sequence[_Write | None]]:
    hints = get_type_hints(kind)
    options = [get_args(hint) if get_origin(hint) is UnionType else (hint,) for hint in hints.values()]
    writes = [next(filter(None, map(_write_of, each)), None) for each in options]
    return tuple(hints), attrgetter(*hints), writes


_WRITES: Mapping[Any, _Write] = {
    Any: stored_text,
    Mapping: stored_text,
    JsonText: stored_text,
    ErrorRecord: lambda error: json_text(error.to_json()),
    UUID: str,
    Decimal: str,
    bytes: bytes.hex,
}


def _write_of(hint: Any) -> _Write | None:
    kind = get_origin(hint) or hint
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
    return cast(Any, kind).model_dump if is_model else _WRITES.get(kind)


def shown_time(value: datetime | None) -> str | None:
    """Return a time for output: ISO 8601 in UTC."""
    return None if value is None else value.astimezone(UTC).isoformat()


def named(texts: Iterable[str]) -> Mapping[str, bytes]:
    """Return the statements of query files by name, each after a line `-- name: heartbeat`.

    `sweep_look/batches` adds its rows to `sweep_look`; a sweep runs statements named `tidy_…`. Raises `ValueError`
    for a duplicate name.
    """
    found: dict[str, bytes] = {}
    for text in texts:
        for part in text.split("-- name: ")[1:]:
            name, _, statement = part.partition("\n")
            if name in found:
                raise ValueError(f"two queries are called {name!r}; give one of them another name")
            found[name] = statement.strip().encode()
    whole = {name: statement for name, statement in found.items() if "/" not in name}
    for name in sorted(found.keys() - whole.keys()):
        whole[name.partition("/")[0]] += b"\nUNION ALL\n" + found[name]
    return whole


QUERIES = named(file.read_text("utf-8") for file in sql_files() if is_query(file))


def query(name: str) -> bytes:
    """Return the statement of this name; raises `KeyError`."""
    return QUERIES[name]


def statement(name: str, params: Mapping[str, Any]) -> bytes:
    """Return the query of this name, else the select for these parameters; raises `KeyError`."""
    if (text := QUERIES.get(name)) is not None:
        return text
    # SQLAlchemy takes a process half a second and 26 MB: workers, which ask for no select, do without.
    from planq.shared.platform.selects import text_of

    return text_of(name, params)


class Rows(list[DictRow]):
    """The returned rows, and the number of `touched` rows."""

    touched = 0


class _LastFirst(deque[Any]):
    """Lends the connection returned last, whose backend is warm; psycopg_pool 3.3 lends in turn."""

    append = deque.appendleft


class _Connection(psycopg.AsyncConnection[DictRow]):
    """A connection whose statements call the functions in the schema of its pool."""

    placed: Callable[[bytes], bytes] = staticmethod(lambda text: text)

    async def execute(self, query: Any, *args: Any, **kwargs: Any) -> psycopg.AsyncCursor[DictRow]:
        text = query.encode() if isinstance(query, str) else query
        return await super().execute(self.placed(text), *args, **kwargs)


class Database:
    """A pool of autocommit connections, opened in the event loop that uses it."""

    def __init__(
        self,
        database_url: str,
        *,
        max_connections: int,
        timeout_seconds: float = 10.0,
        statement_seconds: float | None = None,
        silent_seconds: float | None = None,
        has_pooler: bool = False,
        functions: str | None = None,
    ) -> None:
        """Open no connection yet; raises `Misconfigured` if libpq cannot read the URL.

        `timeout_seconds` bounds the wait for a connection, `statement_seconds` the use of one including that wait
        (None: unbounded), `silent_seconds` the answer to a named statement. Exceeding the latter two ends all
        connections, which may be dead. With a pooler (`Settings.has_pooler`) statements are not prepared, and
        connections have no options.

        `functions` is the schema of this release's SQL functions (`Settings.functions_schema`); None: the search_path
        finds them. Connections have it in their names, and `planq migrate` keeps the functions of open connections.
        """
        self._statement_seconds = statement_seconds
        self._silent_seconds = silent_seconds
        self._renewed_until = 0.0
        self.functions = functions
        self._placed: Callable[[bytes], bytes] = (
            lru_cache(_MOST_TEXTS)(partial(_in_schema, functions)) if functions else lambda text: text
        )
        self._full: tuple[float, str] | None = None
        try:
            given = psycopg.conninfo.conninfo_to_dict(database_url)
        except psycopg.ProgrammingError as error:
            raise Misconfigured(f"DATABASE_URL: expected a URL that libpq can read, found {error}") from error
        options = f"{given.get('options', '')} {_OPTIONS}".strip()
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[DictRow]] = AsyncConnectionPool(
            database_url,
            connection_class=_Connection,
            kwargs={
                "autocommit": True,
                "row_factory": dict_row,
                "application_name": f"planq {functions}" if functions else "planq",
                **({"prepare_threshold": None} if has_pooler else {"options": options}),
                **KEEPALIVE,
            },
            min_size=1,
            max_size=max_connections,
            timeout=timeout_seconds,
            configure=self._configure,
            check=self._check,
            # The pause between attempts doubles until this is over; a later request then tries afresh, at once.
            reconnect_timeout=3.0,
            open=False,
        )
        self._pool._pool = _LastFirst()

    async def _configure(self, connection: psycopg.AsyncConnection[DictRow]) -> None:
        """Use this release's functions and planq's JSON decoder."""
        cast(_Connection, connection).placed = self._placed
        set_json_loads(decode_stored, connection)  # equal values in half the time

    async def _check(self, connection: psycopg.AsyncConnection[DictRow]) -> None:
        """Refuse to lend a connection that the server closed.

        A query each time would double the cost: only a connection with something to read is queried. After a restart
        all are dead, and psycopg_pool 3.3 would retry one after the other with growing pauses; the first dead one
        renews all.
        """
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        if not poll.poll(0):
            return
        try:
            await AsyncConnectionPool.check_connection(connection)
        except psycopg.OperationalError:
            await self._renew()
            raise

    async def _renew(self) -> None:
        if monotonic() >= self._renewed_until:
            self._renewed_until = monotonic() + _RENEW_SECONDS
            await self._pool.drain()

    async def _run(
        self, statement: bytes, params: Mapping[str, Any] | tuple[Any, ...], *, by_value: bool = False
    ) -> Rows:
        """Run a statement in its own transaction, again if the server undid it; `by_value` plans for its values."""
        statement = self._placed(statement)
        since, tries = monotonic(), 1
        try:
            connection = await self._pool.getconn()
            watch = self._watch(connection, since, self._silent_seconds)
            try:
                while True:
                    try:
                        # Parameters that are part of the text are known to the planner; others are not, since
                        # `plan_cache_mode` has one plan serve all of them.
                        cursor = psycopg.AsyncClientCursor(connection) if by_value else connection.cursor()
                        await cursor.execute(statement, params)
                        # `description` would say it, too, but makes an object of each column, in 1 µs.
                        has_rows = cursor.pgresult is not None and cursor.pgresult.nfields > 0
                        rows = Rows(await cursor.fetchall() if has_rows else ())
                        rows.touched = cursor.rowcount
                        return rows
                    except (*_UNDONE, psycopg.errors.FeatureNotSupported) as error:
                        if tries == _TRIES:
                            raise
                        tries += 1
                        if isinstance(error, psycopg.errors.FeatureNotSupported):
                            # "cached plan must not change result type": a migration added a column, and psycopg had
                            # prepared the statement. It notices this command and forgets its prepared statements
                            # (psycopg 3.3, `_preparing.py`).
                            await connection.execute("DEALLOCATE ALL")
            except _LOST as error:
                await self._let_go_of(connection, error)
                raise
            finally:
                if watch is not None:
                    watch.cancel()
                await self._pool.putconn(connection)
        except _AWAY as error:
            if (unavailable := _unavailable(error)) is None:
                raise
            raise unavailable from error

    def _watch(
        self, connection: psycopg.AsyncConnection[DictRow], since: float, silent_seconds: float | None = None
    ) -> asyncio.TimerHandle | None:
        """End a connection whose use takes too long, counted from `since`; None: unbounded."""
        bounds = [] if silent_seconds is None else [silent_seconds]
        if self._statement_seconds is not None:
            bounds.append(max(self._statement_seconds - (monotonic() - since), 0.0))
        return asyncio.get_running_loop().call_later(min(bounds), _shut_down, connection) if bounds else None

    async def _let_go_of(self, connection: psycopg.AsyncConnection[DictRow], error: psycopg.Error) -> None:
        """Renew all connections if one is dead or no longer leads to the primary; note a full disk."""
        if isinstance(error, psycopg.errors.DiskFull):
            self._full = (monotonic(), _away(error))
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            await connection.close()
        if connection.closed:
            await self._renew()

    def refused_for_want_of_space(self, *, within: float) -> str | None:
        """Return the error of a full disk within the last seconds, or None."""
        return self._full[1] if self._full is not None and monotonic() - self._full[0] <= within else None

    async def open(self, *, wait: bool = True) -> None:
        """Open the pool; with `wait` raises `DatabaseUnavailable` unless a first connection opens."""
        if not wait:
            await self._pool.open(wait=False)
            return
        try:
            await self._pool.open(wait=True, timeout=self._pool.timeout)
        except PoolTimeout as error:
            await self._pool.close()
            raise DatabaseUnavailable(
                "the database does not answer; check DATABASE_URL and that the server runs"
            ) from error

    async def close(self) -> None:
        await self._pool.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[DictRow]]:
        """Lend a connection; raises `DatabaseUnavailable`; SQL errors pass. A dead or read-only one renews all."""
        since = monotonic()
        try:
            async with self._pool.connection() as connection:
                watch = self._watch(connection, since)
                try:
                    yield connection
                except _LOST as error:
                    await self._let_go_of(connection, error)
                    raise
                finally:
                    if watch is not None:
                        watch.cancel()
        except _AWAY as error:
            if (unavailable := _unavailable(error)) is None:
                raise
            raise unavailable from error

    def fetch_all(self, name: str, /, **params: Any) -> Coroutine[Any, Any, list[DictRow]]:
        return self._run(statement(name, params), params)

    def fetch_page(self, name: str, where: str = "", /, **params: Any) -> Coroutine[Any, Any, list[DictRow]]:
        """Fetch with filters that may be null, planned for the given ones; `where` replaces `/* where */`."""
        text = statement(name, params).replace(b"/* where */", where.encode())
        return self._run(text, params, by_value=True)

    async def fetch_one(self, name: str, /, **params: Any) -> DictRow | None:
        rows = await self._run(statement(name, params), params)
        return rows[0] if rows else None

    async def fetch_existing(self, name: str, what: str, /, **params: Any) -> DictRow:
        """Return the first row; raises `NotFound` with `what` is missing."""
        row = await self.fetch_one(name, **params)
        if row is None:
            raise NotFound(f"there is no {what}")
        return row

    async def execute(self, name: str, /, **params: Any) -> int:
        return (await self._run(query(name), params)).touched

    def replace_after_use(self, connection: psycopg.AsyncConnection[DictRow]) -> None:
        """Replace a connection after megabytes of parameters: libpq keeps its doubled buffer."""
        connection._expire_at = 0.0  # what psycopg_pool 3.3 looks at when it is returned

    async def call(self, function: str, *arguments: Any) -> Any:
        """Call an SQL function of planq and return its single value; `function` is never input."""
        rows = await self.call_table(function, *arguments)
        return rows[0][function]

    def call_table(self, function: str, *arguments: Any) -> Coroutine[Any, Any, list[DictRow]]:
        return self._run(_call(function, len(arguments)), arguments)


_OURS = re.compile(rb"(?<![\w.])planq_\w+(?=\()|(?<=::)planq_\w+")


def _in_schema(schema: str, statement: bytes) -> bytes:
    """Return a statement whose calls of planq's functions, and casts to its types, name their schema."""
    return _OURS.sub(schema.encode() + rb".\g<0>", statement)


def _shut_down(connection: psycopg.AsyncConnection[DictRow]) -> None:
    """End a connection whose answer is awaited: psycopg's cancellation would wait up to 5 s."""
    # It may be lost by now, and its file closed.
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)


def _unavailable(error: BaseException) -> DatabaseUnavailable | None:
    """Return the error of an unavailable database; None for a defect that psycopg calls operational."""
    if isinstance(error, psycopg.errors.ProgramLimitExceeded):
        return None
    return DatabaseUnavailable(_away(error))


def _away(error: BaseException) -> str:
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return "the database takes no writes now (a standby, or default_transaction_read_only is on)"
    if isinstance(error, psycopg.errors.DiskFull):
        return f"no space left for the database: {str(error).splitlines()[0]}"
    return f"the database does not answer: {type(error).__name__}"


@cache
def _call(function: str, arguments: int) -> bytes:
    return f"SELECT * FROM {function}({', '.join(['%s'] * arguments)})".encode()  # noqa: S608 - a name of ours
