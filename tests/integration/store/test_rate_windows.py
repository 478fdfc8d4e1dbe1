"""When a message is let in: the same in memory, in Valkey and in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import psycopg
import pytest
import redis

from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.rate_counter import PostgresWindows, ValkeyWindows, key_of
from planq.shared.subjects.tenants.rates import LocalWindows, RateRequest, Rates, RateVerdict

PATIENCE_SECONDS = 30.0
"""The machine may be busy."""


class Checking(Protocol):
    async def check(self, requests: Sequence[RateRequest]) -> Sequence[RateVerdict]: ...


class Counted(Checking, Protocol):
    """Windows whose past can be moved: no test waits for a minute."""

    def age(self, seconds: float) -> None:
        """Let so many seconds have gone by for all that was let in."""
        ...


class InMemory:
    def __init__(self) -> None:
        self._windows = LocalWindows()

    async def check(self, requests: Sequence[RateRequest]) -> Sequence[RateVerdict]:
        return [self._windows.check(one, now=1_000.0) for one in requests]

    def age(self, seconds: float) -> None:
        for times in self._windows._by_key.values():
            for index in range(len(times)):
                times[index] -= seconds


class InValkey(ValkeyWindows):
    def __init__(self, url: str, socket_path: str) -> None:
        super().__init__(url, patience_seconds=PATIENCE_SECONDS)
        self._socket_path = socket_path

    def age(self, seconds: float) -> None:
        with redis.Redis(unix_socket_path=self._socket_path) as client:
            for key in client.scan_iter("planq:rates:*"):
                for index, time in enumerate(client.lrange(key, 0, -1)):
                    client.lset(key, index, int(time) - int(seconds * 1_000_000))


class InPostgres(PostgresWindows):
    def __init__(self, database: Database, url: str) -> None:
        super().__init__(database)
        self._url = url

    def age(self, seconds: float) -> None:
        with psycopg.connect(self._url) as connection:
            connection.execute("UPDATE rate_marks SET let_in_at = let_in_at - %s", [timedelta(seconds=seconds)])


Play = Callable[[Callable[[Counted], Awaitable[Any]]], Any]


@pytest.fixture(params=["memory", "valkey", "postgres"])
def play(request: pytest.FixtureRequest) -> Play:
    """`play(work)`: run `work(windows)` with windows of each kind."""

    async def inside(work: Callable[[Counted], Awaitable[Any]]) -> Any:
        match request.param:
            case "memory":
                return await work(InMemory())
            case "valkey":
                url = request.getfixturevalue("valkey_url")
                in_valkey = InValkey(url, str(request.getfixturevalue("valkey").socket_path))
                try:
                    return await work(in_valkey)
                finally:
                    await in_valkey.close()
            case _:
                url = request.getfixturevalue("database_url")
                async with Database(url, max_connections=4) as database:
                    return await work(InPostgres(database, url))

    for name in {"valkey": ["valkey_url"], "postgres": ["database_url"]}.get(request.param, []):
        request.getfixturevalue(name)  # not on the loop
    return lambda work: asyncio.run(inside(work))


Case = tuple[Rates, Sequence[tuple[float, str, bool, int, int]]]


async def admit(windows: Checking, tenant_id: str, channel: str, rates: Rates) -> RateVerdict:
    (verdict,) = await windows.check([RateRequest(tenant_id, channel, rates)])
    return verdict


CASES: dict[str, Case] = {
    # seconds since the one before, channel, is it let in, what remains for the tenant, and for the channel
    "a message counts for a minute": (
        Rates(2, 5),
        [(0, "web", True, 1, 4), (1, "web", True, 0, 3), (1, "web", False, 0, 3), (58, "web", True, 0, 3)],
    ),
    "a minute begins with each message": (
        Rates(2, 5),
        [(0, "web", True, 1, 4), (50, "web", True, 0, 3), (11, "web", True, 0, 3), (1, "web", False, 0, 3)],
    ),
    "a channel that refuses takes nothing of the tenant": (
        Rates(3, 1),
        [(0, "web", True, 2, 0), (1, "web", False, 2, 0), (1, "web", False, 2, 0), (1, "email", True, 1, 0)],
    ),
    "a tenant that refuses takes nothing of the channel": (
        Rates(2, 2),
        [(0, "web", True, 1, 1), (30, "sms", True, 0, 1), (1, "web", False, 0, 1), (30, "web", True, 0, 1)],
    ),
    "refusals do not prolong the wait": (
        Rates(1, 1),
        [(0, "web", True, 0, 0), *[(6, "web", False, 0, 0)] * 9, (7, "web", True, 0, 0)],
    ),
    "all of it comes back after a minute": (
        Rates(3, 3),
        [(0, "web", True, 2, 2), *[(0, "web", True, n, n) for n in (1, 0)], (61, "web", True, 2, 2)],
    ),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_messages_are_let_in_as_the_windows_slide(play: Play, case: Case) -> None:
    rates, messages = case

    async def work(windows: Counted) -> None:
        for number, (seconds, channel, *expected) in enumerate(messages):
            windows.age(seconds)
            verdict = await admit(windows, "acme", channel, rates)
            found = [verdict.is_allowed, verdict.tenant.remaining, verdict.channel.remaining]
            assert found == expected, f"message {number}"

    play(work)


def test_tenants_and_their_channels_of_one_name_stand_apart(play: Play) -> None:
    async def work(windows: Counted) -> None:
        for tenant_id in ("acme", "acme:web", "{acme}", "globex"):
            assert (await admit(windows, tenant_id, "web", Rates(1, 1))).is_allowed
            assert not (await admit(windows, tenant_id, "web", Rates(1, 1))).is_allowed

    play(work)


def test_a_verdict_says_when_a_place_is_free(play: Play) -> None:
    async def work(windows: Counted) -> None:
        first = await admit(windows, "acme", "web", Rates(3, 2))
        assert first.tenant.frees_at == first.channel.frees_at == pytest.approx(first.at + 60, abs=0.001)
        windows.age(20)
        second = await admit(windows, "acme", "web", Rates(3, 2))
        refused = await admit(windows, "acme", "web", Rates(3, 2))
        assert not refused.is_allowed
        assert refused.lets_in_at == pytest.approx(first.at + 40, abs=0.001)
        elsewhere = await admit(windows, "acme", "sms", Rates(2, 2))
        assert (elsewhere.tenant.is_full, elsewhere.channel.used) == (True, 0)
        assert elsewhere.channel.frees_at == pytest.approx(elsewhere.at, abs=0.001)
        lowered = await admit(windows, "acme", "web", Rates(1, 2))
        assert (lowered.tenant.used, lowered.tenant.remaining) == (2, 0)
        assert lowered.lets_in_at == pytest.approx(second.at + 60, abs=0.001), "both that count must have left"

    play(work)


@pytest.mark.parametrize("kind", ["valkey", "postgres"])
def test_many_at_once_never_get_in_beyond_the_limits(
    kind: str, valkey: EmbeddedValkey, valkey_url: str, database_url: str
) -> None:
    async def flood(windows: Sequence[Checking]) -> list[RateVerdict]:
        rates = Rates(100, 50)
        calls = [
            one.check(
                [
                    RateRequest(tenant_id, channel, rates)
                    for tenant_id in tenants
                    for channel in ("web", "sms", "chat")
                ]
            )
            for _ in range(20)
            for one in windows
            for tenants in (["acme", "globex"], ["globex", "acme"])
        ]
        return [verdict for verdicts in await asyncio.gather(*calls) for verdict in verdicts]

    async def work() -> Any:
        if kind == "valkey":
            both = [ValkeyWindows(valkey_url, patience_seconds=PATIENCE_SECONDS) for _ in range(2)]
            try:
                return await flood(both)
            finally:
                for one in both:
                    await one.close()
        async with Database(database_url, max_connections=4) as a, Database(database_url, max_connections=4) as b:
            return await flood([PostgresWindows(a), PostgresWindows(b)])

    verdicts: list[RateVerdict] = asyncio.run(work())

    assert sum(verdict.is_allowed for verdict in verdicts) == 2 * 100
    assert max(verdict.tenant.used for verdict in verdicts) == 100
    assert max(verdict.channel.used for verdict in verdicts) <= 50


def test_marks_of_tenants_that_send_no_more_are_removed(database_url: str) -> None:
    async def work() -> list[tuple[Any, ...]]:
        async with Database(database_url, max_connections=1) as database:
            windows = InPostgres(database, database_url)
            await admit(windows, "gone", "web", Rates(5, 5))
            windows.age(61)
            await admit(windows, "here", "web", Rates(5, 5))
            await windows.tidy()
        with psycopg.connect(database_url) as connection:
            return connection.execute("SELECT tenant_id FROM rate_marks").fetchall()

    assert asyncio.run(work()) == [("here",)]


def test_a_lease_counts_at_once_and_what_is_left_of_it_comes_back(valkey_url: str) -> None:
    async def work() -> None:
        windows = ValkeyWindows(valkey_url, patience_seconds=PATIENCE_SECONDS)
        message, other = (RateRequest("acme", channel, Rates(10, 8)) for channel in ("web", "sms"))
        found = await windows.check([message, message._replace(number=4), other, message._replace(number=9)])
        assert [(one.number, one.tenant.used, one.channel.used) for one in found] == [
            *((1, 1, 1), (4, 5, 5), (1, 6, 1)),
            (3, 9, 8),  # as many as the channel has places for
        ]
        assert [one.is_allowed for one in await windows.check([message, message._replace(number=2)])] == [
            False,
            False,
        ]
        back, again = await windows.check([message._replace(number=-2), message])
        assert (back.tenant.used, back.channel.used) == (7, 6)
        assert (again.is_allowed, again.tenant.used, again.channel.used) == (True, 8, 7)
        await windows.close()

    asyncio.run(work())


def test_valkey_forgets_tenants_that_send_no_more(valkey: EmbeddedValkey, valkey_url: str) -> None:
    async def work() -> None:
        windows = ValkeyWindows(valkey_url, patience_seconds=PATIENCE_SECONDS)
        await admit(windows, "acme", "web", Rates(5, 5))
        await windows.close()

    asyncio.run(work())
    with redis.Redis(unix_socket_path=str(valkey.socket_path)) as client:
        keys = {key_of("acme"), key_of("acme", "web")}
        assert {key.decode() for key in client.keys("*")} == keys
        assert all(0 < client.pttl(key) <= 60_000 for key in keys)
