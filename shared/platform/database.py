"""One pool of connections to PostgreSQL a process, statements by name, rows as records, errors turned into ours.

Every statement is its own transaction (autocommit); what must commit together is one statement or one SQL function.
Statements have names. They lie in the folders `sql` of the kernel and of subjects (`sql_files.py`), those of lists
and documents in `listings.py` of their subject; a test holds the names that Python asks for equal to these. A
statement that the server undid because of others (a deadlock, a plan that a migration made void) is repeated:
nothing of it happened.
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
"""libpq's defaults leave a connection whose other end vanished without a word for a quarter of an hour; here it is
given up after some 15 s (tcp_user_timeout in ms, the others in s). Without meaning on a Unix socket. A server that
takes a connection and says nothing would be waited for without an end."""


_AWAY = (
    PoolTimeout,
    psycopg.OperationalError,  # 08 connections, 40 undone, 53 resources, 55 locks, 57 operators, 58 the system
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
    TimeoutError,
)
"""What says that the database cannot serve now; the numbers are classes of SQLSTATE (PostgreSQL 18, appendix A)."""

_LOST = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction)
"""What a connection says that may be of no use any more."""

_OPTIONS = "-c idle_in_transaction_session_timeout=60s -c client_connection_check_interval=1s"
"""The server ends a statement within a second whose connection was given up here, also one that waits for a lock. And
a process that is frozen within a transaction holds its locks no longer, and stops no stream of events: these show
what lies below every open transaction."""

_RENEW_SECONDS = 0.1
"""Hundreds of statements that find dead connections at the same moment renew them once."""

_UNDONE = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
"""The server undid the statement for the sake of another one."""

_MOST_TEXTS = 2000
"""Maximum number of statements whose text a pool keeps: more than there are, except for those of filtered lists."""

_TRIES = 4
"""Tries of a statement that was undone. The one that it collided with has gone on, so a second try nearly always
suffices."""


def as_json(value: Any) -> Json | None:
    """Wrap a value, or the text of one, as a `json` parameter; None stays SQL null.

    NUL characters are kept as escapes, which the `json` type stores as they are; NaN and infinities raise ValueError.
    """
    if isinstance(value, JsonText):
        return Json(value, dumps=_text_of)
    return None if value is None else Json(value, dumps=json_text)


def _text_of(value: JsonText) -> bytes:
    return value.body


def _no_json(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is no JSON")


# What `json.JSONEncoder` makes anew for each text, which takes three times as long as a short text does.
_pieces = c_make_encoder(None, _no_json, encode_basestring_ascii, None, ":", ",", False, False, False)


def json_text(value: Any) -> str:
    """Return JSON text in ASCII, what UTF-8 cannot carry as escapes; NaN and infinities raise ValueError."""
    return "".join(_pieces(value, 0))


def stored_text(value: Any) -> str | None:
    """Return the JSON text to store of a value, or of the text of one; None stays SQL null."""
    if isinstance(value, JsonText):
        return value.body.decode()
    return None if value is None else json_text(value)


def record(kind: type[Record], row: Row, /, **more: Any) -> Record:
    """Return the record that a row, or an object from SQL, is: a dataclass whose fields have its names.

    `more` are fields that the row has not, or has otherwise: `ref=row` where the row says also which step it is of.
    Other names mean nothing, and what has its type already is taken as it is. JSON of users (`Any`, the values of
    mappings) is not looked at: NUL, lone surrogates and integers of any size pass. Raises `ValueError` for others.
    """
    return cast(Record, _reader(cast(Any, kind)).validate_python({**row, **more} if more else row))


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def sql_fields(item: Any) -> dict[str, Any]:
    """Return the fields of a record as SQL functions take them, by its names, without those that are None.

    What users wrote (`Any`, mappings) and errors are texts that hold JSON: functions that take JSON apart
    refuse NUL and lone surrogates anywhere in it, which the type `json` itself stores as they are.
    """
    names, values_of, writes = _writer(cast(Any, type(item)))
    return {
        name: value if write is None else write(value)
        for name, value, write in zip(names, values_of(item), writes, strict=True)
        if value is not None
    }


def storable_fields(item: Any) -> dict[str, Any]:
    """Do what `sql_fields` does, and replace what PostgreSQL cannot hold in a text."""
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
    """Return a column's time as it leaves the process: ISO 8601 in UTC."""
    return None if value is None else value.astimezone(UTC).isoformat()


def named(texts: Iterable[str]) -> Mapping[str, bytes]:
    """Return the statements of query files, by name: `-- name: heartbeat` begins one, the next such line ends it.

    The rows of `sweep_look/batches` are added to those of `sweep_look`: what a subject adds stands in its own file.
    What begins with `tidy_` is run by a sweep, from time to time. Raises `ValueError` for a name that is there twice.
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
    """Return the statement of this name (`sql_files`); raises `KeyError` where there is none."""
    return QUERIES[name]


def statement(name: str, params: Mapping[str, Any]) -> bytes:
    """Return the query of this name, or else what the select of this name is for these parameters; or `KeyError`."""
    if (text := QUERIES.get(name)) is not None:
        return text
    # SQLAlchemy takes a process half a second and 26 MB: workers, which ask for no select, do without.
    from planq.shared.platform.selects import text_of

    return text_of(name, params)


class Rows(list[DictRow]):
    """The rows that a statement returned; it `touched` so many."""

    touched = 0


class _LastFirst(deque[Any]):
    """Lends the connection that was returned last: its backend is warm, which a lone job feels by a tenth.

    The pool of psycopg_pool 3.3 appends what is returned and lends from the left, so that all take turns.
    """

    append = deque.appendleft


class _Connection(psycopg.AsyncConnection[DictRow]):
    """A connection whose statements call the functions in the schema of its pool."""

    placed: Callable[[bytes], bytes] = staticmethod(lambda text: text)

    async def execute(self, query: Any, *args: Any, **kwargs: Any) -> psycopg.AsyncCursor[DictRow]:
        text = query.encode() if isinstance(query, str) else query
        return await super().execute(self.placed(text), *args, **kwargs)


class Database:
    """A pool of autocommit connections, opened inside the event loop that uses it."""

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
        """Open no connection yet; raises `Misconfigured` when libpq cannot read the URL.

        `timeout_seconds` bounds the wait for a connection, `statement_seconds` the use of one, that wait included:
        None where a lock, or a server that hangs, may take as long as it takes. A named statement that has no answer
        after `silent_seconds`, where every one is a short one. What takes longer ends its connection and all others:
        they may lead nowhere any more, which TCP by itself notices much later.

        `functions` is the schema of this release's SQL functions (`Settings.functions_schema`); None where the
        search_path leads to them. The server shows it in the name of each connection, and `planq migrate` keeps the
        functions that open connections use.

        With a pooler (`Settings.has_pooler`) each transaction may reach another process of the server: no statement
        is prepared, and no option of a connection is asked for.
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
        """Have a new connection call this release's functions, and read JSON as what planq has stored."""
        cast(_Connection, connection).placed = self._placed
        set_json_loads(decode_stored, connection)  # the same values, in half of the time

    async def _check(self, connection: psycopg.AsyncConnection[DictRow]) -> None:
        """Refuse to hand out a connection that the server closed while it lay idle.

        To ask each time would cost as much as the statement does. What the server said of its end, or that it has
        gone, can be read from the socket; only where there is something to read is the connection asked. What was
        lost without a word shows at the statement.

        After a restart all of them are dead. The pool would try one after the other, with pauses of 1, 2, 4 s between
        (psycopg_pool 3.3), and give up although the database is back: so the first dead one makes all of them new.
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
        """Run a statement in a transaction of its own; return its rows. `by_value` plans it for these parameters.

        It is run again where the server says that nothing of it happened. Failures come out as `connection` says.
        """
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
        """End a connection whose use takes too long, counted for all of it from `since` on; None: it may."""
        bounds = [] if silent_seconds is None else [silent_seconds]
        if self._statement_seconds is not None:
            bounds.append(max(self._statement_seconds - (monotonic() - since), 0.0))
        return asyncio.get_running_loop().call_later(min(bounds), _shut_down, connection) if bounds else None

    async def _let_go_of(self, connection: psycopg.AsyncConnection[DictRow], error: psycopg.Error) -> None:
        """Replace every connection, if one turned out to be dead, or to lead to what is no longer the primary.

        Note a refusal for want of space.
        """
        if isinstance(error, psycopg.errors.DiskFull):
            self._full = (monotonic(), _away(error))
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            await connection.close()
        if connection.closed:
            await self._renew()

    def refused_for_want_of_space(self, *, within: float) -> str | None:
        """Return a sentence when the server refused a statement for want of space in the last so many seconds."""
        return self._full[1] if self._full is not None and monotonic() - self._full[0] <= within else None

    async def open(self, *, wait: bool = True) -> None:
        """Open the pool and wait for a first connection; raises `DatabaseUnavailable` when none comes.

        Without `wait` it returns at once, and the next statement waits for a connection.
        """
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
        """Lend a connection; a database failure comes out as `DatabaseUnavailable`, a defect of SQL as it is.

        When one turns out to be dead or read-only all are replaced: they lead to a server that has gone, or is no
        longer the primary.
        """
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
        """Do what `fetch_all` does with a query whose filters may be null; `where` stands for its `/* where */`.

        It is planned each time for those that are given: a plan that is kept has to do for all of them, and reads
        whatever they leave out.
        """
        text = statement(name, params).replace(b"/* where */", where.encode())
        return self._run(text, params, by_value=True)

    async def fetch_one(self, name: str, /, **params: Any) -> DictRow | None:
        rows = await self._run(statement(name, params), params)
        return rows[0] if rows else None

    async def fetch_existing(self, name: str, what: str, /, **params: Any) -> DictRow:
        """Return the first row of a named query; raises `NotFound`, which says `what` there is none of."""
        row = await self.fetch_one(name, **params)
        if row is None:
            raise NotFound(f"there is no {what}")
        return row

    async def execute(self, name: str, /, **params: Any) -> int:
        return (await self._run(query(name), params)).touched

    def replace_after_use(self, connection: psycopg.AsyncConnection[DictRow]) -> None:
        """Have a connection that carries megabytes of parameters be replaced when it comes back.

        libpq gathers a statement in memory that it keeps, and doubles, until the connection ends.
        """
        connection._expire_at = 0.0  # what psycopg_pool 3.3 looks at when it is returned

    async def call(self, function: str, *arguments: Any) -> Any:
        """Call one of our SQL functions and return its single value; `function` is a name of ours, never input."""
        rows = await self.call_table(function, *arguments)
        return rows[0][function]

    def call_table(self, function: str, *arguments: Any) -> Coroutine[Any, Any, list[DictRow]]:
        return self._run(_call(function, len(arguments)), arguments)


_OURS = re.compile(rb"(?<![\w.])planq_\w+(?=\()|(?<=::)planq_\w+")


def _in_schema(schema: str, statement: bytes) -> bytes:
    """Return a statement whose calls of planq's functions, and casts to its types, name their schema."""
    return _OURS.sub(schema.encode() + rb".\g<0>", statement)


def _shut_down(connection: psycopg.AsyncConnection[DictRow]) -> None:
    """End a connection whose answer is awaited; the waiting call then fails as one that lost its connection.

    To cancel the waiting would take longer: psycopg then asks the server to cancel the statement, and waits for 5 s.
    """
    # It may be lost by now, and its file closed.
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)


def _unavailable(error: BaseException) -> DatabaseUnavailable | None:
    """Return what says that the database cannot serve now; None for a defect that psycopg calls operational."""
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
