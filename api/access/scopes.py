"""The caller of a request, found by its key, and the scopes that open each path.

A key is looked up by its digest: in the keys of the settings, then in those that the database returned a moment ago.
Only a key of the right form is looked up at all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple
from uuid import UUID

from fastapi import Depends
from starlette.requests import Request

from planq.api.access.sessions import SESSION, PageSession
from planq.api.http.exchange import HttpRefusal
from planq.shared.kernel.ids import TENANT
from planq.shared.platform.errors import Unauthorized
from planq.shared.subjects.jobs.store import AnsweredBy
from planq.shared.subjects.tenants.api_keys import EndedSessions, KnownKey, KnownKeys
from planq.shared.subjects.tenants.keys import KeyScope, is_key, is_meant_as_key, key_digest

CALLER = "planq.caller"
"""Key of the ASGI scope under which the guard puts the `Caller`; paths that need no key have none."""


class Caller(NamedTuple):
    """One who was let in; `key_id` is None where no row of `api_keys` stands behind it.

    A tuple, because every request makes one, and a frozen dataclass takes four times as long.
    """

    tenant_id: str
    scopes: frozenset[KeyScope]
    key_id: UUID | None
    key_name: str

    @property
    def sees_all_jobs(self) -> bool:
        """False for who sees of jobs those of the message flow alone: turns, tasks, and the jobs below them."""
        return KeyScope.JOBS in self.scopes

    @property
    def sees_all_questions(self) -> bool:
        """False for who sees the questions of the message flow alone."""
        return not self.scopes.isdisjoint((KeyScope.JOBS, KeyScope.APPROVE, KeyScope.ADMIN))


LOCAL = Caller(TENANT, frozenset(KeyScope), None, "")
"""Whoever asks from this machine while no key is needed."""


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Return who asks, by an ASGI scope that has passed the guard on a path that needs a key."""
    caller: Caller = scope[CALLER]
    return caller


async def _caller(request: Request) -> Caller:
    return caller_of(request.scope)


Who = Annotated[Caller, Depends(_caller)]
"""Who asks, as a parameter of a route."""


def answered_by(who: Caller, name: str | None = None, channel: str = "api", reason: str | None = None) -> AnsweredBy:
    """Return who answers over HTTP: the person whom the caller names, and the caller's own key."""
    is_operator = not who.scopes.isdisjoint((KeyScope.APPROVE, KeyScope.ADMIN))
    return AnsweredBy(name, channel, reason, who.key_id, who.key_name or None, is_operator)


_ADMIN = frozenset({KeyScope.ADMIN})


class Opening(NamedTuple):
    """Which scopes open some paths, any one of them; those `in_part` see only what is theirs (docs/scopes.md)."""

    scopes: frozenset[KeyScope]
    in_part: frozenset[KeyScope] = frozenset()
    methods: Collection[str] = ()
    """Empty: every method."""
    below: re.Pattern[str] | None = None
    """What follows the first word of the path; None: whatever it is."""


_JOBS_ALONE = Opening(frozenset({KeyScope.JOBS}))
_MESSAGES_ALONE = Opening(frozenset({KeyScope.MESSAGES}))
_CONVERSATIONS_ARE_READ = Opening(frozenset({KeyScope.MESSAGES, KeyScope.JOBS}), methods=("GET", "HEAD"))
_FLOW = frozenset({KeyScope.MESSAGES})
_TASKS = Opening(_FLOW, in_part=_FLOW)
_OF_TURNS = Opening(frozenset({KeyScope.JOBS}) | _FLOW, in_part=_FLOW, methods=("GET", "HEAD"))
_QUESTIONS = Opening(frozenset(KeyScope), in_part=_FLOW)

OPENINGS: Mapping[str, Sequence[Opening]] = {
    "manual": [Opening(frozenset(KeyScope))],
    "tenants": [Opening(_ADMIN)],
    "costs": [Opening(frozenset({KeyScope.JOBS, KeyScope.ADMIN}))],
    "metrics": [Opening(_ADMIN)],
    "statusz": [Opening(frozenset(KeyScope))],
    "messages": [_MESSAGES_ALONE],
    "chat": [_MESSAGES_ALONE],
    "conversations": [_CONVERSATIONS_ARE_READ, _MESSAGES_ALONE],
    "plans": [_JOBS_ALONE._replace(below=re.compile("/validate")), _TASKS],
    "tasks": [_TASKS],
    "agentic": [_TASKS],
    "elicitations": [_QUESTIONS],
    "artifacts": [_OF_TURNS, _JOBS_ALONE],
    "jobs": [
        Opening(_ADMIN, below=re.compile("/[^/]+/steps/[^/]+/tracebacks")),
        _OF_TURNS._replace(below=re.compile("/[^/]+/(events|elicitations|artifacts|steps/[^/]+/output)")),
        _JOBS_ALONE,
    ],
}
"""What opens the paths that begin so, the first that fits; `jobs` opens all others."""

_OTHERS = [_JOBS_ALONE]
_OF_SETTINGS = "PLANQ_API_KEYS"
_HOW = "expected the header Authorization: Bearer <key>"


class Access:
    """Finds out who asks. Without `is_required` a request that brings no key comes from this machine's own people."""

    def __init__(self, keys: Collection[str], known: KnownKeys, ended: EndedSessions, *, is_required: bool) -> None:
        """`keys` are those of the settings, which speak for the tenant `default` and have all scopes."""
        everything = Caller(TENANT, frozenset(KeyScope), None, _OF_SETTINGS)
        self._fixed = {key_digest(key): everything for key in keys}
        self._known = known
        self._ended = ended
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
        return admitted(caller, method, path)

    async def visitor(self, session: PageSession | None) -> Caller:
        """Return whose session it is, whatever the key opens; raises otherwise as `caller` does.

        A page is opened by what opens the path of the API that it shows: the one below `/ui` (`admitted`).
        """
        if not self.is_required:
            return LOCAL
        if session is None or session.digest is None:
            raise _no_session()
        if await self._ended.has(session.nonce):
            raise _no_session()
        caller = self._fixed.get(session.digest)
        if caller is None:
            found = self._known.peek(session.digest) or await self._known.find(session.digest)
            caller = caller_by(found)
        return caller

    async def digest_of(self, key: str) -> bytes:
        """Return the digest of a key that is good, for a session; raises as `caller` does."""
        digest = key_digest(key)
        if digest not in self._fixed:
            await self._caller_of(key, digest)
        return digest

    async def _caller_of(self, key: str, digest: bytes) -> Caller:
        found = self._known.peek(digest)
        if found is None:
            if not is_key(key):
                if is_meant_as_key(key):
                    raise Unauthorized("the API key is damaged: its checksum does not fit; copy it again, whole")
                raise Unauthorized(
                    "the API key is not known; expected one that begins with planq_, or one of PLANQ_API_KEYS"
                )
            found = await self._known.find(digest)
        return caller_by(found)


def _no_session() -> Unauthorized:
    return Unauthorized("expected a session, found none, or one that has ended; log in with a key")


def caller_by(found: KnownKey | None) -> Caller:
    """Return who asks with a key of the database.

    Raises `Unauthorized` for None, which nobody has stored, and for one that has ended, `HttpRefusal` (403) where its
    tenant is disabled.
    """
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


def digest_behind(scope: Mapping[str, Any]) -> bytes | None:
    """Return the digest of the key of the database that has let a request in; None where another one has, or none."""
    caller: Caller | None = scope.get(CALLER)
    if caller is None or caller.key_id is None:
        return None
    session: PageSession | None = scope.get(SESSION)
    if session is not None:
        return session.digest
    given = next(value for name, value in scope["headers"] if name == b"authorization")
    return key_digest(_key_in(given.decode("latin-1")))


def admitted(caller: Caller, method: str, path: str) -> Caller:
    """Return the caller; raises `HttpRefusal` (403) where none of the key's scopes opens the path."""
    needed = opening_of(method, path).scopes
    if needed.isdisjoint(caller.scopes):
        raise _insufficient(caller, needed)
    return caller


def opening_of(method: str, path: str) -> Opening:
    end = path.find("/", 1)
    first, below = (path[1:], "") if end < 0 else (path[1:end], path[end:])
    for one in OPENINGS.get(first, _OTHERS):
        if (not one.methods or method in one.methods) and (one.below is None or one.below.fullmatch(below)):
            return one
    return _JOBS_ALONE


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


def _insufficient(caller: Caller, needed: frozenset[KeyScope]) -> HttpRefusal:
    wanted, has = sorted(needed), ", ".join(sorted(caller.scopes))
    message = f"this needs a key with the scope {' or '.join(wanted)}; the key {caller.key_name!r} has {has}"
    challenge = f'Bearer realm="planq", error="insufficient_scope", scope="{" ".join(wanted)}"'
    return HttpRefusal(403, "insufficient_scope", message, headers={"WWW-Authenticate": challenge})
