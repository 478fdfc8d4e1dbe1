"""`http_fetch` and a host that is slow: a bound on requests under way there, and the least rate of a body."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.platform.errors import HostBusy, TooSlow
from planq.worker.egress import Egress, HostPlaces, LeastRate
from planq.worker.tools import ToolServices
from planq.worker.tools.registry import load_registry

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"


class SlowSite:
    """A site on this machine, under the name slow.example.

    `/hold` answers when the test says so, `/page` at once, `/drip` a byte at a time, `/away` leads to `/hold` of
    another name.
    """

    def __init__(self) -> None:
        self.port = 0
        self.open = 0
        self.most_open = 0
        self.released = asyncio.Event()
        self.changed = asyncio.Condition()
        self.hung_up = asyncio.Event()

    def url(self, path: str, name: str = "slow.example") -> str:
        return f"http://{name}:{self.port}{path}"

    async def until_open(self, number: int) -> None:
        """Return once so many requests are held."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.open == number)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        try:
            if path == "/hold":
                await self._hold()
            if path == "/away":
                told = f"Location: {self.url('/hold', 'other.example')}\r\nContent-Length: 0\r\n\r\n"
                writer.write(b"HTTP/1.1 302 Found\r\n" + told.encode())
            elif path == "/drip":
                await self._drip(reader, writer)
            else:
                writer.write(_HEAD + b"here")
        finally:
            writer.close()

    async def _hold(self) -> None:
        await self._count(1)
        await self.released.wait()
        await self._count(-1)

    async def _drip(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_HEAD)
        gone = asyncio.create_task(reader.read())
        while not gone.done():
            writer.write(b".")
            await asyncio.wait([gone], timeout=0.01)
        self.hung_up.set()

    async def _count(self, change: int) -> None:
        async with self.changed:
            self.open += change
            self.most_open = max(self.most_open, self.open)
            self.changed.notify_all()


@asynccontextmanager
async def running_site() -> AsyncIterator[SlowSite]:
    site = SlowSite()
    server = await asyncio.start_server(site.answer, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    async with server:
        yield site
        site.released.set()
        await site.until_open(0)


def tell(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a story; one that waits for what never comes has failed."""
    asyncio.run(asyncio.wait_for(story(), 30.0))


class Fetching:
    """Calls `http_fetch` of one process."""

    def __init__(self, site: SlowSite, services: ToolServices, context: ToolContext, **offered: Any) -> None:
        async def resolve(host: str, port: int) -> Sequence[str]:
            return ["127.0.0.1"]

        names = frozenset({f"slow.example:{site.port}", f"other.example:{site.port}"})
        self.services = dataclasses.replace(
            services, egress=Egress(resolve=resolve), allow_private_hosts=names, **offered
        )
        registry = load_registry(
            services=self.services, entry_point_group=None, modules=["planq.worker.tools.builtin"]
        )
        tool = registry.find("http_fetch")
        assert tool is not None
        self._tool = tool
        self._context = context

    def begin(self, url: str, tenant_id: str = "default") -> asyncio.Task[Any]:
        return asyncio.create_task(
            self._tool.call({"url": url}, dataclasses.replace(self._context, tenant_id=tenant_id))
        )


def test_of_one_tenant_only_so_many_requests_are_under_way_to_one_host(
    services: ToolServices, context: ToolContext
) -> None:
    async def story() -> None:
        async with running_site() as site:
            fetching = Fetching(site, services, context, http_places=HostPlaces(2, 60.0))
            mine = [fetching.begin(site.url("/hold")) for _ in range(6)]
            await site.until_open(2)

            page = await fetching.begin(site.url("/page"), "neighbour")
            elsewhere = await fetching.begin(site.url("/page", "other.example"))
            site.released.set()
            held = await asyncio.gather(*mine)

            assert page["text"] == elsewhere["text"] == "here"
            assert [one["text"] for one in held] == ["here"] * 6
            assert site.most_open == 2
            assert len(fetching.services.http_places) == 0

    tell(story)


def test_call_without_a_place_in_time_is_tried_again_later(services: ToolServices, context: ToolContext) -> None:
    async def story() -> None:
        async with running_site() as site:
            fetching = Fetching(site, services, context, http_places=HostPlaces(1, 0.05))
            first = fetching.begin(site.url("/hold"))
            await site.until_open(1)

            with pytest.raises(HostBusy, match=r"at most 1 requests of a tenant at once to 'slow\.example'") as busy:
                await fetching.begin(site.url("/page"))

            assert busy.value.retryable
            assert busy.value.retry_after is not None
            site.released.set()
            assert (await first)["text"] == "here"
            assert (await fetching.begin(site.url("/page")))["text"] == "here"

    tell(story)


def test_cancelled_calls_leave_their_places(services: ToolServices, context: ToolContext) -> None:
    async def story() -> None:
        async with running_site() as site:
            fetching = Fetching(site, services, context, http_places=HostPlaces(1, 60.0))
            first, second, third = (fetching.begin(site.url("/hold")) for _ in range(3))
            await site.until_open(1)

            second.cancel()
            first.cancel()
            await asyncio.wait([first, second])
            site.released.set()

            assert (await third)["text"] == "here"
            assert len(fetching.services.http_places) == 0

    tell(story)


def test_redirect_takes_a_place_at_the_host_to_which_it_leads(services: ToolServices, context: ToolContext) -> None:
    async def story() -> None:
        async with running_site() as site:
            fetching = Fetching(site, services, context, http_places=HostPlaces(1, 0.05))
            first = fetching.begin(site.url("/away"))
            await site.until_open(1)

            with pytest.raises(HostBusy, match=r"other\.example"):
                await fetching.begin(site.url("/away"))
            assert (await fetching.begin(site.url("/page")))["text"] == "here"

            site.released.set()
            assert (await first)["text"] == "here"

    tell(story)


def test_host_that_drips_is_read_no_further(services: ToolServices, context: ToolContext) -> None:
    async def story() -> None:
        async with running_site() as site:
            rate = LeastRate(bytes_per_second=10_000.0, seconds=0.2)
            fetching = Fetching(site, services, context, http_least_rate=rate)

            with pytest.raises(TooSlow) as slow:
                await fetching.begin(site.url("/drip"))

            told = (
                r"slow\.example sends too slowly: expected at least 10000 bytes a second over 0\.2 s, found \d+ bytes"
            )
            assert re.search(told, slow.value.message)
            assert slow.value.retryable
            assert 0 < slow.value.details["bytes_received"] < 10_000 * slow.value.details["seconds"]
            await site.hung_up.wait()
            assert len(fetching.services.http_places) == 0

    tell(story)


@pytest.mark.parametrize(
    ("until", "now", "received", "expected"),
    [
        (10.0, 4.0, 0, 10.0),
        (10.0, 9.0, 100, 11.0),
        (10.0, 1.0, 100, 11.0),
        (10.0, 0.5, 100, 10.5),
        (10.0, 4.0, 1_000_000, 14.0),
    ],
)
def test_each_byte_buys_its_time_up_to_the_window(until: float, now: float, received: int, expected: float) -> None:
    assert LeastRate(bytes_per_second=100.0, seconds=10.0).after(until, now, received) == expected
