"""A lean version of the job of B2, as a measure of what planq's own costs beyond it (B30). It is no design to copy.

    python -m tests.bench.lean api       on PLANQ_PORT
    python -m tests.bench.lean worker    both on DATABASE_URL, which has TABLES

The job is the same: a request in words becomes a plan of chained calls, each call takes the output of the one before,
and an answer is made of their outputs. The commits are the same, and each is flushed before the work goes on:
submitted, claimed, planned, steps done, ended. Every one is a single statement over arrays, guarded by the attempt,
and carries all jobs that are ready for it. It has no broker, tenants, limits, retries, leases or sweep.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import jsonschema_rs
import orjson
import psycopg
import uvicorn
import uvloop
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, TypeAdapter

from planq.api.__main__ import server_options
from planq.shared.kernel.new_ids import new_id

TABLES = """
CREATE TABLE lean_jobs (
    id uuid PRIMARY KEY, status text NOT NULL DEFAULT 'queued', attempt int NOT NULL DEFAULT 0, worker uuid,
    input text NOT NULL, plan json, answer text,
    created_at timestamptz NOT NULL DEFAULT now(), started_at timestamptz, finished_at timestamptz
) WITH (fillfactor = 50);
CREATE INDEX lean_queue ON lean_jobs (id) WHERE status = 'queued';
CREATE TABLE lean_steps (
    job uuid, index int, tool text NOT NULL, arguments json NOT NULL, output json NOT NULL,
    started_at timestamptz, finished_at timestamptz, PRIMARY KEY (job, index)
);
CREATE TABLE lean_events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job uuid NOT NULL, kind text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""

_OPTIONS = (
    "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
)
"""Without these each statement over arrays is planned again, which costs three times what it does."""

_SUBMIT = """
WITH new AS (INSERT INTO lean_jobs (id, input) SELECT * FROM unnest(%s::uuid[], %s::text[]) RETURNING id),
     told AS (INSERT INTO lean_events (job, kind) SELECT id, 'queued' FROM new)
SELECT pg_notify('lean_work', '')"""

_CLAIM = """
WITH mine AS (
    UPDATE lean_jobs SET status = 'planning', worker = %s, attempt = attempt + 1, started_at = now()
    WHERE id IN (SELECT id FROM lean_jobs WHERE status = 'queued' ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
    RETURNING id, attempt, input
), told AS (INSERT INTO lean_events (job, kind) SELECT id, 'claimed' FROM mine)
SELECT id, attempt, input FROM mine"""

_PLAN = """
WITH planned AS (
    UPDATE lean_jobs j SET status = 'executing', plan = p.plan::json
    FROM unnest(%s::uuid[], %s::int[], %s::text[]) p (id, attempt, plan)
    WHERE j.id = p.id AND j.attempt = p.attempt AND j.status = 'planning' RETURNING j.id
), told AS (INSERT INTO lean_events (job, kind) SELECT id, 'planned' FROM planned)
SELECT id FROM planned"""

_DONE = """
WITH done AS (
    UPDATE lean_jobs j SET status = 'responding' FROM unnest(%s::uuid[], %s::int[]) d (id, attempt)
    WHERE j.id = d.id AND j.attempt = d.attempt AND j.status = 'executing' RETURNING j.id
), steps AS (
    INSERT INTO lean_steps SELECT s.job, s.index, s.tool, s.arguments::json, s.output::json, s.began, s.ended
    FROM unnest(%s::uuid[], %s::int[], %s::text[], %s::text[], %s::text[], %s::timestamptz[], %s::timestamptz[])
        s (job, index, tool, arguments, output, began, ended) JOIN done ON done.id = s.job RETURNING job
), told AS (INSERT INTO lean_events (job, kind) SELECT job, 'succeeded' FROM steps)
SELECT id FROM done"""

_END = """
WITH ended AS (
    UPDATE lean_jobs j SET status = 'completed', answer = e.answer, finished_at = now(), worker = NULL
    FROM unnest(%s::uuid[], %s::int[], %s::text[]) e (id, attempt, answer)
    WHERE j.id = e.id AND j.attempt = e.attempt AND j.status = 'responding' RETURNING j.id
), told AS (INSERT INTO lean_events (job, kind) SELECT id, 'completed' FROM ended)
SELECT pg_notify('lean_ended', string_agg(id::text, ',')) FROM ended"""

_LOOK = """
SELECT j.id, j.status, j.input, j.answer, j.created_at, j.started_at, j.finished_at,
    (SELECT json_agg(json_build_object('index', s.index, 'tool', s.tool, 'status', 'succeeded',
        'arguments', s.arguments, 'output', s.output) ORDER BY s.index)::text
     FROM lean_steps s WHERE s.job = j.id)
FROM lean_jobs j WHERE j.id = ANY (%s::uuid[])"""

_SLOTS, _TOGETHER = 100, 64
_POLL_SECONDS = 0.5

_CALL = re.compile(r"call (\w+) with (\{.*?\})")
_REFERENCE = re.compile(r"\$(\d+)\.output\.(\w+)")
_NUMBER = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}

Item = tuple[Any, ...]
Rows = list[tuple[Any, ...]]


class Statements:
    """Connections that run one statement each; one that is free is used again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: list[psycopg.AsyncConnection[Any]] = []

    async def run(self, statement: str, *values: object) -> Rows:
        """Run a prepared statement in a transaction of its own and return its rows."""
        connection = self._free.pop() if self._free else await self._connect()
        cursor = await connection.cursor(binary=True).execute(statement.encode(), values, prepare=True)
        rows = await cursor.fetchall()
        self._free.append(connection)
        return rows

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(self._url, autocommit=True, options=_OPTIONS)


class Crowd:
    """Items that come while a statement runs ride together in the next one."""

    def __init__(self, carry: Callable[[Sequence[Item]], Awaitable[Sequence[Any]]]) -> None:
        self._carry = carry
        self._waiting: list[tuple[Item, asyncio.Future[Any]]] = []
        self._carrier: asyncio.Task[None] | None = None

    async def add(self, *item: Any) -> Any:
        """Return what `carry` yields for the item."""
        carried: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, carried))
        if self._carrier is None or self._carrier.done():
            self._carrier = asyncio.create_task(self._go())
        return await carried

    async def _go(self) -> None:
        while crowd := self._waiting[:_TOGETHER]:
            del self._waiting[:_TOGETHER]
            for (_, carried), value in zip(crowd, await self._carry([item for item, _ in crowd]), strict=True):
                carried.set_result(value)


def columns(items: Sequence[Item]) -> list[list[Any]]:
    """Return the items' fields as arrays."""
    return [list(column) for column in zip(*items, strict=True)]


async def listen(url: str, channel: str, heard: Callable[[str], object]) -> None:
    """Call `heard` with each notification of a channel; for ever."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(f"LISTEN {channel}".encode())
        async for notification in connection.notifies():
            heard(notification.payload)


class Worker:
    """Claims jobs and carries them out, `_SLOTS` at once."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._id = uuid4()
        self._statements = Statements(url)
        self._planned, self._done, self._ended = Crowd(self._plan), Crowd(self._finish), Crowd(self._end)
        self._check = jsonschema_rs.validator_for(_NUMBER)
        self._jobs: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Work until the process is stopped."""
        woken = asyncio.Event()
        listening = asyncio.create_task(listen(self._url, "lean_work", lambda _: woken.set()))
        while not listening.done():
            woken.clear()
            room = min(_SLOTS - len(self._jobs), _TOGETHER)
            claimed = await self._statements.run(_CLAIM, self._id, room) if room > 0 else []
            for job_id, attempt, text in claimed:
                job = asyncio.create_task(self._job(job_id, attempt, text))
                self._jobs.add(job)
                job.add_done_callback(self._jobs.discard)
            if room <= 0:
                await asyncio.wait(self._jobs, return_when=asyncio.FIRST_COMPLETED)
            elif len(claimed) < room:
                try:
                    await asyncio.wait_for(woken.wait(), _POLL_SECONDS)
                except TimeoutError:
                    continue

    async def _job(self, job_id: UUID, attempt: int, text: str) -> None:
        plan = [{"tool": tool, "arguments": orjson.loads(arguments)} for tool, arguments in _CALL.findall(text)]
        if not await self._planned.add(job_id, attempt, orjson.dumps(plan).decode()):
            return
        outputs: list[dict[str, Any]] = []
        rows: list[Item] = []
        for index, call in enumerate(plan):
            began = datetime.now().astimezone()
            arguments = {name: _resolved(value, outputs) for name, value in call["arguments"].items()}
            self._check.validate(arguments)
            async with asyncio.timeout(60):
                output = await _noop(**arguments)
            self._check.validate(output)
            outputs.append(output)
            texts = orjson.dumps(arguments).decode(), orjson.dumps(output).decode()
            rows.append((job_id, index, call["tool"], *texts, began, datetime.now().astimezone()))
        if await self._done.add(job_id, attempt, rows):
            answer = "\n".join(f"{tool}: {output}" for _, _, tool, _, output, _, _ in rows)
            await self._ended.add(job_id, attempt, answer)

    async def _plan(self, items: Sequence[Item]) -> Sequence[bool]:
        applied = {row[0] for row in await self._statements.run(_PLAN, *columns(items))}
        return [item[0] in applied for item in items]

    async def _finish(self, items: Sequence[Item]) -> Sequence[bool]:
        jobs = columns([item[:2] for item in items])
        steps = columns([row for item in items for row in item[2]])
        applied = {row[0] for row in await self._statements.run(_DONE, *jobs, *steps)}
        return [item[0] in applied for item in items]

    async def _end(self, items: Sequence[Item]) -> Sequence[None]:
        await self._statements.run(_END, *columns(items))
        return [None] * len(items)


async def _noop(value: int) -> dict[str, Any]:
    return {"value": value}


def _resolved(value: Any, outputs: Sequence[dict[str, Any]]) -> Any:
    found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else outputs[int(found[1])][found[2]]


class JobRequest(BaseModel):
    """What may be asked: a few of planq's fields, so that the check costs something like planq's."""

    model_config = ConfigDict(extra="forbid")
    input: str
    strategy: str | None = None
    tools: list[str] | None = None
    priority: str | None = None


def create_app(url: str) -> FastAPI:
    """Return the API: submit a job, and look at one, waiting for its end."""
    statements = Statements(url)
    waiting: dict[str, list[asyncio.Future[None]]] = {}
    request_of = TypeAdapter(JobRequest)

    async def insert(items: Sequence[Item]) -> Sequence[None]:
        await statements.run(_SUBMIT, *columns(items))
        return [None] * len(items)

    async def look(items: Sequence[Item]) -> Sequence[Item]:
        rows = {row[0]: row for row in await statements.run(_LOOK, list({item[0] for item in items}))}
        return [rows[item[0]] for item in items]

    submitted, looked = Crowd(insert), Crowd(look)

    def ended(payload: str) -> None:
        for job_id in payload.split(","):
            for future in waiting.pop(job_id, ()):
                if not future.done():
                    future.set_result(None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        listening = asyncio.create_task(listen(url, "lean_ended", ended))
        yield
        listening.cancel()

    app = FastAPI(lifespan=lifespan, openapi_url=None)

    @app.get("/healthz")
    async def health() -> Response:
        return _json({})

    @app.post("/jobs")
    async def submit(request: Request) -> Response:
        body = request_of.validate_json(await request.body())
        job_id = new_id()
        await submitted.add(job_id, body.input)
        return _json({"id": str(job_id), "status": "queued"}, 202)

    @app.get("/jobs/{job_id}")
    async def show(job_id: UUID, wait: float = 0) -> Response:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.setdefault(str(job_id), []).append(end)
        row = await looked.add(job_id)
        if wait and row[1] != "completed":
            await asyncio.wait([end], timeout=wait)
            row = await looked.add(job_id)
        if not end.done():
            waiting.pop(str(job_id), None)
        names = ("id", "status", "input", "answer", "created_at", "started_at", "finished_at")
        return _json({**dict(zip(names, row, strict=False)), "steps": orjson.Fragment(row[7] or "[]")})

    return app


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def main() -> None:
    """Serve until told to stop."""
    url = os.environ["DATABASE_URL"]
    if sys.argv[1] == "api":
        uvicorn.run(create_app(url), port=int(os.environ["PLANQ_PORT"]), **server_options())
    else:
        uvloop.run(Worker(url).serve())


if __name__ == "__main__":
    sys.exit(main())
