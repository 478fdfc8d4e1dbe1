"""A neighbour of everybody: a tenant that floods and cancels, and that fetches pages made to hold a process.

It belongs to the faults, not to the load: what it does is dealt by the schedule. Its own jobs must end as well, each
as it should; that all others come out right in time is what the rest of the run looks at.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any

import httpx

from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.chaos.client import TERMINAL, WAIT_SECONDS, Client
from tests.chaos.following import Following

SMALL, WIDE, WIDTH = 40, 2, 200
"""Jobs of a flood, and the steps of each wide one."""


_DRIP_SECONDS = 0.2
_MB = 1_000_000

PAGES: Mapping[str, bytes] = {
    "/declarations": b"<?xml" * (_MB // 5),
    "/metas": b"<meta" * 20_000 + b" " * (_MB - 100_000),
    "/sections": b"<![cdata[>" * (_MB // 10),
    "/nested": b"<div>" * (_MB // 5),
    "/small": b"<title>T</title><p>small",
}
_DRIPPING = "/dripping"


class Pages:
    """A server of pages on the loopback address."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve, and give the host with its port."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode().partition("?")[0]
            length = _MB if path == _DRIPPING else len(PAGES[path])
            head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n"
            writer.write(head.format(length).encode())
            if path == _DRIPPING:
                await self._drip(writer)
            else:
                writer.write(PAGES[path])
            await writer.drain()
        writer.close()

    async def _drip(self, writer: asyncio.StreamWriter) -> None:
        """Send a byte now and then until the client has had enough."""
        while not writer.is_closing():
            writer.write(b"<")
            await writer.drain()
            await asyncio.sleep(_DRIP_SECONDS)


class Neighbour(Following):
    """The tenant. `jobs` counts what was taken of it; `defects` say what did not end as it should."""

    def __init__(self, client: Client, key: str, pages: str, *, run: str) -> None:
        """`pages` is the host of `Pages`; `run` makes the idempotency keys unique."""
        super().__init__()
        self._client = client
        self._key = key
        self._pages = pages
        self._run = run
        self._wrong: list[str] = []
        self._open: set[str] = set()
        self.jobs = 0

    @staticmethod
    async def create(database_url: str) -> str:
        """Make the tenant, and return its key."""
        async with Database(database_url, max_connections=1) as database:
            tenant = await TenantStore(database).create("neighbour", "", TenantConfig(job_rate_limit=1_000_000))
            _, key = await ApiKeyStore(database).create(tenant.id, "chaos", frozenset({KeyScope.JOBS}), None)
        return key

    async def flood(self, tick: int) -> str:
        """Send small and wide jobs all at once, and cancel them a moment later."""
        random = Random(f"planq-chaos-flood-{self._run}-{tick}")
        small = {"plan": {"calls": [{"tool_name": "calculate", "arguments": {"expression": "40 + 2"}}]}}
        sent = await asyncio.gather(
            *(self._sent(f"flood-{tick}-{number}", small) for number in range(SMALL)),
            *(self._sent(f"wide-{tick}-{number}", self._fetching(["/small"] * WIDTH)) for number in range(WIDE)),
        )
        taken = [job for job in sent if job is not None]
        await asyncio.sleep(random.uniform(0.2, 3.0))
        cancelled = await asyncio.gather(*(self._cancelled(job) for job in taken))
        for job in taken:
            self.follow(self._see_flooding(job))
        return f"{len(taken)} jobs, {sum(cancelled)} cancelled"

    async def fetch(self, tick: int) -> str:
        """Have each of the pages fetched; the last one drips."""
        body = self._fetching([*PAGES, _DRIPPING])
        job = await self._sent(f"pages-{tick}", body)
        if job is not None:
            self.follow(self._see_fetching(job))
        return f"{len(body['plan']['calls'])} pages"

    @property
    def defects(self) -> list[str]:
        """What is wrong with the neighbour's own jobs, nothing when all is right."""
        return [*self._wrong, *(f"{job} has not ended" for job in sorted(self._open))]

    def _fetching(self, paths: list[str]) -> dict[str, Any]:
        calls = [
            {
                "tool_name": "http_fetch",
                "arguments": {"url": f"http://{self._pages}{path}?{number}"},
                **({"retries": 0} if path == _DRIPPING else {}),
            }
            for number, path in enumerate(paths)
        ]
        return {"plan": {"calls": calls, "on_failure": "answer"}}

    async def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._key}", **request.pop("headers", {})}
        return await self._client.ask(method, path, headers=headers, **request)

    async def _sent(self, key: str, body: dict[str, Any]) -> str | None:
        headers = {"Idempotency-Key": f"planq-chaos-{self._run}-{key}"}
        response = await self._ask("POST", "/jobs", json=body, headers=headers)
        if response.status_code != httpx.codes.ACCEPTED:
            self._wrong.append(f"{key} gave {response.status_code}: {response.text[:300]}")
            return None
        job: str = response.json()["id"]
        self._open.add(job)
        self.jobs += 1
        return job

    async def _cancelled(self, job: str) -> bool:
        """Cancel a job; returns whether it had not ended by itself (409)."""
        response = await self._ask("POST", f"/jobs/{job}/cancel")
        if response.status_code not in (httpx.codes.OK, httpx.codes.CONFLICT):
            self._wrong.append(f"cancel of {job} gave {response.status_code}: {response.text[:300]}")
        return response.status_code == httpx.codes.OK

    async def _ended(self, job: str) -> dict[str, Any]:
        while True:
            document: dict[str, Any] = (await self._ask("GET", f"/jobs/{job}", params={"wait": WAIT_SECONDS})).json()
            if document["status"] in TERMINAL:
                self._open.discard(job)
                return document

    async def _see_flooding(self, job: str) -> None:
        """What was cancelled is cancelled; what was faster has come out right."""
        document = await self._ended(job)
        came_out = document["status"] == "completed" and all(
            step["status"] == "succeeded" for step in document["steps"]
        )
        if document["status"] != "cancelled" and not came_out:
            self._wrong.append(f"{job} is {document['status']}: {_told(document)}")

    async def _see_fetching(self, job: str) -> None:
        """Each page is read, but for the one that drips: its call is ended."""
        document = await self._ended(job)
        *read, dripping = [(step["status"], (step["error"] or {}).get("code")) for step in document["steps"]]
        expected = [("succeeded", None)] * len(PAGES), ("failed", "too_slow")
        if document["status"] != "completed" or (read, dripping) != expected:
            self._wrong.append(f"{job} is {document['status']}: {_told(document)}")


def _told(document: Mapping[str, Any]) -> str:
    failed = [(step["index"], step["status"], step["error"]) for step in document["steps"]]
    return str((document["error"], [one for one in failed if one[1] != "succeeded"]))[:600]
