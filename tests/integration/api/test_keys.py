"""Keys of the database on running applications: who may ask, for which tenant, and when no more."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.api_keys import ApiKeyStore, StoredKey
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.keys import KeyScope, new_key
from tests.integration.api.conftest import Api, MakeApi, problem_of
from tests.support.clock import move_clock
from tests.support.outage import closed
from tests.support.waiting import eventually

JOBS = frozenset({KeyScope.JOBS})
UNKNOWN = new_key(bytes(32))


def tenant(api: Api, tenant_id: str, **changed: Any) -> None:
    """Create a tenant."""

    async def work(database: Database) -> None:
        await TenantStore(database).create(tenant_id, "", TenantConfig())
        if changed:
            await TenantStore(database).change(tenant_id, **changed)

    api.jobs.run(work)


def key(api: Api, tenant_id: str, *, lifetime: timedelta | None = None) -> tuple[StoredKey, dict[str, str]]:
    """Make a key of a tenant; return it with the header that brings it."""
    made: tuple[StoredKey, str] = api.jobs.run(
        lambda database: ApiKeyStore(database).create(tenant_id, "ci", JOBS, lifetime)
    )
    return made[0], bearer(made[1])


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def revoke(api: Api, stored: StoredKey) -> None:
    api.jobs.run(lambda database: ApiKeyStore(database).revoke(stored.tenant_id, stored.id))


def status(api: Api, headers: Mapping[str, str], path: str = "/jobs") -> int:
    return api.http.get(path, headers=dict(headers)).status_code


def used_at(api: Api, stored: StoredKey) -> Any:
    (row,) = api.jobs.execute("SELECT last_used_at FROM api_keys WHERE id = %s", stored.id)
    return row["last_used_at"]


def test_each_key_sees_its_own_tenants_jobs_and_no_key_those_of_the_default(make_api: MakeApi) -> None:
    api = make_api()
    tenant(api, "acme")
    _, acme = key(api, "acme")

    api.submit({"input": "of nobody"})
    api.submit({"input": "of acme"}, **acme)

    inputs = [one["input"] for one in api.http.get("/jobs", headers=acme).json()["items"]]
    assert inputs == ["of acme"]
    assert [one["input"] for one in api.http.get("/jobs").json()["items"]] == ["of nobody"]
    rows = api.jobs.execute("SELECT tenant_id FROM jobs ORDER BY tenant_id")
    assert [row["tenant_id"] for row in rows] == ["acme", "default"]


def test_where_keys_are_required_those_of_database_and_settings_open_and_nothing_else(make_api: MakeApi) -> None:
    api = make_api(require_keys=True)
    with_settings = make_api(api_keys="one")
    _, default = key(api, "default")

    for one in (api, with_settings):
        assert status(one, default) == 200
        problem_of(one.http.get("/jobs"), 401, "unauthorized")
        for wrong in ("planq_", "one two", UNKNOWN, next(iter(default.values()))[7:-1]):
            problem_of(one.http.get("/jobs", headers=bearer(wrong)), 401, "unauthorized")
        problem_of(one.http.get("/jobs", headers={"Authorization": "Bearer"}), 401, "unauthorized")
        assert status(one, {}, "/healthz") == 200
    assert (status(api, bearer("one")), status(with_settings, bearer("one"))) == (401, 200)
    problem_of(api.http.get("/tenants", headers=default), 403, "insufficient_scope")


def test_a_revoked_key_is_refused_by_every_application_while_it_is_in_use(make_api: MakeApi) -> None:
    first, second = make_api(), make_api()
    stored, headers = key(first, "default")
    _, other = key(first, "default")
    assert [status(api, headers) for api in (first, second, first)] == [200, 200, 200]

    revoke(first, stored)

    for api in (first, second):
        eventually(lambda: status(api, headers) == 401, what="it is refused")  # noqa: B023
        told = problem_of(api.http.get("/jobs", headers=headers), 401, "unauthorized")["detail"]
        assert told == "the API key 'ci' is revoked; ask your operator for another one"
        assert status(api, other) == 200  # as rotation needs it


def test_an_expired_key_is_refused(make_api: MakeApi) -> None:
    api = make_api()
    _, headers = key(api, "default", lifetime=timedelta(hours=1))
    assert status(api, headers) == 200

    api.jobs.run(lambda database: move_clock(database, timedelta(hours=2)))

    eventually(lambda: status(api, headers) == 401, what="it is refused")
    assert "is expired" in api.http.get("/jobs", headers=headers).json()["detail"]


def test_a_disabled_tenants_key_is_refused_until_it_is_enabled(make_api: MakeApi) -> None:
    api = make_api()
    tenant(api, "acme", is_disabled=True)
    _, headers = key(api, "acme")

    problem_of(api.http.get("/jobs", headers=headers), 403, "tenant_disabled")
    api.jobs.run(lambda database: TenantStore(database).change("acme", is_disabled=False))

    eventually(lambda: status(api, headers) == 200, what="it is let in")


def test_use_is_noted_once_a_minute_of_keys_that_are_good(make_api: MakeApi) -> None:
    api = make_api()
    stored, headers = key(api, "default")
    never, bad = key(api, "default")
    revoke(api, never)

    assert (status(api, headers), status(api, bad)) == (200, 401)
    first = eventually(lambda: used_at(api, stored), what="its use is noted")
    api.jobs.run(lambda database: move_clock(database, timedelta(seconds=50)))
    assert api.jobs.run(lambda database: noted(database, stored)) == 0
    api.jobs.run(lambda database: move_clock(database, timedelta(seconds=70)))

    eventually(lambda: status(api, headers) == 200 and used_at(api, stored) > first, what="it is noted again")
    assert used_at(api, never) is None


async def noted(database: Database, stored: StoredKey) -> int:
    return await database.execute("note_api_key_use", tenant_id=stored.tenant_id, id=stored.id)


def test_while_the_database_is_away_a_key_is_not_taken_on_trust(make_api: MakeApi) -> None:
    api = make_api(api_keys="one", database_timeout_seconds=0.3)
    _, headers = key(api, "default")
    assert status(api, headers, "/nothing") == 404

    with closed(api.settings.database_url):
        eventually(lambda: status(api, headers, "/nothing") == 503, what="what was known is too old")
        problem_of(api.http.get("/nothing", headers=headers), 503, "database_unavailable")
        problem_of(api.http.get("/nothing", headers=bearer(UNKNOWN)), 503, "database_unavailable")
        problem_of(api.http.get("/nothing", headers=bearer("damaged")), 401, "unauthorized")
        assert status(api, bearer("one"), "/nothing") == 404  # the settings need no database

    eventually(lambda: status(api, headers, "/nothing") == 404, what="the database is used again")


def test_no_log_and_no_row_shows_a_key(make_api: MakeApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    api = make_api()
    stored, headers = key(api, "default")
    text = headers["Authorization"].removeprefix("Bearer ")

    answers = [api.http.get("/jobs", headers=headers), api.http.get("/jobs", headers=bearer(f"{text}x"))]
    with closed(api.settings.database_url):
        eventually(lambda: status(api, headers) == 503, what="what was known is too old")
    rows = eventually(lambda: rows_of(api), what="the database is back")

    assert isinstance(stored.id, UUID)
    assert text.startswith(stored.prefix)
    told = "\n".join([*(repr(vars(record)) for record in caplog.records), *rows, *(one.text for one in answers)])
    assert text[len(stored.prefix) :] not in told


def rows_of(api: Api) -> list[str]:
    try:
        return [str(row) for row in api.jobs.execute("SELECT k::text, digest::text FROM api_keys k")]
    except Exception:
        return []
