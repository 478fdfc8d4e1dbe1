"""The peer of `http_cost`: a FastAPI application whose routes do one INSERT or one SELECT, and nothing else.

    python -m tests.bench.bare_api       on PLANQ_PORT, its table in DATABASE_URL

It is served with planq's own uvicorn settings, and has the same driver and as many connections. It checks what
pydantic checks, and keeps what it is sent as one JSON document.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import uvicorn
from fastapi import FastAPI, HTTPException
from psycopg.rows import dict_row
from psycopg.types.json import Json
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel

from planq.api.__main__ import server_options

TABLE = "CREATE TABLE bare_jobs (id uuid PRIMARY KEY, status text, input text, plan json, created_at timestamptz)"

_CONNECTIONS = 10  # as PLANQ_DATABASE_CONNECTIONS has by default

_INSERT = "INSERT INTO bare_jobs VALUES (%s, 'queued', %s, %s, now()) RETURNING id, status, input, plan, created_at"
_SELECT = "SELECT id, status, input, plan, created_at FROM bare_jobs WHERE id = %s"


class Job(BaseModel):
    """What is asked."""

    input: str | None = None
    plan: dict[str, Any] | None = None


def create_app(database_url: str) -> FastAPI:
    """Return the application; it opens its connections when it starts."""
    pool = AsyncConnectionPool(
        database_url,
        kwargs={"autocommit": True, "row_factory": dict_row},
        min_size=1,
        max_size=_CONNECTIONS,
        open=False,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with pool:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/jobs", status_code=202)
    async def submit(job: Job) -> dict[str, Any]:
        plan = None if job.plan is None else Json(job.plan)
        async with pool.connection() as connection:
            row = await (await connection.execute(_INSERT, (uuid4(), job.input, plan))).fetchone()
        assert row is not None
        return row

    @app.get("/jobs/{job_id}")
    async def look(job_id: UUID) -> dict[str, Any]:
        async with pool.connection() as connection:
            row = await (await connection.execute(_SELECT, (job_id,))).fetchone()
        if row is None:
            raise HTTPException(404)
        return row

    return app


def main() -> None:
    """Serve until told to stop."""
    app = create_app(os.environ["DATABASE_URL"])
    uvicorn.run(app, port=int(os.environ["PLANQ_PORT"]), **server_options())


if __name__ == "__main__":
    sys.exit(main())
