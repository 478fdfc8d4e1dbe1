"""Who asks, by the key of a request, and what the scopes of a key open.

A key is known by its digest: one dictionary for the keys of the settings, one for those that the database named a
moment ago. Only a key of the right form is ever looked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from api.callers import LOCAL, Caller
from api.http import HttpRefusal
from shared.domain.errors import Unauthorized
from shared.domain.jobs.ids import TENANT
from shared.domain.tenants.keys import KeyScope, is_key, is_meant_as_key, key_digest
from shared.store.api_keys import KnownKey

_JOBS = frozenset({KeyScope.JOBS})
_MESSAGES = frozenset({KeyScope.MESSAGES})
_ADMIN = frozenset({KeyScope.ADMIN})
_QUESTIONS = _JOBS | frozenset({KeyScope.APPROVE}) | _ADMIN

SCOPES_BELOW: Mapping[str, frozenset[KeyScope]] = {
    "tenants": _ADMIN,
    "metrics": _ADMIN,
    "messages": _MESSAGES,
    "conversations": _MESSAGES,
    "plans": _MESSAGES,
    "tasks": _MESSAGES,
    "agentic": _MESSAGES,
    "elicitations": _QUESTIONS,
}
"""Which scopes open the paths that begin so, any one of them; `jobs` opens all others."""

_OF_SETTINGS = "PLANQ_API_KEYS"
_HOW = "expected the header Authorization: Bearer <key>"


class FindsKeys(Protocol):
    """What knows the keys of the database (`KnownKeys`)."""

    def at_hand(self, digest: bytes) -> KnownKey | None:
        """Return the key of a digest if it is in use; None says nothing of it."""
        ...

    async def find(self, digest: bytes) -> KnownKey | None:
        """Return the key of a digest, None for one that nobody has stored; raises `DatabaseUnavailable`."""
        ...


class Access:
    """Finds out who asks. Without `is_required` a request that brings no key comes from this machine's own people."""

    def __init__(self, keys: Collection[str], known: FindsKeys, *, is_required: bool) -> None:
        """`keys` are those of the settings, which speak for the tenant `default` and have all scopes."""
        everything = Caller(TENANT, frozenset(KeyScope), None, _OF_SETTINGS)
        self._fixed = {key_digest(key): everything for key in keys}
        self._known = known
        self.is_required = is_required

    async def caller(self, method: str, path: str, authorization: str | None) -> Caller:
        """Return who asks for a path with this header field, None for no such field.

        Raises `Unauthorized` unless it is a key that is good, `HttpRefusal` (403) where the key's scopes do not open
        the path, or its tenant is disabled, and `DatabaseUnavailable` where a key would have to be looked for.
        """
        if authorization is None and not self.is_required:
            return LOCAL
        key = _key_in(authorization)
        digest = key_digest(key)
        caller = self._fixed.get(digest) or await self._caller_of(key, digest)
        needed = scopes_for(method, path)
        if needed.isdisjoint(caller.scopes):
            raise _insufficient(caller, needed)
        return caller

    async def _caller_of(self, key: str, digest: bytes) -> Caller:
        found = self._known.at_hand(digest)
        if found is None:
            if not is_key(key):
                raise _malformed(key)
            found = await self._known.find(digest)
        if found is None:
            raise Unauthorized("the API key is not known; expected one that `planq keys create` has made here")
        if found.ended is not None:
            # Only who holds the key is told so: nobody comes upon 256 bits by chance.
            raise Unauthorized(f"the API key {found.name!r} is {found.ended}; ask your operator for another one")
        if found.is_disabled:
            raise HttpRefusal(
                403, "tenant_disabled", f"the tenant {found.tenant_id!r} is disabled; its operator can enable it"
            )
        return Caller(found.tenant_id, found.scopes, found.id, found.name)


def scopes_for(method: str, path: str) -> frozenset[KeyScope]:
    """Return the scopes that open a path, any one of them."""
    end = path.find("/", 1)
    first = path[1:] if end < 0 else path[1:end]
    needed = SCOPES_BELOW.get(first, _JOBS)
    if needed is _MESSAGES:
        if method == "GET" and first == "conversations":
            return _MESSAGES | _JOBS
        if path == "/plans/validate":  # of plans as jobs have them
            return _JOBS
    return needed


def _key_in(authorization: str | None) -> str:
    """Return the key of the header field; raises `Unauthorized` where there is none."""
    if authorization is None:
        raise Unauthorized(f"{_HOW}, found no such header")
    scheme, _, given = authorization.strip().partition(" ")
    key = given.strip()
    if scheme.lower() != "bearer":
        raise Unauthorized(f"{_HOW}, found another scheme than Bearer")
    if not key:
        raise Unauthorized(f"{_HOW}, found an empty key")
    return key


def _malformed(key: str) -> Unauthorized:
    if is_meant_as_key(key):
        return Unauthorized("the API key is damaged: its checksum does not fit; copy it again, whole")
    return Unauthorized("the API key is not known; expected one that begins with planq_, or one of PLANQ_API_KEYS")


def _insufficient(caller: Caller, needed: frozenset[KeyScope]) -> HttpRefusal:
    wanted, has = sorted(needed), ", ".join(sorted(caller.scopes))
    told = f"this needs a key with the scope {' or '.join(wanted)}; the key {caller.key_name!r} has {has}"
    challenge = f'Bearer realm="planq", error="insufficient_scope", scope="{" ".join(wanted)}"'
    return HttpRefusal(403, "insufficient_scope", told, headers={"WWW-Authenticate": challenge})
