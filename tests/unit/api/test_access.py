"""Who asks by which key, and what the scopes of a key open."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from planq.api.access.scopes import LOCAL, Access, Caller, opening_of
from planq.api.http.exchange import HttpRefusal
from planq.shared.platform.errors import DatabaseUnavailable, Unauthorized
from planq.shared.subjects.tenants.api_keys import KnownKey
from planq.shared.subjects.tenants.keys import KeyScope, key_digest, new_key

KEY, UNKNOWN = new_key(bytes(32)), new_key(b"\x01" * 32)
GOOD = KnownKey(UUID(int=7), "acme", "ci", frozenset({KeyScope.JOBS}), None, False)
ALL = frozenset(KeyScope)

OPENED_BY = {
    "GET /jobs": "jobs",
    "POST /jobs": "jobs",
    "POST /plans/validate": "jobs",
    "GET /tools": "jobs",
    "GET /nothing": "jobs",
    "GET /elicitations": "admin approve jobs messages",
    "POST /elicitations/x": "admin approve jobs messages",
    "GET /": "jobs",
    "GET /metrics": "admin",
    "GET /tenants": "admin",
    "PUT /tenants/acme": "admin",
    "PATCH /tenants/acme": "admin",
    "POST /tenants/acme/keys": "admin",
    "POST /messages/inbound": "messages",
    "GET /conversations": "jobs messages",
    "GET /conversations/x/messages": "jobs messages",
    "DELETE /conversations/x": "messages",
    "GET /plans": "messages",
    "POST /tasks/x/resume": "messages",
    "GET /agentic/x": "messages",
    "GET /jobs/x": "jobs",
    "GET /jobs/x/events": "jobs messages",
    "GET /jobs/x/artifacts": "jobs messages",
    "GET /jobs/x/steps/0/output": "jobs messages",
    "GET /jobs/x/steps": "jobs",
    "POST /jobs/x/steps/0/output": "jobs",
    "GET /jobs/x/messages": "jobs",
    "GET /artifacts/a/b": "jobs messages",
    "GET /events": "jobs",
}


class KnownKeys:
    """The keys that the database would know; None for a database that is away."""

    def __init__(self, keys: dict[str, KnownKey] | None) -> None:
        self._keys = None if keys is None else {key_digest(key): known for key, known in keys.items()}
        self.asked = 0

    def peek(self, digest: bytes) -> KnownKey | None:
        return None

    async def find(self, digest: bytes) -> KnownKey | None:
        self.asked += 1
        if self._keys is None:
            raise DatabaseUnavailable("away")
        return self._keys.get(digest)


class EndedSessions:
    """The sessions that somebody has ended."""

    async def has(self, nonce: bytes) -> bool:
        return False


def caller(authorization: str | None, known: KnownKey | None = GOOD, path: str = "/jobs", **given: Any) -> Caller:
    keys = KnownKeys({} if known is None else {KEY: known})
    access = Access(given.get("keys", ()), keys, EndedSessions(), is_required=given.get("is_required", True))
    return asyncio.run(access.caller("GET", path, authorization))


@pytest.mark.parametrize("operation", OPENED_BY)
def test_every_path_is_opened_by_its_scopes_alone(operation: str) -> None:
    method, path = operation.split()

    assert " ".join(sorted(opening_of(method, path).scopes)) == OPENED_BY[operation]


def test_a_key_says_who_asks() -> None:
    for text in (f"Bearer {KEY}", f"bearer   {KEY} ", f"  BEARER {KEY}"):
        assert caller(text) == Caller("acme", GOOD.scopes, GOOD.id, "ci")


def test_keys_of_the_settings_are_the_default_tenants_with_all_scopes_and_are_looked_for_nowhere() -> None:
    known = KnownKeys(None)
    access = Access(["one", "two"], known, EndedSessions(), is_required=True)

    found = asyncio.run(access.caller("GET", "/tenants", "Bearer two"))

    assert (found.tenant_id, found.scopes, found.key_id) == ("default", ALL, None)
    assert known.asked == 0


def test_without_keys_who_brings_none_is_local_and_who_brings_one_is_its_tenant() -> None:
    assert caller(None, is_required=False) == LOCAL
    assert caller(f"Bearer {KEY}", is_required=False).tenant_id == "acme"
    with pytest.raises(Unauthorized, match="not known"):
        caller(f"Bearer {UNKNOWN}", is_required=False)  # never taken for the default tenant


@pytest.mark.parametrize(
    ("authorization", "known", "told"),
    [
        (None, GOOD, "found no such header"),
        ("", GOOD, "another scheme"),
        ("Basic abc", GOOD, "another scheme"),
        (KEY, GOOD, "another scheme"),
        ("Bearer", GOOD, "empty key"),
        ("Bearer   ", GOOD, "empty key"),
        (f"Bearer {KEY[:-1]}", GOOD, "checksum"),
        (f"Bearer {KEY} {KEY}", GOOD, "checksum"),
        ("Bearer planq_", GOOD, "checksum"),
        ("Bearer sk-other", GOOD, "begins with planq_"),
        ("Bearer \xff\x00", GOOD, "begins with planq_"),
        (f"Bearer {KEY}", None, "not known"),
        (f"Bearer {UNKNOWN}", GOOD, "not known"),
        (f"Bearer {KEY}", replace(GOOD, ended="revoked"), "'ci' is revoked"),
        (f"Bearer {KEY}", replace(GOOD, ended="expired"), "'ci' is expired"),
        (f"Bearer {KEY}", replace(GOOD, ended="revoked", is_disabled=True), "'ci' is revoked"),
    ],
)
def test_what_is_no_good_key_is_refused_with_what_is_wrong_with_it(
    authorization: str | None, known: KnownKey | None, told: str
) -> None:
    with pytest.raises(Unauthorized, match=told) as refused:
        caller(authorization, known)
    assert KEY not in str(refused.value)


def test_only_a_key_of_the_right_form_is_looked_for() -> None:
    known = KnownKeys(None)
    access = Access((), known, EndedSessions(), is_required=True)

    for text in (f"Bearer {KEY[:-1]}", "Bearer sk-other", "Bearer", "Basic x"):
        with pytest.raises(Unauthorized):
            asyncio.run(access.caller("GET", "/jobs", text))
    assert known.asked == 0
    with pytest.raises(DatabaseUnavailable):
        asyncio.run(access.caller("GET", "/jobs", f"Bearer {KEY}"))


def test_a_key_without_the_scope_and_a_disabled_tenant_are_forbidden() -> None:
    for path, wanted in (("/tenants", "admin"), ("/messages/inbound", "messages")):
        with pytest.raises(HttpRefusal) as refused:
            caller(f"Bearer {KEY}", path=path)
        assert (refused.value.status_code, refused.value.code) == (403, "insufficient_scope")
        assert f"the scope {wanted}; the key 'ci' has jobs" in refused.value.detail
        assert f'scope="{wanted}"' in (refused.value.headers or {})["WWW-Authenticate"]
    with pytest.raises(HttpRefusal) as refused:
        caller(f"Bearer {KEY}", replace(GOOD, is_disabled=True))
    assert (refused.value.status_code, refused.value.code) == (403, "tenant_disabled")
