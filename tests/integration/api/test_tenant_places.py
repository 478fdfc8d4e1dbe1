"""Streams and waits of a tenant: bounded over all API processes, and one tenant's are no other's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from planq.api.access.places import Kind, Places
from planq.api.http.exchange import HttpRefusal
from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.config import read_tenant_config
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.keys import KeyScope
from planq.shared.subjects.tenants.places import PlaceKey, PlaceStore
from tests.integration.api.conftest import Api, MakeApi, problem_of
from tests.support.waiting import eventually

SAID = {"tenant_id": "default", "channel": "api", "from": {"external_id": "ann"}, "content": {"text": "hello"}}
KEY = PlaceKey("default", "streams")


@contextmanager
def following(api: Api, headers: dict[str, str] | None = None) -> Iterator[httpx.Response]:
    """Follow all events of a tenant; the answer has begun."""
    with httpx.stream("GET", f"{api.url}/events", timeout=30, trust_env=False, headers=headers) as response:
        assert response.status_code == 200, response.read()
        yield response


def configured(make_api: MakeApi, **config: Any) -> tuple[Api, Api]:
    """Return two API processes of one database, whose tenant has this configuration."""
    first = make_api()
    first.jobs.configure(**config)
    return make_api(), make_api()


def key_of(api: Api, tenant_id: str) -> dict[str, str]:
    """Return the header of a key that speaks for a tenant, which is new unless it is the default one."""

    async def work(database: Database) -> str:
        if tenant_id != "default":
            await TenantStore(database).create(tenant_id, "", read_tenant_config({}))
        scopes = frozenset({KeyScope.JOBS})
        return (await ApiKeyStore(database).create(tenant_id, "t", scopes, None))[1]

    return {"Authorization": f"Bearer {api.jobs.run(work)}"}


def test_streams_of_a_tenant_are_bounded_over_all_processes(make_api: MakeApi) -> None:
    here, there = configured(make_api, max_streams=3)
    with following(here) as first, ExitStack() as later:
        assert (first.headers["x-ratelimit-streams-limit"], first.headers["x-ratelimit-streams-remaining"]) == (
            "3",
            "2",
        )
        second = later.enter_context(following(here))
        assert second.headers["x-ratelimit-streams-remaining"] == "1"
        with following(there) as third:
            assert third.headers["x-ratelimit-streams-remaining"] == "0"
            for api in (here, there):
                refused = api.http.get("/events")
                told = problem_of(refused, 429, "too_many_tenant_streams")
                assert "at most 3 streams of this tenant at once" in told["detail"]
                assert refused.headers["x-ratelimit-streams-remaining"] == "0"
                assert refused.headers["retry-after"]
        later.close()
        eventually(lambda: is_let_in(there), what="places that were given up here are free there")


def is_let_in(api: Api) -> bool:
    with httpx.stream("GET", f"{api.url}/events", timeout=30, trust_env=False) as response:
        return response.status_code == 200


def test_one_tenants_streams_take_no_place_from_another(make_api: MakeApi) -> None:
    """Seen: 20 streams of one tenant, all that a process serves, gave another one 503."""
    api = make_api(max_streams=20, require_keys=True)
    crowd, lone = key_of(api, "default"), key_of(api, "lone")
    with ExitStack() as open_streams:
        crowded = [open_streams.enter_context(following(api, crowd)) for _ in range(20)]
        problem_of(api.http.get("/events", headers=crowd), 503, "too_many_streams")

        with following(api, lone):
            assert crowded[-1].read() is not None, "the newest of the crowd makes room, and ends"
            eventually(lambda: len(api.app.state.services.streams) == 20)
            problem_of(api.http.get("/events", headers=crowd), 503, "too_many_streams")
            with following(api, lone):
                pass


def test_waits_of_a_tenant_are_bounded_over_all_processes(make_api: MakeApi) -> None:
    here, there = configured(make_api, max_waits=1)
    job = here.submit()["id"]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(here.http.get, f"/jobs/{job}?wait=30")
        eventually(lambda: here.waiting() == 1)
        eventually(lambda: held(here, "waits") == 1)

        refused = there.http.get(f"/jobs/{job}?wait=30")
        problem_of(refused, 429, "too_many_tenant_waits")
        assert refused.headers["x-ratelimit-waits-limit"] == "1"
        assert there.http.get(f"/jobs/{job}").status_code == 200, "who does not wait needs no place"

        here.jobs.complete(job, notify=True)
        assert waiting.result().json()["status"] == "completed"
    assert there.http.get(f"/jobs/{job}?wait=30").status_code == 200, "nobody waits for a job that has ended"


def test_a_job_that_nobody_may_wait_for_any_more_is_accepted_all_the_same(make_api: MakeApi) -> None:
    here, there = configured(make_api, max_waits=1)
    job = here.submit()["id"]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(here.http.get, f"/jobs/{job}?wait=30")
        eventually(lambda: held(here, "waits") == 1)

        accepted = there.http.post("/jobs?wait=30", json={"input": "x"})
        assert (accepted.status_code, accepted.json()["status"]) == (202, "queued")

        here.jobs.complete(job, notify=True)
        assert waiting.result().json()["status"] == "completed"


def held(api: Api, kind: str) -> int:
    rows = api.jobs.execute("SELECT coalesce(sum(held), 0) AS held FROM tenant_places WHERE kind = %s", kind)
    return int(rows[0]["held"])


def test_a_message_without_a_place_to_wait_is_taken_and_answered_at_once(make_api: MakeApi) -> None:
    here, there = configured(make_api, max_waits=1)
    job = here.submit()["id"]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(here.http.get, f"/jobs/{job}?wait=30")
        eventually(lambda: held(here, "waits") == 1)

        taken = there.http.post("/messages/inbound", json=SAID)

        assert (taken.status_code, taken.json()["status"]) == (202, "queued"), taken.text
        here.jobs.complete(job, notify=True)
        waiting.result()


def test_processes_that_take_places_at_once_get_no_more_than_there_are(database_url: str) -> None:
    async def story() -> list[int]:
        database = Database(database_url, max_connections=8)
        async with database:
            stores = [PlaceStore(database, new_id(), 60.0) for _ in range(16)]
            taken = await asyncio.gather(*(store.take(KEY, held=0, wanted=2, most=7) for store in stores))
        return [number for number, _ in taken]

    assert sum(asyncio.run(story())) == 7


def test_the_places_of_a_process_that_died_are_free_when_its_lease_is_over(database_url: str) -> None:
    async def story() -> tuple[int, int, int]:
        async with Database(database_url, max_connections=4) as database:
            alive, dead = PlaceStore(database, new_id(), 60.0), PlaceStore(database, new_id(), 0.0)
            other = PlaceStore(database, new_id(), 60.0)
            await dead.take(KEY, held=0, wanted=5, most=5)
            first, _ = await alive.take(KEY, held=0, wanted=5, most=5)
            second, elsewhere = await other.take(KEY, held=0, wanted=1, most=5)
            await dead.forget()
            return first, second, elsewhere

    assert asyncio.run(story()) == (5, 0, 5)


def test_what_a_process_gives_up_is_free_for_others(database_url: str) -> None:
    async def story() -> tuple[int, int]:
        async with Database(database_url, max_connections=4) as database:
            one, other = PlaceStore(database, new_id(), 60.0), PlaceStore(database, new_id(), 60.0)
            await one.take(KEY, held=0, wanted=5, most=5)
            await one.keep({KEY: 2})
            some, _ = await other.take(KEY, held=0, wanted=5, most=5)
            await one.keep({})
            return some, (await other.take(KEY, held=some, wanted=5, most=5))[0]

    assert asyncio.run(story()) == (3, 5)


def test_callers_that_go_while_they_ask_leave_no_place_taken(database_url: str) -> None:
    async def story() -> None:
        async with Database(database_url, max_connections=4) as database:
            places = Places(PlaceStore(database, new_id(), 60.0))
            asking = [asyncio.create_task(places.take(Kind.STREAMS, "default", 5)) for _ in range(5)]
            await asyncio.sleep(0)
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            await places.say()
            told = [await places.take(Kind.STREAMS, "default", 5) for _ in range(5)]
            assert told[-1]["X-RateLimit-Streams-Remaining"] == "0"
            with pytest.raises(HttpRefusal):
                await places.take(Kind.STREAMS, "default", 5)

    asyncio.run(story())


class GatedStore(PlaceStore):
    """Asks the database once it may."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, new_id(), 60.0)
        self.asked, self.may_go_on = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def take(self, key: PlaceKey, *, held: int, wanted: int, most: int) -> tuple[int, int]:
        self.asked.release()
        await self.may_go_on.acquire()
        return await super().take(key, held=held, wanted=wanted, most=most)


def test_a_spare_place_that_goes_while_the_database_is_asked_refuses_nobody(database_url: str) -> None:
    async def story() -> None:
        async with Database(database_url, max_connections=4) as database:
            store = GatedStore(database)
            places = Places(store)
            store.may_go_on.release()
            await places.take(Kind.WAITS, "default", 10)
            await store.asked.acquire()
            leader = asyncio.create_task(places.take(Kind.WAITS, "default", 10))
            await store.asked.acquire()
            others = [asyncio.create_task(places.take(Kind.WAITS, "default", 10)) for _ in range(2)]
            await asyncio.sleep(0)
            places.give(Kind.WAITS, "default")
            store.may_go_on.release()
            await leader
            await store.asked.acquire()  # for one place, beside the one to spare
            await places.take(Kind.WAITS, "default", 10)
            for _ in range(2):
                store.may_go_on.release()

            told = await asyncio.gather(*others)

            assert {one["X-RateLimit-Waits-Limit"] for one in told} == {"10"}

    asyncio.run(story())


def test_without_its_database_a_process_counts_for_itself() -> None:
    async def story() -> None:
        database = Database("postgresql://nobody@127.0.0.1:1/none", max_connections=2, timeout_seconds=0.1)
        await database.open(wait=False)
        places = Places(PlaceStore(database, new_id(), 60.0))
        for _ in range(2):
            await places.take(Kind.STREAMS, "default", 2)
        with pytest.raises(HttpRefusal):
            await places.take(Kind.STREAMS, "default", 2)
        places.give(Kind.STREAMS, "default")
        await places.take(Kind.STREAMS, "default", 2)
        await database.close()

    asyncio.run(story())
